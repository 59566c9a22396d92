// Package quantise turns a checkpoint into one of fewer bits that engines load
// as it is: compressed-tensors layout, bit for bit in the reference's rounding
// order.
//
// [Plan] reads headers only and says for every tensor what will become of it
// and why; [Run] does it in strips of rows, so that memory does not grow with
// the model. Weights are refused that hold NaN or Inf or are quantised already,
// but for E4M3 in blocks with weight_scale_inv, which are multiplied out first.
// No data is needed: scales of activations are an input, for the scheme that has
// them. Both are safe to call at the same time on different folders.
package quantise

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// Options are what to make. Keep names modules that stay as they are: exact
// names, or "re:" and a regular expression that must match from the start, as
// compressed-tensors reads its ignore list.
type Options struct {
	Scheme string
	Keep   []string
	// TensorParallel is over how many GPUs the engine will split each matrix;
	// default 1. What it then cannot split is refused here and not at load.
	TensorParallel int
	// Scales are those of activations and of the KV cache; FP8Static needs the
	// first, the second are optional with every scheme.
	Scales *Scales
	// Memory bounds the buffers in bytes; default 1 GiB. Less than one strip of 128
	// rows of the widest matrix is refused.
	Memory int64
}

// Step is what becomes of one tensor.
type Step struct {
	Tensor   safetensors.Tensor `json:"-"`
	Name     string             `json:"name"`
	From     string             `json:"from"`
	Shape    []int64            `json:"shape"`
	Quantise bool               `json:"quantise"`
	Reason   string             `json:"reason"`
	// Ignore says that the engine must be told that this module stays.
	Ignore bool `json:"ignore,omitempty"`
	// Refused says that Reason is why the checkpoint cannot be quantised.
	Refused bool `json:"refused,omitempty"`

	parts   []part
	inverse safetensors.Tensor // scales that the codes of the source are multiplied with, if it has a name
	block   []int64            // of inverse, rows and columns
	dropped bool
	extra   []constant // scales of a table that are stored beside
}

// module is the name without .weight; a tensor that is no weight is its own.
func (s Step) module() string { return strings.TrimSuffix(s.Name, ".weight") }

// dtype is what the arithmetic is done in, and what scales and multiplied-out
// weights are stored in.
func (s Step) dtype() safetensors.DType {
	if s.inverse.Name != "" {
		return safetensors.BF16
	}
	return s.Tensor.DType
}

// outputs are the tensors that the step writes.
func (s Step) outputs(to scheme) []safetensors.Tensor {
	var out []safetensors.Tensor
	switch {
	case s.dropped:
	case !s.Quantise:
		out = append(out, sized(s.Name, s.dtype(), s.Shape...))
	default:
		for _, p := range s.parts {
			out = append(out, to.outputs(p, s.dtype())...)
		}
	}
	for _, c := range s.extra {
		if !strings.HasSuffix(c.name, ".input_scale") { // already among those of the matrix
			out = append(out, sized(c.name, s.dtype(), 1))
		}
	}
	return out
}

// Sizes are the bytes of all tensors before and after.
func Sizes(steps []Step, scheme string) (before, after int64) {
	for _, s := range steps {
		before += s.Tensor.Size()
		for _, t := range s.outputs(schemes[scheme]) {
			after += t.Size()
		}
	}
	return before, after
}

