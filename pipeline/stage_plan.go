package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"llmops/evidence"
	"llmops/model"
	"llmops/model/chat"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/canary"
	"llmops/pipeline/eval"
)

const (
	// expectedFlips is the share of answers that an 8-bit twin is expected to
	// flip when nothing is known yet; 2.5 % was measured on the shipped model.
	expectedFlips = 0.025
	planPower     = 0.8
)

// PlanOutput is what a run will need and what its evidence can show.
type PlanOutput struct {
	Parameters int64        `json:"parameters"`
	KVToken    float64      `json:"kv_bytes_per_token"`
	KVFull     int64        `json:"kv_bytes_full"` // all sequences at full length
	Weights    int64        `json:"weight_bytes"`
	Replicas   int          `json:"replicas"`
	Roof       *Roof        `json:"roof,omitempty"` // nil: on the processor
	Suites     []PlanSuite  `json:"suites"`
	Canary     []PlanCanary `json:"canary"`
}

// PlanSuite is the smallest drop of score that a suite's items can exclude.
type PlanSuite struct {
	Name   string  `json:"name"`
	Items  int     `json:"items"`
	Need   int     `json:"need"`
	Margin float64 `json:"margin"`
	Drop   float64 `json:"drop"`
}

// PlanCanary is when a guard can be decided at the planned traffic.
type PlanCanary struct {
	Guard   string  `json:"guard"`
	Need    int     `json:"need"`    // requests of the candidate without a bad one
	Expect  int     `json:"expect"`  // within the bakes
	AtMost  int     `json:"at_most"` // before the canary gives up
	Minutes float64 `json:"minutes"` // to Need, at the weights of the steps
}

func runPlan(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var src, cand Weights
	if err := a.Result(ctx, StageDownload, &src); err != nil {
		return evidence.Verdict{}, err
	}
	if err := a.Result(ctx, StageQuantise, &cand); err != nil {
		return evidence.Verdict{}, err
	}
	shape, err := model.LoadShape(cand.Dir)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if a.Spec.Task == "" {
		if _, err := chat.Load(cand.Dir); err != nil {
			return evidence.Verdict{}, err
		}
	}
	e := a.Spec.Engine
	out := PlanOutput{Parameters: shape.Parameters(), KVToken: shape.KVBytesPerToken(2), Weights: cand.Bytes, Replicas: a.Spec.Placement.Replicas}
	out.KVFull = int64(out.KVToken * float64(e.MaxModelLen) * float64(e.MaxNumSeqs))
	longest, whose := e.MaxModelLen, "engine"
	if longest == 0 { // left to the engine, which takes the model's
		longest, whose = a.Spec.Traffic.Input+a.Spec.Traffic.Output, "traffic"
	}
	parts := []evidence.Verdict{evidence.Check(fmt.Sprintf("the %s's %d tokens are within the model's %d", whose, longest, shape.MaxPositions), longest <= shape.MaxPositions, 1)}
	if fits := planRoof(a.Spec, shape, cand, &out); fits.Claim != "" {
		parts = append(parts, fits)
	}
	placed, err := planFleet(ctx, a, src, cand)
	if err != nil {
		return evidence.Verdict{}, err
	}
	v := evidence.All("the model fits its placement", append(parts, placed...)...)
	if err := planSuites(a, &out, &v); err != nil {
		return v, err
	}
	if a.Deps.Ceilings != nil {
		v.Warnings = append(v.Warnings, planMachine(a.Spec, shape, cand, a.Deps.Ceilings())...)
	}
	planBenchmark(a, &v)
	planCanary(a, &out, &v)
	if err := planTraffic(a, &v); err != nil {
		return v, err
	}
	a.Output(out)
	return v, nil
}

// planFleet asks the fleet whether it has a place for parent and candidate, each by
// itself: the hours of work before deploy would otherwise be for nothing.
func planFleet(ctx context.Context, a *Attempt, src, cand Weights) (out []evidence.Verdict, err error) {
	asked := ""
	for _, arm := range []struct {
		name string
		w    Weights
		e    Engine
	}{{"parent", src, a.Spec.Engine.reference()}, {"candidate", cand, a.Spec.Engine}} {
		v, err := planned(ctx, a, arm.w, arm.e)
		if err != nil {
			return nil, err
		}
		if v.Digest == asked {
			break
		}
		asked = v.Digest
		j, err := engineJob(a.Spec, v, arm.e)
		if err != nil {
			return nil, err
		}
		p, err := a.Deps.Scheduler.Plan(ctx, j)
		if err != nil {
			return nil, fmt.Errorf("asking the fleet for a place for the %s: %w", arm.name, err)
		}
		out = append(out, evidence.Check("the fleet has a place for the "+arm.name, p.Fits, 1, p.Reasons...))
	}
	return out, nil
}

