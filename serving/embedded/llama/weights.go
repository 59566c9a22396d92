package llama

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dlclark/regexp2"

	"llmops/model"
	"llmops/model/safetensors"
)

// layer is one block of the decoder.
type layer struct {
	attnNorm, mlpNorm []float32
	qNorm, kNorm      []float32 // of each head; nil: none
	qkv, out          linear
	gateUp, down      linear
}

// weights are all of a checkpoint.
type weights struct {
	embed  []float32 // vocab × hidden
	layers []layer
	norm   []float32
	head   linear
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
		if n%lanes != 0 {
			refuse("%s %d is not a multiple of %d", name, n, lanes)
		}
	}
	if s.HeadDim%2 != 0 || s.MaxPositions < 1 || s.Rope.Theta <= 0 {
		refuse("head_dim %d, max_position_embeddings %d, rope_theta %g: want an even one and two that are positive", s.HeadDim, s.MaxPositions, s.Rope.Theta)
	}
	return errors.Join(errs...)
}

// loader reads tensors and keeps the path that errors name.
type loader struct {
	c     *safetensors.Checkpoint
	quant *quantPlan
}

func loadWeights(dir string, s model.Shape) (w *weights, err error) {
	if err := Check(s); err != nil {
		return nil, fmt.Errorf("loading %s: %w", filepath.Join(dir, "config.json"), err)
	}
	plan, err := planQuantisation(s.Quant)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", filepath.Join(dir, "config.json"), err)
	}
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	l := &loader{c: c, quant: plan}
	w, err = l.all(s)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", dir, err)
	}
	return w, nil
}

