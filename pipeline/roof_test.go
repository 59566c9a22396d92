package pipeline

import (
	"math"
	"strings"
	"testing"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

func TestRooflineOf(t *testing.T) {
	s := Spec{Engine: Engine{Kind: "vllm", TensorParallel: 4}, Placement: Placement{GPU: "h100-sxm"}, Traffic: Traffic{Rate: 4, Input: 1000, Output: 200}}
	r, err := roof(s, llama70b, Weights{Bytes: 141e9})
	if err != nil {
		t.Fatal(err)
	}
	p := benchmark.Point{Rate: 4, Summary: load.Summary{TPOT: load.Dist{Mean: 40e6}, E2ESent: load.Dist{Mean: 8e9}, TTFTSent: load.Dist{N: 9, P50: 500e6}}}
	waits := benchmark.Point{Rate: 8, Summary: load.Summary{TTFTSent: load.Dist{N: 9, P50: 5000e6}}} // and has no tokens
	got := rooflineOf(r, []benchmark.Point{waits, p}, s.Traffic, 2)
	// Of one of the four: 0.7 × 3.35 TB/s and 0.4 × 989.4 TFLOP/s.
	if got.Device != "h100-sxm" || math.Abs(got.BytesPerSecond/2.345e12-1) > 1e-6 || math.Abs(got.FLOPS/395.76e12-1) > 1e-3 || len(got.Points) != 2 {
		t.Fatalf("%+v", got)
	}
	// 16 sequences are multiplied with 2 × 70.6 G weights each, of which a GPU has a quarter
	// in 35.25 GB beside 1.6 GB of cache: 565 GFLOP in 36.8 GB, and 40 ms where memory alone
	// would take 15.7.
	decode, prefill := got.Points[0], got.Points[1]
	if decode.Binds != "memory" || math.Abs(decode.Intensity-15.1) > 0.5 || math.Abs(decode.Share-15.7/40) > 0.01 || math.Abs(decode.FLOPS/(decode.Share*decode.Intensity*got.BytesPerSecond)-1) > 1e-6 {
		t.Errorf("%+v", decode)
	}
	// A prompt of 1000 tokens: 141 TFLOP and attention, by four in 89 ms, of 500.
	if prefill.Binds != "arithmetic" || math.Abs(prefill.Share-0.18) > 0.01 || !strings.Contains(prefill.Note, "1000 tokens in 500.00 ms") {
		t.Errorf("%+v", prefill)
	}
	if rooflineOf(nil, []benchmark.Point{p}, s.Traffic, 1) != nil || rooflineOf(r, nil, s.Traffic, 1) != nil {
		t.Error("a roofline of nothing")
	}
}
