package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"llmops/pipeline"
	"llmops/roofline/cost"
	sizing "llmops/roofline/size"
	"llmops/serving/trace"
)

// measured are the assumptions that measured ceilings, a run or recorded usage replace.
// A run is held against ceilings that are given with it.
func (e *env) measured(ctx context.Context, p *sizePlan, f sizeFlags) (out []sizing.Setting, err error) {
	in, err := p.base.In.With(p.of.Set...)
	if err == nil {
		in, err = in.With(p.whatIf...)
	}
	if err != nil {
		return nil, usage("%w", err)
	}
	if f.roofs != "" {
		set, err := e.roofsIn(f.roofs, in)
		if err != nil {
			return nil, err
		}
		out = append(out, set...)
		if in, err = in.With(set...); err != nil {
			return nil, usage("--measured: %w", err)
		}
	}
	if f.run != "" {
		s, err := e.shownRun(ctx, f.run)
		if err != nil {
			return nil, err
		}
		m, err := measuredIn(s, in)
		if err != nil {
			return nil, usage("--run %s: %w", f.run, err)
		}
		set, err := sizing.Calibrate(in, m)
		if err != nil {
			return nil, usage("--run: %w", err)
		}
		out = append(out, set)
		e.say("%s went to %d streams a replica; what is said of more is extrapolated", m.Source, m.Streams)
	}
	if f.usage != "" {
		t, err := readUsage(f.usage)
		if err != nil {
			return nil, err
		}
		s, err := sizing.Compute(in)
		if err != nil {
			return nil, usage("%w", err)
		}
		for _, w := range leftOut(t.Left) {
			e.say("warning: %s", w)
		}
		if h := t.Hours(); h < fewestHours {
			e.say("warning: %s covers %g hours, and load follows the day", f.usage, h)
		}
		set, err := sizing.Observed(t, s.Capacity(), f.usage)
		if err != nil {
			return nil, &exitError{exitInconclusive, err}
		}
		out = append(out, set...)
	}
	return out, nil
}

// roofsIn reads measured ceilings.
func (e *env) roofsIn(path string, in sizing.Inputs) ([]sizing.Setting, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("%w", err)
	}
	c, err := sizing.ParseCeilings(b)
	if err != nil {
		return nil, usage("--measured %s: %w; want what jobs/ceilings.nomad.hcl prints", path, err)
	}
	set, notes, err := c.Settings(in, path)
	if err != nil {
		return nil, usage("--measured %s: %w", path, err)
	}
	e.say("%s is of %s, %s", path, c.Device, c.Measured.Format(time.DateOnly))
	for _, n := range notes {
		e.say("mind: %s", n)
	}
	return set, nil
}

// shownRun is a run as runs show prints it: of this machine, or from a file.
func (e *env) shownRun(ctx context.Context, name string) (s shown, err error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		h, err := e.openHome()
		if err != nil {
			return s, err
		}
		return h.show(ctx, name, false)
	}
	if err != nil {
		return s, fmt.Errorf("reading a run: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, usage("reading %s: %w; want what llmops runs report RUN --format json prints", name, err)
	}
	return s, nil
}

// measuredIn finds what the benchmark of a run saw of a replica at the highest rate at
// which nothing failed. It refuses a run on another GPU or of another model, whose
// roofline is another.
func measuredIn(s shown, in sizing.Inputs) (m sizing.Measured, err error) {
	var plan pipeline.PlanOutput
	var bench pipeline.BenchmarkOutput
	var dep pipeline.DeployOutput
	for _, r := range s.Records {
		var to any
		switch r.Stage {
		case pipeline.StagePlan:
			to = &plan
		case pipeline.StageBenchmark:
			to = &bench
		case pipeline.StageDeploy:
			to = &dep
		default:
			continue
		}
		if err := json.Unmarshal(r.Output, to); err != nil {
			return m, fmt.Errorf("the output of stage %s: %w", r.Stage, err)
		}
	}
	if plan.Roof == nil {
		return m, errors.New("its replicas had no GPU of the catalogue, so that nothing of it says how far a roofline is reached")
	}
	if gpu, gpus := in.Text("node.gpu"), in.Number("layout.tp")*in.Number("layout.pp"); plan.Roof.GPU != gpu || float64(plan.Roof.GPUs) != gpus {
		return m, fmt.Errorf("it measured %d × %s, and the assumptions are of %g × %q; set node.gpu and layout.tp to what was measured", plan.Roof.GPUs, plan.Roof.GPU, gpus, gpu)
	}
	if n := in.Number("model.parameters"); math.Abs(float64(plan.Parameters)/n-1) > 0.02 {
		return m, fmt.Errorf("it measured a model of %.3g parameters, and the assumptions are of %.3g", float64(plan.Parameters), n)
	}
	m.Source = "run " + s.Run
	replicas := max(len(dep.Candidate.Ready), 1)
	for _, p := range bench.Points {
		sum := p.Summary
		if sum.TPOT.N == 0 || sum.Done != sum.Attempted || sum.Done == 0 {
			continue
		}
		// Little's law: what is under way is the rate times the time that it takes.
		m.TPOT, m.Streams = sum.TPOT.Mean/1e9, max(1, int(math.Round(sum.RequestRate*sum.E2ESent.Mean/1e9/float64(replicas))))
		// A stream has half of its answer in the mean.
		m.Context = max(1, int(float64(sum.InputTokens)+float64(sum.OutputTokens)/2)/sum.Done)
	}
	if m.TPOT == 0 {
		return m, errors.New("its benchmark has no rate at which all requests were answered with a time between tokens")
	}
	return m, nil
}

// readUsage adds a usage file up, or a folder of routers' records.
func readUsage(path string) (*cost.Tally, error) {
	var t cost.Tally
	files, err := trace.Files(path)
	if err != nil {
		return nil, usage("%w", err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage("%w", err)
		}
		err = t.Read(f)
		_ = f.Close()
		if err != nil {
			return nil, usage("%s: %w", name, err)
		}
	}
	return &t, nil
}

// cutLines says that files of records end within a line.
func cutLines(n int) string {
	return fmt.Sprintf("lines cut at the end of a file, as a router leaves one that is killed: %d; passed over", n)
}

// leftOut says what of usage is in no figure.
func leftOut(l cost.Left) (out []string) {
	if l.Unknown > 0 {
		out = append(out, fmt.Sprintf("%d answered requests have no count of their tokens, and are in no figure", l.Unknown))
	}
	if l.Unserved > 0 {
		out = append(out, fmt.Sprintf("%d requests were refused, failed, or left by their client, and are in no figure", l.Unserved))
	}
	if l.Cut > 0 {
		out = append(out, cutLines(l.Cut))
	}
	return out
}