func (l *loader) all(s model.Shape) (*weights, error) {
	w := &weights{layers: make([]layer, s.Layers)}
	var err error
	if w.embed, err = l.floats("model.embed_tokens.weight", s.Vocab, s.Hidden); err != nil {
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
		w.head = linear{in: s.Hidden, out: s.Vocab, w: w.embed}
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
	if to.qkv, err = l.linear(s.AttentionBias, s.Hidden, part{attn + "q_proj", q}, part{attn + "k_proj", kv}, part{attn + "v_proj", kv}); err != nil {
		return err
	}
	if to.out, err = l.linear(s.AttentionBias && s.Family != "qwen2", q, part{attn + "o_proj", s.Hidden}); err != nil {
		return err
	}
	if s.QKNorm {
		if to.qNorm, err = l.floats(attn+"q_norm.weight", s.HeadDim); err != nil {
			return err
		}
		if to.kNorm, err = l.floats(attn+"k_norm.weight", s.HeadDim); err != nil {
			return err
		}
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

func (l *loader) linear(bias bool, in int, parts ...part) (linear, error) {
	to := linear{in: in}
	for _, p := range parts {
		to.out += p.out
	}
	to.w = aligned(to.out * in)
	at := 0
	for i, p := range parts {
		group, err := l.quant.group(p.module)
		if err != nil {
			return linear{}, err
		}
		scaled := group != nil && group.Weights.Type == "float"
		dynamic := scaled && group.Activations != nil
		if i > 0 && (dynamic != to.dynamic || scaled != (to.scale != nil)) {
			return linear{}, fmt.Errorf("%s and %s are quantised differently: engines compute them as one, so they must share a scheme", parts[0].module, p.module)
		}
		to.dynamic = dynamic
		if scaled && to.scale == nil {
			to.scale = make([]float32, to.out)
		}
		dst := to.w[at*in : (at+p.out)*in]
		switch {
		case group == nil:
			err = l.plain(dst, p.module+".weight", p.out, in)
		case scaled:
			err = l.fp8(dst, to.scale[at:at+p.out], p, in)
		default:
			err = l.int4(dst, p, in, group.Weights)
		}
		if err != nil {
			return linear{}, err
		}
		if bias {
			b, err := l.floats(p.module+".bias", p.out)
			if err != nil {
				return linear{}, err
			}
			to.bias = append(to.bias, b...)
		}
		at += p.out
	}
	return to, nil
}

func (l *loader) plain(dst []float32, name string, out, in int) error {
	if t, ok := l.c.Lookup(name); ok && t.DType == safetensors.F8E4M3 {
		return fmt.Errorf("tensor %q is %s, but quantization_config does not say how it is quantised", name, t.DType)
	}
	return l.read(dst, name, out, in)
}

// fp8 keeps the values of the codes apart from their scales, as the products are
// computed.
func (l *loader) fp8(dst, scale []float32, p part, in int) error {
	name := p.module + ".weight"
	if t, ok := l.c.Lookup(name); ok && t.DType != safetensors.F8E4M3 {
		return fmt.Errorf("tensor %q is %s, quantization_config says F8_E4M3", name, t.DType)
	}
	if err := l.read(dst, name, p.out, in); err != nil {
		return err
	}
	s, err := l.scales(p.module+".weight_scale", p.out)
	if err != nil {
		return err
	}
	for i := range scale {
		scale[i] = s[min(i, len(s)-1)]
	}
	return nil
}

// int4 unpacks to floats: nibble k of a word is element 8w+k, stored plus 8.
func (l *loader) int4(dst []float32, p part, in int, args *model.QuantArgs) error {
	shape := make([]byte, 16)
	if err := l.bytes(shape, p.module+".weight_shape", safetensors.I64, []int64{2}); err != nil {
		return err
	}
	if r, c := binary.LittleEndian.Uint64(shape), binary.LittleEndian.Uint64(shape[8:]); r != uint64(p.out) || c != uint64(in) {
		return fmt.Errorf("tensor %q says %d × %d, config.json %d × %d", p.module+".weight_shape", r, c, p.out, in)
	}
	words := (in + 7) / 8
	packed := make([]byte, 4*words*p.out)
	if err := l.bytes(packed, p.module+".weight_packed", safetensors.I32, []int64{int64(p.out), int64(words)}); err != nil {
		return err
	}
	groups := 1
	if args.Strategy == "group" {
		if args.GroupSize < 1 || in%args.GroupSize != 0 {
			return fmt.Errorf("module %s: groups of %d do not divide %d columns", p.module, args.GroupSize, in)
		}
		groups = in / args.GroupSize
	}
	s, err := l.scales(p.module+".weight_scale", p.out*groups)
	if err != nil {
		return err
	}
	width := in / groups
	for i := range p.out {
		for j := range in {
			word := binary.LittleEndian.Uint32(packed[4*(i*words+j/8):])
			q := int(word>>(4*(j%8))&15) - 8
			dst[i*in+j] = float32(q) * s[min(i*groups+j/width, len(s)-1)]
		}
	}
	return nil
}

// scales reads n scales, or one for all.
func (l *loader) scales(name string, n int) ([]float32, error) {
	t, ok := l.c.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing: the weight is quantised and means nothing without it", name)
	}
	count := t.Elements()
	if count != int64(n) && count != 1 {
		return nil, fmt.Errorf("tensor %q has %d scales, want %d or 1", name, count, n)
	}
	s := make([]float32, count)
	if err := l.decode(s, t); err != nil {
		return nil, err
	}
	for i, v := range s {
		if v <= 0 {
			return nil, fmt.Errorf("tensor %q has the scale %g at element %d: want a positive one", name, v, i)
		}
	}
	return s, nil
}

func (l *loader) floats(name string, shape ...int) ([]float32, error) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	dst := aligned(n)
	if t, ok := l.c.Lookup(name); ok && t.DType == safetensors.F8E4M3 {
		return nil, fmt.Errorf("tensor %q is %s: only the matrices of the layers may be", name, t.DType)
	}
	return dst, l.read(dst, name, shape...)
}

func (l *loader) read(dst []float32, name string, shape ...int) error {
	t, ok := l.c.Lookup(name)
	if !ok {
		return fmt.Errorf("tensor %q is missing", name)
	}
	want := make([]int64, len(shape))
	for i, d := range shape {
		want[i] = int64(d)
	}
	if !slices.Equal(t.Shape, want) {
		return fmt.Errorf("tensor %q has the shape %v, config.json wants %v", name, t.Shape, want)
	}
	return l.decode(dst, t)
}

// decode refuses what is not finite: one NaN makes every answer noise.
func (l *loader) decode(dst []float32, t safetensors.Tensor) error {
	r, err := l.c.Reader(t.Name)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for at := 0; at < len(dst); {
		n, err := io.ReadFull(r, buf)
		if err != nil && err != io.ErrUnexpectedEOF {
			return fmt.Errorf("reading tensor %q: %w", t.Name, err)
		}
		m, err := safetensors.Floats(dst[at:], t.DType, buf[:n])
		if err != nil {
			return fmt.Errorf("reading tensor %q: %w", t.Name, err)
		}
		for i, v := range dst[at : at+m] {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("tensor %q in %s has %g at element %d: the checkpoint is damaged", t.Name, l.c.ShardOf(t.Name), v, at+i)
			}
		}
		at += m
	}
	return nil
}

