package exchange

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

func open(t *testing.T, name string) (*Run, []byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(bytes.NewReader(b), 0)
	if err != nil {
		t.Fatal(err)
	}
	return r, b
}

// What the tools' own files say of themselves holds of what is read of them: vLLM
// 0.32, guidellm 0.8.1 and aiperf 0.13 against a server of 64 chunks an answer, 50 ms
// and then 10 ms each.
func TestRealFiles(t *testing.T) {
	for name, n := range map[string]int{"vllm.json": 6, "guidellm.json": 7, "aiperf.jsonl": 5} {
		r, _ := open(t, name)
		events := 64
		if name == "vllm.json" {
			events = 66 // it takes the role and the finish reason for tokens
		}
		ok := 0
		for _, x := range r.Results {
			if !x.OK() {
				continue
			}
			ok++
			tpot, _, has := x.TPOT()
			ttft, _ := x.TTFTSent()
			if !has || x.Output != 64 || x.Events != events || tpot < 9*time.Millisecond || tpot > 16*time.Millisecond || ttft < 50*time.Millisecond || ttft > 250*time.Millisecond {
				t.Errorf("%s: %d tokens in %d events, TTFT %v, TPOT %v", name, x.Output, x.Events, ttft, tpot)
			}
		}
		if len(r.Results) != n || ok < 5 || len(r.Notes) == 0 {
			t.Errorf("%s: %d requests, %d complete", name, len(r.Results), ok)
		}
		for _, c := range load.Summarise(r.Results, load.Stats{}, load.SLO{}).Checks {
			if !c.OK && c.Name != "lag" {
				t.Errorf("%s: %s: %s", name, c.Name, c.Note)
			}
		}
	}
	r, _ := open(t, "vllm.json")
	if r.Load == nil || r.Load.Shape != benchmark.Poisson || r.Load.Rate != 10 || r.Model != "m" {
		t.Errorf("%+v", r.Load)
	}
	r, _ = open(t, "guidellm.json")
	if r.Load == nil || r.Load.Shape != benchmark.Poisson || r.Load.Rate != 10 {
		t.Errorf("%+v", r.Load)
	}
}

// guidellm's time_per_output_token has the TTFT in it, and what it calls
// inter-token latency is what everybody else calls TPOT.
func TestGuideLLMByDefinition(t *testing.T) {
	r, b := open(t, "guidellm.json")
	var f guideFile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	metric := func(name string) *guideDist { return f.Benchmarks[0].Metrics[name]["successful"] }
	for _, x := range r.Results {
		if !x.OK() {
			continue
		}
		d, _, _ := x.TPOT()
		ms := float64(d) / 1e6
		if itl := metric("inter_token_latency_ms"); ms < itl.Min-0.01 || ms > itl.Max+0.01 {
			t.Errorf("TPOT %v ms is not among guidellm's %v to %v", ms, itl.Min, itl.Max)
		}
	}
	if named := metric("time_per_output_token_ms"); named.Min < 10.3 {
		t.Errorf("guidellm's TPOT of %v ms has no TTFT in it", named.Min)
	}
}

// aiperf counts with a tokenizer that need not be the server's: 192 tokens here,
// of which the server sent 64.
func TestAIPerfCountsTheServers(t *testing.T) {
	r, b := open(t, "aiperf.jsonl")
	if !strings.Contains(string(b), `"output_sequence_length": {"value": 192`) || r.Results[0].Output != 64 {
		t.Errorf("%d tokens", r.Results[0].Output)
	}
	if lag, ok := r.Results[0].Lag(); !ok || lag <= 0 {
		t.Errorf("lag %v", lag)
	}
}

func example() *Run {
	ms := time.Millisecond
	good := func(id int, at time.Duration) *load.Result {
		return &load.Result{ID: id, Stream: true, Scheduled: at + 1, Sent: at + 2, FirstToken: at + 50*ms, FirstAnswer: at + 60*ms, LastToken: at + 110*ms, End: at + 120*ms,
			Gaps: []time.Duration{10 * ms, 50 * ms}, Events: 3, Input: 9, Output: 5, Count: load.CountUsage}
	}
	bad := &load.Result{ID: 2, Stream: true, Scheduled: 200*ms + 1, Sent: 200*ms + 2, End: 210 * ms, Kind: load.KindStream, Error: "broken", Count: load.CountUnknown}
	return &Run{Model: "m", Load: &benchmark.Load{Shape: benchmark.Poisson, Rate: 4}, Results: []*load.Result{good(0, 0), good(1, 100*ms), bad}}
}

