package quantise

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

func quiet(int64, int64) {}

// put writes one shard of the given tensors.
func put(t *testing.T, path string, values func(name string, i int) float32, ts ...safetensors.Tensor) {
	t.Helper()
	w, err := safetensors.Create(path, ts, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ts {
		var b []byte
		for i := range x.Elements() {
			if v := values(x.Name, int(i)); x.DType == safetensors.F8E4M3 {
				b = append(b, safetensors.ToE4M3(v))
			} else {
				b = appendFloat(b, x.DType, arithmeticOf(x.DType).round(v))
			}
		}
		if err := w.WriteAt(x.Name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

// sharded is a DeepSeek-like source over three shards: the scales of a are in
// another shard than its codes, and the last shard has nothing but scales.
func sharded(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "config.json", decoder("deepseek_v3", `,"quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]}`))
	value := func(name string, i int) float32 {
		if strings.HasSuffix(name, "_inv") {
			return 0.001 * float32(1+i)
		}
		return float32(i*7%31 - 15)
	}
	index := map[string]string{}
	for shard, ts := range map[string][]safetensors.Tensor{
		"model-00001-of-00003.safetensors": {sized("model.layers.0.a.weight", safetensors.F8E4M3, 200, 300), sized("model.norm.weight", safetensors.BF16, 300)},
		"model-00002-of-00003.safetensors": {sized("lm_head.weight", safetensors.F8E4M3, 130, 128), sized("model.layers.0.b.weight", safetensors.BF16, 16, 128)},
		"model-00003-of-00003.safetensors": {sized("model.layers.0.a.weight_scale_inv", safetensors.F32, 2, 3), sized("lm_head.weight_scale_inv", safetensors.BF16, 2, 1)},
	} {
		put(t, filepath.Join(dir, shard), value, ts...)
		for _, x := range ts {
			index[x.Name] = shard
		}
	}
	b, err := safetensors.AppendIndex(nil, 0, index)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, safetensors.IndexName, string(b))
	return dir
}

// A source in blocks is multiplied out once, whichever shard its scales are in:
// codes, kept weights, index, digests.
func TestBlocksAsSource(t *testing.T) {
	src, dst := sharded(t), filepath.Join(t.TempDir(), "out")
	rep, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	c, err := safetensors.OpenDir(dst) // which holds the index to the headers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var names []string
	var size int64
	for _, x := range c.Tensors() {
		names, size = append(names, x.Name), size+x.Size()
	}
	want := "lm_head.weight model.layers.0.a.weight model.layers.0.a.weight_scale model.layers.0.b.weight model.layers.0.b.weight_scale model.norm.weight"
	shards, err := filepath.Glob(filepath.Join(dst, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != want || len(shards) != 2 {
		t.Errorf("%v with %s, want 2 with %s", shards, got, want)
	}
	var index struct {
		Metadata struct {
			Total int64 `json:"total_size"`
		}
	}
	b, err := os.ReadFile(filepath.Join(dst, safetensors.IndexName))
	if err != nil || json.Unmarshal(b, &index) != nil || index.Metadata.Total != size || rep.After != size {
		t.Errorf("the index says %d bytes, the report %d, want %d; %v", index.Metadata.Total, rep.After, size, err)
	}

	codes, _ := bytesOf(t, src, "model.layers.0.a.weight")
	raw, _ := bytesOf(t, src, "model.layers.0.a.weight_scale_inv")
	table := make([]float32, 6)
	if _, err := safetensors.Floats(table, safetensors.F32, raw); err != nil {
		t.Fatal(err)
	}
	gotCodes, _ := bytesOf(t, dst, "model.layers.0.a.weight")
	gotScales, _ := bytesOf(t, dst, "model.layers.0.a.weight_scale")
	for r := range 200 {
		row := make([]float32, 300)
		for i := range row {
			row[i] = toBF16(safetensors.FromE4M3(codes[r*300+i]) * table[r/128*3+i/128])
		}
		want, scale := oracle(row, safetensors.BF16, schemes[FP8Dynamic])
		if !bytes.Equal(gotCodes[r*300:(r+1)*300], want) || binary.LittleEndian.Uint16(gotScales[2*r:]) != uint16(math.Float32bits(scale)>>16) {
			t.Fatalf("row %d differs", r)
		}
	}
	head, x := bytesOf(t, dst, "lm_head.weight")
	headCodes, _ := bytesOf(t, src, "lm_head.weight")
	if x.DType != safetensors.BF16 {
		t.Fatalf("the head is %s", x.DType)
	}
	for i, code := range headCodes {
		scale := toBF16(0.001 * float32(1+i/128/128))
		if got := math.Float32frombits(uint32(binary.LittleEndian.Uint16(head[2*i:])) << 16); got != toBF16(safetensors.FromE4M3(code)*scale) {
			t.Fatalf("weight %d of the head is %v", i, got)
		}
	}

	sums, err := os.ReadFile(filepath.Join(dst, sumsName))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sums)) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := os.ReadFile(filepath.Join(dst, name))
		if err != nil || model.DigestOf(b).Hex() != digest {
			t.Errorf("%s has not the digest that SHA256SUMS gives it, %v", name, err)
		}
	}
	if n := strings.Count(string(sums), "\n"); n != len(rep.Files)-1 || n != 4 {
		t.Errorf("SHA256SUMS has %d files, the report %d", n, len(rep.Files))
	}
	if m, err := model.Scan(t.Context(), os.DirFS(dst)); err != nil || m.Digest() != rep.Digest {
		t.Errorf("the folder's digest is %s, the report says %s, %v", m.Digest(), rep.Digest, err)
	}
}

// The result does not depend on how the work is cut: strips, workers, kernels.
func TestStripsDoNotShow(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "config.json", decoder("llama", ""))
	fill := gaussian(9)
	put(t, filepath.Join(dir, "model.safetensors"), fill, sized("a.weight", safetensors.BF16, 400, 4096), sized("b.weight", safetensors.F32, 130, 384))
	for _, scheme := range Schemes() {
		o := Options{Scheme: scheme}
		if scheme == FP8Static {
			o.Scales = &Scales{Activations: map[string]float64{"a": 0.5, "b": 0.25}}
		}
		var want string
		for _, memory := range []int64{0, 1 << 22, 1 << 25} {
			o.Memory = memory
			dst := filepath.Join(t.TempDir(), "out")
			rep, err := Run(t.Context(), dir, dst, o, quiet)
			if err != nil {
				t.Fatalf("%s in %d bytes: %v", scheme, memory, err)
			}
			if want == "" {
				want = string(rep.Digest)
			}
			if string(rep.Digest) != want {
				t.Errorf("%s in %d bytes is another model", scheme, memory)
			}
		}
		o.Memory = 1000
		if _, err := Run(t.Context(), dir, filepath.Join(t.TempDir(), "out"), o, quiet); err == nil || !strings.Contains(err.Error(), "more than the 1000 allowed") {
			t.Errorf("%s in 1000 bytes: %v", scheme, err)
		}
	}
}

