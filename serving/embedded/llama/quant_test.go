package llama

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
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

func isLinear(name string) bool {
	return strings.HasSuffix(name, "_proj.weight")
}

// recipe says how a test quantises the linear matrices: blocks of rows × cols share
// a scale; 0 is all of them.
type recipe struct {
	code       string // e4m3, int8, packed8, packed4
	rows, cols int
	static     bool   // with scales of the activations
	scale      string // name of the scales; default weight_scale
}

var (
	fp8Channel = recipe{code: "e4m3", rows: 1}
	int4Group  = recipe{code: "packed4", rows: 1, cols: 16}
)

// inputScales are static ones. q, k and v, and gate and up, are computed with the
// largest among them.
var inputScales = map[string]float64{"q_proj": 0.005, "k_proj": 0.0075, "v_proj": 0.01, "o_proj": 0.00625, "gate_proj": 0.0125, "up_proj": 0.01, "down_proj": 0.025}

func staticScale(module string) float64 {
	switch name := module[strings.LastIndexByte(module, '.')+1:]; name {
	case "q_proj", "k_proj", "v_proj":
		return inputScales["v_proj"]
	case "gate_proj", "up_proj":
		return inputScales["gate_proj"]
	default:
		return inputScales[name]
	}
}

// quantise replaces every linear matrix and returns the weights that the codes
// stand for.
func (c checkpoint) quantise(t *testing.T, q recipe) (dequantised map[string][]float64) {
	dequantised = make(map[string][]float64)
	for name, e := range maps.Clone(c) {
		w := e.floats(t)
		dequantised[name] = w
		if !isLinear(name) {
			continue
		}
		out, in := int(e.shape[0]), int(e.shape[1])
		rows, cols := cmp.Or(q.rows, out), cmp.Or(q.cols, in)
		across, down := (in+cols-1)/cols, (out+rows-1)/rows
		module := strings.TrimSuffix(name, "weight")
		codes, words := make([]byte, len(w)), make([]uint32, len(w)/8)
		var scales []byte
		for block := range across * down {
			top, left := block/across*rows, block%across*cols
			var at []int
			var amax float64
			for i := top; i < min(top+rows, out); i++ {
				for j := left; j < min(left+cols, in); j++ {
					at = append(at, i*in+j)
					amax = max(amax, math.Abs(w[i*in+j]))
				}
			}
			largest := map[string]float64{"e4m3": safetensors.MaxE4M3, "int8": 127.5, "packed8": 127.5, "packed4": 7.5}[q.code]
			bits, scale := bf16(amax / largest)
			scales = binary.LittleEndian.AppendUint16(scales, bits)
			for _, i := range at {
				v := w[i] / scale
				switch q.code {
				case "e4m3":
					codes[i] = safetensors.ToE4M3(float32(max(-safetensors.MaxE4M3, min(v, safetensors.MaxE4M3))))
					v = float64(safetensors.FromE4M3(codes[i]))
				case "int8", "packed8":
					v = max(-128, min(math.RoundToEven(v), 127))
					codes[i] = byte(int8(v))
					if q.code == "packed8" {
						codes[i] += 128
					}
				case "packed4":
					v = max(-8, min(math.RoundToEven(v), 7))
					words[i/8] |= uint32(v+8) << (4 * (i % 8))
				}
				w[i] = v * scale
			}
		}
		switch q.code {
		case "e4m3":
			c[name] = tensor{safetensors.F8E4M3, e.shape, codes}
		case "int8":
			c[name] = tensor{safetensors.I8, e.shape, codes}
		default:
			if q.code == "packed4" {
				codes = nil
				for _, word := range words {
					codes = binary.LittleEndian.AppendUint32(codes, word)
				}
			}
			delete(c, name)
			c[module+"weight_packed"] = tensor{safetensors.I32, []int64{int64(out), int64(len(codes) / out / 4)}, codes}
			c[module+"weight_shape"] = tensor{safetensors.I64, []int64{2}, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(out)), uint64(in))}
		}
		shape := []int64{int64(down), int64(across)}
		if across*down == 1 {
			shape = shape[:1]
		}
		c[module+cmp.Or(q.scale, "weight_scale")] = tensor{safetensors.BF16, shape, scales}
		if q.static {
			bits := math.Float32bits(float32(inputScales[strings.TrimSuffix(module[strings.LastIndexByte(strings.TrimSuffix(module, "."), '.')+1:], ".")]))
			c[module+"input_scale"] = tensor{safetensors.F32, []int64{1}, binary.LittleEndian.AppendUint32(nil, bits)}
		}
	}
	return dequantised
}

