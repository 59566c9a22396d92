package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/embedded/ceiling"
)

// regression joins to v, which is about the service level, whether what was measured is
// no worse than the version before, and says so in out.
func regression(ctx context.Context, a *Attempt, dep DeployOutput, out *BenchmarkOutput, results [][]*load.Result, v evidence.Verdict) (evidence.Verdict, error) {
	at := slices.IndexFunc(out.Points, func(p benchmark.Point) bool { return p.Rate == a.Spec.Traffic.Rate })
	if at < 0 {
		return v, nil // which v says
	}
	was, lost, err := before(ctx, a, dep)
	if err != nil {
		return v, err
	}
	is := benchmark.Sample{Name: "this version", System: out.System, Load: &out.Points[at].Load, Results: results[at]}
	margin := a.Spec.Benchmark.Regression
	r := benchmark.Regress(was, is, margin)
	if was == nil && lost != "" {
		r.Why = lost
	}
	out.Regression = &r
	if r.Verdict == nil {
		v.Warnings = append(v.Warnings, r.Why)
		return v, nil
	}
	// Only what the whole says reaches those who do not look into its parts.
	said := slices.Concat(v.Warnings, r.Verdict.Warnings)
	part := *r.Verdict
	v.Warnings, part.Warnings = nil, nil
	both := evidence.All(fmt.Sprintf("%s, and no figure is more than %.4g%% worse than in %s", v.Claim, 100*margin, r.Against), v, part)
	both.N, both.Warnings = v.N, append(both.Warnings, said...)
	return both, nil
}

// before finds the benchmark of the version that is live, as the run that brought it
// there recorded it; where it has none, since it went live as the first or its records are
// elsewhere, that of the newest version that went live and has one. lost says that there
// was one which cannot be read here.
func before(ctx context.Context, a *Attempt, dep DeployOutput) (was *benchmark.Sample, lost string, err error) {
	heads, err := Runs(ctx, a.Deps.Store)
	if err != nil {
		return nil, "", err
	}
	for _, h := range heads {
		if h.Alias != a.Spec.Name || h.State != Done || h.Run == a.Run {
			continue
		}
		s, err := benchmarked(ctx, a.Deps.Blobs, h, a.Spec.Traffic.Rate)
		switch {
		case errors.Is(err, fleet.ErrNotFound):
			lost = fmt.Sprintf("run %s benchmarked a version before this one, and its records are not on this machine: whether this one is slower is not known", h.Run)
			continue
		case err != nil:
			return nil, "", err
		case s.Name == dep.Stable.Version.Name:
			return s, "", nil
		case was == nil:
			was = s
		}
	}
	return was, lost, nil
}

// benchmarked is what a run measured of its candidate at a rate, or the nearest that it
// offered, so that what differs can be said.
func benchmarked(ctx context.Context, b fleet.Blobs, h Head, rate float64) (*benchmark.Sample, error) {
	rs, err := Records(ctx, b, h)
	if err != nil {
		return nil, err
	}
	var dep DeployOutput
	var out BenchmarkOutput
	for _, r := range rs {
		switch r.Stage {
		case StageDeploy:
			err = errors.Join(err, unmarshal(r.Output, &dep))
		case StageBenchmark:
			err = errors.Join(err, unmarshal(r.Output, &out))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the benchmark of run %s: %w", h.Run, err)
	}
	s := &benchmark.Sample{Name: dep.Candidate.Version.Name, System: out.System}
	if len(out.Points) == 0 {
		return s, nil
	}
	p := slices.MinFunc(out.Points, func(x, y benchmark.Point) int {
		dx, dy := x.Rate-rate, y.Rate-rate
		return cmp.Compare(dx*dx, dy*dy)
	})
	s.Load = &p.Load
	if s.Results, err = ReadResults(ctx, b, p.File); err != nil {
		return nil, fmt.Errorf("reading the results of run %s: %w", h.Run, err)
	}
	return s, nil
}

// keepResults stores what single requests met, as lines of JSON, and returns the digest.
func keepResults(ctx context.Context, b fleet.Blobs, rs []*load.Result) (string, error) {
	var lines bytes.Buffer
	for _, r := range rs {
		if err := load.Write(&lines, r); err != nil {
			return "", fmt.Errorf("storing results: %w", err)
		}
	}
	digest, _, err := b.Put(ctx, &lines)
	if err != nil {
		return "", fmt.Errorf("storing results: %w", err)
	}
	return digest, nil
}

// ReadResults reads what a benchmark stored of single requests; none where it stored
// nothing, as before results were kept.
func ReadResults(ctx context.Context, b fleet.Blobs, digest string) (out []*load.Result, err error) {
	if digest == "" {
		return nil, nil
	}
	body, err := getBlob(ctx, b, digest)
	if err != nil {
		return nil, err
	}
	err = load.Read(bytes.NewReader(body), func(r *load.Result) error {
		out = append(out, r)
		return nil
	})
	return out, err
}

// system is what is measured.
func system(a *Attempt, dep DeployOutput, replicas int) benchmark.System {
	e := a.Spec.Engine
	s := benchmark.System{Model: a.Spec.Name, Release: dep.Candidate.Version.Name, Weights: dep.Candidate.Version.Scheme,
		Engine: e.Kind, Version: e.Release, GPU: a.Spec.Placement.GPU, Replicas: replicas, Flags: e.Asked()}
	if e.Kind == "embedded" {
		s.Version = a.Deps.Build
	}
	if s.GPU != CPU {
		s.GPUs = replicas * e.gpus()
	} else if a.Deps.Cluster == "" {
		m := ceiling.ThisMachine()
		s.Machine = strings.TrimSpace(fmt.Sprintf("%s %s with %d threads", m.CPU, m.Arch, m.Threads))
	}
	return s
}

// content says what is asked, with a digest of it: other items are another load.
func content(s Spec, requests []*load.Request) string {
	bodies := make([][]byte, len(requests))
	for i, r := range requests {
		bodies[i] = r.Body
	}
	kind := "chats"
	if s.Task != "" {
		kind = string(s.Task)
	}
	items := filepath.Base(s.Eval.Suites[0].Items)
	return fmt.Sprintf("%d %s of %s near %d tokens, %d out (%s)", len(requests), kind, items, s.Traffic.Input, s.Traffic.Output, model.DigestOf(bytes.Join(bodies, []byte{0})).Short())
}