// Plan says for every tensor of the checkpoint whether it is quantised, and
// why not. With an error about tensors it returns the steps all the same, those
// at fault marked as refused.
func Plan(c *safetensors.Checkpoint, shape model.Shape, o Options) ([]Step, error) {
	to, ok := schemes[o.Scheme]
	if !ok {
		return nil, fmt.Errorf("scheme %q is not one of %s", o.Scheme, strings.Join(Schemes(), ", "))
	}
	if q := shape.Quant; q != nil && (q.Method != "fp8" || len(q.Block) != 2 || q.Block[0] < 1 || q.Block[1] < 1) {
		return nil, fmt.Errorf("%s is quantised already (%s); start from the original weights", c.Dir, q.Scheme())
	}
	if to.activations == "tensor" && o.Scales == nil {
		return nil, fmt.Errorf("%s needs the scales of activations, which no weight tells: measure them with the model's own traffic and give them as a table, or choose %s", o.Scheme, FP8Dynamic)
	}
	for _, name := range []string{"hf_quant_config.json", "quantize_config.json", "quant_config.json"} {
		if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
			return nil, fmt.Errorf("%s has %s: it is quantised already; start from the original weights", c.Dir, name)
		}
	}
	keep, err := compile(o.Keep)
	if err != nil {
		return nil, err
	}
	p := planner{c: c, shape: shape, to: to, keep: keep, o: o}
	for _, t := range c.Tensors() {
		p.steps = append(p.steps, p.decide(t))
	}
	p.agree()
	p.divide()
	p.once()
	err = errors.Join(used(keep, p.steps, c.Dir), p.scales())
	some, refused := false, 0
	for _, s := range p.steps {
		some = some || s.Quantise || s.Refused
		if s.Refused {
			if refused++; refused <= 3 {
				err = errors.Join(err, fmt.Errorf("%s: tensor %s: %s", c.Dir, s.Name, s.Reason))
			}
		}
	}
	if refused > 3 {
		err = errors.Join(err, fmt.Errorf("%s: and %d tensors more; a dry run lists them", c.Dir, refused-3))
	}
	if err == nil && !some {
		err = fmt.Errorf("%s has no weight that %s would change", c.Dir, o.Scheme)
	}
	return p.steps, err
}

type planner struct {
	c     *safetensors.Checkpoint
	shape model.Shape
	to    scheme
	keep  []pattern
	o     Options
	steps []Step
}

func (p *planner) decide(t safetensors.Tensor) Step {
	s := Step{Tensor: t, Name: t.Name, From: t.DType.String(), Shape: t.Shape}
	module, isWeight := strings.CutSuffix(t.Name, ".weight")
	stays := kept(module, p.shape)
	experts := len(t.Shape) > 1 && slices.Contains(strings.Split(module, "."), "experts")
	switch {
	case p.inverse(&s):
	case matches(p.keep, module):
		s.Reason, s.Ignore = "kept as asked", len(t.Shape) > 1
	case stays != "":
		s.Reason, s.Ignore = stays, isWeight && len(t.Shape) > 1 && !strings.HasPrefix(stays, "embedding")
	case len(t.Shape) < 2:
		s.Reason = "norm or bias: one dimension"
	case slices.Contains(t.Shape, 0):
		s.Reason = "empty"
	case experts && t.DType.Bits() >= 16 && len(t.Shape) == 3:
		parts, err := fused(t, p.shape)
		if err != nil {
			s.refuse("%v", err)
			break
		}
		s.Quantise, s.Reason, s.parts = true, fmt.Sprintf("%d fused experts, written one by one", t.Shape[0]), parts
	case experts && !isWeight && !strings.HasSuffix(t.Name, "bias"):
		s.refuse("looks like experts, but does not end in .weight: no engine would know that it is quantised; keep it")
	case !isWeight:
		s.Reason = "not a weight"
	case len(t.Shape) != 2:
		s.Reason, s.Ignore = fmt.Sprintf("%d dimensions: not a plain matrix", len(t.Shape)), true
	case s.inverse.Name == "" && t.DType != safetensors.BF16 && t.DType != safetensors.F16 && t.DType != safetensors.F32:
		s.Reason, s.Ignore = t.DType.String()+" is not a float weight", true
	default:
		s.Quantise, s.Reason, s.parts = true, "linear", []part{{module: module, rows: t.Shape[0], cols: t.Shape[1]}}
	}
	if s.Quantise && s.inverse.Name != "" {
		s.Reason += ", from E4M3 in blocks"
	}
	return s
}

func (s *Step) refuse(format string, args ...any) {
	s.Reason, s.Refused, s.Quantise, s.Ignore = fmt.Sprintf(format, args...), true, false, false
}

