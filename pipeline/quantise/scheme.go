package quantise

import (
	"maps"
	"math"
	"slices"

	"llmops/model/safetensors"
)

// The schemes, each under the name of compressed-tensors' preset.
const (
	// FP8Dynamic (FP8_DYNAMIC) is E4M3 with one scale an output channel,
	// activations quantised token by token by the engine.
	FP8Dynamic = "fp8-dynamic"
	// FP8Block (FP8_BLOCK) is E4M3 with one scale for 128 × 128 weights,
	// activations quantised in groups of 128.
	FP8Block = "fp8-block"
	// FP8BlockUE8M0 is FP8Block with scales that are powers of two. The kernels of
	// Blackwell GPUs take no others, and engines requantise FP8Block for them while
	// they load it; of this one the codes stay as they were measured.
	FP8BlockUE8M0 = "fp8-block-ue8m0"
	// FP8Static (FP8) is E4M3 with one scale a matrix; the activations' scales are
	// an input, because no weight tells them.
	FP8Static = "fp8-static"
	// Int8 (W8A8) is eight bits with one scale an output channel, activations
	// quantised token by token.
	Int8 = "int8"
	// Int8Weight (W8A16) is eight bits with one scale for 128 columns of a row,
	// activations as they are.
	Int8Weight = "int8-weight"
	// Int4 (W4A16) is four bits, otherwise as Int8Weight.
	Int4 = "int4"
	// Int4Tensor is four bits with one scale for the whole matrix: the smallest
	// file and the largest error. Only the embedded engine loads it.
	Int4Tensor = "int4-tensor"
)

// scheme is what a name stands for.
type scheme struct {
	format string
	float  bool // E4M3; otherwise integers of bits
	bits   int64
	group  int64 // columns of a row that share a scale; 0: not in groups
	block  int64 // rows and columns that share a scale; 0: not in blocks
	whole  bool  // one scale a matrix
	powers bool  // scales are powers of two
	// How the engine quantises activations: token, group or tensor, which needs a
	// scale from elsewhere; "": not at all.
	activations string
}

var schemes = map[string]scheme{
	FP8Dynamic:    {format: "float-quantized", float: true, bits: 8, activations: "token"},
	FP8Block:      {format: "float-quantized", float: true, bits: 8, block: 128, activations: "group"},
	FP8BlockUE8M0: {format: "float-quantized", float: true, bits: 8, block: 128, powers: true, activations: "group"},
	FP8Static:     {format: "float-quantized", float: true, bits: 8, whole: true, activations: "tensor"},
	Int8:          {format: "int-quantized", bits: 8, activations: "token"},
	Int8Weight:    {format: "pack-quantized", bits: 8, group: 128},
	Int4:          {format: "pack-quantized", bits: 4, group: 128},
	Int4Tensor:    {format: "pack-quantized", bits: 4, whole: true},
}

// Schemes lists the names that Options.Scheme may have.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes)) }

func (s scheme) packed() bool { return s.format == "pack-quantized" }

// half is half of the width of the range of codes, which the reference divides
// the largest magnitude by; for eight bits that is 127.5.
func (s scheme) half() float32 {
	if s.float {
		return safetensors.MaxE4M3
	}
	return float32(math.Ldexp(1, int(s.bits-1))) - 0.5
}

// scale is that of codes for weights of type d up to the magnitude amax.
func (s scheme) scale(d safetensors.DType, amax float32) float32 {
	a := arithmeticOf(d)
	if s.powers {
		return a.power(amax / s.half())
	}
	return a.scale(amax, s.half())
}

// scales is the shape of the scales of a matrix.
func (s scheme) scales(rows, cols int64) []int64 {
	switch {
	case s.whole:
		return []int64{1}
	case s.group > 0:
		return []int64{rows, cols / s.group}
	case s.block > 0:
		return []int64{(rows + s.block - 1) / s.block, (cols + s.block - 1) / s.block}
	}
	return []int64{rows, 1}
}

// outputs are the tensors that one matrix becomes, its codes first and its scales
// second. Scales have the type that the arithmetic is done in.
func (s scheme) outputs(p part, d safetensors.DType) []safetensors.Tensor {
	scale := sized(p.module+".weight_scale", d, s.scales(p.rows, p.cols)...)
	if s.packed() {
		return []safetensors.Tensor{
			sized(p.module+".weight_packed", safetensors.I32, p.rows, p.cols*s.bits/32), scale,
			sized(p.module+".weight_shape", safetensors.I64, 2),
		}
	}
	codes := safetensors.I8
	if s.float {
		codes = safetensors.F8E4M3
	}
	out := []safetensors.Tensor{sized(p.module+".weight", codes, p.rows, p.cols), scale}
	if s.activations == "tensor" {
		out = append(out, sized(p.module+".input_scale", d, 1))
	}
	return out
}

// sized gives the tensor the byte range that its size needs; Create lays it out.
func sized(name string, d safetensors.DType, shape ...int64) safetensors.Tensor {
	t := safetensors.Tensor{Name: name, DType: d, Shape: shape}
	t.End = (t.Elements()*d.Bits() + 7) / 8
	return t
}

// config is config.json's quantization_config, with the keys that every reader
// knows: older ones refuse a group that has others.
func (s scheme) config(ignore []string, kv bool) map[string]any {
	typ := "int"
	if s.float {
		typ = "float"
	}
	args := func(strategy string, dynamic bool, observer any) map[string]any {
		a := map[string]any{
			"num_bits": s.bits, "type": typ, "symmetric": true, "strategy": strategy, "dynamic": dynamic,
			"group_size": nil, "block_structure": nil, "actorder": nil, "observer": observer, "observer_kwargs": map[string]any{},
		}
		switch strategy {
		case "group":
			a["group_size"] = 128
		case "block":
			a["block_structure"] = []int64{s.block, s.block}
		}
		return a
	}
	strategy := "channel"
	switch {
	case s.whole:
		strategy = "tensor"
	case s.group > 0:
		strategy = "group"
	case s.block > 0:
		strategy = "block"
	}
	var activations, cache any
	if s.activations != "" {
		var observer any
		if s.activations == "tensor" {
			observer = "static_minmax"
		}
		activations = args(s.activations, s.activations != "tensor", observer)
	}
	if kv {
		cache = map[string]any{
			"num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false,
			"group_size": nil, "block_structure": nil, "actorder": nil, "observer": "static_minmax", "observer_kwargs": map[string]any{},
		}
	}
	return map[string]any{
		"config_groups": map[string]any{"group_0": map[string]any{
			"format": s.format, "targets": []string{"Linear"}, "weights": args(strategy, false, "memoryless_minmax"),
			"input_activations": activations, "output_activations": nil,
		}},
		"format": s.format, "global_compression_ratio": nil, "ignore": ignore, "kv_cache_scheme": cache,
		"quant_method": "compressed-tensors", "quantization_status": "compressed",
		"sparsity_config": map[string]any{}, "transform_config": map[string]any{},
	}
}
