// Package quantise turns a checkpoint into one of fewer bits that engines load
// as it is: compressed-tensors layout, bit for bit in the reference's rounding
// order.
//
// [Plan] reads headers only and says for every tensor what will become of it
// and why; [Run] does it, row by row, so that memory does not grow with the
// model. Weights are refused that are already quantised or hold NaN or Inf.
// No data is needed, and schemes that need some are not offered. Both are safe
// to call at the same time on different folders.
package quantise

import (
	"fmt"
	"regexp"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// The schemes.
const (
	// FP8Dynamic is E4M3 with one scale an output channel, activations
	// quantised token by token by the engine.
	FP8Dynamic = "fp8-dynamic"
	// Int4 is four bits, rounded to nearest with one scale for the whole
	// matrix: the smallest file and the largest error.
	Int4 = "int4"
)

// Options are what to make. Keep names modules that stay as they are: exact
// names, or "re:" and a regular expression that must match from the start, as
// compressed-tensors reads its ignore list.
type Options struct {
	Scheme string
	Keep   []string
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
}

// Plan says for every tensor of the checkpoint whether it is quantised, and
// why not.
func Plan(c *safetensors.Checkpoint, shape model.Shape, o Options) ([]Step, error) {
	if shape.Quant != nil {
		return nil, fmt.Errorf("%s is quantised already (%s); start from the original weights", c.Dir, shape.Quant.Scheme())
	}
	if o.Scheme != FP8Dynamic && o.Scheme != Int4 {
		return nil, fmt.Errorf("scheme %q is not one of %s, %s", o.Scheme, FP8Dynamic, Int4)
	}
	keep, err := compile(o.Keep)
	if err != nil {
		return nil, err
	}
	var steps []Step
	some := false
	for _, t := range c.Tensors() {
		s := decide(t, keep)
		if s.Quantise && o.Scheme == Int4 && t.Shape[1]%8 != 0 {
			return nil, fmt.Errorf("%s: tensor %s has %d columns, which eight four-bit values a word do not divide; keep it", c.Dir, t.Name, t.Shape[1])
		}
		some = some || s.Quantise
		steps = append(steps, s)
	}
	if err := used(keep, steps, c.Dir); err != nil {
		return nil, err
	}
	if !some {
		return nil, fmt.Errorf("%s has no weight that %s would change", c.Dir, o.Scheme)
	}
	return steps, nil
}

// used refuses patterns that match no module, which would otherwise be quantised
// by a slip of the pen.
func used(keep []pattern, steps []Step, dir string) error {
	for _, p := range keep {
		one := []pattern{p}
		// A tied head has no tensor of its own, but engines build a module for it.
		found := matches(one, head)
		for _, s := range steps {
			module, isWeight := strings.CutSuffix(s.Name, ".weight")
			found = found || isWeight && matches(one, module)
		}
		if !found {
			return fmt.Errorf("keep %q matches no module of %s; a dry run without it lists them, each with a .weight that does not belong to the name", p.text, dir)
		}
	}
	return nil
}

// head is the module that turns hidden states into logits.
const head = "lm_head"

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

// router are the modules that choose experts. Engines build them as quantised
// layers unless told otherwise.
var router = regexp.MustCompile(`(^|\.)(gate|router|shared_expert_gate)$`)

func decide(t safetensors.Tensor, keep []pattern) Step {
	s := Step{Tensor: t, Name: t.Name, From: t.DType.String(), Shape: t.Shape}
	module, isWeight := strings.CutSuffix(t.Name, ".weight")
	switch {
	case !isWeight:
		s.Reason = "not a weight"
	case strings.HasSuffix(module, "norm") || len(t.Shape) == 1:
		s.Reason = "norm or bias"
	case strings.Contains(module, "embed"):
		s.Reason = "embedding: looked up, not multiplied"
	case len(t.Shape) != 2:
		s.Reason = fmt.Sprintf("%d dimensions: not a plain matrix", len(t.Shape))
		s.Ignore = true
	case t.DType != safetensors.BF16 && t.DType != safetensors.F16 && t.DType != safetensors.F32:
		s.Reason = t.DType.String() + " is not a float weight"
		s.Ignore = true
	case matches(keep, module):
		s.Reason, s.Ignore = "kept as asked", true
	case router.MatchString(module):
		s.Reason, s.Ignore = "router: a wrong expert costs more than its bytes", true
	default:
		s.Quantise, s.Reason = true, "linear"
	}
	return s
}

func matches(keep []pattern, module string) bool {
	for _, p := range keep {
		if p.exact == module || p.re != nil && p.re.MatchString(module) {
			return true
		}
	}
	return false
}
