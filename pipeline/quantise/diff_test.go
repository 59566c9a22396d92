package quantise

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model/safetensors"
)

// What Diff measures between a source and its result is what Run reported, for
// every scheme.
func TestDiffAgreesWithTheReport(t *testing.T) {
	src := t.TempDir()
	write(t, src, "config.json", decoder("llama", ""))
	put(t, filepath.Join(src, "model.safetensors"), gaussian(6), sized("lm_head.weight", safetensors.BF16, 40, 256), sized("model.norm.weight", safetensors.BF16, 256),
		sized("model.layers.0.a.weight", safetensors.BF16, 200, 384), sized("model.layers.0.b.weight", safetensors.F32, 130, 256), sized("model.layers.0.c.weight", safetensors.F16, 16, 128))
	for _, scheme := range Schemes() {
		o := Options{Scheme: scheme}
		if scheme == FP8Static {
			o.Scales = &Scales{Activations: map[string]float64{"model.layers.0.a": 1, "model.layers.0.b": 1, "model.layers.0.c": 1}}
		}
		dst := filepath.Join(t.TempDir(), "out")
		rep, err := Run(t.Context(), src, dst, o, quiet)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(-1)
		diff, err := Diff(t.Context(), src, dst, func(done, total int64) {
			if done <= last || done > total || total < rep.Before {
				t.Errorf("%d of %d after %d", done, total, last)
			}
			last = done
		})
		if err != nil || len(diff) != 5 {
			t.Fatalf("%s: %v, %v", scheme, diff, err)
		}
		worst := rep.Worst()
		for i, d := range diff {
			switch {
			case d.Fault != "" || i >= len(worst) && (d.Error != 0 || d.A != d.B):
				t.Errorf("%s: %+v", scheme, d)
			case i < len(worst) && (d.Name != worst[i].Name || math.Abs(d.Error/worst[i].Error-1) > 1e-4 || d.Largest < d.Error):
				t.Errorf("%s: %+v, reported was %+v", scheme, d, worst[i])
			}
		}
	}
}

// A source in blocks, and fused experts, are compared with what became of them.
func TestDiffSeesThroughTheLayout(t *testing.T) {
	src := sharded(t)
	dst := filepath.Join(t.TempDir(), "out")
	if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Block}, quiet); err != nil {
		t.Fatal(err)
	}
	diff, err := Diff(t.Context(), src, dst, quiet)
	if err != nil || len(diff) != 4 || diff[0].Error > 0.05 || diff[1].Error == 0 || diff[1].A != "F8_E4M3" || diff[2].B != "BF16" {
		t.Errorf("%+v, %v", diff, err)
	}

	fusedDir := t.TempDir()
	write(t, fusedDir, "config.json", `{"model_type":"qwen3_5_moe","hidden_size":128,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":8,"num_experts":3,"num_experts_per_tok":1,"moe_intermediate_size":16}`)
	put(t, filepath.Join(fusedDir, "model.safetensors"), gaussian(8), sized("model.layers.0.mlp.experts.gate_up_proj", safetensors.BF16, 3, 32, 128))
	if _, err := Run(t.Context(), fusedDir, dst, Options{Scheme: Int4}, quiet); err != nil {
		t.Fatal(err)
	}
	diff, err = Diff(t.Context(), fusedDir, dst, quiet)
	if err != nil || len(diff) != 6 || diff[0].Fault != "" || diff[0].Error > 0.2 || diff[0].B != "INT4" || !strings.Contains(diff[0].Name, ".experts.") {
		t.Errorf("%+v, %v", diff, err)
	}
}

