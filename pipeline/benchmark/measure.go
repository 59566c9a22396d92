package benchmark

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"llmops/evidence"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/slo"
)

// Shapes of a load.
const (
	Constant = "constant" // at equal distances
	Poisson  = "poisson"
	Gamma    = "gamma"  // in bursts
	Closed   = "closed" // clients that wait for their answers
	Replay   = "replay" // of recorded arrivals
)

// Load is what is offered.
type Load struct {
	Shape       string        `json:"shape"`
	Rate        float64       `json:"rate,omitempty"`       // requests, or sessions, a second
	Burstiness  float64       `json:"burstiness,omitempty"` // of Gamma
	Concurrency int           `json:"concurrency,omitempty"`
	From        float64       `json:"ramp_from,omitempty"` // the rate that a ramp begins with
	Ramp        time.Duration `json:"ramp_ns,omitempty"`
	For         time.Duration `json:"for_ns,omitempty"`
	Requests    int           `json:"requests,omitempty"` // at most; 0: no limit
	Warmup      time.Duration `json:"warmup_ns,omitempty"`
	Whole       bool          `json:"whole,omitempty"` // sum up all of the run and no window of it
	Speed       float64       `json:"speed,omitempty"` // of Replay
	Seed        uint64        `json:"seed"`
	Content     string        `json:"content,omitempty"` // what is asked, in words

	Times []time.Duration `json:"-"` // of Replay
}

func (l Load) pacer() (load.Pacer, error) {
	var p load.Pacer
	rate := l.Rate
	if l.Ramp > 0 {
		rate = 1
	}
	switch l.Shape {
	case Constant:
		p = load.Constant(rate)
	case Poisson:
		p = load.Poisson(rate, l.Seed)
	case Gamma:
		p = load.Gamma(rate, l.Burstiness, l.Seed)
	case Replay:
		return load.Limit(load.Trace(l.Times), l.Requests, l.For), nil
	default:
		return nil, fmt.Errorf("no load has the shape %q", l.Shape)
	}
	if l.Ramp > 0 {
		p = load.Ramp(p, l.From, l.Rate, l.Ramp)
	}
	return load.Limit(p, l.Requests, l.For), nil
}

// Check says what is wrong with l.
func (l Load) Check() error {
	bad := func(f float64) bool { return !(f > 0) || math.IsInf(f, 0) }
	switch {
	case l.Shape == Closed && l.Concurrency < 1:
		return fmt.Errorf("a closed loop of %d clients: want 1 or more", l.Concurrency)
	case l.Shape == Closed && l.For <= 0:
		return errors.New("a closed loop ends by time: for how long is missing")
	case l.Shape == Replay && len(l.Times) == 0:
		return errors.New("there is nothing to replay")
	case l.Shape != Closed && l.Shape != Replay && bad(l.Rate):
		return fmt.Errorf("a rate of %v requests a second: want a positive number", l.Rate)
	case l.Shape == Gamma && bad(l.Burstiness):
		return fmt.Errorf("a burstiness of %v: want a positive number, 1 being Poisson and less coming in bursts", l.Burstiness)
	case l.Ramp > 0 && !(l.From >= 0 && !math.IsInf(l.From, 0)):
		return fmt.Errorf("a ramp from %v requests a second: want a number from 0", l.From)
	case l.Shape != Replay && l.For <= 0 && l.Requests <= 0:
		return errors.New("a load ends by time or number of requests: neither is given")
	case l.For > 0 && l.Warmup >= l.For:
		return fmt.Errorf("a warm-up of %v takes all of the %v", l.Warmup, l.For)
	}
	return nil
}

// Lasts is how long l is offered; 0 where only its requests tell.
func (l Load) Lasts() time.Duration {
	d := l.For
	shorter := func(o time.Duration) {
		if o > 0 && (d == 0 || o < d) {
			d = o
		}
	}
	switch {
	case l.Shape == Replay && len(l.Times) > 0:
		n := len(l.Times)
		if l.Requests > 0 {
			n = min(n, l.Requests)
		}
		shorter(l.Times[n-1])
	case l.Shape != Closed && l.Requests > 0 && l.Rate > 0:
		shorter(l.Ramp + time.Duration((float64(l.Requests)-l.Ramp.Seconds()*(l.From+l.Rate)/2)/l.Rate*float64(time.Second)))
	}
	return d
}

// String names the load in a few words.
func (l Load) String() string {
	s := fmt.Sprintf("%s %.4g/s", l.Shape, l.Rate)
	switch l.Shape {
	case Gamma:
		s += fmt.Sprintf(" burstiness %g", l.Burstiness)
	case Closed:
		s = fmt.Sprintf("closed loop of %d", l.Concurrency)
	case Replay:
		s = fmt.Sprintf("replay at %g times its speed", l.Speed)
	}
	if l.Ramp > 0 && l.Shape != Closed {
		s += fmt.Sprintf(" from %g/s over %v", l.From, l.Ramp)
	}
	return s
}

// Measuring is how a load is measured.
type Measuring struct {
	SLO       slo.Class
	Timeout   time.Duration
	MaxOpen   int
	Tokenizer *tokenizer.Tokenizer // the model's, to count what was kept of answers; nil: not
	Emit      func(*load.Result)   // as each ends, one at a time; may be nil
}