// addCacheScales gives every layer scales of keys and values.
func (c checkpoint) addCacheScales(layers int, heads bool) {
	for l := range layers {
		for i, name := range []string{"k_scale", "v_scale"} {
			shape, bits := []int64{1}, []byte{}
			for h := range 2 {
				b, _ := bf16(cacheScale(l, i, h, heads))
				bits = binary.LittleEndian.AppendUint16(bits, b)
			}
			if heads {
				shape = []int64{2, 1, 1}
			} else {
				bits = bits[:2]
			}
			c[fmt.Sprintf("model.layers.%d.self_attn.%s", l, name)] = tensor{safetensors.BF16, shape, bits}
		}
	}
}

func cacheScale(layer, kind, head int, heads bool) float64 {
	if !heads {
		head = 0
	}
	return 0.03125 * float64(1+layer+2*kind+4*head)
}

// rounder changes what the oracle computes with.
type rounder struct {
	input func(module string, v []float64) // of a linear matrix, in place; nil: nothing
	cache func(layer, kind, head int, v []float64)
}

// oracle computes the logits after ids the slow way: float64, no cache, one loop a
// formula.
func oracle(s model.Shape, w map[string][]float64, ids []int, r rounder) []float64 {
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
	product := func(name string, v []float64) []float64 {
		if r.input != nil && isLinear(name+".weight") {
			v = slices.Clone(v)
			r.input(name, v)
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
			q := product(prefix+"self_attn.q_proj", in)
			k := product(prefix+"self_attn.k_proj", in)
			ks, vs = append(ks, k), append(vs, product(prefix+"self_attn.v_proj", in))
			rotate(q, pos)
			rotate(k, pos)
			if r.cache != nil {
				for h := range s.KVHeads {
					r.cache(l, 0, h, k[h*d:(h+1)*d])
					r.cache(l, 1, h, vs[pos][h*d:(h+1)*d])
				}
			}
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
			for i, v := range product(prefix+"self_attn.o_proj", attn) {
				x[pos][i] += v
			}
			in = norm(x[pos], w[prefix+"post_attention_layernorm.weight"])
			gate, up := product(prefix+"mlp.gate_proj", in), product(prefix+"mlp.up_proj", in)
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			for i, v := range product(prefix+"mlp.down_proj", up) {
				x[pos][i] += v
			}
		}
	}
	return product("lm_head", norm(x[len(x)-1], w["model.norm.weight"]))
}

func config(weights, activations, format string) string {
	return `{"quant_method":"compressed-tensors","quantization_status":"compressed","format":"` + format + `","ignore":["lm_head"],"kv_cache_scheme":null,
		"config_groups":{"group_0":{"targets":["Linear"],"weights":` + weights + `,"input_activations":` + activations + `,"output_activations":null}}}`
}

func args(bits int, kind, strategy string, dynamic bool) string {
	return fmt.Sprintf(`{"num_bits":%d,"type":%q,"strategy":%q,"symmetric":true,"dynamic":%t,"group_size":16,"block_structure":[24,32]}`, bits, kind, strategy, dynamic)
}

var (
	fp8Weights = args(8, "float", "channel", false)
	fp8Tokens  = args(8, "float", "token", true)
	fp8Tensor  = args(8, "float", "tensor", false)
	int4Groups = args(4, "int", "group", false)
)

// Roundings of activations, as engines do them, in float64.
func toE4M3(v []float64, scale float64) {
	for i, a := range v {
		v[i] = float64(safetensors.FromE4M3(safetensors.ToE4M3(float32(max(-safetensors.MaxE4M3, min(a/scale, safetensors.MaxE4M3)))))) * scale
	}
}

func toInt8(v []float64, scale float64) {
	for i, a := range v {
		v[i] = max(-128, min(math.RoundToEven(a/scale), 127)) * scale
	}
}

func amax(v []float64) float64 {
	var most float64
	for _, a := range v {
		most = max(most, math.Abs(a))
	}
	return most
}