// Fused experts come out one by one, gate and up each of its own rows.
func TestFusedExpertsAreTakenApart(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "config.json", `{"model_type":"qwen3_5_moe","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":8,"num_experts":3,"num_experts_per_tok":1,"moe_intermediate_size":16}`)
	put(t, filepath.Join(dir, "model.safetensors"), func(_ string, i int) float32 { return float32(1 + i/32) }, // each row its number, counted from one
		sized("model.layers.0.mlp.experts.gate_up_proj", safetensors.BF16, 3, 32, 32), sized("model.layers.0.mlp.experts.down_proj", safetensors.BF16, 3, 32, 16))
	dst := filepath.Join(t.TempDir(), "out")
	if _, err := Run(t.Context(), dir, dst, Options{Scheme: Int8}, quiet); err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]int{"0.gate_proj": 1, "0.up_proj": 17, "1.gate_proj": 33, "2.up_proj": 81} {
		scales, x := bytesOf(t, dst, "model.layers.0.mlp.experts."+name+".weight_scale")
		if !slices.Equal(x.Shape, []int64{16, 1}) {
			t.Fatalf("%s has scales %v", name, x.Shape)
		}
		for r := range 16 {
			want := toBF16(float32(first+r) / 127.5)
			if got := math.Float32frombits(uint32(binary.LittleEndian.Uint16(scales[2*r:])) << 16); got != want {
				t.Errorf("%s row %d has scale %v, want %v", name, r, got, want)
			}
		}
	}
	if _, x := bytesOf(t, dst, "model.layers.0.mlp.experts.2.down_proj.weight"); !slices.Equal(x.Shape, []int64{32, 16}) {
		t.Errorf("down_proj is %v", x.Shape)
	}
}

