// Package benchmark measures a deployment under the load it is planned for and
// around it.
//
// [Measure] offers one [Load] and gives its [Point]; [Sweep] offers several rates,
// from the lowest up, and [Judge] says whether the service level is shown to hold
// at the planned one. [Find] looks for the highest rate that holds it, and for the
// knee. A [Record] is what a run leaves, [Compare] holds one against another. What
// arrives when is folder load's, what is asked prompt's, recordings are trace's, the
// files of other tools exchange's. No prompt is sent before it is measured, since a
// warm cache would answer for the model. All are synchronous, and several may run
// at once.
package benchmark

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"llmops/evidence"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
	"llmops/serving/slo"
)

const (
	// level is the confidence at which the service level must be shown.
	level = 0.95
	// lateShare and late bound the generator's own delay: a generator that
	// falls behind measures itself.
	late      = 50 * time.Millisecond
	lateShare = 0.05
	// settle is the pause between rates in which queues run empty.
	settle = 500 * time.Millisecond
	// shortest and longest bound how long a rate is offered.
	shortest = 3 * time.Second
	longest  = 10 * time.Minute
)

// Options of a sweep.
type Options struct {
	Rates   []float64 // requests a second, rising
	Plan    float64   // the one of Rates that is planned for
	Seed    uint64
	SLO     slo.Class
	Margin  float64 // by which it shall be comparable with others of its kind; 0: not
	Content string  // what is asked, in words

	Tokenizer *tokenizer.Tokenizer // the model's, to count some answers by; nil: none are
}

// Point is what one rate gave.
type Point struct {
	Rate      float64      `json:"rate"`
	Load      Load         `json:"load"`
	Stats     load.Stats   `json:"stats"`
	Summary   load.Summary `json:"summary"`
	Over      Over         `json:"over"`
	Classes   []Class      `json:"classes,omitempty"`
	Saturated bool         `json:"saturated,omitempty"` // requests piled up, or were not answered as fast as they came
	Failure   string       `json:"failure,omitempty"`   // of the first request that failed
	File      string       `json:"file,omitempty"`      // where its results are, beside the record
}

// Over counts what exceeded the service level, of those that could.
type Over struct {
	TTFT, TTFTOf     int
	TPOT, TPOTOf     int
	Errors, ErrorsOf int
	Late, LateOf     int
}

// Sweep offers each rate in turn to the replicas at bases, http://host:port, one
// request to each in turn, and gives each rate's point and results. progress gets
// what goes on, and thousandths of a rate done and to do.
func Sweep(ctx context.Context, bases []string, requests []*load.Request, o Options, progress func(text string, done, total int64)) (out []Point, all [][]*load.Result, err error) {
	if len(bases) == 0 {
		return nil, nil, errors.New("no replicas to send to")
	}
	if len(requests) == 0 {
		return nil, nil, errors.New("no prompts to send")
	}
	client := load.NewClient()
	defer client.Close()
	target := inTurn(bases, client)
	next := 0
	for i, rate := range o.Rates {
		length := o.length(rate)
		n := int(rate * length.Seconds())
		source := Sampled(func(int) (*load.Request, error) {
			r := *requests[next%len(requests)]
			next++
			return &r, nil
		}, o.Tokenizer)
		ended, failed := 0, 0
		emit := func(r *load.Result) {
			if ended++; !r.OK() {
				failed++
			}
			progress(fmt.Sprintf("%g/s: %d of %d ended, %d failed", rate, ended, n, failed), int64(i)*1000+int64(1000*ended/max(1, n)), int64(len(o.Rates))*1000)
		}
		l := Load{Shape: Poisson, Rate: rate, Requests: n, For: 2 * length, Whole: true, Seed: o.Seed + uint64(i), Content: o.Content}
		p, results, err := Measure(ctx, target, source, l, Measuring{SLO: o.SLO, Timeout: time.Minute, Tokenizer: o.Tokenizer, Emit: emit})
		if err != nil {
			return out, all, fmt.Errorf("offering %g requests a second: %w", rate, err)
		}
		if err := ctx.Err(); err != nil {
			return out, all, err
		}
		out, all = append(out, p), append(all, results)
		wait := time.NewTimer(settle)
		select {
		case <-ctx.Done():
			wait.Stop()
			return out, all, ctx.Err()
		case <-wait.C:
		}
	}
	return out, all, nil
}

// failure is what was first heard of a request that failed.
func failure(results []*load.Result) string {
	for _, r := range results {
		if !r.OK() && r.Kind != load.KindCancelled {
			return string(r.Kind) + ": " + r.Error
		}
	}
	return ""
}