// inverse looks after sources that are quantised. It reports whether that
// settles the tensor.
func (p *planner) inverse(s *Step) bool {
	t := s.Tensor
	codes := t.DType == safetensors.F8E4M3 || t.DType == safetensors.F8E5M2
	for _, suffix := range []string{".weight_scale", ".weight_packed", ".weight_zero_point", ".qweight", ".qzeros"} {
		if strings.HasSuffix(t.Name, suffix) {
			s.refuse("quantised already; start from the original weights")
			return true
		}
	}
	module, isScale := strings.CutSuffix(t.Name, ".weight_scale_inv")
	switch {
	case p.shape.Quant == nil && (isScale || codes):
		s.refuse("quantised already, though config.json has no quantization_config; start from the original weights")
		return true
	case isScale:
		if w, ok := p.c.Lookup(module + ".weight"); !ok || w.DType != safetensors.F8E4M3 {
			s.refuse("scales of %s.weight, which is missing or not F8_E4M3", module)
		} else {
			s.Reason, s.dropped = "scales of the source: multiplied into the weight", true
		}
		return true
	case !codes:
		return false
	}
	scale, ok := p.c.Lookup(strings.TrimSuffix(t.Name, ".weight") + ".weight_scale_inv")
	s.block = []int64{int64(p.shape.Quant.Block[0]), int64(p.shape.Quant.Block[1])}
	switch {
	case t.DType != safetensors.F8E4M3 || len(t.Shape) != 2 || !ok:
		s.refuse("%s without its weight_scale_inv: what it scales means nothing", t.DType)
	case scale.DType != safetensors.F32 && scale.DType != safetensors.BF16 && scale.DType != safetensors.F16:
		s.refuse("its weight_scale_inv is %s, want F32 or BF16", scale.DType)
	case len(scale.Shape) != 2 || scale.Shape[0] != ceil(t.Shape[0], s.block[0]) || scale.Shape[1] != ceil(t.Shape[1], s.block[1]):
		s.refuse("its weight_scale_inv is %v, which is not one for %d × %d of %v", scale.Shape, s.block[0], s.block[1], t.Shape)
	default:
		s.inverse = scale
		return false
	}
	return true
}

func ceil(n, by int64) int64 { return (n + by - 1) / by }

// agree gives all parts of a product one verdict: engines refuse to load q beside
// a k in other bits.
func (p *planner) agree() {
	stays := map[string]Step{}
	for _, s := range p.steps {
		if !s.Quantise && s.Ignore {
			stays[product(s.module())] = s
		}
	}
	for i := range p.steps {
		s := &p.steps[i]
		if other, ok := stays[product(s.module())]; ok && s.Quantise {
			s.Quantise, s.Ignore, s.parts = false, true, nil
			s.Reason = fmt.Sprintf("computed as one with %s, which stays", other.module())
		}
	}
}

// once refuses a tensor that would be written under the name of another, such as
// experts that are there both as one tensor and one by one.
func (p *planner) once() {
	by := map[string]string{}
	for i := range p.steps {
		s := &p.steps[i]
		for _, t := range s.outputs(p.to) {
			if other, twice := by[t.Name]; twice {
				s.refuse("it would be written as %s, which %s is as well; remove one of them", t.Name, other)
				break
			}
			by[t.Name] = s.Name
		}
	}
}

// Where engines split a matrix: the rows of the first, the columns of the second.
var (
	splitRows = []string{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "q_b_proj", "kv_b_proj"}
	splitCols = []string{"o_proj", "down_proj", "w2", "out_proj"}
)

// divide refuses matrices that groups, words or blocks do not divide, on one GPU
// or on as many as are planned.
func (p *planner) divide() {
	tp := int64(max(p.o.TensorParallel, 1))
	for i := range p.steps {
		s := &p.steps[i]
		if !s.Quantise {
			continue
		}
		for _, m := range s.parts {
			if why := p.indivisible(m, tp); why != "" {
				s.refuse("%s; keep it", why)
				break
			}
		}
	}
}

