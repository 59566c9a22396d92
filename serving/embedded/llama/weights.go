package llama

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/llama/kernel"
)

// layer is one block of the decoder.
type layer struct {
	attnNorm, mlpNorm []float32
	qNorm, kNorm      []float32 // of each head; nil: none
	qkv, out          linear
	gateUp, down      linear
	kScale, vScale    []float32 // of a cache in fp8, of each KV head
}

// weights are all of a checkpoint.
type weights struct {
	embed       kernel.Matrix // vocab × hidden
	layers      []layer
	norm        []float32
	head        linear
	fingerprint [32]byte
}

// Check refuses what the executor cannot compute.
func Check(s model.Shape) error {
	arch := "none"
	if len(s.Architectures) > 0 {
		arch = s.Architectures[0]
	}
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]string{"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}, arch) {
		refuse("architecture %s: the embedded engine runs LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM", arch)
	}
	if s.Experts.Count > 0 || s.Latent.KVRank > 0 {
		refuse("experts and latent attention are not supported")
	}
	if s.Activation != "" && s.Activation != "silu" {
		refuse("activation %q is not supported: want silu", s.Activation)
	}
	if s.Rope.Partial != 0 && s.Rope.Partial != 1 {
		refuse("partial rotary embedding of %g is not supported", s.Rope.Partial)
	}
	if err := checkRope(s.Rope); err != nil {
		refuse("%w", err)
	}
	for name, n := range map[string]int{"hidden_size": s.Hidden, "intermediate_size": s.Intermediate, "head_dim": s.HeadDim} {
		if n%kernel.Lanes != 0 {
			refuse("%s %d is not a multiple of %d", name, n, kernel.Lanes)
		}
	}
	if s.MaxPositions < 1 || s.Rope.Theta <= 0 {
		refuse("max_position_embeddings %d, rope_theta %g: want positive ones", s.MaxPositions, s.Rope.Theta)
	}
	return errors.Join(errs...)
}

// loader reads tensors and keeps the path that errors name.
type loader struct {
	c     *safetensors.Checkpoint
	quant *quantPlan
	slab  []byte // what is left of the memory for matrices
}

// alloc cuts from one slab: large pages are for large pieces.
func (l *loader) alloc(n int) []byte {
	n = (n + 63) &^ 63
	if n > len(l.slab) {
		l.slab = kernel.Huge(n)
	}
	b := l.slab[:n:n]
	l.slab = l.slab[n:]
	return b
}

// loadWeights reads a checkpoint. kv is Options.KV; it gives back what the cache
// then is.
func loadWeights(dir string, s model.Shape, kv string) (w *weights, _ string, err error) {
	if err := Check(s); err != nil {
		return nil, "", fmt.Errorf("loading %s: %w", filepath.Join(dir, "config.json"), err)
	}
	plan, err := planQuantisation(s.Quant)
	if err != nil {
		return nil, "", fmt.Errorf("loading %s: %w", filepath.Join(dir, "config.json"), err)
	}
	if kv == "" {
		kv = KVFloat32
		if plan.kv {
			kv = KVFP8
		}
	}
	if !slices.Contains([]string{KVFloat32, KVBF16, KVFP8}, kv) {
		return nil, "", fmt.Errorf("a cache in %q: want %s, %s or %s", kv, KVFloat32, KVBF16, KVFP8)
	}
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	l := &loader{c: c, quant: plan}
	var size int64
	for _, t := range c.Tensors() {
		size += t.Size() + 64
	}
	l.slab = kernel.Huge(int(size))
	w, err = l.all(s)
	if err == nil && kv == KVFP8 {
		err = l.cacheScales(w, s)
	}
	if err == nil {
		w.fingerprint, err = l.fingerprint(s)
	}
	if err != nil {
		return nil, "", fmt.Errorf("loading %s: %w", dir, err)
	}
	return w, kv, nil
}

func (l *loader) all(s model.Shape) (*weights, error) {
	w := &weights{layers: make([]layer, s.Layers)}
	var err error
	if w.embed, err = l.plain(s.Hidden, part{"model.embed_tokens", s.Vocab}); err != nil {
		return nil, err
	}
	for i := range w.layers {
		if err := l.layer(&w.layers[i], fmt.Sprintf("model.layers.%d.", i), s); err != nil {
			return nil, err
		}
	}
	if w.norm, err = l.floats("model.norm.weight", s.Hidden); err != nil {
		return nil, err
	}
	// A tied checkpoint may still hold a copy of the head; loaders ignore it.
	if s.Tied {
		w.head = linear{Matrix: w.embed}
		return w, nil
	}
	w.head, err = l.linear(false, s.Hidden, part{"lm_head", s.Vocab})
	return w, err
}

