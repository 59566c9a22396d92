package llama

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/core"
)

// tensor is one entry of a checkpoint that a test writes.
type tensor struct {
	dtype safetensors.DType
	shape []int64
	data  []byte
}

type checkpoint map[string]tensor

func readCheckpoint(t *testing.T, dir string) checkpoint {
	t.Helper()
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out := checkpoint{}
	for _, e := range c.Tensors() {
		r, err := c.Reader(e.Name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name] = tensor{e.DType, e.Shape, b}
	}
	return out
}

// write replaces the weights in dir, and config.json's quantization_config.
func (c checkpoint) write(t *testing.T, dir string, quantisation string) {
	t.Helper()
	var list []safetensors.Tensor
	for name, e := range c {
		list = append(list, safetensors.Tensor{Name: name, DType: e.dtype, Shape: e.shape})
	}
	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range c {
		if err := w.WriteAt(name, e.data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if quantisation != "" {
		editConfig(t, dir, "quantization_config", quantisation)
	}
}

func editConfig(t *testing.T, dir, key, value string) {
	t.Helper()
	name := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	config[key] = json.RawMessage(value)
	if b, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (e tensor) floats(t *testing.T) []float64 {
	t.Helper()
	f := make([]float32, len(e.data)*8/int(e.dtype.Bits()))
	if _, err := safetensors.Floats(f, e.dtype, e.data); err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(f))
	for i, v := range f {
		out[i] = float64(v)
	}
	return out
}

func bf16(v float64) (bits uint16, rounded float64) {
	b := math.Float32bits(float32(v))
	b += 0x7fff + b>>16&1
	return uint16(b >> 16), float64(math.Float32frombits(b &^ 0xffff))
}

const wholeRow = 1 << 30

func isLinear(name string) bool {
	return strings.HasSuffix(name, "_proj.weight")
}

// fp8 quantises every linear matrix by channel, or with one scale, and returns the
// weights that the codes stand for.
func (c checkpoint) fp8(t *testing.T, perTensor bool) (dequantised map[string][]float64) {
	dequantised = make(map[string][]float64)
	for name, e := range maps.Clone(c) {
		w := e.floats(t)
		if !isLinear(name) {
			dequantised[name] = w
			continue
		}
		out, in := int(e.shape[0]), int(e.shape[1])
		codes, scales := make([]byte, len(w)), []byte{}
		rows := in
		if perTensor {
			rows = len(w)
		}
		for from := 0; from < len(w); from += rows {
			var amax float64
			for _, v := range w[from : from+rows] {
				amax = max(amax, math.Abs(v))
			}
			bits, scale := bf16(amax / safetensors.MaxE4M3)
			scales = binary.LittleEndian.AppendUint16(scales, bits)
			for i := from; i < from+rows; i++ {
				codes[i] = safetensors.ToE4M3(float32(max(-safetensors.MaxE4M3, min(w[i]/scale, safetensors.MaxE4M3))))
				w[i] = float64(safetensors.FromE4M3(codes[i])) * scale
			}
		}
		dequantised[name] = w
		shape := []int64{int64(out), 1}
		if perTensor {
			shape = []int64{1}
		}
		c[name] = tensor{safetensors.F8E4M3, e.shape, codes}
		c[strings.TrimSuffix(name, "weight")+"weight_scale"] = tensor{safetensors.BF16, shape, scales}
	}
	return dequantised
}

// int4 packs every linear matrix with one scale for each group columns; wholeRow is
// one a row, 0 one for the matrix.
func (c checkpoint) int4(t *testing.T, group int) (dequantised map[string][]float64) {
	dequantised = make(map[string][]float64)
	for name, e := range maps.Clone(c) {
		w := e.floats(t)
		if !isLinear(name) {
			dequantised[name] = w
			continue
		}
		out, in := int(e.shape[0]), int(e.shape[1])
		each, shape := min(group, in), []int64{int64(out), 1}
		if group == 0 {
			each, shape = len(w), []int64{1}
		} else {
			shape[1] = int64(in / each)
		}
		var scales []byte
		words := make([]uint32, out*((in+7)/8))
		for from := 0; from < len(w); from += each {
			var amax float64
			for _, v := range w[from : from+each] {
				amax = max(amax, math.Abs(v))
			}
			bits, scale := bf16(amax / 7.5)
			scales = binary.LittleEndian.AppendUint16(scales, bits)
			for i := from; i < from+each; i++ {
				q := max(-8, min(math.RoundToEven(w[i]/scale), 7))
				w[i] = q * scale
				words[i/in*((in+7)/8)+i%in/8] |= uint32(q+8) << (4 * (i % in % 8))
			}
		}
		packed := []byte{}
		for _, word := range words {
			packed = binary.LittleEndian.AppendUint32(packed, word)
		}
		dequantised[name] = w
		delete(c, name)
		module := strings.TrimSuffix(name, "weight")
		c[module+"weight_packed"] = tensor{safetensors.I32, []int64{int64(out), int64((in + 7) / 8)}, packed}
		c[module+"weight_scale"] = tensor{safetensors.BF16, shape, scales}
		c[module+"weight_shape"] = tensor{safetensors.I64, []int64{2}, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(out)), uint64(in))}
	}
	return dequantised
}

