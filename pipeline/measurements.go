package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline/benchmark"
)

// Measurement is the benchmark of a run, with what became of it.
type Measurement struct {
	Run     string
	Began   time.Time
	Outcome evidence.Outcome // of the stage
	Point   benchmark.Point  // the planned rate's, else the last that was offered
	BenchmarkOutput
}

// Measurements are the benchmarks of all runs whose records are here, the oldest first.
func Measurements(ctx context.Context, d Deps) ([]Measurement, error) {
	heads, err := Runs(ctx, d.Store)
	if err != nil {
		return nil, err
	}
	var out []Measurement
	for _, h := range heads {
		s := h.stage(StageBenchmark)
		if s == nil {
			continue
		}
		var r Record
		err := getJSON(ctx, d.Blobs, s.Record, &r)
		if errors.Is(err, fleet.ErrNotFound) {
			continue // on another machine, or gone
		}
		m := Measurement{Run: h.Run, Began: s.Began, Outcome: s.Outcome}
		if err == nil {
			err = unmarshal(r.Output, &m.BenchmarkOutput)
		}
		var spec Spec
		if err == nil {
			spec, err = ReadSpec(ctx, d.Blobs, h)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the benchmark of run %s: %w", h.Run, err)
		}
		if len(m.Points) == 0 {
			continue
		}
		m.System.Model = cmp.Or(m.System.Model, h.Alias)
		m.Point = m.Points[len(m.Points)-1]
		if i := slices.IndexFunc(m.Points, func(p benchmark.Point) bool { return p.Rate == spec.Traffic.Rate }); i >= 0 {
			m.Point = m.Points[i]
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Measurement) int { return a.Began.Compare(b.Began) })
	return out, nil
}
