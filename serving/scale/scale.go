// Package scale decides how many replicas each version of a model shall have.
//
// [Step] is pure: what was seen of an alias's arms and when go in, with a [State] it
// keeps between calls; changes of counts come out, each with its reason. It follows
// requests that run and wait, the share of the KV cache in use, the burn of the TTFT
// budget and a schedule, and never a GPU's "utilisation", which is high in a healthy
// decode and says nothing of room. What is not known is never a reason to shrink.
//
// Growth is at once, at most doubles, and starts no more replicas at a time than may
// read their weights from one store together; shrinking goes one replica at a time, when
// the highest want of a whole window stayed below. A standby is sized to take over
// what is live and is never scaled away. While a run moves traffic or a drain moves
// replicas nothing shrinks.
package scale

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Policy is how one alias scales. A target of 0 is not looked at.
type Policy struct {
	Min      int           `json:"min"`                // replicas of the live version
	Max      int           `json:"max"`                // of any version
	Streams  float64       `json:"streams,omitempty"`  // requests running and waiting that a replica shall have
	KV       float64       `json:"kv,omitempty"`       // share of the KV cache that shall be in use, 0 to 1
	Burn     float64       `json:"burn,omitempty"`     // multiple of the TTFT budget from which one replica more is wanted
	Up       time.Duration `json:"up"`                 // pause after a change before the next growth
	Down     time.Duration `json:"down"`               // how long the want must stay below the count
	Loads    int           `json:"loads,omitempty"`    // replicas of an arm that may start at once; 0: any number
	Ahead    time.Duration `json:"ahead,omitempty"`    // how long before a window its replicas start: a cold start
	Schedule []Window      `json:"schedule,omitempty"` // floors by time of day
	Zone     string        `json:"zone,omitempty"`     // the schedule's time zone; empty: UTC
}