func (l *loader) layer(to *layer, prefix string, s model.Shape) (err error) {
	if to.attnNorm, err = l.floats(prefix+"input_layernorm.weight", s.Hidden); err != nil {
		return err
	}
	if to.mlpNorm, err = l.floats(prefix+"post_attention_layernorm.weight", s.Hidden); err != nil {
		return err
	}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	attn, mlp := prefix+"self_attn.", prefix+"mlp."
	if s.QKNorm {
		if to.qNorm, err = l.floats(attn+"q_norm.weight", s.HeadDim); err != nil {
			return err
		}
		if to.kNorm, err = l.floats(attn+"k_norm.weight", s.HeadDim); err != nil {
			return err
		}
	}
	if to.qkv, err = l.linear(s.AttentionBias, s.Hidden, part{attn + "q_proj", q}, part{attn + "k_proj", kv}, part{attn + "v_proj", kv}); err != nil {
		return err
	}
	if to.out, err = l.linear(s.AttentionBias && s.Family != "qwen2", q, part{attn + "o_proj", s.Hidden}); err != nil {
		return err
	}
	if to.gateUp, err = l.linear(s.MLPBias, s.Hidden, part{mlp + "gate_proj", s.Intermediate}, part{mlp + "up_proj", s.Intermediate}); err != nil {
		return err
	}
	to.down, err = l.linear(s.MLPBias, s.Intermediate, part{mlp + "down_proj", s.Hidden})
	return err
}

// part is one matrix of the checkpoint; several are stacked to one product.
type part struct {
	module string
	out    int
}

func (l *loader) linear(bias bool, in int, parts ...part) (to linear, err error) {
	var scheme *scheme
	for i, p := range parts {
		s, err := l.quant.find(p.module)
		if err != nil {
			return linear{}, err
		}
		if i > 0 && s != scheme && (s == nil || scheme == nil || *s != *scheme) {
			return linear{}, fmt.Errorf("%s and %s are quantised differently: engines compute them as one, so they must share a scheme", parts[0].module, p.module)
		}
		scheme = s
	}
	if scheme == nil {
		to.Matrix, err = l.plain(in, parts...)
	} else {
		to, err = l.quantised(scheme, in, parts)
	}
	if err != nil || !bias {
		return to, err
	}
	for _, p := range parts {
		b, err := l.floats(p.module+".bias", p.out)
		if err != nil {
			return linear{}, err
		}
		to.bias = append(to.bias, b...)
	}
	return to, nil
}

// plain keeps halves as they are if all parts have the same.
func (l *loader) plain(cols int, parts ...part) (m kernel.Matrix, err error) {
	format, rows := kernel.F32, 0
	for i, p := range parts {
		rows += p.out
		t, _ := l.c.Lookup(p.module + ".weight")
		f := kernel.F32
		switch t.DType {
		case safetensors.BF16:
			f = kernel.BF16
		case safetensors.F16:
			f = kernel.F16
		case safetensors.F8E4M3:
			return m, fmt.Errorf("tensor %q is %s, but quantization_config does not say how it is quantised", p.module+".weight", t.DType)
		}
		if i == 0 {
			format = f
		} else if f != format {
			format = kernel.F32
		}
	}
	m = kernel.New(format, rows, cols, 0, l.alloc)
	at := 0
	for _, p := range parts {
		if err := l.rows(&m, at, p); err != nil {
			return m, err
		}
		at += p.out
	}
	return m, nil
}

// rows sets those of a part, and refuses what is not finite.
func (l *loader) rows(m *kernel.Matrix, at int, p part) error {
	name := p.module + ".weight"
	t, err := l.find(name, []int{p.out, m.Cols})
	if err != nil {
		return err
	}
	values, bytes := make([]float32, m.Cols), make([]byte, 4*m.Cols)
	size := int(t.DType.Bits()/8) * m.Cols
	return l.chunks(t, size, func(from int, b []byte) error {
		for row := from / size; len(b) > 0; row, b = row+1, b[size:] {
			raw := b[:size]
			if m.Format == kernel.F32 || !finite(m.Format, raw) {
				if _, err := safetensors.Floats(values, t.DType, raw); err != nil {
					return fmt.Errorf("reading tensor %q: %w", name, err)
				}
				for i, v := range values {
					if v-v != 0 {
						return l.damaged(name, v, row*m.Cols+i)
					}
					binary.LittleEndian.PutUint32(bytes[4*i:], math.Float32bits(v))
				}
				raw = bytes
			}
			m.Set(at+row, raw)
		}
		return nil
	})
}

