package pipeline

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model"
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

// A server that is no run's has a roofline when it is said what it serves and on what.
func TestRooflineOfAServer(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := benchmark.Point{Load: benchmark.Load{Shape: benchmark.Closed, Concurrency: 4}, Summary: load.Summary{RequestRate: 4, Done: 10, InputTokens: 1000, OutputTokens: 500, TPOT: load.Dist{Mean: 40e6}, E2ESent: load.Dist{Mean: 1e9}, TTFTSent: load.Dist{N: 9, P50: 50e6}}}
	points := []benchmark.Point{p}
	l4 := benchmark.System{Engine: "vllm", GPU: "l4", GPUs: 1}
	fails := func(want string, sys benchmark.System, points []benchmark.Point) {
		t.Helper()
		if got, err := RooflineOf(dir, sys, points, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %q", got, err, want)
		}
	}
	fails("config.json", l4, points)
	write("config.json", `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"vocab_size":128256,"max_position_embeddings":8192,"torch_dtype":"bfloat16"}`)
	fails("has no weights", l4, points)
	write("model.safetensors", "")
	if err := os.Truncate(filepath.Join(dir, "model.safetensors"), 2_500_000_000); err != nil {
		t.Fatal(err)
	}
	fails(`"l5" is no GPU`, benchmark.System{GPU: "l5"}, points)
	fails("doctor --measure", benchmark.System{GPU: CPU, Engine: "llmops"}, points)
	fails("no answer", l4, []benchmark.Point{{Rate: 1}})
	got, err := RooflineOf(dir, l4, points, nil)
	// 2.5 GB at 0.7 × 300 GB/s are 12 ms, of 40; 4 sequences of 150 tokens are little beside.
	if err != nil || len(got.Points) != 2 || got.Points[0].Name != "decode, closed loop of 4" || math.Abs(got.Points[0].Share-0.30) > 0.01 || !strings.Contains(got.Points[0].Note, "at 4 sequences") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestArithmetic(t *testing.T) {
	f8 := &model.QuantArgs{Bits: 8, Type: "float"}
	for _, c := range []struct {
		q    *model.Quantisation
		want string
	}{
		{nil, ""},
		{&model.Quantisation{Method: "fp8"}, "fp8-dynamic"},
		{&model.Quantisation{Method: "gptq"}, ""},
		{&model.Quantisation{Method: "compressed-tensors", Groups: []model.QuantGroup{{Weights: f8, Activations: f8}}}, "fp8-dynamic"},
		{&model.Quantisation{Method: "compressed-tensors", Groups: []model.QuantGroup{{Weights: f8}}}, ""},
		{&model.Quantisation{Method: "compressed-tensors", Groups: []model.QuantGroup{{Weights: &model.QuantArgs{Bits: 8, Type: "int"}, Activations: f8}}}, ""},
	} {
		if got := arithmetic(c.q); got != c.want {
			t.Errorf("%+v: %q", c.q, got)
		}
	}
}