// oracle computes the logits after ids the slow way: float64, no cache, one loop a
// formula. quantised modules round their input to E4M3 by token.
func oracle(s model.Shape, w map[string][]float64, ids []int, quantised bool) []float64 {
	h, d := s.Hidden, s.HeadDim
	group := s.Heads / s.KVHeads
	x := make([][]float64, len(ids))
	for i, id := range ids {
		x[i] = slices.Clone(w["model.embed_tokens.weight"][id*h : (id+1)*h])
	}
	norm := func(v []float64, weight []float64) []float64 {
		var sum float64
		for _, a := range v {
			sum += a * a
		}
		out := make([]float64, len(v))
		for i, a := range v {
			out[i] = a / math.Sqrt(sum/float64(len(v))+s.NormEps) * weight[i]
		}
		return out
	}
	product := func(name string, v []float64, quantised bool) []float64 {
		if quantised {
			var amax float64
			for _, a := range v {
				amax = max(amax, math.Abs(a))
			}
			scale := amax / safetensors.MaxE4M3
			v = slices.Clone(v)
			for i, a := range v {
				v[i] = float64(safetensors.FromE4M3(safetensors.ToE4M3(float32(a/scale)))) * scale
			}
		}
		m := w[name+".weight"]
		out := make([]float64, len(m)/len(v))
		for i := range out {
			for j, a := range v {
				out[i] += m[i*len(v)+j] * a
			}
		}
		return out
	}
	frequencies, _ := rope(s)
	rotate := func(v []float64, pos int) {
		for h := 0; h < len(v); h += d {
			for j := range d / 2 {
				sin, cos := math.Sincos(float64(pos) * float64(frequencies[j]))
				a, b := v[h+j], v[h+j+d/2]
				v[h+j], v[h+j+d/2] = a*cos-b*sin, b*cos+a*sin
			}
		}
	}
	for l := range s.Layers {
		prefix := "model.layers." + string(rune('0'+l)) + "."
		var ks, vs [][]float64
		for pos := range x {
			in := norm(x[pos], w[prefix+"input_layernorm.weight"])
			q := product(prefix+"self_attn.q_proj", in, quantised)
			k := product(prefix+"self_attn.k_proj", in, quantised)
			ks, vs = append(ks, k), append(vs, product(prefix+"self_attn.v_proj", in, quantised))
			rotate(q, pos)
			rotate(k, pos)
			attn := make([]float64, len(q))
			for head := range s.Heads {
				kv := head / group * d
				scores := make([]float64, pos+1)
				var sum float64
				for i := range scores {
					var dot float64
					for j := range d {
						dot += q[head*d+j] * ks[i][kv+j]
					}
					scores[i] = math.Exp(dot / math.Sqrt(float64(d)))
					sum += scores[i]
				}
				for i, p := range scores {
					for j := range d {
						attn[head*d+j] += p / sum * vs[i][kv+j]
					}
				}
			}
			for i, v := range product(prefix+"self_attn.o_proj", attn, quantised) {
				x[pos][i] += v
			}
			in = norm(x[pos], w[prefix+"post_attention_layernorm.weight"])
			gate, up := product(prefix+"mlp.gate_proj", in, quantised), product(prefix+"mlp.up_proj", in, quantised)
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			for i, v := range product(prefix+"mlp.down_proj", up, quantised) {
				x[pos][i] += v
			}
		}
	}
	return product("lm_head", norm(x[len(x)-1], w["model.norm.weight"]), false)
}

