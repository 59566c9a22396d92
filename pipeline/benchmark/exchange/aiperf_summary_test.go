package exchange

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"llmops/pipeline/benchmark/load"
)

func TestAIPerfSummary(t *testing.T) {
	r := example()
	s := load.Summarise(r.Results, load.Stats{}, load.SLO{TTFT: time.Second})
	var out bytes.Buffer
	if err := Write(&out, AIPerfSummary, r, s); err != nil {
		t.Fatal(err)
	}
	var f map[string]json.RawMessage
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	metric := func(name string) (m struct {
		Unit                         string
		Avg, Min, Max, P50, P99, Std float64
		Count                        int
	}) {
		if err := json.Unmarshal(f[name], &m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return m
	}
	for name, want := range map[string]struct {
		unit  string
		avg   float64
		count int
	}{
		"time_to_first_token":              {"ms", 50, 2}, // since sent
		"time_to_first_output_token":       {"ms", 60, 2},
		"request_latency":                  {"ms", 110, 2},
		"inter_token_latency":              {"ms", 15, 2}, // 60 ms for four tokens
		"inter_chunk_latency":              {"ms", 30, 4},
		"output_sequence_length":           {"tokens", 5, 2},
		"output_token_throughput_per_user": {"tokens/sec/user", 1000 / 15.0, 2},
		"request_count":                    {"requests", 2, 0},
		"error_request_count":              {"requests", 1, 0},
		"good_request_count":               {"requests", 2, 0},
	} {
		if m := metric(name); m.Unit != want.unit || math.Abs(m.Avg-want.avg) > 0.001 || m.Count != want.count {
			t.Errorf("%s: %+v, want %+v", name, m, want)
		}
	}
	if m := metric("inter_chunk_latency"); m.Min != 10 || m.Max != 50 || m.P50 != 30 || math.Abs(m.P99-50) > 1e-9 || math.Abs(m.Std-math.Sqrt(1600.0/3)) > 1e-9 {
		t.Errorf("%+v", m)
	}
	// It is not read back: of aggregates no interval can be computed.
	if _, err := Read(&out, 0); err == nil || !strings.Contains(err.Error(), "aggregates only") {
		t.Error(err)
	}
	// A run of which nothing was answered has no distributions, and no numbers that are none.
	if err := Write(&out, AIPerfSummary, &Run{Results: []*load.Result{{Kind: load.KindConnect}}}, load.Summary{}); err != nil {
		t.Error(err)
	}
}
