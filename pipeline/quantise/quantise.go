// Package quantise turns a checkpoint into one of fewer bits that engines load
// as it is: compressed-tensors layout, bit for bit in the reference's rounding
// order.
//
// [Plan] reads headers only and says for every tensor what will become of it
// and why; [Run] does it in strips of rows, so that memory does not grow with
// the model; [Diff] compares two checkpoints as the numbers that engines compute
// with. Weights are refused that hold NaN or Inf or are quantised already, but
// for E4M3 in blocks with weight_scale_inv, which are multiplied out first. No
// data is needed: scales of activations are an input, for the scheme that has
// them. [MeasureScales] runs the model over data, in the embedded engine or
// llm-compressor, and [Calibrate] has the latter choose codes.
//
// All are safe to call at the same time; of two that write one folder the second
// is refused.
package quantise

import (
	"strings"

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