// Measure offers l to target and sums up what came back. Answers are waited for;
// a context that ends stops it early, which the point says. The error is the
// source's, and the point is of what was sent until then.
func Measure(ctx context.Context, target load.Target, source load.Source, l Load, m Measuring) (Point, []*load.Result, error) {
	if err := l.Check(); err != nil {
		return Point{}, nil, err
	}
	var results []*load.Result
	emit := func(r *load.Result) {
		recount(r, m.Tokenizer)
		results = append(results, r)
		if m.Emit != nil {
			m.Emit(r)
		}
	}
	o := load.Options{Timeout: m.Timeout, MaxOpen: m.MaxOpen}
	var stats load.Stats
	var err error
	if l.Shape == Closed {
		stats, err = load.Closed(ctx, target, l.Concurrency, min(l.Ramp, l.For), l.For, l.Requests, source, o, emit)
	} else {
		var p load.Pacer
		if p, err = l.pacer(); err != nil {
			return Point{}, nil, err
		}
		stats, err = load.Run(ctx, target, p, source, o, emit)
	}
	return Sum(l, results, stats, m.SLO), results, err
}

// window is the steady part of a run: from the end of its warm-up to its last
// arrival. After that the server only empties, which is no load that was asked for.
func (l Load) window(stats load.Stats) load.Window {
	w := load.Window{From: l.Warmup, To: stats.LastDue + 1} // the last arrival is in it
	if l.Whole || w.To <= w.From {
		return load.Window{}
	}
	return w
}

// Sum is the point that results of l come to.
func Sum(l Load, results []*load.Result, stats load.Stats, c slo.Class) Point {
	if stats.LastDue == 0 { // read back from a file
		for _, r := range results {
			stats.LastDue = max(stats.LastDue, r.Scheduled)
		}
	}
	bound := load.SLO{TTFT: c.TTFT.Limit, TPOT: c.TPOT.Limit}
	w := l.window(stats)
	p := Point{Rate: l.Rate, Load: l, Stats: stats, Summary: load.SummariseIn(w, results, stats, bound), Failure: failure(results)}
	in := p.Window(results)
	if w != (load.Window{}) {
		arrived, ended := len(in), 0
		for _, r := range results {
			if r.OK() && r.End >= w.From && r.End <= w.To {
				ended++
			}
		}
		// Answers of a server that keeps up come as often as requests, but for the
		// chance that both vary by.
		behind := float64(arrived-ended) > 0.1*float64(arrived)+3*math.Sqrt(float64(arrived))
		p.Saturated = l.Shape != Closed && (behind || load.Growing(results, w))
	}
	p.Over = count(in, c)
	classes := map[string][]*load.Result{}
	for _, r := range in {
		classes[r.Class] = append(classes[r.Class], r)
	}
	if len(classes) > 1 {
		for name, rs := range classes {
			p.Classes = append(p.Classes, Class{Name: name, Summary: load.Summarise(rs, load.Stats{}, bound)})
		}
		slices.SortFunc(p.Classes, func(a, b Class) int {
			switch {
			case a.Name < b.Name:
				return -1
			case a.Name > b.Name:
				return 1
			}
			return 0
		})
	}
	return p
}

// Window are the results that p sums up.
func (p Point) Window(results []*load.Result) []*load.Result {
	w := p.Load.window(p.Stats)
	if w == (load.Window{}) {
		return results
	}
	var in []*load.Result
	for _, r := range results {
		if r.Scheduled >= w.From && r.Scheduled < w.To {
			in = append(in, r)
		}
	}
	return in
}

// Class is what one kind of requests of a mixed load met.
type Class struct {
	Name    string       `json:"name"`
	Summary load.Summary `json:"summary"`
}

// Holds says whether p shows that the service level c holds.
func Holds(p Point, c slo.Class, claim string) evidence.Verdict {
	var parts []evidence.Verdict
	if b := c.TTFT; b.Set() {
		parts = append(parts, evidence.AtMost(fmt.Sprintf("TTFT: at most %.3g%% of requests wait longer than %v", 100*(1-b.Quantile), b.Limit), p.Over.TTFT, p.Over.TTFTOf, 1-b.Quantile, level))
	}
	if b := c.TPOT; b.Set() {
		parts = append(parts, evidence.AtMost(fmt.Sprintf("TPOT: at most %.3g%% of answers take longer than %v a token", 100*(1-b.Quantile), b.Limit), p.Over.TPOT, p.Over.TPOTOf, 1-b.Quantile, level))
	}
	if e := c.ErrorRate; e > 0 {
		parts = append(parts, evidence.AtMost(fmt.Sprintf("errors: at most %.4g%% of requests fail", 100*e), p.Over.Errors, p.Over.ErrorsOf, e, level))
	}
	v := evidence.All(claim, parts...)
	v.N = p.Over.ErrorsOf
	if p.Over.Late > int(lateShare*float64(p.Over.LateOf)) {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d of %d requests left more than %v late: the generator was short of CPU", p.Over.Late, p.Over.LateOf, late))
	}
	if p.Failure != "" {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d requests failed, the first with %s", p.Over.Errors, p.Failure))
	}
	for _, c := range p.Summary.Checks {
		if !c.OK {
			v.Warnings = append(v.Warnings, "check failed: "+c.Name+": "+c.Note)
		}
	}
	if p.Stats.Stopped {
		v.Warnings = append(v.Warnings, "the run was stopped before its end")
		if v.Outcome == evidence.Pass {
			// What had not been answered yet is in no figure.
			v.Outcome = evidence.Inconclusive
		}
	}
	return v
}