// What is written is read again with the same figures, and the figures in the file
// are of the other tool's definitions.
func TestWrite(t *testing.T) {
	in := example()
	sum := load.Summarise(in.Results, load.Stats{}, load.SLO{})
	for _, format := range []string{VLLM, GuideLLM, AIPerf} {
		var b bytes.Buffer
		if err := Write(&b, format, in, sum); err != nil {
			t.Fatal(err)
		}
		out, err := Read(bytes.NewReader(b.Bytes()), 0)
		if err != nil {
			t.Fatalf("%s: %v\n%s", format, err, b.String())
		}
		got := load.Summarise(out.Results, load.Stats{}, load.SLO{})
		near := func(name string, a, b load.Dist) {
			if a.N != b.N || math.Abs(a.P50-b.P50) > 2000 || math.Abs(a.Max-b.Max) > 2000 {
				t.Errorf("%s: %s %+v, was %+v", format, name, a, b)
			}
		}
		near("TTFT", got.TTFTSent, sum.TTFTSent)
		near("TPOT", got.TPOT, sum.TPOT)
		near("E2E", got.E2ESent, sum.E2ESent)
		if format != GuideLLM {
			near("ICL", got.ICL, sum.ICL)
		}
		if got.Attempted != 3 || got.Done != 2 || got.OutputTokens != 10 || out.Tool != format {
			t.Errorf("%s: %+v", format, got)
		}
		if format != AIPerf && (out.Model != "m" || out.Load == nil || out.Load.Rate != 4) {
			t.Errorf("%s: %+v", format, out)
		}
	}
	var b bytes.Buffer
	if err := Write(&b, VLLM, in, sum); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v["completed"] != 2.0 || v["failed"] != 1.0 || math.Abs(v["mean_itl_ms"].(float64)-30) > 1e-6 || math.Abs(v["mean_tpot_ms"].(float64)-15) > 1e-6 || !reflect.DeepEqual(v["errors"], []any{"", "", "broken"}) {
		t.Errorf("%v", v)
	}
	if err := Write(&b, "wrk", in, sum); err == nil {
		t.Error("an unknown format is written")
	}
}

func TestRefused(t *testing.T) {
	for in, want := range map[string]string{
		``:                       "neither JSON nor lines",
		`{"a":1}`:                "of none of these tools",
		`{"aiperf_version":"1"}`: "give the profile_export.jsonl beside it",
		`{"request_throughput":1,"num_prompts":3}`:                                                                                "run vllm bench serve with --save-detailed",
		`{"request_throughput":1,"num_prompts":3,"ttfts":[1],"input_lens":[1]}`:                                                   "1 ttfts and 0",
		`{"metadata":{},"benchmarks":[]}`:                                                                                         "it has 0 benchmarks",
		`{"metadata":{"request_start_ns":5,"request_end_ns":3},"metrics":{}}`:                                                     "line 1: the request runs from 5 to 3",
		`{"metadata":{"request_start_ns":5,"request_end_ns":7,"benchmark_phase":"w"},"metrics":{}}`:                               "has no requests",
		`{"metadata":{"request_start_ns":5,"request_end_ns":7},"metrics":{"time_to_first_token":{"value":1,"unit":"fortnight"}}}`: `time_to_first_token is 1 in "fortnight"`,
	} {
		if _, err := Read(strings.NewReader(in), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, format := range []string{VLLM, GuideLLM, AIPerf} {
		var b bytes.Buffer
		if err := Write(&b, format, example(), load.Summary{}); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := Read(bytes.NewReader(in), 0)
		if err != nil {
			return
		}
		s := load.Summarise(r.Results, load.Stats{}, load.SLO{})
		for _, format := range []string{VLLM, GuideLLM, AIPerf} {
			if err := Write(&bytes.Buffer{}, format, r, s); err != nil {
				t.Fatalf("%s: %v", format, err)
			}
		}
	})
}
