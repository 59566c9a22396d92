package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/serving/route"
)

// Caps bound what routers let each replica have; 0 is left to what was planned and
// measured.
type Caps struct {
	Streams  int `json:"streams,omitempty"`
	KVTokens int `json:"kv_tokens,omitempty"`
}

// heldAt is what a replica had at the highest rate that was shown to keep the service
// level. bound tells that a higher one was offered and did not: what is beyond is known
// to be too much, and not merely unknown.
type heldAt struct {
	rate    float64
	streams int
	bound   bool
}

// held reads it off the points of a benchmark of so many replicas, which rise; the zero
// value is none.
func held(points []benchmark.Point, s Spec, replicas int) (h heldAt) {
	for _, p := range points {
		switch benchmark.Holds(p, s.SLO, "").Outcome {
		case evidence.Pass:
			// The most at a time, since that many were under way while it held.
			h = heldAt{rate: p.Rate, streams: int(math.Ceil(float64(p.Stats.PeakOpen) / float64(max(replicas, 1))))}
		case evidence.Fail:
			h.bound = h.streams > 0
		}
	}
	return h
}

// capsOf are what a version's replicas may have: as the model file says; else, for
// streams, what held where the benchmark found an end to it, and what the plan gives, at
// least what was shown to hold, where it did not; for tokens, what the plan has room
// for, less what the streams in it will still grow by. What nobody knows is no bound.
func capsOf(s Spec, roof *Roof, h heldAt) route.Caps {
	var c route.Caps
	var from []string
	streams := func(n int, why string, args ...any) {
		c.Streams = n
		from = append(from, fmt.Sprintf("streams: "+why, args...))
	}
	switch {
	case s.Caps.Streams > 0:
		streams(s.Caps.Streams, "the model file")
	case h.bound:
		streams(h.streams, "benchmark at %.4g/s", h.rate)
	case roof != nil && roof.Sequences > 0 && h.streams > roof.Sequences:
		streams(h.streams, "benchmark at %.4g/s, above the plan's %d", h.rate, roof.Sequences)
	case roof != nil && roof.Sequences > 0:
		streams(roof.Sequences, "plan")
	}
	switch {
	case s.Caps.KVTokens > 0:
		c.KVTokens = s.Caps.KVTokens
		from = append(from, "tokens: the model file")
	case roof != nil && roof.KVTokens > 0:
		n := roof.KVTokens / max(s.Traffic.Input+s.Traffic.Output, 1)
		if c.Streams > 0 {
			n = min(n, c.Streams)
		}
		if c.KVTokens = roof.KVTokens - n*s.Traffic.Output; c.KVTokens > 0 {
			from = append(from, "tokens: plan")
		}
	}
	c.From = strings.Join(from, "; ")
	return c
}

// parentCaps are those of a version that nobody has measured yet, by the plan for its
// weights.
func parentCaps(s Spec, w Weights) (route.Caps, error) {
	s.Engine = s.Engine.reference()
	shape, err := model.LoadShape(w.Dir)
	if err != nil {
		return route.Caps{}, err
	}
	r, err := roof(s, shape, w)
	if err != nil {
		return route.Caps{}, err
	}
	return capsOf(s, newRoof(s, r), heldAt{}), nil
}

// candidateCaps are the candidate's, by what the run has planned and measured of it.
func candidateCaps(ctx context.Context, a *Attempt, replicas int) (route.Caps, error) {
	var plan PlanOutput
	var bench BenchmarkOutput
	for stage, to := range map[string]any{StagePlan: &plan, StageBenchmark: &bench} {
		// A run that was approved past a gate may be without.
		if err := a.Result(ctx, stage, to); err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return route.Caps{}, err
		}
	}
	return capsOf(a.Spec, plan.Roof, held(bench.Points, a.Spec, replicas)), nil
}

// capCandidate gives what is live already, as the first version is before it was
// measured, the caps that the run found for it since.
func capCandidate(ctx context.Context, a *Attempt, arm Arm) error {
	caps, err := candidateCaps(ctx, a, len(arm.Ready))
	if err != nil {
		return err
	}
	name := arm.Version.Name
	d, _, err := a.control().Read(ctx)
	if err != nil || d.Run != a.Run || d.Caps[name] == caps {
		return err
	}
	if err := a.Intent(ctx, "cap what routers send to "+name, caps); err != nil {
		return err
	}
	_, _, err = a.control().Change(ctx, func(d route.Doc) (route.Doc, error) {
		if d.Run != a.Run { // somebody else has begun since, and has caps of his own
			return d, nil
		}
		return route.Cap(d, d.Epoch, name, caps)
	})
	return err
}
