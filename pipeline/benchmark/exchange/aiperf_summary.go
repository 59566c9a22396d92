package exchange

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"llmops/pipeline/benchmark/load"
)

// aiperfSchema is the version of profile_export_aiperf.json that is written, that of
// aiperf 0.13 as its documentation has it.
const aiperfSchema = "1.5"

// aiperfStats is a metric of aiperf's summary. One that is derived has an average alone.
type aiperfStats map[string]any

var aiperfPercentiles = []float64{1, 5, 10, 25, 50, 75, 90, 95, 99}

// aiperfDist sums values up as aiperf does: percentiles between ranks, and the deviation of
// a sample; nil of none.
func aiperfDist(unit string, values []float64) aiperfStats {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	n := float64(len(values))
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	square := 0.0
	for _, v := range values {
		square += (v - sum/n) * (v - sum/n)
	}
	out := aiperfStats{"unit": unit, "avg": sum / n, "min": values[0], "max": values[len(values)-1], "count": len(values), "sum": sum, "std": math.Sqrt(square / max(1, n-1))}
	for _, p := range aiperfPercentiles {
		rank := p / 100 * (n - 1)
		low := int(rank)
		high := min(low+1, len(values)-1)
		out["p"+strconv.FormatFloat(p, 'g', -1, 64)] = values[low] + (rank-float64(low))*(values[high]-values[low])
	}
	return out
}

// writeAIPerfSummary writes what aiperf calls profile_export_aiperf.json. Latencies count
// from sending, as they do there; inter_token_latency is what is called TPOT here.
func writeAIPerfSummary(w io.Writer, r *Run, s load.Summary) error {
	var ttft, ttfo, latency, tpot, icl, in, out, user []float64
	add := func(to *[]float64, d time.Duration, ok bool) {
		if ok {
			*to = append(*to, float64(d)/1e6)
		}
	}
	cancelled := false
	for _, x := range r.Results {
		cancelled = cancelled || x.Kind == load.KindCancelled
		if !x.OK() {
			continue
		}
		d, ok := x.TTFTSent()
		add(&ttft, d, ok)
		add(&ttfo, x.FirstAnswer-x.Sent, x.FirstAnswer > 0)
		d, ok = x.E2ESent()
		add(&latency, d, ok)
		if d, _, ok = x.TPOT(); ok {
			add(&tpot, d, true)
			if d > 0 {
				user = append(user, 1/d.Seconds())
			}
		}
		for _, g := range x.Gaps {
			add(&icl, g, true)
		}
		if x.Count == load.CountUsage {
			in, out = append(in, float64(x.Input)), append(out, float64(x.Output))
		}
	}
	file := map[string]any{"schema_version": aiperfSchema, "aiperf_version": "llmops", "was_cancelled": cancelled, "input_config": map[string]any{"endpoint": map[string]any{"model_names": []string{r.Model}}}}
	put := func(name string, m aiperfStats) {
		if m != nil {
			file[name] = m
		}
	}
	put("request_latency", aiperfDist("ms", latency))
	put("time_to_first_token", aiperfDist("ms", ttft))
	put("time_to_first_output_token", aiperfDist("ms", ttfo))
	put("inter_token_latency", aiperfDist("ms", tpot))
	put("inter_chunk_latency", aiperfDist("ms", icl))
	put("input_sequence_length", aiperfDist("tokens", in))
	put("output_sequence_length", aiperfDist("tokens", out))
	put("output_token_throughput_per_user", aiperfDist("tokens/sec/user", user))
	one := func(name, unit string, v float64) { put(name, aiperfStats{"unit": unit, "avg": v}) }
	one("request_count", "requests", float64(s.Done))
	one("error_request_count", "requests", float64(s.Attempted-s.Done))
	one("benchmark_duration", "sec", s.Window.Seconds())
	one("request_throughput", "requests/sec", s.RequestRate)
	one("output_token_throughput", "tokens/sec", s.OutputRate)
	if s.SLO != (load.SLO{}) {
		one("good_request_count", "requests", float64(s.Good))
		one("goodput", "requests/sec", s.Goodput)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(file)
}
