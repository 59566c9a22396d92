package llama

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dlclark/regexp2"

	"llmops/model"
	"llmops/serving/embedded/llama/kernel"
)

// scheme is how a group of modules is quantised, as far as computing goes.
type scheme struct {
	store   kernel.Format
	packed  bool   // in words of 32 bits, under weight_packed
	scale   string // what the scales' name has after the module
	columns int    // to a scale within a row; 0: a scale is of the whole row
	rows    int    // that share scales, with columns
	ragged  bool   // the last columns may be fewer
	round   rounding
}

// quantPlan finds the scheme of a module.
type quantPlan struct {
	groups []planGroup
	ignore []*regexp2.Regexp // anchored
	exact  map[string]bool
	below  []string // modules that are ignored with all in them
	kv     bool     // the checkpoint has scales of a cache in fp8
}

type planGroup struct {
	scheme  *scheme
	linear  bool // all of them
	exact   map[string]bool
	pattern []*regexp2.Regexp
}

func planQuantisation(q *model.Quantisation) (*quantPlan, error) {
	p := &quantPlan{exact: make(map[string]bool)}
	if q == nil {
		return p, nil
	}
	switch {
	case q.Method == "fp8":
		s, err := blockScheme(q)
		if err != nil {
			return nil, fmt.Errorf("quantization_config: %w", err)
		}
		p.groups, p.below = []planGroup{{scheme: s, linear: true}}, append(q.Ignore, "lm_head")
	case q.Method != "compressed-tensors":
		return nil, fmt.Errorf("quantisation method %q is not supported: want compressed-tensors or fp8", q.Method)
	case q.Status != "" && q.Status != "compressed":
		return nil, fmt.Errorf("quantization_status is %q: scales are only sure to be there when it is compressed", q.Status)
	default:
		for _, g := range q.Groups {
			if err := p.add(g); err != nil {
				return nil, fmt.Errorf("quantization_config group %s: %w", g.Name, err)
			}
		}
		for _, pattern := range q.Ignore {
			re, err := compile(pattern)
			if err != nil {
				return nil, fmt.Errorf("quantization_config ignores %q: %w", pattern, err)
			}
			if re == nil {
				p.exact[pattern] = true
			} else {
				p.ignore = append(p.ignore, re)
			}
		}
	}
	if kv := q.KV; kv != nil {
		if kv.Type != "float" || kv.Bits != 8 || kv.Dynamic || !kv.Symmetric || kv.Strategy != "tensor" && kv.Strategy != "attn_head" {
			return nil, fmt.Errorf("kv_cache_scheme %s (dynamic: %t) is not supported: want static symmetric fp8 by tensor or attn_head", kv, kv.Dynamic)
		}
		p.kv = true
	}
	return p, nil
}

// compile takes "re:" and an expression that matches a beginning; others are names.
func compile(pattern string) (*regexp2.Regexp, error) {
	expr, ok := strings.CutPrefix(pattern, "re:")
	if !ok {
		return nil, nil
	}
	return regexp2.Compile(`\A(?:`+expr+`)`, regexp2.None)
}

func (p *quantPlan) add(g model.QuantGroup) error {
	s, err := groupScheme(g)
	if err != nil {
		return err
	}
	to := planGroup{scheme: s, exact: make(map[string]bool)}
	for _, target := range g.Targets {
		re, err := compile(target)
		switch {
		case err != nil:
			return fmt.Errorf("target %q: %w", target, err)
		case re != nil:
			to.pattern = append(to.pattern, re)
		case target == "Linear":
			to.linear = true
		default:
			to.exact[target] = true
		}
	}
	p.groups = append(p.groups, to)
	return nil
}

