package config

import (
	"strings"
	"time"

	"llmops/pipeline"
	"llmops/serving/scale"
)

type scaleFile struct {
	Min      scalar `yaml:"min"`
	Max      scalar `yaml:"max"`
	Streams  scalar `yaml:"streams"`
	KV       scalar `yaml:"kv"`
	Burn     scalar `yaml:"burn"`
	Up       scalar `yaml:"up"`
	Down     scalar `yaml:"down"`
	Ahead    scalar `yaml:"ahead"`
	Zone     scalar `yaml:"zone"`
	Schedule []struct {
		Days scalar `yaml:"days"`
		From scalar `yaml:"from"`
		To   scalar `yaml:"to"`
		Min  scalar `yaml:"min"`
	} `yaml:"schedule"`
}

// scale reads how replicas follow the load; nil: their number stays.
func (f *file) scale(r *reader, place pipeline.Placement) *scale.Policy {
	s := f.Scale
	if s == nil {
		return nil
	}
	p := &scale.Policy{
		Min: r.integer("scale.min", s.Min, place.Replicas), Max: r.integer("scale.max", s.Max, 0),
		Streams: r.number("scale.streams", s.Streams, 0), KV: r.part("scale.kv", s.KV, 0), Burn: r.times("scale.burn", s.Burn, 1),
		Up: r.span("scale.up", s.Up, 3*time.Minute), Down: r.span("scale.down", s.Down, 15*time.Minute), Ahead: r.duration("scale.ahead", s.Ahead, 0),
		Loads: place.Loads, Zone: r.text(s.Zone, "UTC"),
	}
	if !s.Burn.set() {
		p.Burn = 0
	}
	if _, err := time.LoadLocation(p.Zone); err != nil {
		r.complain(s.Zone, "scale.zone: %v; want a name such as Europe/Berlin", err)
	}
	for _, w := range s.Schedule {
		p.Schedule = append(p.Schedule, scale.Window{
			Days: r.days("scale.schedule.days", w.Days), From: r.clock("scale.schedule.from", w.From), To: r.clock("scale.schedule.to", w.To),
			Min: r.integer("scale.schedule.min", w.Min, 0),
		})
	}
	if len(r.errs) > 0 {
		return p
	}
	if err := p.Check(); err != nil {
		r.complain(cmpSet(s.Max, cmpSet(s.Min, s.Streams)), "scale: %v", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return p
}

// clock reads "07:30" as the time since midnight, up to "24:00".
func (r *reader) clock(key string, s scalar) time.Duration {
	t, err := time.Parse("15:04", s.text)
	switch {
	case s.text == "24:00":
		return 24 * time.Hour
	case !s.set():
		r.missing(key, "as \"07:30\"")
	case err != nil:
		r.complain(s, "%s is %q, want a time such as \"07:30\"", key, s.text)
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// days reads "mon-fri", "sat" or "sat,sun"; unset: all.
func (r *reader) days(key string, s scalar) (out [7]bool) {
	if !s.set() {
		return [7]bool{true, true, true, true, true, true, true}
	}
	index := func(name string) int {
		for i, d := range weekdays {
			if d == strings.TrimSpace(name) {
				return i
			}
		}
		return -1
	}
	for part := range strings.SplitSeq(s.text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, to := index(first), index(last)
		if !ranged {
			to = from
		}
		if from < 0 || to < 0 {
			r.complain(s, "%s is %q, want days such as mon-fri or sat,sun", key, s.text)
			return out
		}
		for d := from; ; d = (d + 1) % 7 {
			out[d] = true
			if d == to {
				break
			}
		}
	}
	return out
}
