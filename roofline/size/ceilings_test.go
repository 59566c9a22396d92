package size_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"llmops/roofline/size"
)

// ceilings are made up for an H200: decoding reads at 3.6 TB/s of 4.8, prefill does 742
// TFLOP/s of 989.4 in bf16, and all-reduces over 8 take 10 µs and 270 GB/s.
func ceilings(t testing.TB) *size.Ceilings {
	t.Helper()
	b, err := os.ReadFile("testdata/ceilings.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := size.ParseCeilings(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCeilings(t *testing.T) {
	r := register(t)
	resolve := func(whatIf ...string) size.Inputs {
		in, err := size.Resolve(r, settings(t, r, append([]string{"node.gpu=h200-sxm"}, whatIf...)...)...)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	bf16 := map[string]float64{"share.hbm": 0.75, "share.flops": 0.75, "fabric.latency": 10e-6, "fabric.bandwidth": 270e9}
	without := func(keys ...string) map[string]float64 {
		out := map[string]float64{}
		for k, v := range bf16 {
			out[k] = v
		}
		for _, k := range keys {
			delete(out, k)
		}
		return out
	}
	for _, c := range []struct {
		name  string
		in    size.Inputs
		edit  func(*size.Ceilings)
		want  map[string]float64
		notes []string
		err   string
	}{
		{"as it is", resolve(), nil, bf16, nil, ""},
		{"another layout", resolve("layout.tp=4"), nil, bf16, []string{"over 8 GPUs, and layout.tp is 4"}, ""},
		{"fp8 was not to be had", resolve("prefill.arithmetic=fp8"), nil, without("share.flops"), []string{"share.flops stays assumed: it has no products of prefill in fp8: no such kernel"}, ""},
		{"one GPU", resolve(), func(c *size.Ceilings) { c.AllReduce = nil }, without("fabric.latency", "fabric.bandwidth"), []string{"more than one GPU"}, ""},
		{"no attention", resolve(), func(c *size.Ceilings) { c.Attention = nil }, without("share.hbm"), []string{"share.hbm stays assumed: it has no attention"}, ""},
		{"a batch that arithmetic bounds is no reading of memory", resolve(), func(c *size.Ceilings) {
			for i := range c.DecodeGEMM {
				if g := &c.DecodeGEMM[i]; g.M == 64 {
					g.Bytes, g.SecondsBest, g.Seconds = g.Bytes/100, g.Seconds*9, g.Seconds*9
				}
			}
		}, without("share.hbm"), []string{"share.hbm stays assumed: it has no products of decoding in bf16 that memory bounds"}, ""},
		{"noise", resolve(), func(c *size.Ceilings) { c.PrefillGEMM[0].SecondsBest /= 2 }, bf16, []string{"1 figures have a median"}, ""},
		{"another model", resolve(), func(c *size.Ceilings) { c.PrefillGEMM[0].K++; c.PrefillGEMM[0].N, c.PrefillGEMM[0].M = 1, 1 }, nil, []string{"as wide as the model, 8192"}, ""},
		{"a curve", resolve(), func(c *size.Ceilings) { c.AllReduce[1].Seconds *= 2; c.AllReduce[1].SecondsBest *= 2 }, bf16, []string{"off the line"}, ""},
		{"larger is faster", resolve(), func(c *size.Ceilings) { c.AllReduce[2].Seconds = 1e-6 }, without("fabric.latency", "fabric.bandwidth"), []string{"no latency and no bandwidth"}, ""},
		{"another GPU by its name", resolve("node.gpu=h100-sxm"), nil, nil, nil, "it was measured on NVIDIA H200, and node.gpu is h100-sxm"},
		{"another GPU by its figures", resolve("node.bandwidth=3TB/s"), nil, nil, nil, "and node.bandwidth is 3e+12"},
		{"a try-out", resolve(), func(c *size.Ceilings) { c.DeviceType = "cpu" }, nil, nil, "says nothing of a GPU"},
		{"nothing", resolve(), func(c *size.Ceilings) { c.DecodeGEMM, c.PrefillGEMM, c.AllReduce = nil, nil, nil }, nil, nil, "has no figure to use"},
	} {
		got := ceilings(t)
		if c.edit != nil {
			c.edit(got)
		}
		set, notes, err := got.Settings(c.in, "ceilings.json")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || set != nil {
				t.Errorf("%s: %v, %v", c.name, set, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(notes) != len(c.notes) {
			t.Errorf("%s: notes are %q", c.name, notes)
		}
		for i := range min(len(notes), len(c.notes)) {
			if !strings.Contains(notes[i], c.notes[i]) {
				t.Errorf("%s: note %q, want %q in it", c.name, notes[i], c.notes[i])
			}
		}
		if c.want != nil && len(set) != len(c.want) {
			t.Errorf("%s: %v", c.name, set)
		}
		for _, s := range set {
			if want, ok := c.want[s.Key]; c.want != nil && (!ok || math.Abs(s.Value.Number/want-1) > 0.002 || s.Measured != "ceilings.json") {
				t.Errorf("%s: %s is %v, want %v", c.name, s.Key, s.Value.Number, want)
			}
		}
	}
}

// What is not what the job writes is refused, by name.
func TestCeilingsRefused(t *testing.T) {
	for want, edit := range map[string]func(*size.Ceilings){
		`it is a "Model"`:                      func(c *size.Ceilings) { c.Kind = "Model" },
		"device, devices or measured_at":       func(c *size.Ceilings) { c.Devices = 0 },
		"device_type is":                       func(c *size.Ceilings) { c.DeviceType = "rocm" },
		"copy: ":                               func(c *size.Ceilings) { c.Copy.Seconds = 0 },
		"decode_gemm[0]: dtype is":             func(c *size.Ceilings) { c.DecodeGEMM[0].DType = "int8" },
		"prefill_gemm[1]: a product of":        func(c *size.Ceilings) { c.PrefillGEMM[1].FLOPs++ },
		"prefill_gemm[0]: ":                    func(c *size.Ceilings) { c.PrefillGEMM[0].SecondsBest = c.PrefillGEMM[0].Seconds * 2 },
		"decode_attention[0]: keys and values": func(c *size.Ceilings) { c.Attention[0].Context-- },
		"all_reduce[1]: 4 ranks":               func(c *size.Ceilings) { c.AllReduce[1].Ranks = 4 },
		"all_reduce[0]: 16 ranks on 8":         func(c *size.Ceilings) { c.AllReduce[0].Ranks = 16 },
		"of 2 repetitions is no measurement":   func(c *size.Ceilings) { c.AllReduce[0].Repetitions = 2 },
	} {
		c := ceilings(t)
		edit(c)
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := size.ParseCeilings(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// A field that the job does not write may be one that was misspelt.
func TestCeilingsAreStrict(t *testing.T) {
	good, err := json.Marshal(ceilings(t))
	if err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{
		`unknown field "hbm"`: strings.Replace(string(good), "{", `{"hbm":1,`, 1),
		"behind the object":   string(good) + "{}",
		"unexpected EOF":      string(good[:len(good)-1]),
	} {
		if _, err := size.ParseCeilings([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

func FuzzCeilings(f *testing.F) {
	for _, name := range []string{"testdata/ceilings.json", "testdata/ceilings-cpu.json"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"kind":"Ceilings","bandwidth":1}`))
	f.Add([]byte(`{}{}`))
	r := register(f)
	in, err := size.Resolve(r, settings(f, r, "node.gpu=h200-sxm")...)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := size.ParseCeilings(b)
		if err != nil {
			return
		}
		set, _, err := c.Settings(in, "f")
		if err != nil {
			return
		}
		for _, s := range set {
			if v := s.Value.Number; !(v > 0) || math.IsInf(v, 0) || strings.HasPrefix(s.Key, "share.") && v > 1 {
				t.Errorf("%s is %v", s.Key, v)
			}
		}
		out, err := in.With(set...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := size.Compute(out); err != nil {
			t.Logf("refused later: %v", err)
		}
	})
}
