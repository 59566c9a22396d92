package quantise

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

// Scales of activations and of the cache are an input, and land where engines look.
func TestScales(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(5), "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight", "model.layers.0.input_layernorm.weight")
	attn := "model.layers.0.self_attn"
	both := map[string]float64{attn + ".k_proj": 0.5, attn + ".v_proj": 0.3}
	kv := map[string]KVScale{attn: {K: 0.25, V: 0.1}}
	dst := filepath.Join(t.TempDir(), "out")
	if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Static, Scales: &Scales{Activations: both, KV: kv}}, quiet); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float32{attn + ".k_proj.input_scale": 0.5, attn + ".v_proj.input_scale": toBF16(0.3), attn + ".k_scale": 0.25, attn + ".v_scale": toBF16(0.1)} {
		b, x := bytesOf(t, dst, name)
		if got := math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16); got != want || !slices.Equal(x.Shape, []int64{1}) {
			t.Errorf("%s is %v %v, want %v", name, got, x.Shape, want)
		}
	}
	shape, err := model.LoadShape(dst)
	if err != nil || shape.Quant.KV == nil || shape.Quant.Groups[0].Activations.Dynamic || shape.Quant.Groups[0].Weights.Strategy != "tensor" {
		t.Errorf("config says %+v, %v", shape.Quant, err)
	}
	if _, x := bytesOf(t, dst, attn+".k_proj.weight_scale"); !slices.Equal(x.Shape, []int64{1}) {
		t.Errorf("a scale a matrix is %v", x.Shape)
	}

	for _, c := range []struct {
		scheme string
		scales *Scales
		want   string
	}{
		{FP8Static, nil, "fp8-static needs the scales of activations"},
		{FP8Static, &Scales{}, "2 modules have none, the first is " + attn + ".k_proj"},
		{FP8Static, &Scales{Activations: map[string]float64{attn + ".k_proj": 0.5}}, "1 modules have none, the first is " + attn + ".v_proj"},
		{FP8Static, &Scales{Activations: map[string]float64{attn + ".k_proj": 1, attn + ".v_proj": 0}}, "v_proj has 0, want a positive number"},
		{FP8Static, &Scales{Activations: map[string]float64{attn + ".k_proj": 1, attn + ".v_proj": math.NaN()}}, "v_proj has NaN"},
		{FP8Static, &Scales{Activations: map[string]float64{attn + ".k_proj": 1, attn + ".v_proj": 1e-300}}, "that BF16 can hold"},
		{FP8Static, &Scales{Activations: map[string]float64{attn + ".k_proj": 1, attn + ".v_proj": 1, "model.other": 1}}, "model.other is no module"},
		{FP8Dynamic, &Scales{Activations: both}, "only fp8-static has scales of them"},
		{FP8Dynamic, &Scales{KV: map[string]KVScale{"model.layers.7.self_attn": {1, 1}}}, "model.layers.7.self_attn is no module"},
		{FP8Dynamic, &Scales{KV: map[string]KVScale{attn: {1, math.Inf(1)}}}, "has +Inf"},
	} {
		if _, err := Run(t.Context(), src, filepath.Join(t.TempDir(), "out"), Options{Scheme: c.scheme, Scales: c.scales}, quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %v, want %q", c.scheme, c.scales, err, c.want)
		}
	}
	if _, err := Run(t.Context(), src, filepath.Join(t.TempDir(), "out"), Options{Scheme: Int8, Scales: &Scales{KV: kv}}, quiet); err != nil {
		t.Errorf("scales of the cache with int8: %v", err)
	}
}

func TestReadScales(t *testing.T) {
	dir := t.TempDir()
	s, err := ReadScales(write(t, dir, "ok.json", `{"activations":{"a":0.5},"kv":{"b":{"k":1,"v":2}}}`))
	if err != nil || s.Activations["a"] != 0.5 || s.KV["b"].V != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	for body, want := range map[string]string{`{"activation":{}}`: "activation", `{"kv":{"b":{"k":1,"q":2}}}`: `"q"`, `[`: "unexpected", `{} {}`: "something follows", `{"kv":{"b":{"k":"1"}}}`: "kv"} {
		if _, err := ReadScales(write(t, dir, "bad.json", body)); err == nil || !strings.Contains(err.Error(), "bad.json") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func FuzzReadScales(f *testing.F) {
	f.Add(`{"activations":{"a":0.5},"kv":{"b":{"k":1,"v":2}}}`)
	f.Fuzz(func(t *testing.T, body string) {
		s, err := ReadScales(write(t, t.TempDir(), "s.json", body))
		if (s == nil) == (err == nil) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}
