package quantise

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama"
)

// tiny is a llama of two layers that groups and blocks of 128 divide.
func tiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "config.json", `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
"num_key_value_heads":2,"intermediate_size":384,"vocab_size":96,"max_position_embeddings":128,"rope_theta":10000,"torch_dtype":"bfloat16","tie_word_embeddings":false,"rms_norm_eps":1e-05}`)
	ts := []safetensors.Tensor{sized("model.embed_tokens.weight", safetensors.BF16, 96, 256), sized("lm_head.weight", safetensors.BF16, 96, 256), sized("model.norm.weight", safetensors.BF16, 256)}
	for _, layer := range []string{"model.layers.0.", "model.layers.1."} {
		for name, shape := range map[string][]int64{"self_attn.q_proj": {256, 256}, "self_attn.k_proj": {128, 256}, "self_attn.v_proj": {128, 256}, "self_attn.o_proj": {256, 256},
			"mlp.gate_proj": {384, 256}, "mlp.up_proj": {384, 256}, "mlp.down_proj": {256, 384}, "input_layernorm": {256}, "post_attention_layernorm": {256}} {
			ts = append(ts, sized(layer+name+".weight", safetensors.BF16, shape...))
		}
	}
	slices.SortFunc(ts, func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) }) // the same weights each time
	fill := gaussian(12)
	put(t, filepath.Join(dir, "model.safetensors"), func(name string, i int) float32 {
		if strings.HasSuffix(name, "norm.weight") {
			return 1
		}
		return fill(name, i)
	}, ts...)
	return dir
}

// scores are the log probabilities of a text under the model in dir, computed by
// the embedded engine.
func scores(t *testing.T, dir string) (out []float64) {
	t.Helper()
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := llama.Load(dir, shape, llama.Options{Tokens: 32, Length: 128, Blocks: 16, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(core.Limits{Sequences: 1, Tokens: 32, Blocks: 16})
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	for i := range 48 {
		ids = append(ids, i*i%96)
	}
	if err := c.Add(0, &core.Sequence{ID: 1, Prompt: ids, Score: true, Max: 1}); err != nil {
		t.Fatal(err)
	}
	var b core.Batch
	tokens := make([]core.Token, 1)
	for c.Next(0, &b) {
		if _, err := exec.Step(t.Context(), &b, tokens); err != nil {
			t.Fatal(err)
		}
		c.Commit(0, &b, tokens, func(ev core.Event) {
			for _, p := range ev.Prompt {
				out = append(out, float64(p.Logprob))
			}
		})
	}
	return out
}

// The embedded engine loads every scheme, and answers nearly as the source does:
// the more bits, the nearer.
func TestTheEngineLoadsEveryScheme(t *testing.T) {
	src := tiny(t)
	want := scores(t, src)
	for scheme, most := range map[string]float64{FP8Dynamic: 0.1, FP8Block: 0.1, FP8BlockUE8M0: 0.1, FP8Static: 0.1, Int8: 0.03, Int8Weight: 0.03, Int4: 0.25, Int4Tensor: 0.6} {
		o := Options{Scheme: scheme}
		if scheme == FP8Static {
			o.Scales = &Scales{Activations: map[string]float64{}, KV: map[string]KVScale{}}
			for _, layer := range []string{"model.layers.0.", "model.layers.1."} {
				for _, m := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
					o.Scales.Activations[layer+m] = 8.0 / 448
				}
				o.Scales.KV[layer+"self_attn"] = KVScale{K: 8.0 / 448, V: 8.0 / 448}
			}
		}
		dst := filepath.Join(t.TempDir(), "out")
		if _, err := Run(t.Context(), src, dst, o, quiet); err != nil {
			t.Fatal(err)
		}
		var off float64 // nats
		got := scores(t, dst)
		for i, v := range got {
			off += math.Abs(v-want[i]) / float64(len(got))
		}
		if len(got) != len(want) || !(off > 0 && off < most) {
			t.Errorf("%s: %d log probabilities are off by %.4f, want under %.4f", scheme, len(got), off, most)
		}
		t.Logf("%s: off by %.4f", scheme, off)
	}
}
