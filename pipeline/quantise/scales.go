package quantise

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Scales are measured elsewhere, with data: what one step of a code is worth.
type Scales struct {
	// Activations are of the input of each module: its largest magnitude over 448.
	Activations map[string]float64 `json:"activations,omitempty"`
	// KV are of the cache of each attention module, such as
	// model.layers.0.self_attn.
	KV map[string]KVScale `json:"kv,omitempty"`
}

// KVScale is the scale of keys and that of values.
type KVScale struct {
	K float64 `json:"k"`
	V float64 `json:"v"`
}

// ReadScales reads a table in JSON and refuses keys that it does not know.
func ReadScales(path string) (*Scales, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading scales: %w", err)
	}
	defer func() { _ = f.Close() }()
	var s Scales
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("reading scales from %s: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("reading scales from %s: something follows the table", path)
	}
	return &s, nil
}

// constant is a scale of the table that is written as a tensor of one element.
type constant struct {
	name  string
	value float64
}

// scales hands each scale of the table to the step that it is written with.
func (p *planner) scales() error {
	if p.o.Scales == nil {
		return nil
	}
	at := map[string]*Step{}
	for i := range p.steps {
		for _, m := range p.steps[i].parts {
			at[m.module] = &p.steps[i]
		}
	}
	give := func(of string, s *Step, name string, v float64) error {
		if s == nil {
			return fmt.Errorf("scales: %s is no module of %s", of, p.c.Dir)
		}
		if stored := arithmeticOf(s.dtype()).round(float32(v)); !(v > 0) || stored <= 0 || !finite(stored) {
			return fmt.Errorf("scales: %s has %g, want a positive number that %s can hold", of, v, s.dtype())
		}
		s.extra = append(s.extra, constant{name, v})
		return nil
	}
	for _, module := range slices.Sorted(maps.Keys(p.o.Scales.KV)) {
		kv, s := p.o.Scales.KV[module], p.attention(module)
		err := give(module, s, module+".k_scale", kv.K)
		if err == nil {
			err = give(module, s, module+".v_scale", kv.V)
		}
		if err != nil {
			return err
		}
	}
	if p.to.activations != "tensor" {
		if len(p.o.Scales.Activations) > 0 {
			return fmt.Errorf("scales: %s measures activations token by token; only %s has scales of them", p.o.Scheme, FP8Static)
		}
		return nil
	}
	var missing []string
	for i := range p.steps {
		for _, m := range p.steps[i].parts {
			v, ok := p.o.Scales.Activations[m.module]
			if !ok {
				missing = append(missing, m.module)
			} else if err := give(m.module, at[m.module], m.module+".input_scale", v); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("scales: %d modules have none, the first is %s; give one for each or keep them", len(missing), missing[0])
	}
	for _, module := range slices.Sorted(maps.Keys(p.o.Scales.Activations)) {
		if at[module] == nil {
			return fmt.Errorf("scales: %s is no module of %s that is quantised", module, p.c.Dir)
		}
	}
	return nil
}

// attention is a step of the module's projections, beside which its scales are
// written; nil if there are none.
func (p *planner) attention(module string) *Step {
	for i := range p.steps {
		s := &p.steps[i]
		below, ok := strings.CutPrefix(s.Name, module+".")
		if ok && !s.dropped && strings.HasSuffix(below, "_proj.weight") && !strings.Contains(strings.TrimSuffix(below, ".weight"), ".") {
			return s
		}
	}
	return nil
}