// A matrix of nothing but zeros is written as zeros under the reference's
// smallest scale, never as NaN, and the report counts what was under one scale.
func TestAllZero(t *testing.T) {
	for scheme, zero := range map[string]int{FP8Dynamic: 128, FP8Block: 2, FP8BlockUE8M0: 2, Int8: 128, Int8Weight: 256, Int4: 256, Int4Tensor: 1} {
		dir := t.TempDir()
		write(t, dir, "config.json", decoder("llama", ""))
		put(t, filepath.Join(dir, "model.safetensors"), func(string, int) float32 { return 0 }, sized("a.weight", safetensors.BF16, 128, 256))
		dst := filepath.Join(t.TempDir(), "out")
		rep, err := Run(t.Context(), dir, dst, Options{Scheme: scheme}, quiet)
		if err != nil || rep.Tensors[0].ZeroRows != zero || rep.Tensors[0].Error != 0 {
			t.Fatalf("%s: %+v, %v; want %d", scheme, rep.Tensors, err, zero)
		}
		scales, _ := bytesOf(t, dst, "a.weight_scale")
		for i := 0; i < len(scales); i += 2 {
			if binary.LittleEndian.Uint16(scales[i:]) != 0x3c00 { // 2^-7
				t.Fatalf("%s: scale % x", scheme, scales[i:i+2])
			}
		}
		name, want := "a.weight", byte(0)
		if schemes[scheme].packed() {
			name, want = "a.weight_packed", map[int64]byte{4: 0x88, 8: 0x80}[schemes[scheme].bits]
		}
		codes, _ := bytesOf(t, dst, name)
		if !bytes.Equal(codes, bytes.Repeat([]byte{want}, len(codes))) {
			t.Errorf("%s: codes are not all %#x", scheme, want)
		}
	}
}

// Experts that are stored [in, out] come out as those stored [out, in] do, in
// every scheme, and are seen to be the same.
// Kernels of Blackwell GPUs take powers of two as scales (sglang#28662), and engines
// requantise other checkpoints for them while they load: each block anew, with the
// next power of two for its largest magnitude. That changes no number of ours.
func TestRequantisedForBlackwell(t *testing.T) {
	const rows, cols = 200, 300
	r := rand.New(rand.NewPCG(3, 3))
	for _, d := range floats {
		values := make([]float32, rows*cols)
		for i := range values {
			// Blocks whose largest magnitudes are far apart, at and beside a power of two.
			size := math.Ldexp(448, -i%cols/128*5-2)
			values[i] = arithmeticOf(d).round(float32(size * math.Tanh(r.NormFloat64())))
		}
		values[0], values[128] = arithmeticOf(d).round(112), arithmeticOf(d).round(3.53)
		src, dst := t.TempDir(), filepath.Join(t.TempDir(), "out")
		write(t, src, "config.json", decoder("llama", ""))
		put(t, filepath.Join(src, "model.safetensors"), func(_ string, i int) float32 { return values[i] }, sized("a.weight", d, rows, cols))
		if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8BlockUE8M0}, quiet); err != nil {
			t.Fatal(err)
		}
		codes, _ := bytesOf(t, dst, "a.weight")
		raw, shape := bytesOf(t, dst, "a.weight_scale")
		scales := make([]float32, 2*3)
		if _, err := safetensors.Floats(scales, d, raw); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(shape.Shape, []int64{2, 3}) || shape.DType != d {
			t.Fatalf("scales %v", shape)
		}
		for b := range 2 * 3 {
			scale := scales[b]
			if f, _ := math.Frexp(float64(scale)); f != 0.5 {
				t.Errorf("%v: scale %v of block %d is no power of two", d, scale, b)
			}
			var top, peak float64
			block := func(fn func(i int, v float64)) {
				for y := b / 3 * 128; y < min(b/3*128+128, rows); y++ {
					for x := b % 3 * 128; x < min(b%3*128+128, cols); x++ {
						fn(y*cols+x, float64(safetensors.FromE4M3(codes[y*cols+x]))*float64(scale))
					}
				}
			}
			block(func(i int, v float64) { top, peak = max(top, math.Abs(v)), max(peak, math.Abs(float64(values[i]))) })
			if float64(scale) < peak/448 || float64(scale) >= peak/224 {
				t.Errorf("%v: scale %v of block %d for the peak %v", d, scale, b, peak)
			}
			again := math.Exp2(math.Ceil(math.Log2(top / 448)))
			block(func(i int, v float64) {
				if got := float64(safetensors.FromE4M3(safetensors.ToE4M3(float32(v/again)))) * again; got != v {
					t.Fatalf("%v: %v becomes %v under scale %v instead of %v", d, v, got, again, scale)
				}
				if math.Abs(v-float64(values[i])) > math.Abs(float64(values[i]))/15+float64(scale)/512 {
					t.Fatalf("%v: %v became %v", d, values[i], v)
				}
			})
		}
	}
}