func TestQuantisedCheckpointsEqualAnOracle(t *testing.T) {
	e4m3 := func(_ string, v []float64) { toE4M3(v, amax(v)/safetensors.MaxE4M3) }
	e4m3Static := func(m string, v []float64) { toE4M3(v, staticScale(m)) }
	e4m3Blocks := func(_ string, v []float64) {
		for i := 0; i < len(v); i += 32 {
			part := v[i:min(i+32, len(v))]
			toE4M3(part, amax(part)/safetensors.MaxE4M3)
		}
	}
	eight := func(_ string, v []float64) { toInt8(v, amax(v)/127) }
	fp8Cache := func(heads bool) func(l, kind, h int, v []float64) {
		return func(l, kind, h int, v []float64) { toE4M3(v, cacheScale(l, kind, h, heads)) }
	}
	cacheOnly := func(scheme string) string {
		return `{"quant_method":"compressed-tensors","quantization_status":"compressed","kv_cache_scheme":` + scheme + `}`
	}
	for name, tt := range map[string]struct {
		recipe recipe
		config string
		round  func(string, []float64)
		kv     string
		cache  func(l, kind, h int, v []float64)
		heads  bool
	}{
		"bf16":                {},
		"fp8 channel":         {recipe: fp8Channel, config: config(fp8Weights, fp8Tokens, "float-quantized"), round: e4m3},
		"fp8 tensor":          {recipe: recipe{code: "e4m3"}, config: config(fp8Tensor, fp8Tokens, "float-quantized"), round: e4m3},
		"fp8 static":          {recipe: recipe{code: "e4m3", static: true}, config: config(fp8Tensor, fp8Tensor, "float-quantized"), round: e4m3Static},
		"fp8 channel, static": {recipe: recipe{code: "e4m3", rows: 1, static: true}, config: config(fp8Weights, fp8Tensor, "float-quantized"), round: e4m3Static},
		"fp8 block":           {recipe: recipe{code: "e4m3", rows: 24, cols: 32}, config: config(args(8, "float", "block", false), args(8, "float", "group", true), "float-quantized"), round: e4m3Blocks},
		"fp8 block, weights":  {recipe: recipe{code: "e4m3", rows: 24, cols: 32}, config: config(args(8, "float", "block", false), "null", "naive-quantized")},
		"fp8 weights only":    {recipe: fp8Channel, config: config(fp8Weights, "null", "naive-quantized")},
		"fp8 fine-grained": {recipe: recipe{code: "e4m3", rows: 24, cols: 32, scale: "weight_scale_inv"}, round: e4m3Blocks,
			config: `{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[24,32]}`},
		"fp8 method, static":  {recipe: recipe{code: "e4m3", static: true}, round: e4m3Static, config: `{"quant_method":"fp8","activation_scheme":"static","ignored_layers":["lm_head"]}`},
		"int8 dynamic":        {recipe: recipe{code: "int8", rows: 1}, config: config(args(8, "int", "channel", false), args(8, "int", "token", true), "int-quantized"), round: eight},
		"int8 static":         {recipe: recipe{code: "int8", rows: 1, static: true}, config: config(args(8, "int", "channel", false), args(8, "int", "tensor", false), "int-quantized"), round: func(m string, v []float64) { toInt8(v, staticScale(m)) }},
		"int8 weights":        {recipe: recipe{code: "int8", rows: 1}, config: config(args(8, "int", "channel", false), "null", "int-quantized")},
		"int8 weights, naive": {recipe: recipe{code: "int8"}, config: config(args(8, "int", "tensor", false), "null", "naive-quantized")},
		"int8 group":          {recipe: recipe{code: "int8", rows: 1, cols: 16}, config: config(args(8, "int", "group", false), "null", "int-quantized")},
		"int8 packed":         {recipe: recipe{code: "packed8", rows: 1}, config: config(args(8, "int", "channel", false), "null", "pack-quantized")},
		"int8 packed group":   {recipe: recipe{code: "packed8", rows: 1, cols: 16}, config: config(args(8, "int", "group", false), "null", "pack-quantized")},
		"int4 group":          {recipe: int4Group, config: config(int4Groups, "null", "pack-quantized")},
		"int4 channel":        {recipe: recipe{code: "packed4", rows: 1}, config: config(args(4, "int", "channel", false), "null", "pack-quantized")},
		"int4 tensor":         {recipe: recipe{code: "packed4"}, config: config(args(4, "int", "tensor", false), "null", "pack-quantized")},
		"bf16 cache": {kv: KVBF16, cache: func(_, _, _ int, v []float64) {
			for i := range v {
				_, v[i] = bf16(v[i])
			}
		}},
		"fp8 cache":         {config: cacheOnly(fp8Tensor), cache: fp8Cache(false)},
		"fp8 cache by head": {config: cacheOnly(args(8, "float", "attn_head", false)), cache: fp8Cache(true), heads: true},
		"fp8 cache of 1":    {kv: KVFP8, cache: func(_, _, _ int, v []float64) { toE4M3(v, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t, "llama")
			c := readCheckpoint(t, dir)
			var w map[string][]float64
			if tt.recipe.code == "" {
				w = c.plain(t)
			} else {
				w = c.quantise(t, tt.recipe)
			}
			if tt.cache != nil && tt.kv == "" {
				c.addCacheScales(2, tt.heads)
			}
			c.write(t, dir, tt.config)
			compare(t, dir, w, rounder{tt.round, tt.cache}, tt.kv)
		})
	}
}