func (l *loader) bytes(dst []byte, name string, d safetensors.DType, shape []int64) error {
	t, ok := l.c.Lookup(name)
	if !ok {
		return fmt.Errorf("tensor %q is missing", name)
	}
	if t.DType != d || !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("tensor %q is %s %v, want %s %v", name, t.DType, t.Shape, d, shape)
	}
	r, err := l.c.Reader(name)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(r, dst); err != nil {
		return fmt.Errorf("reading tensor %q: %w", name, err)
	}
	return nil
}

// quantPlan finds the group that quantises a module.
type quantPlan struct {
	groups []model.QuantGroup
	ignore []*regexp2.Regexp // anchored
	exact  map[string]bool
}

func planQuantisation(q *model.Quantisation) (*quantPlan, error) {
	if q == nil {
		return nil, nil
	}
	if q.Method != "compressed-tensors" {
		return nil, fmt.Errorf("quantisation method %q is not supported: want compressed-tensors", q.Method)
	}
	if q.Status != "" && q.Status != "compressed" {
		return nil, fmt.Errorf("quantization_status is %q: scales are only sure to be there when it is compressed", q.Status)
	}
	if q.KV != nil {
		return nil, errors.New("kv_cache_scheme is not supported: the cache is float32")
	}
	p := &quantPlan{groups: q.Groups, exact: make(map[string]bool)}
	for _, pattern := range q.Ignore {
		expr, ok := strings.CutPrefix(pattern, "re:")
		if !ok {
			p.exact[pattern] = true
			continue
		}
		re, err := regexp2.Compile(`\A(?:`+expr+`)`, regexp2.None)
		if err != nil {
			return nil, fmt.Errorf("quantization_config ignores %q: %w", pattern, err)
		}
		p.ignore = append(p.ignore, re)
	}
	for _, g := range q.Groups {
		if err := checkGroup(g); err != nil {
			return nil, fmt.Errorf("quantization_config group %s: %w", g.Name, err)
		}
	}
	return p, nil
}

func checkGroup(g model.QuantGroup) error {
	w, a := g.Weights, g.Activations
	switch {
	case !slices.Equal(g.Targets, []string{"Linear"}):
		return fmt.Errorf("targets %q are not supported: want Linear", g.Targets)
	case w == nil:
		return errors.New("no weights: quantised activations alone are not supported")
	case !w.Symmetric || w.ActOrder != "":
		return errors.New("zero points and activation order are not supported")
	case w.Type == "float" && w.Bits == 8 && (w.Strategy == "channel" || w.Strategy == "tensor"):
		if a != nil && !(a.Type == "float" && a.Bits == 8 && a.Dynamic && a.Strategy == "token") {
			return fmt.Errorf("activations %s (dynamic: %t) are not supported: want dynamic fp8 by token, or none", a, a.Dynamic)
		}
		return nil
	case w.Type == "int" && w.Bits == 4 && g.Format == "pack-quantized" && slices.Contains([]string{"group", "channel", "tensor"}, w.Strategy):
		if a != nil {
			return fmt.Errorf("activations %s beside int4 weights are not supported", a)
		}
		return nil
	}
	return fmt.Errorf("weights %s in format %q are not supported", w, g.Format)
}

// group is nil for a module that is not quantised.
func (p *quantPlan) group(module string) (*model.QuantGroup, error) {
	if p == nil || len(p.groups) == 0 || p.exact[module] {
		return nil, nil
	}
	for _, re := range p.ignore {
		ok, err := re.MatchString(module)
		if err != nil {
			return nil, fmt.Errorf("matching module %s: %w", module, err)
		}
		if ok {
			return nil, nil
		}
	}
	return &p.groups[0], nil
}
