package bert

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model/safetensors"
	"llmops/pipeline/quantise"
)

// quantised is a copy of a model in fp8, as the pipeline makes it.
func quantised(t *testing.T, from string) string {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "fp8")
	if _, err := quantise.Run(t.Context(), filepath.Join("testdata", from), dst, quantise.Options{Scheme: quantise.FP8Dynamic}, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	return dst
}

// In fp8 the answers are others, and near: three bits of mantissa are an error of
// some per cent a product.
func TestQuantisedIsNear(t *testing.T) {
	plain, gs := load(t, "testdata/mean", Options{})
	in := encode(t, plain, gs)
	fp8, err := Load(quantised(t, "mean"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, got := run(t, plain, in), run(t, fp8, in)
	same := 0
	for i := range want {
		var ab, aa, bb float64
		for j := range want[i] {
			a, b := float64(want[i][j]), float64(got[i][j])
			ab, aa, bb = ab+a*b, aa+a*a, bb+b*b
			if a == b {
				same++
			}
		}
		if c := ab / math.Sqrt(aa*bb); c < 0.99 {
			t.Errorf("text %d: the cosine to the unquantised vector is %.4f", i, c)
		}
	}
	if same > len(want) {
		t.Errorf("%d numbers are the same as without quantisation", same)
	}
	cross, err := Load(quantised(t, "cross"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !cross.weights.pooler.dynamic || !cross.weights.layers[0].qkv.dynamic {
		t.Error("the cross-encoder computes without quantised activations")
	}
}

// A product in fp8 against the definition in float64.
func TestQuantisedProduct(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	const rows, in, out = 5, 24, 16
	l := linear{in: in, out: out, w: make([]float32, in*out), bias: make([]float32, out), dynamic: true}
	for i := range l.w {
		l.w[i] = float32(rng.NormFloat64())
	}
	for i := range l.bias {
		l.bias[i] = float32(rng.NormFloat64())
	}
	x, y := make([]float32, rows*in), make([]float32, rows*out)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * 3)
	}
	clear(x[2*in : 3*in]) // a row of nothing
	l.apply(y, x, rows, 2)
	for i := range rows {
		var amax float64
		for j := range in {
			amax = max(amax, math.Abs(float64(x[i*in+j])))
		}
		scale := float32(max(amax/448, 1.0/(448*512)))
		for j := range out {
			var want float64
			for k := range in {
				code := safetensors.FromE4M3(safetensors.ToE4M3(x[i*in+k] / scale))
				want += float64(code) * float64(l.w[j*in+k])
			}
			want = want*float64(scale) + float64(l.bias[j])
			if got := float64(y[i*out+j]); math.Abs(got-want) > 1e-4 {
				t.Errorf("row %d, output %d: %g, want %g", i, j, got, want)
			}
		}
	}
}

func TestBrokenQuantisation(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`"weight_scale"`, `"weight_scalx"`, `weight_scale" is missing`},
		{`"strategy": "token"`, `"strategy": "group"`, "activations"},
		{`"strategy": "channel"`, `"strategy": "group"`, "weights"},
		{`"quantization_config"`, `"quantization_confix"`, "does not say how it is quantised"},
	} {
		dir := quantised(t, "mean")
		changed := false
		for _, name := range []string{"config.json", "model.safetensors"} {
			file := filepath.Join(dir, name)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// Names in the header keep their length, and so their offsets.
			s := strings.NewReplacer(tt.old, tt.new, strings.Trim(tt.old, `"`)+`"`, strings.Trim(tt.new, `"`)+`"`).Replace(string(b))
			changed = changed || s != string(b)
			if err := os.WriteFile(file, []byte(s), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Load(dir, Options{}); !changed || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: changed %v, error %v, want %q", tt.new, changed, err, tt.want)
		}
	}
}