// finite reports whether 16-bit floats are.
func finite(f kernel.Format, b []byte) bool {
	exponent := uint16(0x7f80)
	if f == kernel.F16 {
		exponent = 0x7c00
	}
	for i := 0; i < len(b); i += 2 {
		if binary.LittleEndian.Uint16(b[i:])&exponent == exponent {
			return false
		}
	}
	return true
}

func (l *loader) damaged(name string, v float32, element int) error {
	return fmt.Errorf("tensor %q in %s has %g at element %d: the checkpoint is damaged", name, l.c.ShardOf(name), v, element)
}

// quantised reads the codes and scales of parts that share a scheme.
func (l *loader) quantised(s *scheme, in int, parts []part) (linear, error) {
	to := linear{round: s.round, blocks: s.columns}
	if s.columns > 0 && (s.columns%kernel.Lanes != 0 || !s.ragged && in%s.columns != 0) {
		return linear{}, fmt.Errorf("module %s: groups of %d do not divide %d columns, or are no multiple of %d", parts[0].module, s.columns, in, kernel.Lanes)
	}
	out := 0
	for _, p := range parts {
		out += p.out
	}
	to.Matrix = kernel.New(s.store, out, in, s.columns, l.alloc)
	if s.columns == 0 {
		to.scale = make([]float32, out)
	}
	at := 0
	for _, p := range parts {
		var err error
		switch {
		case s.packed:
			err = l.packed(&to.Matrix, at, p)
		default:
			err = l.codes(&to.Matrix, at, p)
		}
		if err == nil {
			err = l.weightScales(&to, s, p, at)
		}
		if err == nil && (s.round == fp8Static || s.round == int8Static) {
			var input []float32
			if input, err = l.scales(p.module+".input_scale", 1); err == nil {
				to.input = max(to.input, input[0]) // parts that are one product share the largest, as in vLLM
			}
		}
		if err != nil {
			return linear{}, err
		}
		at += p.out
	}
	return to, nil
}

// weightScales reads those of a part, whose rows begin at row at.
func (l *loader) weightScales(to *linear, s *scheme, p part, at int) error {
	name := p.module + s.scale
	if s.columns == 0 {
		v, err := l.scales(name, p.out)
		for i := range v {
			to.scale[at+i] = v[i]
		}
		return err
	}
	groups := to.Groups()
	rows := (p.out + s.rows - 1) / s.rows
	v, err := l.scales(name, rows*groups)
	if err != nil {
		return err
	}
	for i := range p.out {
		copy(to.Scales[(at+i)*groups:(at+i+1)*groups], v[i/s.rows*groups:])
	}
	return nil
}

// codes reads one byte a weight.
func (l *loader) codes(m *kernel.Matrix, at int, p part) error {
	name, want := p.module+".weight", safetensors.F8E4M3
	if m.Format == kernel.Int8 {
		want = safetensors.I8
	}
	if t, ok := l.c.Lookup(name); ok && t.DType != want {
		return fmt.Errorf("tensor %q is %s, quantization_config says %s", name, t.DType, want)
	}
	t, err := l.find(name, []int{p.out, m.Cols})
	if err != nil {
		return err
	}
	return l.chunks(t, m.Cols, func(from int, b []byte) error {
		for i, v := range b {
			if m.Format == kernel.E4M3 && v&0x7f == 0x7f {
				return l.damaged(name, float32(math.NaN()), from+i)
			}
		}
		m.Set(at+from/m.Cols, b)
		return nil
	})
}

// packed reads int4 or int8 in words of 32 bits, the first weight lowest, each
// stored as an unsigned number with half of the range added.
func (l *loader) packed(m *kernel.Matrix, at int, p part) error {
	name := p.module + ".weight_shape"
	t, err := l.typed(name, safetensors.I64, 2)
	if err != nil {
		return err
	}
	if err := l.chunks(t, 16, func(_ int, b []byte) error {
		if r, c := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]); r != uint64(p.out) || c != uint64(m.Cols) {
			return fmt.Errorf("tensor %q says %d × %d, config.json %d × %d", name, r, c, p.out, m.Cols)
		}
		return nil
	}); err != nil {
		return err
	}
	size := m.Cols / kernel.Lanes * m.Format.Bytes() // rows are multiples of 8, so that words are full
	if t, err = l.typed(p.module+".weight_packed", safetensors.I32, int64(p.out), int64(size/4)); err != nil {
		return err
	}
	return l.chunks(t, size, func(from int, b []byte) error {
		if m.Format == kernel.Int8 {
			for i := range b {
				b[i] -= 128
			}
		}
		m.Set(at+from/size, b)
		return nil
	})
}

// typed finds a tensor of one type and shape.
func (l *loader) typed(name string, d safetensors.DType, shape ...int64) (safetensors.Tensor, error) {
	t, ok := l.c.Lookup(name)
	if !ok {
		return t, fmt.Errorf("tensor %q is missing", name)
	}
	if t.DType != d || !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %q is %s %v, want %s %v", name, t.DType, t.Shape, d, shape)
	}
	return t, nil
}