func TestExpertsOfTheOtherOrder(t *testing.T) {
	const experts, hidden, inner = 3, 256, 128
	fill := gaussian(21)
	values := map[string][]float32{}
	for name, n := range map[string]int{"gate_up_proj": 2 * inner * hidden, "down_proj": hidden * inner} {
		for range experts * n {
			values[name] = append(values[name], toBF16(fill(name, 0)))
		}
	}
	source := func(family string, shapes map[string][]int64, at func(name string, i int) int) string {
		dir := t.TempDir()
		write(t, dir, "config.json", fmt.Sprintf(`{"model_type":%q,"hidden_size":%d,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":8,"num_experts":%d,"num_experts_per_tok":1,"moe_intermediate_size":%d}`, family, hidden, experts, inner))
		var ts []safetensors.Tensor
		for name, shape := range shapes {
			ts = append(ts, sized("model.layers.0.mlp.experts."+name, safetensors.BF16, shape...))
		}
		put(t, filepath.Join(dir, "model.safetensors"), func(name string, i int) float32 {
			name = strings.TrimPrefix(name, "model.layers.0.mlp.experts.")
			return values[name][at(name, i)]
		}, ts...)
		return dir
	}
	a := source("qwen3_5_moe", map[string][]int64{"gate_up_proj": {experts, 2 * inner, hidden}, "down_proj": {experts, hidden, inner}}, func(_ string, i int) int { return i })
	b := source("llama4_text", map[string][]int64{"gate_up_proj": {experts, hidden, 2 * inner}, "down_proj": {experts, inner, hidden}}, func(name string, i int) int {
		out, in := 2*inner, hidden
		if name == "down_proj" {
			out, in = hidden, inner
		}
		return i/(out*in)*(out*in) + i%out*in + i/out%in
	})
	if diff, err := Diff(t.Context(), a, b, quiet); err != nil || len(diff) != 3*experts || diff[0].Error != 0 || diff[0].Fault != "" {
		t.Errorf("the sources differ: %+v, %v", diff, err)
	}
	for _, scheme := range []string{FP8Dynamic, FP8Block, Int8, Int4, Int4Tensor} {
		for _, memory := range []int64{0, 1 << 20} {
			var weights [2]model.Digest
			for i, src := range []string{a, b} {
				rep, err := Run(t.Context(), src, filepath.Join(t.TempDir(), "out"), Options{Scheme: scheme, Memory: memory}, quiet)
				if err != nil {
					t.Fatal(err)
				}
				f, _ := (model.Manifest{Files: rep.Files}).Lookup("model.safetensors")
				weights[i] = f.Digest
			}
			if weights[0] != weights[1] || weights[0] == "" {
				t.Errorf("%s in %d bytes: %s and %s", scheme, memory, weights[0], weights[1])
			}
		}
	}
}