func inTurn(bases []string, client *load.Client) load.Target {
	targets := make([]load.Target, len(bases))
	for i, base := range bases {
		targets[i] = client.Target(base, nil)
	}
	var next atomic.Uint64
	return func(ctx context.Context, r *load.Request, now func() time.Duration, res *load.Result) {
		targets[(next.Add(1)-1)%uint64(len(targets))](ctx, r, now, res)
	}
}

// length is how long a rate is offered: the planned one until its service level
// can be shown with a tenth to spare and other versions can be held against it, the
// others half as long.
func (o *Options) length(rate float64) time.Duration {
	d := max(Needs(o.SLO, o.Plan), offered(Comparable(o.Margin), o.Plan))
	if rate != o.Plan {
		d /= 2
	}
	return d
}

// Planned is how many requests are offered at the planned rate.
func (o *Options) Planned() int { return int(o.Plan * o.length(o.Plan).Seconds()) }

// fewestArrivals is how many requests a rate is looked at by where no service
// level asks for more.
const fewestArrivals = 60

// Needs is how long a rate has to be offered so that the service level can be
// shown with a tenth to spare.
func Needs(c slo.Class, rate float64) time.Duration {
	need := 0
	for _, b := range []slo.Bound{c.TTFT, c.TPOT} {
		if b.Set() {
			need = max(need, evidence.AtMost("", 0, 0, 1-b.Quantile, level).Need)
		}
	}
	if c.ErrorRate > 0 {
		need = max(need, evidence.AtMost("", 0, 0, c.ErrorRate, level).Need)
	}
	if need == 0 {
		need = fewestArrivals
	}
	return offered(need, rate)
}

// offered is how long a rate brings so many requests, with a tenth to spare.
func offered(need int, rate float64) time.Duration {
	d := time.Duration(min(1.1*float64(need)/rate, longest.Seconds()) * float64(time.Second))
	return max(d, shortest)
}

// Describe is the point in a line.
func (p Point) Describe() string {
	s := p.Summary
	ms := func(ns float64) string {
		if ns >= 100e6 {
			return fmt.Sprintf("%.0f", ns/1e6)
		}
		return fmt.Sprintf("%.3g", ns/1e6)
	}
	if s.OutputTokens == 0 && s.Done > 0 { // an encoder's answers have no tokens
		return fmt.Sprintf("answer p50 %s p95 %s ms, %.1f items/s, %.1f%% good of %d", ms(s.TTFT.P50), ms(s.TTFT.P95), s.RequestRate, 100*s.GoodShare, s.Attempted)
	}
	return fmt.Sprintf("TTFT p50 %s p95 %s ms, TPOT p50 %s p95 %s ms, %.0f tokens/s out, %.1f%% good of %d",
		ms(s.TTFT.P50), ms(s.TTFT.P95), ms(s.TPOT.P50), ms(s.TPOT.P95), s.OutputRate, 100*s.GoodShare, s.Attempted)
}

// Chat asks model for exactly output tokens, greedily.
func Chat(model string, output int, m []openai.Message) (*load.Request, error) {
	zero := 0.0
	r := openai.ChatRequest{Messages: m}
	r.Model, r.MaxTokens, r.MinTokens, r.Temperature, r.IgnoreEOS = model, &output, &output, &zero, true
	q, err := load.Chat(r, false)
	if q != nil {
		q.Want = output
	}
	return q, err
}

func count(results []*load.Result, c slo.Class) (v Over) {
	for _, r := range results {
		if r.Kind == load.KindCancelled { // by the run's own stop, which is no fault of the server
			continue
		}
		v.ErrorsOf++
		if !r.OK() {
			v.Errors++
		}
		v.LateOf++
		if lag, ok := r.Lag(); !ok || lag > late {
			v.Late++
		}
		// A request that failed has not met any bound.
		v.TTFTOf++
		if d, ok := r.TTFT(); !r.OK() || !ok || c.TTFT.Set() && d > c.TTFT.Limit {
			v.TTFT++
		}
		if d, _, ok := r.TPOT(); !r.OK() || ok {
			v.TPOTOf++
			if !r.OK() || c.TPOT.Set() && d > c.TPOT.Limit {
				v.TPOT++
			}
		}
	}
	return v
}

// Judge says whether the points show that the service level holds at the
// planned rate.
func Judge(points []Point, o Options) evidence.Verdict {
	claim := fmt.Sprintf("the service level holds at the planned %g requests a second", o.Plan)
	for _, p := range points {
		if p.Rate != o.Plan {
			continue
		}
		return Holds(p, o.SLO, claim)
	}
	return evidence.Verdict{Claim: claim, Warnings: []string{"the planned rate was not offered"}}
}