func (p *planner) indivisible(m part, tp int64) string {
	last := m.module[strings.LastIndexByte(m.module, '.')+1:]
	rows, cols := m.rows, m.cols
	if slices.Contains(splitRows, last) {
		// A KV head that there are too few of is copied to several GPUs.
		least := int64(1)
		if last == "k_proj" || last == "v_proj" {
			least = min(rows, int64(p.shape.HeadDim))
		}
		if rows%tp != 0 && rows/tp >= least {
			return fmt.Sprintf("%d GPUs do not divide its %d rows", tp, rows)
		}
		rows = max(rows/tp, least)
	}
	if slices.Contains(splitCols, last) {
		if cols%tp != 0 {
			return fmt.Sprintf("%d GPUs do not divide its %d columns", tp, cols)
		}
		cols /= tp
	}
	on := ""
	if tp > 1 {
		on = fmt.Sprintf(" on each of %d GPUs", tp)
	}
	switch {
	case p.to.group > 0 && cols%p.to.group != 0:
		return fmt.Sprintf("groups of %d do not divide its %d columns%s", p.to.group, cols, on)
	case p.to.packed() && cols*p.to.bits%32 != 0:
		return fmt.Sprintf("words of 32 bits do not divide its %d columns of %d bits%s", cols, p.to.bits, on)
	case p.to.block == 0:
	case tp > 1 && cols != m.cols && cols%p.to.block != 0:
		return fmt.Sprintf("blocks of %d do not divide its %d columns%s", p.to.block, cols, on)
	// Of matrices that are stacked to one product only the last may be ragged.
	case rows%p.to.block != 0 && (tp > 1 && rows != m.rows || slices.Contains([]string{"q_proj", "k_proj", "gate_proj", "w1"}, last)):
		return fmt.Sprintf("blocks of %d do not divide its %d rows%s, and it is one product with others", p.to.block, rows, on)
	}
	return ""
}

// used refuses patterns that match no module, which would otherwise be quantised
// by a slip of the pen.
func used(keep []pattern, steps []Step, dir string) error {
	for _, p := range keep {
		one := []pattern{p}
		// A tied head has no tensor of its own, but engines build a module for it.
		found := matches(one, head)
		for _, s := range steps {
			found = found || (s.module() != s.Name || len(s.Shape) > 1) && matches(one, s.module())
		}
		if !found {
			return fmt.Errorf("keep %q matches no module of %s; a dry run without it lists them, each with a .weight that does not belong to the name", p.text, dir)
		}
	}
	return nil
}

type pattern struct {
	text  string
	exact string
	re    *regexp.Regexp
}

func compile(keep []string) ([]pattern, error) {
	var out []pattern
	for _, k := range keep {
		expr, isRE := strings.CutPrefix(k, "re:")
		if !isRE {
			out = append(out, pattern{text: k, exact: k})
			continue
		}
		re, err := regexp.Compile(`^(?:` + expr + `)`)
		if err != nil {
			return nil, fmt.Errorf("keep %q: %w", k, err)
		}
		out = append(out, pattern{text: k, re: re})
	}
	return out, nil
}

func matches(keep []pattern, module string) bool {
	return slices.ContainsFunc(keep, func(p pattern) bool {
		return p.re == nil && p.exact == module || p.re != nil && p.re.MatchString(module)
	})
}

// ignored lists the modules that the engine must leave alone, each in all its
// spellings.
func ignored(steps []Step) []string {
	var out []string
	add := func(names ...string) {
		for _, n := range names {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	for _, s := range steps {
		if t := tower(s.module()); t != "" && !s.dropped {
			add(t)
		}
	}
	seen := map[string]bool{}
	for _, s := range steps {
		if !s.Ignore || s.module() == head {
			continue
		}
		for _, n := range spellings(s.module()) {
			if !seen[n] {
				seen[n] = true
				out = append(out, n)
			}
		}
		// Fused experts stay as one tensor, and engines look for the module that
		// computes them.
		if s.module() == s.Name {
			add(cmp.Or(product(s.module()), s.module()))
		}
	}
	// A tied head has no tensor of its own, but engines build a module for it.
	add(head)
	return out
}
