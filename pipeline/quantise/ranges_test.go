package quantise

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/llama"
)

// shipped is a model with a tokenizer and a chat template that the embedded engine
// computes.
const shipped = "../../serving/embedded/llama/testdata/qwen2"

const someText = `{"text":"Bill of Lading 12"}
{"messages":[{"role":"user","content":"State the weight."},{"role":"assistant","content":"7 kg"}]}
`

func TestEngineScales(t *testing.T) {
	data := write(t, t.TempDir(), "data.jsonl", someText)
	s, err := MeasureScales(t.Context(), shipped, Options{Keep: []string{"re:.*o_proj"}}, true, Calibration{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	shape, err := model.LoadShape(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Activations) != 6*shape.Layers || len(s.KV) != shape.Layers {
		t.Fatalf("%d activations and %d caches of %d layers", len(s.Activations), len(s.KV), shape.Layers)
	}
	q, gate := s.Activations["model.layers.0.self_attn.q_proj"], s.Activations["model.layers.1.mlp.gate_proj"]
	if q <= 0 || q != s.Activations["model.layers.0.self_attn.v_proj"] || gate != s.Activations["model.layers.1.mlp.up_proj"] || gate == q {
		t.Errorf("what one product reads has several scales: %v", s.Activations)
	}
	// A second text widens ranges and never narrows one; only so much of it is read.
	first, err := MeasureScales(t.Context(), shipped, Options{Keep: []string{"re:.*o_proj"}}, true, Calibration{Data: data, Samples: 1})
	if err != nil {
		t.Fatal(err)
	}
	wider := 0
	for m, v := range s.Activations {
		if v < first.Activations[m] {
			t.Errorf("%s: %g with one text more, %g before", m, v, first.Activations[m])
		} else if v > first.Activations[m] {
			wider++
		}
	}
	if wider == 0 {
		t.Error("the second text was not read")
	}
	// They are what fp8-static takes.
	if _, err := Run(t.Context(), shipped, filepath.Join(t.TempDir(), "out"), Options{Scheme: FP8Static, Scales: s, Keep: []string{"re:.*o_proj"}}, quiet); err != nil {
		t.Error(err)
	}
}

func TestEngineScalesRefuses(t *testing.T) {
	mixtral := checkpoint(t, safetensors.BF16, gaussian(1), "model.layers.0.mlp.up_proj.weight")
	write(t, mixtral, "config.json", `{"model_type":"mixtral","architectures":["MixtralForCausalLM"],"hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,
"intermediate_size":384,"vocab_size":96,"max_position_embeddings":128,"rope_theta":10000,"num_local_experts":2,"num_experts_per_tok":1}`)
	for _, c := range []struct{ name, src, data, want string }{
		{"another family", mixtral, someText, "the embedded engine runs LlamaForCausalLM"},
		{"no JSON", shipped, someText + "weights: 7\n", "data.jsonl:3: invalid character"},
		{"no text", shipped, `{"prompt":"a"}`, `data.jsonl:1: neither "text" nor "messages"`},
		{"messages that are none", shipped, `{"messages":7}`, "data.jsonl:1: "},
		{"nothing", shipped, "", "data.jsonl has no text"},
		{"empty", shipped, `{"text":""}`, "data.jsonl has no text"},
	} {
		data := write(t, t.TempDir(), "data.jsonl", c.data)
		if _, err := MeasureScales(t.Context(), c.src, Options{}, false, Calibration{Data: data}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := MeasureScales(t.Context(), shipped, Options{}, false, Calibration{Data: "nowhere"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// What was not met, or had no end, is no scale.
func TestScalesOf(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		r    llama.Ranges
		want string
	}{
		{llama.Ranges{Inputs: map[string]float32{"a": 448}, Keys: map[string]float32{"s": 4.48}, Values: map[string]float32{"s": 8.96}}, ""},
		{llama.Ranges{Inputs: map[string]float32{"b": 1}}, "does not compute a"},
		{llama.Ranges{Inputs: map[string]float32{"a": 0}}, "inputs of a is 0"},
		{llama.Ranges{Inputs: map[string]float32{"a": inf}}, "inputs of a is +Inf"},
		{llama.Ranges{Inputs: map[string]float32{"a": 1}, Keys: map[string]float32{"s": 1}}, "values of s is 0"},
	} {
		s, err := scalesOf(c.r, []string{"a"}, true)
		if c.want == "" {
			if err != nil || s.Activations["a"] != 1 || math.Abs(s.KV["s"].K-0.01) > 1e-9 || math.Abs(s.KV["s"].V-0.02) > 1e-9 {
				t.Errorf("%+v, %v", s, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
