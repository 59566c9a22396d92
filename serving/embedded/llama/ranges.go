package llama

import (
	"fmt"

	"llmops/serving/embedded/llama/kernel"
)

// Ranges are the largest magnitudes that an Executor has met since Observe, before
// any rounding.
type Ranges struct {
	// Inputs are of each linear's input, by the name of its module in the
	// checkpoint, such as model.layers.0.self_attn.q_proj.
	Inputs map[string]float32
	// Keys, after the rotation, and Values are of the cache, by the name of the
	// attention module, such as model.layers.0.self_attn.
	Keys, Values map[string]float32
}

// layerRanges are those of one layer, of each product's input.
type layerRanges struct {
	inputs       [products]float32
	keys, values float32
}

// Observe has the executor note ranges from the next step on.
func (m *Executor) Observe() { m.ranges = make([]layerRanges, m.shape.Layers) }

// Ranges are what was noted since Observe.
func (m *Executor) Ranges() Ranges {
	r := Ranges{Inputs: map[string]float32{}, Keys: map[string]float32{}, Values: map[string]float32{}}
	for i, l := range m.ranges {
		layer := fmt.Sprintf("model.layers.%d.", i)
		for module, to := range targets(m.shape) {
			r.Inputs[layer+module] = l.inputs[to.product]
		}
		r.Keys[layer+"self_attn"], r.Values[layer+"self_attn"] = l.keys, l.values
	}
	return r
}

// met widens a range by x.
func met(r *float32, x []float32) { *r = max(*r, kernel.MaxAbs(x)) }