func config(weights, activations, format string) string {
	return `{"quant_method":"compressed-tensors","quantization_status":"compressed","format":"` + format + `","ignore":["lm_head"],"kv_cache_scheme":null,
		"config_groups":{"group_0":{"targets":["Linear"],"weights":` + weights + `,"input_activations":` + activations + `,"output_activations":null}}}`
}

const (
	fp8Weights   = `{"num_bits":8,"type":"float","strategy":"channel","symmetric":true,"dynamic":false}`
	fp8Tensor    = `{"num_bits":8,"type":"float","strategy":"tensor","symmetric":true,"dynamic":false}`
	fp8Tokens    = `{"num_bits":8,"type":"float","strategy":"token","symmetric":true,"dynamic":true}`
	int4Groups   = `{"num_bits":4,"type":"int","strategy":"group","group_size":16,"symmetric":true,"dynamic":false}`
	int4Channels = `{"num_bits":4,"type":"int","strategy":"channel","symmetric":true,"dynamic":false}`
	int4Tensor   = `{"num_bits":4,"type":"int","strategy":"tensor","symmetric":true,"dynamic":false}`
)

func TestQuantisedCheckpointsEqualAnOracle(t *testing.T) {
	ids := make([]int, 45)
	for i := range ids {
		ids[i] = (i*53 + 5) % 320
	}
	for name, tt := range map[string]struct {
		quantise    func(checkpoint) map[string][]float64
		config      string
		activations bool
	}{
		"bf16":             {func(c checkpoint) map[string][]float64 { return c.plain(t) }, "", false},
		"fp8 channel":      {func(c checkpoint) map[string][]float64 { return c.fp8(t, false) }, config(fp8Weights, fp8Tokens, "float-quantized"), true},
		"fp8 tensor":       {func(c checkpoint) map[string][]float64 { return c.fp8(t, true) }, config(fp8Tensor, fp8Tokens, "float-quantized"), true},
		"fp8 weights only": {func(c checkpoint) map[string][]float64 { return c.fp8(t, false) }, config(fp8Weights, "null", "naive-quantized"), false},
		"int4 group":       {func(c checkpoint) map[string][]float64 { return c.int4(t, 16) }, config(int4Groups, "null", "pack-quantized"), false},
		"int4 channel":     {func(c checkpoint) map[string][]float64 { return c.int4(t, wholeRow) }, config(int4Channels, "null", "pack-quantized"), false},
		"int4 tensor":      {func(c checkpoint) map[string][]float64 { return c.int4(t, 0) }, config(int4Tensor, "null", "pack-quantized"), false},
	} {
		dir := copyModel(t, "llama")
		c := readCheckpoint(t, dir)
		w := tt.quantise(c)
		c.write(t, dir, tt.config)
		e := newEngine(t, dir, core.Limits{Sequences: 1, Tokens: 16, Blocks: 16}, 1)
		got := e.logits(t, ids)
		want := oracle(e.exec.shape, w, ids, tt.activations)
		worst := 0.0
		for i := range got {
			worst = max(worst, math.Abs(float64(got[i])-want[i]))
		}
		// An activation that falls on the edge between two codes may round either
		// way, which no tolerance of float32 covers: hence the wider one with fp8.
		limit := 1e-4
		if tt.activations {
			limit = 0.05
			plain := oracle(e.exec.shape, w, ids, false)
			far := 0.0
			for i := range got {
				far = max(far, math.Abs(plain[i]-want[i]))
			}
			if far < 4*limit {
				t.Errorf("%s: quantising activations changes logits by %g only, so that this test shows nothing", name, far)
			}
		}
		if worst > limit {
			t.Errorf("%s: a logit is off by %g", name, worst)
		}
		t.Logf("%s: worst %g", name, worst)
	}
}

