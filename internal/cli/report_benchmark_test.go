package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/report"
)

func TestReportShowsTheBenchmark(t *testing.T) {
	h, err := openHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	var results []*load.Result
	for i := range 80 {
		at := time.Duration(i) * 50 * time.Millisecond
		r := &load.Result{ID: i, Stream: true, Scheduled: at, Sent: at, FirstToken: at + 10*time.Millisecond, LastToken: at + 19*time.Millisecond, End: at + 20*time.Millisecond, FirstTokens: 1, Output: 10, Count: load.CountUsage}
		results = append(results, r)
		if err := load.Write(&lines, r); err != nil {
			t.Fatal(err)
		}
	}
	digest, _, err := h.blobs.Put(t.Context(), &lines)
	if err != nil {
		t.Fatal(err)
	}
	at := func(rate float64, file string) benchmark.Point {
		p := benchmark.Sum(benchmark.Load{Shape: benchmark.Poisson, Rate: rate, Whole: true}, results, load.Stats{}, spec20.SLO)
		p.File = file
		return p
	}
	records := func(file string) []pipeline.Record {
		roofs := &benchmark.Roofline{Device: "l4", BytesPerSecond: 2e11, FLOPS: 5e13}
		roofs.Add("decode at 20/s", 3, 0.001, 0.0001, 0.002, "half")
		b, err := json.Marshal(pipeline.BenchmarkOutput{Points: []benchmark.Point{at(10, ""), at(20, file)}, Roofline: roofs,
			Regression: &benchmark.Regression{Against: "v1", Changes: []benchmark.Change{{Name: "TTFT p50", Unit: "ns", A: 1e7, B: 2e7}}, Verdict: &evidence.Verdict{}}})
		if err != nil {
			t.Fatal(err)
		}
		return []pipeline.Record{{Stage: pipeline.StagePlan}, {Stage: pipeline.StageBenchmark, Output: b}}
	}
	got, err := h.loadOf(t.Context(), records(digest), spec20)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Rates) != 2 || got.Rates[0].Planned || !got.Rates[1].Planned || got.Rates[1].TTFT50 != 10 || got.Rates[1].TPOT50 != 1 || len(got.Curves) != 3 || len(got.Planned) != 3 || got.Missing != "" {
		t.Errorf("%+v", got)
	}
	if c := got.Changes; got.Against != "v1" || !got.Judged || len(c) != 1 || c[0].Was != "10 ms" || c[0].Is != "20 ms" {
		t.Errorf("%+v", c)
	}
	page, err := report.HTML(report.Run{Load: got})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"decode at 20/s: 50 % of memory", "Roofline of l4", "Shares of the requests by latency", "The run over time", "Time per output token by rate"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("page lacks %q", want)
		}
	}
	// Results that are elsewhere, and runs that got no further.
	if got, err = h.loadOf(t.Context(), records("sha256:"+strings.Repeat("0", 64)), spec20); err != nil || len(got.Planned) != 0 || got.Missing == "" || len(got.Curves) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = h.loadOf(t.Context(), records("")[:1], spec20); err != nil || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// spec20 plans for 20 requests a second.
var spec20 = pipeline.Spec{Traffic: pipeline.Traffic{Rate: 20}}