// planSuites says what each suite can show, and warns where it is too little.
func planSuites(a *Attempt, out *PlanOutput, v *evidence.Verdict) error {
	for _, s := range a.Spec.Eval.Suites {
		n, err := countItems(a.Spec, s)
		if err != nil {
			return err
		}
		p := PlanSuite{Name: s.Name, Items: n, Margin: s.Margin,
			Need: evidence.PairedItems(expectedFlips, s.Margin, a.Spec.Eval.Confidence, planPower),
			Drop: evidence.SmallestDrop(n, expectedFlips, a.Spec.Eval.Confidence, planPower)}
		out.Suites = append(out.Suites, p)
		if p.Drop > p.Margin {
			w := fmt.Sprintf("suite %s: %d items can exclude a drop of %.1f points, not of %.1f; %d items would", s.Name, p.Items, 100*p.Drop, 100*p.Margin, p.Need)
			v.Warnings = append(v.Warnings, w)
			a.Note("%s", w)
		}
	}
	return nil
}

// countItems counts what a suite asks.
func countItems(s Spec, su Suite) (int, error) {
	if s.Task != "" {
		c, _, err := eval.ReadCorpus(su.Items, su.Limit)
		return len(c.Queries), err
	}
	all, _, err := eval.ReadItems(su.Items, su.Limit)
	return len(all), err
}

// planBenchmark warns when the load is too short for its margin to be decided.
func planBenchmark(a *Attempt, v *evidence.Verdict) {
	o := a.Spec.load()
	if n, need := o.Planned(), benchmark.Comparable(o.Margin); n < need {
		w := fmt.Sprintf("the benchmark ends after %d requests at the planned %g/s, and to tell that no figure is %.4g%% worse takes about %d: widen benchmark.regression", n, o.Plan, 100*o.Margin, need)
		v.Warnings = append(v.Warnings, w)
		a.Note("%s", w)
	}
}

// planCanary says when each guard can be shown safe at the planned traffic.
func planCanary(a *Attempt, out *PlanOutput, v *evidence.Verdict) {
	c := a.Spec.Canary
	var expect float64
	for _, s := range c.Steps {
		expect += a.Spec.Traffic.Rate * s.Weight * s.Bake.Seconds()
	}
	last := c.Steps[len(c.Steps)-1]
	atMost := expect + a.Spec.Traffic.Rate*last.Weight*last.Bake.Seconds()*(c.Max-1)
	needs := canary.Needs(canaryPolicy(a.Spec, a.Opts, "", ""))
	for _, g := range canary.Names {
		need, stated := needs[g]
		if !stated {
			continue
		}
		pc := PlanCanary{Guard: g, Need: need, Expect: int(expect), AtMost: int(atMost)}
		pc.Minutes = math.Round(10*a.Spec.after(need).Minutes()) / 10
		out.Canary = append(out.Canary, pc)
		if need > pc.AtMost {
			w := fmt.Sprintf("guard %s needs %d requests of the candidate, and the canary ends after about %d: raise traffic, weights or bakes", g, need, pc.AtMost)
			v.Warnings = append(v.Warnings, w)
			a.Note("%s", w)
		}
	}
}

// after is how long the steps take to bring need requests to the candidate, the
// last going on as long as it takes.
func (s Spec) after(need int) time.Duration {
	left, total := float64(need), 0.0
	for i, st := range s.Canary.Steps {
		rate := s.Traffic.Rate * st.Weight
		if n := rate * st.Bake.Seconds(); i < len(s.Canary.Steps)-1 && n < left {
			left -= n
			total += st.Bake.Seconds()
			continue
		}
		total += left / rate
		break
	}
	return time.Duration(min(total, math.MaxInt64/2e9) * float64(time.Second))
}

// offRate is how far the replayed traffic may be from the planned rate.
const offRate = 0.25

// planTraffic reads what will be replayed and warns when it is not the traffic
// that is planned for.
func planTraffic(a *Attempt, v *evidence.Verdict) (err error) {
	t := a.Spec.Traffic
	if t.Replay == "" {
		return nil
	}
	f, err := os.Open(t.Replay)
	if err != nil {
		return fmt.Errorf("opening traffic: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	replay, err := load.ReadTraffic(f)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Replay, err)
	}
	if r := replay.Rate(); math.Abs(r-t.Rate) > offRate*t.Rate {
		w := fmt.Sprintf("the replay brings %.3g requests a second, and the plan is made for %.3g", r, t.Rate)
		v.Warnings = append(v.Warnings, w)
		a.Note("%s", w)
	}
	return nil
}