// Window is a floor from From to To, since midnight, on Days, counted from Sunday. One
// that ends before it begins goes on past midnight.
type Window struct {
	Days [7]bool       `json:"days"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
	Min  int           `json:"min"`
}

func (w Window) String() string {
	clock := func(d time.Duration) string { return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60) }
	return clock(w.From) + " to " + clock(w.To)
}

// slack is how far a signal may be from its target before anything is done about it.
const slack = 0.1

// spare is the room that a standby has above what is needed.
const spare = 1.1

// ErrPolicy reports a policy that cannot be followed.
var ErrPolicy = errors.New("scaling policy")

// Check reports everything that is wrong with the policy.
func (p Policy) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Min < 1 {
		bad("min is %d, want 1 or more: nothing that is live is scaled away", p.Min)
	}
	if p.Max < p.Min {
		bad("max is %d, below min %d", p.Max, p.Min)
	}
	if p.Streams < 0 || p.KV < 0 || p.KV > 1 || p.Burn < 0 {
		bad("streams %v and burn %v must not be negative, kv %v must be from 0 to 1", p.Streams, p.Burn, p.KV)
	}
	if p.Streams == 0 && p.KV == 0 && p.Burn == 0 && len(p.Schedule) == 0 {
		bad("it has none of streams, kv, burn and schedule to follow")
	}
	if p.Loads < 0 {
		bad("loads is %d, want 1 or more", p.Loads)
	}
	if p.Up <= 0 || p.Down <= 0 || p.Ahead < 0 {
		bad("up %v and down %v must be above 0, ahead %v not below", p.Up, p.Down, p.Ahead)
	}
	for i, w := range p.Schedule {
		switch {
		case w.Min < 1 || w.Min > p.Max:
			bad("schedule %d: min is %d, want 1 to max %d", i+1, w.Min, p.Max)
		case w.From == w.To || w.From < 0 || w.To < 0 || w.From >= day || w.To > day:
			bad("schedule %d: from %v to %v is no part of a day", i+1, w.From, w.To)
		case w.Days == [7]bool{}:
			bad("schedule %d has no days", i+1)
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPolicy, errors.Join(errs...))
}

const day = 24 * time.Hour

// floor is the least count at t, the windows that begin within Ahead included.
func (p Policy) floor(t time.Time) (n int, window string) {
	n = p.Min
	for _, w := range p.Schedule {
		if (w.holds(t) || w.holds(t.Add(p.Ahead))) && w.Min > n {
			n, window = w.Min, w.String()
		}
	}
	return n, window
}

// holds goes by the wall clock of t's location, so that a window begins when people
// come to work on the days that clocks are changed, too.
func (w Window) holds(t time.Time) bool {
	at := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second
	if w.From < w.To {
		return w.Days[t.Weekday()] && at >= w.From && at < w.To
	}
	return w.Days[t.Weekday()] && at >= w.From || w.Days[(t.Weekday()+6)%7] && at < w.To
}

// Role is what an arm is for.
type Role string

// The roles. Any other arm is a run's, and left alone.
const (
	Live    Role = "live"
	Standby Role = "standby"
)

// Arm is one group of a job as it stands.
type Arm struct {
	Job, Group string
	Role       Role
	Count      int    // registered
	Ready      int    // that serve
	Waits      string // why one of them cannot be placed; empty: none such
	Load       Load
}

// Load is what the replicas of an arm say together.
type Load struct {
	Seen    int     // replicas that answered; of the others nothing is known
	Running float64 // requests, summed over those seen
	Waiting float64
	KV      float64 // mean share of the cache in use
	Burn    float64 // multiple of the TTFT budget being used up; below 0: not known
}

// State is what Step remembers.
type State struct {
	Changed time.Time `json:"changed"` // when a count was last changed
	Wants   []Want    `json:"wants"`   // of the window Down, oldest first
	Since   time.Time `json:"since"`   // from when on every look had a want
	Waits   string    `json:"waits,omitempty"`
}

// Want is what was asked for at a time: N live replicas, for as much work as Work
// replicas do that are loaded as is aimed at.
type Want struct {
	At   time.Time `json:"at"`
	N    int       `json:"n"`
	Work float64   `json:"work"`
}

// Action changes a count, or says what a person must know when To equals From.
type Action struct {
	Job    string `json:"job"`
	Group  string `json:"group"`
	From   int    `json:"from"`
	To     int    `json:"to"`
	Reason string `json:"reason"`
}

// Step decides for one alias at a time. Arms are of that alias; moving says that a run
// moves one of them, or a drain their nodes. Now is in the schedule's time zone.
func Step(p Policy, now time.Time, arms []Arm, moving bool, s State) (State, []Action) {
	var live *Arm
	for i := range arms {
		if arms[i].Role == Live {
			live = &arms[i]
		}
	}
	if live == nil {
		return s, nil
	}
	var out []Action
	want, why, known := p.want(now, *live)
	s = s.seen(want, known, p.Down)
	s, out = waits(s, arms, out)
	if a, ok := p.live(*live, want, why, moving, s); ok {
		out, s.Changed = append(out, a), now
	}
	for _, arm := range arms {
		if arm.Role != Standby {
			continue
		}
		if a, ok := p.standby(arm, want, known, moving, s); ok {
			out = append(out, a)
		}
	}
	return s, out
}

// want is what the signals and the schedule ask for. known is false when they say too
// little to shrink by.
func (p Policy) want(now time.Time, a Arm) (w Want, why string, known bool) {
	ratio, why := p.ratio(a)
	known = a.Load.Seen > 0 && a.Load.Seen >= a.Ready && a.Ready >= a.Count && (p.Burn == 0 || a.Load.Burn >= 0)
	w = Want{At: now, Work: float64(a.Ready) * ratio}
	switch {
	case a.Ready == 0 || a.Load.Seen == 0:
		w.Work, why = 0, "nothing is known of its load"
	case ratio > 1+slack || ratio < 1-slack:
		w.N = int(math.Ceil(w.Work - 1e-9))
	default:
		w.N = a.Count
	}
	if floor, window := p.floor(now); w.N < floor {
		w.N = floor
		why = fmt.Sprintf("at least %d", floor)
		if window != "" {
			why += " from " + window
		}
	}
	w.N = min(w.N, p.Max)
	return w, why, known
}

// ratio is the signal that is furthest above its target. Replicas that said nothing
// count as idle ones: for growth that is the careful side, and nothing shrinks by it.
func (p Policy) ratio(a Arm) (ratio float64, why string) {
	take := func(r float64, format string, args ...any) {
		if r > ratio || why == "" {
			ratio, why = r, fmt.Sprintf(format, args...)
		}
	}
	if p.Streams > 0 && a.Ready > 0 {
		per := (a.Load.Running + a.Load.Waiting) / float64(a.Ready)
		take(per/p.Streams, "%.3g requests a replica, %.3g aimed at", per, p.Streams)
	}
	if p.KV > 0 && a.Ready > 0 {
		kv := a.Load.KV * float64(a.Load.Seen) / float64(a.Ready)
		take(kv/p.KV, "%.0f%% of the KV cache in use, %.0f%% aimed at", 100*kv, 100*p.KV)
	}
	if p.Burn > 0 && a.Load.Burn >= p.Burn && a.Ready > 0 {
		// How much more capacity ends a burn cannot be told from it: one replica more.
		take(1+max(slack*1.01, 1/float64(a.Ready)), "the TTFT budget burns %.3g times as fast as it lasts", a.Load.Burn)
	}
	if p.Streams == 0 && p.KV == 0 && p.Burn == 0 {
		return 0, "only the schedule"
	}
	if p.Streams == 0 && p.KV == 0 && a.Load.Burn < p.Burn {
		return 1, "the TTFT budget holds" // which says nothing of how many would do
	}
	return ratio, why
}

// seen adds a look. A look without a want begins the window anew.
func (s State) seen(w Want, known bool, window time.Duration) State {
	if !known {
		s.Wants, s.Since = nil, time.Time{}
		return s
	}
	if s.Since.IsZero() {
		s.Since = w.At
	}
	var wants []Want
	for _, old := range s.Wants {
		if w.At.Sub(old.At) <= window {
			wants = append(wants, old)
		}
	}
	s.Wants = append(wants, w)
	return s
}

// highest is the highest want of a whole window; ok is false before there was one.
func (s State) highest(now time.Time, window time.Duration) (high Want, ok bool) {
	for _, w := range s.Wants {
		high.N, high.Work = max(high.N, w.N), max(high.Work, w.Work)
	}
	return high, !s.Since.IsZero() && now.Sub(s.Since) >= window
}

func (p Policy) live(a Arm, want Want, why string, moving bool, s State) (Action, bool) {
	act := Action{Job: a.Job, Group: a.Group, From: a.Count, To: a.Count, Reason: why}
	switch {
	case a.Count > p.Max && !moving:
		act.To, act.Reason = a.Count-1, fmt.Sprintf("at most %d", p.Max)
	case want.N > a.Count:
		act.To = p.start(a, min(want.N, max(2*a.Count, 1)))
	case !moving:
		if high, ok := s.highest(want.At, p.Down); ok && high.N < a.Count {
			act.To = a.Count - 1
			act.Reason = fmt.Sprintf("for %v no more than %d were wanted: %s", p.Down, high.N, why)
		}
	}
	return act, act.To != act.From && want.At.Sub(s.Changed) >= p.Up
}

// start is how far an arm may grow towards n now: those that have not started yet are
// waited for, so that a scale-up neither empties the store's bandwidth nor fills the
// fleet with cold caches.
func (p Policy) start(a Arm, n int) int {
	if p.Loads == 0 {
		return n
	}
	return max(a.Count, min(n, a.Ready+p.Loads))
}

// standby keeps it able to take over. Its size follows the work and not the count of
// what is live, and shrinks with the same window.
func (p Policy) standby(a Arm, want Want, known, moving bool, s State) (Action, bool) {
	size := func(work float64) int { return min(max(1, int(math.Ceil(work*spare-1e-9))), p.Max) }
	act := Action{Job: a.Job, Group: a.Group, From: a.Count, To: a.Count}
	switch high, ok := s.highest(want.At, p.Down); {
	case size(want.Work) > a.Count:
		act.To = p.start(a, size(want.Work))
		act.Reason = fmt.Sprintf("a standby for the work of %.3g replicas, and a tenth more", want.Work)
	case ok && known && !moving && size(high.Work) < a.Count:
		act.To = a.Count - 1
		act.Reason = fmt.Sprintf("a standby for the work of %.3g replicas, the most for %v", high.Work, p.Down)
	}
	return act, act.To != act.From
}

// waits says once that a replica cannot be placed: more machines are for whoever runs
// Terraform.
func waits(s State, arms []Arm, out []Action) (State, []Action) {
	why := ""
	for _, a := range arms {
		if a.Waits == "" {
			continue
		}
		why = a.Waits
		if why != s.Waits {
			out = append(out, Action{Job: a.Job, Group: a.Group, From: a.Count, To: a.Count,
				Reason: "a replica cannot be placed: " + why + "; llmops fleet plan adds machines"})
		}
		break
	}
	s.Waits = why
	return s, out
}
