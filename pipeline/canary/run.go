package canary

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
)

// tickEvery is how often the judge looks.
const tickEvery = time.Second

// ppm is a share in parts per million.
func ppm(share float64) uint32 { return uint32(math.Round(share * route.Million)) }

// Hooks are what a run needs of its host. Intent is called before each change
// of the route other than a renewal, Save after each look; an error of theirs is
// ErrFenced when the host has lost the run. Tell is called with what a reader
// should know.
type Hooks struct {
	Intent func(ctx context.Context, what string, detail any) error
	Save   func(ctx context.Context, s State) error
	Tell   func(s State, a Action)
}

// Result is how a canary ended.
type Result struct {
	Policy   Policy    `json:"policy"`
	State    State     `json:"state"`
	Kind     Kind      `json:"kind"`
	Guard    string    `json:"guard,omitempty"`
	Reason   string    `json:"reason"`
	Decided  time.Time `json:"decided"`
	Delivery Delivery  `json:"delivery"`
}

// Run drives a canary from state s, whose route has been claimed under epoch,
// until it promotes, rolls back or gives up; the traffic has then been returned
// in the latter two cases and is still leased in the first. s may come from an
// earlier run that was interrupted: its evidence counts on, its lease is
// granted anew unless it had decided.
//
// A look that cannot be taken, recorded or acted on is as if it had not been
// and is taken again: nothing moves meanwhile, and the lease runs out. Run
// returns the error when the lease has run out.
func Run(ctx context.Context, c *Control, p Policy, s State, epoch uint64, h Hooks) (Result, error) {
	r := &runner{c: c, p: p, epoch: epoch, h: h}
	if s.End == nil {
		if err := r.grant(ctx, s); err != nil {
			return Result{Policy: p, State: s}, err
		}
	}
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for worked := time.Now(); ; {
		next, a, err := r.look(ctx, s)
		var d Delivery
		if err == nil {
			d, err = r.act(ctx, next, a)
		}
		if err == nil || next.End != nil {
			s = next // a decision stands, whether or not it could be acted on
		}
		switch {
		case err == nil:
			worked = time.Now()
			if a.ends() {
				return Result{Policy: p, State: s, Kind: a.Kind, Guard: a.Guard, Reason: a.Reason, Decided: time.Now().UTC(), Delivery: d}, nil
			}
		case ctx.Err() != nil || Fenced(err) || time.Since(worked) > LeaseTTL:
			return Result{Policy: p, State: s}, err
		default:
			held := s
			held.Note = err.Error()
			h.Tell(held, Action{Kind: Wait, Reason: held.Note})
		}
		select {
		case <-ctx.Done():
			return Result{Policy: p, State: s}, ctx.Err()
		case <-tick.C:
		}
	}
}

// runner is what stays the same while a canary runs.
type runner struct {
	c     *Control
	p     Policy
	epoch uint64
	h     Hooks
}

// look takes a look and records the state that it led to.
func (r *runner) look(ctx context.Context, s State) (State, Action, error) {
	var o Observation
	if s.End == nil {
		err := r.c.holds(ctx, r.epoch)
		if err == nil {
			o, err = r.c.Observe(ctx, &r.p)
		}
		if err != nil {
			return s, Action{}, err
		}
	}
	s, a := Step(s, o, r.p)
	if err := r.h.Save(ctx, s); err != nil {
		return s, a, err
	}
	r.h.Tell(s, a)
	return s, a, nil
}

// act does what a look led to.
func (r *runner) act(ctx context.Context, s State, a Action) (d Delivery, err error) {
	switch a.Kind {
	case Advance, Again:
		return d, r.grant(ctx, s)
	case Renew:
		_, d, err = r.c.Change(ctx, func(d route.Doc) (route.Doc, error) {
			if d.Lease == nil {
				return d, route.ErrFenced
			}
			return route.Renew(d, r.epoch, d.Seq+1, a.Reason)
		})
	case Rollback, GiveUp:
		if err := r.h.Intent(ctx, string(a.Kind), a.Reason); err != nil {
			return d, err
		}
		_, d, err = r.c.Change(ctx, func(d route.Doc) (route.Doc, error) {
			switch {
			case d.Epoch == r.epoch:
				return route.Fallback(d), nil
			case d.Lease == nil: // somebody was faster
				return d, nil
			}
			return d, route.ErrFenced
		})
	}
	return d, err
}

// grant leases the weight of the state's step.
func (r *runner) grant(ctx context.Context, s State) error {
	p := &r.p
	w := ppm(p.Steps[s.Step].Weight)
	if err := r.h.Intent(ctx, fmt.Sprintf("lease %.4g%% to %s", float64(w)/1e4, p.Candidate), map[string]any{"step": s.Step, "epoch": r.epoch}); err != nil {
		return err
	}
	_, _, err := r.c.Change(ctx, func(d route.Doc) (route.Doc, error) {
		shares := map[string]uint32{p.Candidate: w, p.Stable: route.Million - w}
		splits := []route.Split{{Shares: shares}}
		if p.Zone != "" {
			splits = append([]route.Split{{Zone: p.Zone, Shares: shares}}, route.All(p.Stable)...)
		}
		return route.Grant(d, r.epoch, route.Lease{Intent: route.Intent{Splits: splits}, TTL: LeaseTTL, Seen: s.seen()})
	})
	return err
}

// Fenced tells whether a run ended because somebody else took the route.
func Fenced(err error) bool { return errors.Is(err, route.ErrFenced) }

// Verdict is what the result says, guard by guard.
func (r *Result) Verdict() evidence.Verdict {
	p := &r.Policy
	var parts []evidence.Verdict
	for g := range guards {
		if p.guarded(g) {
			parts = append(parts, r.guard(g))
		}
	}
	v := evidence.All("canary: "+r.Reason, parts...)
	v.N = int(r.State.Requests[1])
	switch r.Kind {
	case Rollback:
		v.Outcome = evidence.Fail
	case GiveUp:
		v.Outcome = evidence.Inconclusive
	}
	if len(r.Delivery.Missing) > 0 {
		v.Warnings = append(v.Warnings, fmt.Sprintf("routers %v did not acknowledge the return of traffic; their lease ended within %v", r.Delivery.Missing, LeaseTTL))
	}
	return v
}

func (r *Result) guard(g int) evidence.Verdict {
	p, s := &r.Policy, &r.State.Guards[g]
	level := p.Level()
	var v evidence.Verdict
	if s.Rate != nil {
		// Estimate and exact bounds are for the reader; the sequential test decides.
		v = evidence.AtMost(fmt.Sprintf("%s: share of requests over the bound is below %.4g%%", Names[g], 100*s.Rate.Limit),
			int(s.Rate.Bad), int(s.Rate.N), s.Rate.Limit, 1-level)
		v.Need, v.Outcome = evidence.CleanRequests(s.Rate.Limit, level), evidence.Inconclusive
	} else {
		v = evidence.Verdict{Claim: fmt.Sprintf("%s: rate is below %d times that of stable", Names[g], safeRatio), N: int(s.Harm.ArmReqs), Confidence: 1 - level,
			Warnings: []string{"candidate " + s.Harm.String() + " of stable"}}
	}
	switch {
	case s.Harm.Harm(level):
		v.Outcome = evidence.Fail
		v.Warnings = append(v.Warnings, "candidate "+s.Harm.String()+" of stable")
	case s.safe(level):
		v.Outcome = evidence.Pass
	}
	return v
}
