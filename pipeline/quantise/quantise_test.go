package quantise

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

const configJSON = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":16,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":2,"intermediate_size":16,"vocab_size":8,"torch_dtype":"bfloat16","tie_word_embeddings":true,"rms_norm_eps":1e-05}`

// checkpoint writes a folder with one bf16 matrix a name, values made by fill.
func checkpoint(t *testing.T, d safetensors.DType, fill func(name string, i int) float32, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	const rows, cols = 6, 16
	var ts []safetensors.Tensor
	for _, n := range names {
		shape := []int64{rows, cols}
		if strings.HasSuffix(n, "norm.weight") {
			shape = []int64{cols}
		}
		ts = append(ts, sized(n, d, shape...))
	}
	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), ts, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ts {
		var b []byte
		for i := range x.Elements() {
			b = appendFloat(b, d, arithmeticOf(d).round(fill(x.Name, int(i))))
		}
		if err := w.WriteAt(x.Name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"config.json": configJSON, "tokenizer.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gaussian(seed uint64) func(string, int) float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(string, int) float32 { return float32(r.NormFloat64()) * 0.05 }
}

func bytesOf(t *testing.T, dir, name string) ([]byte, safetensors.Tensor) {
	t.Helper()
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ten, ok := c.Lookup(name)
	if !ok {
		t.Fatalf("%s has no tensor %s", dir, name)
	}
	r, err := c.Reader(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b, ten
}

func TestRunWritesWhatEnginesRead(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(2), "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
		"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.up_proj.weight")
	for _, scheme := range []string{FP8Dynamic, Int4Tensor} {
		dst := filepath.Join(t.TempDir(), "out")
		rep, err := Run(t.Context(), src, dst, Options{Scheme: scheme, Keep: []string{"re:.*up_proj"}}, func(int64, int64) {})
		if err != nil {
			t.Fatal(err)
		}
		if len(rep.Tensors) != 1 || rep.After >= rep.Before || rep.Tensors[0].Error <= 0 {
			t.Errorf("%s: report %+v", scheme, rep)
		}
		shape, err := model.LoadShape(dst)
		if err != nil || shape.Quant == nil {
			t.Fatalf("%s: config is read as %+v, %v", scheme, shape.Quant, err)
		}
		b, err := os.ReadFile(filepath.Join(dst, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Eps    json.Number `json:"rms_norm_eps"`
			Config struct {
				Ignore []string `json:"ignore"`
				Status string   `json:"quantization_status"`
			} `json:"quantization_config"`
		}
		if err := json.Unmarshal(b, &c); err != nil || c.Config.Status != "compressed" || c.Eps.String() != "1e-05" {
			t.Errorf("%s: config %s, %v", scheme, b, err)
		}
		if got := strings.Join(c.Config.Ignore, " "); got != "model.layers.0.mlp.gate model.layers.0.mlp.up_proj lm_head" {
			t.Errorf("%s: ignore %q", scheme, got)
		}
		before, _ := bytesOf(t, src, "model.layers.0.mlp.up_proj.weight")
		after, ten := bytesOf(t, dst, "model.layers.0.mlp.up_proj.weight")
		if string(before) != string(after) || ten.DType != safetensors.BF16 {
			t.Errorf("%s: a kept tensor changed", scheme)
		}
		if _, err := os.Stat(filepath.Join(dst, "tokenizer.json")); err != nil {
			t.Errorf("%s: %v", scheme, err)
		}
		m, err := model.Scan(t.Context(), os.DirFS(dst))
		if err != nil || m.Digest() != rep.Digest {
			t.Errorf("%s: digest %s, report says %s", scheme, m.Digest(), rep.Digest)
		}
		if _, err := Run(t.Context(), dst, dst+"2", Options{Scheme: scheme}, func(int64, int64) {}); err == nil || !strings.Contains(err.Error(), "quantised already") {
			t.Errorf("%s: quantising twice: %v", scheme, err)
		}
	}
}

// A name that nothing answers to is a slip, and what was to be kept would be
// quantised.
func TestKeepMustMatch(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(4), "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight")
	for keep, ok := range map[string]bool{
		"model.layers.0.mlp.up_proj":        true,
		"re:.*up_proj":                      true,
		"model.embed_tokens":                true, // stays anyway
		"lm_head":                           true, // tied: engines build it, the checkpoint has none
		"up_proj":                           false,
		"model.layers.0.mlp.up_proj.weight": false,
		"re:up_proj":                        false, // matches from the start
		"re:(":                              false,
		"":                                  false,
	} {
		_, err := Run(t.Context(), src, filepath.Join(t.TempDir(), "out"), Options{Scheme: FP8Dynamic, Keep: []string{keep}}, func(int64, int64) {})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "keep") {
			t.Errorf("keep %q: %v", keep, err)
		}
	}
}

// Every type that Run takes comes out as its own codes times its own scales, and
// what an earlier call left half done is no hindrance.
func TestRunKeepsTheTypeOfScales(t *testing.T) {
	for _, d := range []safetensors.DType{safetensors.BF16, safetensors.F16, safetensors.F32} {
		value := func(_ string, i int) float32 { return arithmeticOf(d).round(0.01 * float32(1+i%23)) }
		src := checkpoint(t, d, value, "a.weight")
		dir := t.TempDir()
		for scheme, codes := range map[string]string{FP8Dynamic: "a.weight", Int4Tensor: "a.weight_packed"} {
			dst := filepath.Join(dir, scheme)
			if err := os.MkdirAll(filepath.Join(dir, ".partial-"+scheme, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := Run(t.Context(), src, dst, Options{Scheme: scheme}, func(int64, int64) {}); err != nil {
				t.Fatalf("%v %s: %v", d, scheme, err)
			}
			raw, scale := bytesOf(t, dst, "a.weight_scale")
			if scale.DType != d {
				t.Errorf("%v %s: scales are %v", d, scheme, scale.DType)
			}
			scales := make([]float32, scale.Elements())
			if _, err := safetensors.Floats(scales, d, raw); err != nil {
				t.Fatal(err)
			}
			b, _ := bytesOf(t, dst, codes)
			for i := range 6 * 16 {
				var got, most float32
				if scheme == FP8Dynamic {
					got, most = safetensors.FromE4M3(b[i])*scales[i/16], 0.07
				} else {
					got, most = float32(int(b[i/2]>>(4*(i%2))&15)-8)*scales[0], 0.5*scales[0]/value("", i)+0.02
				}
				if off := (got - value("", i)) / value("", i); off > most || off < -most {
					t.Fatalf("%v %s: value %d is %v, want %v", d, scheme, i, got, value("", i))
				}
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
}