func TestDiffFindsFaults(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		write(t, dir, "config.json", decoder("llama", ""))
	}
	one := func(string, int) float32 { return 1 }
	put(t, filepath.Join(a, "model.safetensors"), one, sized("a", safetensors.F32, 4), sized("gone", safetensors.F32, 4), sized("shape", safetensors.F32, 2, 4),
		sized("table", safetensors.I32, 0), sized("nan", safetensors.F32, 4), sized("zero", safetensors.F32, 4), sized("same", safetensors.F32, 4))
	put(t, filepath.Join(b, "model.safetensors"), func(name string, i int) float32 {
		switch {
		case name == "nan" && i == 3:
			return float32(math.NaN())
		case name == "a" && i == 0:
			return 1.5
		}
		return 1
	}, sized("a", safetensors.F32, 4), sized("new", safetensors.F32, 4), sized("shape", safetensors.F32, 4, 2), sized("table", safetensors.U32, 0),
		sized("nan", safetensors.F32, 4), sized("zero", safetensors.F32, 4), sized("same", safetensors.F32, 4))
	diff, err := Diff(t.Context(), a, b, quiet)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range diff {
		got[d.Name] = d.Fault
	}
	for name, want := range map[string]string{"a": "", "same": "", "zero": "", "gone": "only in the first", "new": "only in the second", "shape": "2 × 4 in the first, 4 × 2", "table": "other bytes", "nan": "row 0: 1 in the first, NaN"} {
		if f, ok := got[name]; !ok || (f == "") != (want == "") || !strings.HasPrefix(f, want) {
			t.Errorf("%s: %q, want %q", name, f, want)
		}
	}
	if diff[0].Fault == "" || diff[5].Name != "a" || diff[5].Error != 0.25 || diff[5].Largest != 0.5 {
		t.Errorf("order or error: %+v", diff)
	}

	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Diff(ctx, a, b, func(int64, int64) { cancel() }); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Diff(t.Context(), a, filepath.Join(b, "none"), quiet); err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
}

// A checkpoint whose scales make no sense is refused, not read as noise.
func TestViewsRefuse(t *testing.T) {
	block := `,"quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]}`
	for _, c := range []struct {
		more, want string
		lines      []string
	}{
		{"", "weight_shape is missing or not I64", []string{"a.weight_packed I32 8x16"}},
		{"", "its scales have the shape [3]", []string{"a.weight I8 8x16", "a.weight_scale BF16 3"}},
		{"", "its scales have the shape [2 1]", []string{"a.weight F8_E4M3 200x16", "a.weight_scale F32 2x1"}},
		{block, "its scales have the shape [3 1]", []string{"a.weight F8_E4M3 200x16", "a.weight_scale_inv F32 3x1"}},
		{"", "weight_shape is 0 × 0", []string{"a.weight_packed I32 8x16", "a.weight_shape I64 2", "a.weight_scale BF16 8x1"}}, // the file is all zeros
	} {
		dir := headers(t, decoder("llama", c.more), c.lines...)
		if _, err := Diff(t.Context(), dir, dir, quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.lines, err, c.want)
		}
	}
	dir := headers(t, decoder("llama", block), "a.weight F8_E4M3 200x16", "a.weight_scale_inv F32 2x1")
	if diff, err := Diff(t.Context(), dir, dir, quiet); err != nil || len(diff) != 1 || diff[0].Error != 0 {
		t.Errorf("%v, %v", diff, err)
	}
}

// FuzzView reads packed weights of any shape and scales.
func FuzzView(f *testing.F) {
	f.Add(uint8(2), uint8(8), uint8(2), uint8(1), []byte{2, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0}, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, rows, words, s0, s1 uint8, dims, codes []byte) {
		if len(dims) != 16 || rows == 0 || words == 0 || words > 64 || s0 == 0 || s1 == 0 {
			return
		}
		dir := t.TempDir()
		write(t, dir, "config.json", decoder("llama", ""))
		w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{
			sized("a.weight_packed", safetensors.I32, int64(rows), int64(words)), sized("a.weight_shape", safetensors.I64, 2), sized("a.weight_scale", safetensors.BF16, int64(s0), int64(s1)),
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		fill := func(n int) []byte {
			b := make([]byte, n)
			copy(b, codes)
			return b
		}
		if err := errors.Join(w.WriteAt("a.weight_packed", fill(int(rows)*int(words)*4), 0), w.WriteAt("a.weight_shape", dims, 0), w.WriteAt("a.weight_scale", fill(int(s0)*int(s1)*2), 0), w.Commit()); err != nil {
			t.Fatal(err)
		}
		diff, err := Diff(t.Context(), dir, dir, quiet)
		if err == nil && (len(diff) != 1 || diff[0].Error != 0 || diff[0].Fault != "") {
			t.Fatalf("%+v", diff)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	})
}