// scales reads n scales, or one that then stands for all.
func (l *loader) scales(name string, n int) ([]float32, error) {
	t, ok := l.c.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing: what it scales means nothing without it", name)
	}
	count := t.Elements()
	if count != int64(n) && count != 1 {
		return nil, fmt.Errorf("tensor %q has %d scales, want %d or 1", name, count, n)
	}
	s := make([]float32, n)
	if err := l.decode(s[:count], t); err != nil {
		return nil, err
	}
	for i, v := range s[:count] {
		if v <= 0 {
			return nil, fmt.Errorf("tensor %q has the scale %g at element %d: want a positive one", name, v, i)
		}
	}
	for i := int(count); i < n; i++ {
		s[i] = s[0]
	}
	return s, nil
}

// cacheScales reads those of a cache in fp8. A checkpoint that does not announce
// any is computed with 1, as by vLLM.
func (l *loader) cacheScales(w *weights, s model.Shape) (err error) {
	for i := range w.layers {
		layer := &w.layers[i]
		for name, to := range map[string]*[]float32{"k_scale": &layer.kScale, "v_scale": &layer.vScale} {
			name = fmt.Sprintf("model.layers.%d.self_attn.%s", i, name)
			if _, ok := l.c.Lookup(name); !ok && !l.quant.kv {
				*to = slices.Repeat([]float32{1}, s.KVHeads)
				continue
			}
			if *to, err = l.scales(name, s.KVHeads); err != nil {
				return err
			}
		}
	}
	return nil
}

// fingerprint tells models apart: it covers the shape, and names and beginnings of
// all tensors.
func (l *loader) fingerprint(s model.Shape) (sum [32]byte, err error) {
	h := sha256.New()
	fmt.Fprintf(h, "%+v", s.Rope)
	for _, t := range l.c.Tensors() {
		fmt.Fprintf(h, "\n%s %s %v\n", t.Name, t.DType, t.Shape)
		r, err := l.c.Reader(t.Name)
		if err == nil {
			_, err = io.CopyN(h, r, min(t.Size(), 4096))
		}
		if err != nil {
			return sum, fmt.Errorf("reading tensor %q: %w", t.Name, err)
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

func (l *loader) floats(name string, shape ...int) ([]float32, error) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	dst := make([]float32, n)
	if t, ok := l.c.Lookup(name); ok && t.DType == safetensors.F8E4M3 {
		return nil, fmt.Errorf("tensor %q is %s: only the matrices of the layers may be", name, t.DType)
	}
	return dst, l.read(dst, name, shape...)
}

func (l *loader) read(dst []float32, name string, shape ...int) error {
	t, err := l.find(name, shape)
	if err != nil {
		return err
	}
	return l.decode(dst, t)
}

func (l *loader) find(name string, shape []int) (safetensors.Tensor, error) {
	t, ok := l.c.Lookup(name)
	if !ok {
		return t, fmt.Errorf("tensor %q is missing", name)
	}
	want := make([]int64, len(shape))
	for i, d := range shape {
		want[i] = int64(d)
	}
	if !slices.Equal(t.Shape, want) {
		return t, fmt.Errorf("tensor %q has the shape %v, config.json wants %v", name, t.Shape, want)
	}
	return t, nil
}

// decode refuses what is not finite: one NaN makes every answer noise.
func (l *loader) decode(dst []float32, t safetensors.Tensor) error {
	at := 0
	return l.chunks(t, 8, func(_ int, b []byte) error {
		m, err := safetensors.Floats(dst[at:], t.DType, b)
		if err != nil {
			return fmt.Errorf("reading tensor %q: %w", t.Name, err)
		}
		for i, v := range dst[at : at+m] {
			if v-v != 0 {
				return l.damaged(t.Name, v, at+i)
			}
		}
		at += m
		return nil
	})
}

// chunks gives the bytes of a tensor in pieces that are multiples of unit.
func (l *loader) chunks(t safetensors.Tensor, unit int, piece func(at int, b []byte) error) error {
	r, err := l.c.Reader(t.Name)
	if err != nil {
		return err
	}
	buf := make([]byte, min(max(1<<18/unit, 1)*unit, int(t.Size())))
	for at := 0; at < int(t.Size()); {
		n, err := io.ReadFull(r, buf[:min(len(buf), int(t.Size())-at)])
		if err != nil {
			return fmt.Errorf("reading tensor %q: %w", t.Name, err)
		}
		if err := piece(at, buf[:n]); err != nil {
			return err
		}
		at += n
	}
	return nil
}
