package quantise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

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
