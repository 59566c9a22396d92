package cli

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"slices"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/chart"
	"llmops/pipeline/report"
)

// loadOf is what the report shows of the benchmark, with the single results that it drew
// from where they are on this machine; nil when there was none.
func (h *home) loadOf(ctx context.Context, records []pipeline.Record, spec pipeline.Spec) (*report.Benchmark, error) {
	at := slices.IndexFunc(records, func(r pipeline.Record) bool { return r.Stage == pipeline.StageBenchmark })
	if at < 0 {
		return nil, nil
	}
	var out pipeline.BenchmarkOutput
	if json.Unmarshal(records[at].Output, &out) != nil || len(out.Points) == 0 {
		return nil, nil
	}
	b := benchmarkReport(out, spec.Traffic.Rate)
	planned := slices.IndexFunc(out.Points, func(p benchmark.Point) bool { return p.Rate == spec.Traffic.Rate })
	if planned < 0 {
		return b, nil
	}
	p := out.Points[planned]
	results, err := pipeline.ReadResults(ctx, h.blobs, p.File)
	switch {
	case errors.Is(err, fleet.ErrNotFound) || err == nil && len(results) == 0:
		b.Missing = "What single requests met is not on this machine: neither distributions nor the run over time are shown."
		return b, nil
	case err != nil:
		return nil, err
	}
	b.Planned = plannedFigures(p, results)
	return b, nil
}

func plannedFigures(p benchmark.Point, results []*load.Result) (out []template.HTML) {
	if cdf := benchmark.CDF(p, results); cdf != "" {
		out = append(out, cdf)
	}
	return append(out, benchmark.Timeline(p, results)...)
}

// benchmarkReport is what the record itself says.
func benchmarkReport(out pipeline.BenchmarkOutput, plan float64) *report.Benchmark {
	b := &report.Benchmark{Curves: benchmark.Curves(out.Points, chart.Mark{X: plan, Name: "planned"}), Roofline: out.Roofline.SVG()}
	for _, p := range out.Points {
		s := p.Summary
		failed := 0
		for _, n := range s.Failed {
			failed += n
		}
		b.Rates = append(b.Rates, report.Rate{Offered: p.Rate, Answered: s.RequestRate, Planned: p.Rate == plan, TTFT50: s.TTFT.P50 / 1e6, TTFT95: s.TTFT.P95 / 1e6,
			TPOT50: s.TPOT.P50 / 1e6, TPOT95: s.TPOT.P95 / 1e6, Tokens: s.OutputRate, Good: s.GoodShare, Attempted: s.Attempted, Failed: failed})
	}
	if out.Roofline != nil {
		for _, p := range out.Roofline.Points {
			b.Roofs = append(b.Roofs, p.Name+": "+p.Note)
		}
	}
	if r := out.Regression; r != nil {
		b.Against, b.Why, b.Judged = r.Against, r.Why, r.Verdict != nil
		for _, c := range r.Changes {
			b.Changes = append(b.Changes, report.Change{Name: c.Name, Was: c.Show(c.A), Is: c.Show(c.B), Verdict: c.Verdict})
		}
	}
	return b
}