// compare loads dir and holds its logits against the oracle's with w.
func compare(t *testing.T, dir string, w map[string][]float64, r rounder, kv string) {
	t.Helper()
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := Load(dir, shape, Options{Tokens: 16, Length: 64, Blocks: 16, Threads: 1, KV: kv})
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(core.Limits{Sequences: 1, Tokens: 16, Blocks: 16})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int, 45)
	for i := range ids {
		ids[i] = (i*53 + 5) % shape.Vocab
	}
	got := (&engine{core: c, exec: exec}).logits(t, ids)
	distance := func(a []float64) (worst float64) {
		for i := range got {
			worst = max(worst, math.Abs(float64(got[i])-a[i]))
		}
		return worst
	}
	// What falls on the edge between two codes may round either way, which no
	// tolerance of float32 covers: hence the wider one where something is rounded.
	limit, worst := 1e-4, distance(oracle(shape, w, ids, r))
	if r.input != nil || r.cache != nil {
		limit = 0.05
		if far := distance(oracle(shape, w, ids, rounder{})); far < 2*worst || far < 0.01 {
			t.Errorf("off by %g, and by %g without rounding: this shows nothing", worst, far)
		}
	}
	if worst > limit {
		t.Errorf("a logit is off by %g", worst)
	}
	t.Logf("worst %g", worst)
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
			c.quantise(t, fp8Channel)
			delete(c, down+"weight_scale")
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight_scale", "is missing"}},
		"fp8 NaN code": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, fp8Channel)
			c[down+"weight"].data[3] = 0x7f
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight", "NaN", "element 3"}},
		"fp8 zero scale": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, fp8Channel)
			clear(c[down+"weight_scale"].data)
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{down + "weight_scale", "positive"}},
		"fp8 scale count": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, fp8Channel)
			c[down+"weight_scale"] = tensor{safetensors.BF16, []int64{3, 1}, make([]byte, 6)}
		}, config(fp8Weights, fp8Tokens, "float-quantized"), []string{"3 scales", "32 or 1"}},
		"fp8 unannounced": {func(t *testing.T, dir string, c checkpoint) { c.quantise(t, fp8Channel) }, "", []string{"F8_E4M3", "quantization_config"}},
		"bf16 announced": {func(t *testing.T, dir string, c checkpoint) {}, config(fp8Weights, fp8Tokens, "float-quantized"),
			[]string{"model.layers.0.self_attn.q_proj.weight", "BF16"}},
		"mixed": {func(t *testing.T, dir string, c checkpoint) {
			q := c["model.layers.0.self_attn.k_proj.weight"]
			c.quantise(t, fp8Channel)
			c["model.layers.0.self_attn.k_proj.weight"] = q
		}, strings.Replace(config(fp8Weights, fp8Tokens, "float-quantized"), `"lm_head"`, `"lm_head","re:.*k_proj"`, 1), []string{"k_proj", "share a scheme"}},
		"frozen": {func(t *testing.T, dir string, c checkpoint) { c.quantise(t, fp8Channel) },
			strings.Replace(config(fp8Weights, fp8Tokens, "float-quantized"), `"compressed"`, `"frozen"`, 1), []string{"frozen"}},
		"asymmetric": {func(t *testing.T, dir string, c checkpoint) {},
			strings.Replace(config(int4Groups, "null", "pack-quantized"), `"symmetric":true`, `"symmetric":false`, 1), []string{"zero points"}},
		"dynamic by tensor": {func(t *testing.T, dir string, c checkpoint) {},
			config(fp8Weights, args(8, "float", "tensor", true), "float-quantized"), []string{"activations", "not supported"}},
		"int4 activations": {func(t *testing.T, dir string, c checkpoint) {},
			config(int4Groups, args(8, "int", "token", true), "pack-quantized"), []string{"activations", "not supported"}},
		"int8 beside fp8": {func(t *testing.T, dir string, c checkpoint) {},
			config(fp8Weights, args(8, "int", "token", true), "float-quantized"), []string{"activations", "not supported"}},
		"static without scale": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, recipe{code: "e4m3", static: true})
			delete(c, down+"input_scale")
		}, config(fp8Tensor, fp8Tensor, "float-quantized"), []string{down + "input_scale", "is missing"}},
		"int8 without scale": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, recipe{code: "int8", rows: 1})
			delete(c, down+"weight_scale")
		}, config(args(8, "int", "channel", false), "null", "int-quantized"), []string{down + "weight_scale", "is missing"}},
		"int8 dtype": {func(t *testing.T, dir string, c checkpoint) { c.quantise(t, fp8Channel) },
			config(args(8, "int", "channel", false), "null", "int-quantized"), []string{"q_proj.weight", "F8_E4M3", "I8"}},
		"block without scale": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, recipe{code: "e4m3", rows: 24, cols: 32})
		}, `{"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[24,32]}`, []string{"q_proj.weight_scale_inv", "is missing"}},
		"block count": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, recipe{code: "e4m3", rows: 16, cols: 16})
		}, config(args(8, "float", "block", false), "null", "naive-quantized"), []string{"scales, want"}},
		"cache without scale": {func(t *testing.T, dir string, c checkpoint) {
			c.addCacheScales(2, false)
			delete(c, "model.layers.1.self_attn.v_scale")
		}, `{"quant_method":"compressed-tensors","kv_cache_scheme":` + fp8Tensor + `}`, []string{"model.layers.1.self_attn.v_scale", "is missing"}},
		"cache in int8": {func(t *testing.T, dir string, c checkpoint) {}, `{"quant_method":"compressed-tensors","kv_cache_scheme":` + args(8, "int", "tensor", false) + `}`,
			[]string{"kv_cache_scheme", "int8"}},
		"int4 shape": {func(t *testing.T, dir string, c checkpoint) {
			c.quantise(t, int4Group)
			c[down+"weight_shape"].data[0]++
		}, config(int4Groups, "null", "pack-quantized"), []string{down + "weight_shape", "33"}},
		"int4 group": {func(t *testing.T, dir string, c checkpoint) { c.quantise(t, int4Group) },
			config(strings.Replace(int4Groups, ":16", ":24", 1), "null", "pack-quantized"), []string{"groups of 24"}},
		"other method": {func(t *testing.T, dir string, c checkpoint) {}, `{"quant_method":"gptq"}`, []string{"gptq"}},
		"architecture": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "architectures", `["GPT2LMHeadModel"]`)
		}, "", []string{"GPT2LMHeadModel"}},
		"rope": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "rope_parameters", `{"rope_type":"longrope","rope_theta":1}`)
		}, "", []string{"longrope"}},
		"rope length": {func(t *testing.T, dir string, c checkpoint) {
			editConfig(t, dir, "rope_parameters", `{"rope_type":"dynamic","rope_theta":10000,"factor":2}`)
			editConfig(t, dir, "max_position_embeddings", `63`)
		}, "", []string{"dynamic", "64", "63"}},
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

func TestActivationScales(t *testing.T) {
	dst := make([]float32, 8)
	check := func(l linear, x []float32, scale float32, want []float32) {
		t.Helper()
		if s := l.quantise(dst, append(x, 0, 0, 0, 0)); s != scale || !slices.Equal(dst[:4], want) {
			t.Errorf("got %v × %g, want %v × %g", dst[:4], s, want, scale)
		}
	}
	token, whole := linear{round: fp8Token}, linear{round: int8Token}
	check(token, []float32{0, 0, 0, 0}, 1, []float32{0, 0, 0, 0})
	// amax 896 gives the scale 2; 33 / 2 = 16.5 lies between the codes 16 and 18.
	check(token, []float32{-896, 33, 1, 0}, 2, []float32{-448, 16, 0.5, 0})
	check(whole, []float32{-127, 2.5, 3.5, 0.4}, 1, []float32{-127, 2, 4, 0})
	check(whole, []float32{0, 0, 0, 0}, 1, []float32{0, 0, 0, 0})
	if s := token.quantise(dst, []float32{1e-30, 0, 0, 0, 0, 0, 0, 0}); s <= 0 || math.IsInf(float64(dst[0]), 0) {
		t.Errorf("near zeros give %v × %g", dst, s)
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