func (c checkpoint) plain(t *testing.T) map[string][]float64 {
	w := make(map[string][]float64)
	for name, e := range c {
		w[name] = e.floats(t)
	}
	return w
}

// Each damage is one error that names what is wrong, and no server.
func TestUnloadableCheckpoints(t *testing.T) {
	const down = "model.layers.1.mlp.down_proj."
	for name, tt := range map[string]struct {
		damage func(*testing.T, string, checkpoint)
		quant  string
		want   []string
	}{
		"NaN": {func(t *testing.T, dir string, c checkpoint) {
			binary.LittleEndian.PutUint16(c[down+"weight"].data[20:], 0x7fc0)
		}, "", []string{down + "weight", "NaN", "element 10", "model.safetensors"}},
		"infinity": {func(t *testing.T, dir string, c checkpoint) {
			binary.LittleEndian.PutUint16(c["model.norm.weight"].data, 0x7f80)
		}, "", []string{"model.norm.weight", "Inf"}},
		"missing": {func(t *testing.T, dir string, c checkpoint) { delete(c, "lm_head.weight") }, "", []string{`"lm_head.weight" is missing`}},
		"shape": {func(t *testing.T, dir string, c checkpoint) {
			e := c["model.norm.weight"]
			c["model.norm.weight"] = tensor{e.dtype, []int64{16}, e.data[:32]}
		}, "", []string{"model.norm.weight", "[16]", "[32]"}},
		"dtype": {func(t *testing.T, dir string, c checkpoint) {
			c["model.norm.weight"] = tensor{safetensors.I32, []int64{32}, make([]byte, 128)}
		}, "", []string{"model.norm.weight", "I32"}},
		"fp8 without scale": {func(t *testing.T, dir string, c checkpoint) {
			c.fp8(t, false)
			delete(c, down+"weight_scale")
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight_scale", "is missing"}},
		"fp8 NaN code": {func(t *testing.T, dir string, c checkpoint) {
			c.fp8(t, false)
			c[down+"weight"].data[3] = 0x7f
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight", "NaN", "element 3"}},
		"fp8 zero scale": {func(t *testing.T, dir string, c checkpoint) {
			c.fp8(t, false)
			clear(c[down+"weight_scale"].data)
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight_scale", "positive"}},
		"fp8 scale count": {func(t *testing.T, dir string, c checkpoint) {
			c.fp8(t, false)
			c[down+"weight_scale"] = tensor{safetensors.BF16, []int64{3, 1}, make([]byte, 6)}
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{"3 scales", "32 or 1"}},
		"fp8 unannounced": {func(t *testing.T, dir string, c checkpoint) { c.fp8(t, false) }, "", []string{"F8_E4M3", "quantization_config"}},
		"bf16 announced": {func(t *testing.T, dir string, c checkpoint) {}, config(fp8Weights, fp8Tokens, "float-quantized"),
			[]string{"model.layers.0.self_attn.q_proj.weight", "BF16"}},
		"mixed": {func(t *testing.T, dir string, c checkpoint) {
			q := c["model.layers.0.self_attn.k_proj.weight"]
			c.fp8(t, false)
			c["model.layers.0.self_attn.k_proj.weight"] = q
		}, strings.Replace(config(fp8Weights, fp8Tokens, "float-quantized"), `"lm_head"`, `"lm_head","re:.*k_proj"`, 1), []string{"k_proj", "share a scheme"}},
		"frozen": {func(t *testing.T, dir string, c checkpoint) { c.fp8(t, false) },
			strings.Replace(config(fp8Weights, fp8Tokens, "float-quantized"), `"compressed"`, `"frozen"`, 1), []string{"frozen"}},
		"static activations": {func(t *testing.T, dir string, c checkpoint) { c.fp8(t, false) },
			config(fp8Weights, fp8Tensor, "float-quantized"), []string{"activations", "not supported"}},
		"int4 shape": {func(t *testing.T, dir string, c checkpoint) {
			c.int4(t, 16)
			c[down+"weight_shape"].data[0]++
		}, config(int4Groups, "null", "pack-quantized"), []string{down + "weight_shape", "33"}},
		"int4 group": {func(t *testing.T, dir string, c checkpoint) { c.int4(t, 16) },
			config(strings.Replace(int4Groups, ":16", ":20", 1), "null", "pack-quantized"), []string{"groups of 20"}},
		"other method": {func(t *testing.T, dir string, c checkpoint) {}, `{"quant_method":"gptq"}`, []string{"gptq"}},
		"architecture": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "architectures", `["GPT2LMHeadModel"]`)
		}, "", []string{"GPT2LMHeadModel"}},
		"rope": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "rope_parameters", `{"rope_type":"longrope","rope_theta":1}`)
		}, "", []string{"longrope"}},
		"rope factor": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "rope_parameters", `{"rope_type":"yarn","rope_theta":10000}`)
		}, "", []string{"yarn", "factor 0"}},
		"vocabulary": {func(t *testing.T, dir string, c checkpoint) { editConfig(t, dir, "vocab_size", `100`) }, "", []string{"embed_tokens", "320"}},
		"truncated":  {func(t *testing.T, dir string, c checkpoint) {}, "cut", []string{"truncated"}},
		"pickle":     {func(t *testing.T, dir string, c checkpoint) {}, "pickle", []string{"pickled"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t, "llama")
			file := filepath.Join(dir, "model.safetensors")
			c := readCheckpoint(t, dir)
			tt.damage(t, dir, c)
			switch tt.quant {
			case "cut":
				if err := os.Truncate(file, 60000); err != nil {
					t.Fatal(err)
				}
			case "pickle":
				if err := os.Rename(file, filepath.Join(dir, "pytorch_model.bin")); err != nil {
					t.Fatal(err)
				}
			default:
				c.write(t, dir, tt.quant)
			}
			shape, err := model.LoadShape(dir)
			if err == nil {
				_, err = Load(dir, shape, Options{Tokens: 16, Length: 64, Blocks: 4, Threads: 1})
			}
			if err == nil {
				t.Fatal("it loads")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestQuantiseRow(t *testing.T) {
	dst := make([]float32, 4)
	if s := quantiseRow(dst, []float32{0, 0, 0, 0}); s != 1 || dst[0] != 0 {
		t.Errorf("zeros give %v × %g", dst, s)
	}
	// amax 896 gives the scale 2; 33 / 2 = 16.5 lies between the codes 16 and 18.
	if s := quantiseRow(dst, []float32{-896, 33, 1, 0}); s != 2 || !slices.Equal(dst, []float32{-448, 16, 0.5, 0}) {
		t.Errorf("got %v × %g", dst, s)
	}
	if s := quantiseRow(dst, []float32{1e-30, 0, 0, 0}); s <= 0 || math.IsInf(float64(dst[0]), 0) {
		t.Errorf("got %v × %g", dst, s)
	}
}

func copyModel(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}