// groupScheme refuses what engines do not run, or run in other ways.
func groupScheme(g model.QuantGroup) (*scheme, error) {
	w, a := g.Weights, g.Activations
	switch {
	case w == nil:
		return nil, errors.New("no weights: quantised activations alone are not supported")
	case !w.Symmetric || w.ActOrder != "":
		return nil, errors.New("zero points and activation order are not supported")
	}
	s := &scheme{scale: ".weight_scale", rows: 1}
	name := fmt.Sprintf("%s%d", w.Type, w.Bits)
	switch {
	case name == "float8" && slices.Contains([]string{"tensor", "channel", "block"}, w.Strategy):
		s.store = kernel.E4M3
	case g.Format == "pack-quantized" && (name == "int4" || name == "int8") && slices.Contains([]string{"tensor", "channel", "group"}, w.Strategy):
		s.packed, s.store = true, kernel.Int8
		if name == "int4" {
			s.store = kernel.Int4
		}
	case g.Format != "pack-quantized" && name == "int8" && slices.Contains([]string{"tensor", "channel", "group"}, w.Strategy):
		s.store = kernel.Int8
	default:
		return nil, fmt.Errorf("weights %s in format %q are not supported", w, g.Format)
	}
	switch w.Strategy {
	case "group":
		if w.GroupSize < 1 {
			return nil, fmt.Errorf("weights in groups of %d", w.GroupSize)
		}
		s.columns = w.GroupSize
	case "block":
		if len(w.Block) != 2 || w.Block[0] < 1 || w.Block[1] < 1 {
			return nil, fmt.Errorf("weights in blocks of %v: want two positive sizes", w.Block)
		}
		s.rows, s.columns, s.ragged = w.Block[0], w.Block[1], true
	}
	if a == nil {
		return s, nil
	}
	same := !s.packed && w.Strategy != "group" && a.Symmetric && a.Type == w.Type && a.Bits == 8
	switch {
	// vLLM groups the activations like the weights' blocks, whatever the strategy says.
	case same && w.Strategy == "block" && a.Dynamic:
		s.round = fp8Group
	case same && w.Strategy != "block" && a.Dynamic && a.Strategy == "token":
		s.round = fp8Token
	case same && w.Strategy != "block" && !a.Dynamic && a.Strategy == "tensor":
		s.round = fp8Static
	default:
		return nil, fmt.Errorf("activations %s (dynamic: %t) beside weights %s are not supported: want dynamic by token, static by tensor, or none", a, a.Dynamic, w)
	}
	if s.store == kernel.Int8 {
		s.round = map[rounding]rounding{fp8Token: int8Token, fp8Static: int8Static}[s.round]
	}
	return s, nil
}

// blockScheme is that of method fp8: E4M3 in blocks with weight_scale_inv, which
// is multiplied with all the same, or with one scale a matrix.
func blockScheme(q *model.Quantisation) (*scheme, error) {
	s := &scheme{store: kernel.E4M3, scale: ".weight_scale", rows: 1, round: fp8Token}
	switch {
	case q.Block == nil && q.Activations == "static":
		s.round = fp8Static
	case q.Activations != "dynamic":
		return nil, fmt.Errorf("activation_scheme %q is not supported: want dynamic, or static without weight_block_size", q.Activations)
	case q.Block == nil:
	case len(q.Block) != 2 || q.Block[0] < 1 || q.Block[1] < 1:
		return nil, fmt.Errorf("weight_block_size %v: want two positive sizes", q.Block)
	default:
		s.scale, s.round = ".weight_scale_inv", fp8Group
		s.rows, s.columns, s.ragged = q.Block[0], q.Block[1], true
	}
	return s, nil
}

// find is nil for a module that is not quantised. Names and patterns go before
// kinds of module, and among them the first group wins.
func (p *quantPlan) find(module string) (*scheme, error) {
	if len(p.groups) == 0 || p.exact[module] {
		return nil, nil
	}
	for _, name := range p.below {
		if module == name || strings.HasPrefix(module, name+".") {
			return nil, nil
		}
	}
	if ok, err := matches(p.ignore, module); ok || err != nil {
		return nil, err
	}
	for _, g := range p.groups {
		ok, err := matches(g.pattern, module)
		if err != nil {
			return nil, err
		}
		if ok || g.exact[module] {
			return g.scheme, nil
		}
	}
	for _, g := range p.groups {
		if g.linear {
			return g.scheme, nil
		}
	}
	return nil, nil
}

func matches(patterns []*regexp2.Regexp, module string) (bool, error) {
	for _, re := range patterns {
		if ok, err := re.MatchString(module); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
