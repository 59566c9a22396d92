package quantise

import (
	"fmt"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// part is one matrix of a checkpoint: a whole tensor or some rows of one that
// holds many, counted over all but its last dimension.
type part struct {
	module     string // of the output, without .weight
	first      int64  // row of the tensor
	rows, cols int64
}

// outFirst are the families that store all experts of a layer as [experts, out,
// in] with gate above up. Others hold [experts, in, out], or interleave: halves
// taken from those would load, and answer noise.
var outFirst = []string{"qwen3_5_moe"}

// inFirst are families known to be otherwise.
var inFirst = map[string]string{
	"llama4":       "[experts, in, out]",
	"qwen3_vl_moe": "[experts, in, out]",
	"gpt_oss":      "[experts, in, out] with gate and up interleaved",
}

// fused takes a tensor of all experts apart, as engines load them: one matrix an
// expert, gate and up each of their own.
func fused(t safetensors.Tensor, shape model.Shape) ([]part, error) {
	name := strings.TrimSuffix(t.Name, ".weight")
	prefix, last := name[:strings.LastIndexByte(name, '.')+1], name[strings.LastIndexByte(name, '.')+1:]
	family := strings.TrimSuffix(shape.Family, "_text")
	if order, ok := inFirst[family]; ok {
		return nil, fmt.Errorf("experts of %s are %s, which are not taken apart here; keep them", family, order)
	}
	if !slices.Contains(outFirst, family) {
		return nil, fmt.Errorf("the order of a %s model's fused experts %v is not known: a wrong guess loads and answers noise; keep them", family, t.Shape)
	}
	e, h, i := int64(shape.Experts.Count), int64(shape.Hidden), int64(shape.Experts.Intermediate)
	want, names := []int64{e, 2 * i, h}, []string{"gate_proj", "up_proj"}
	switch last {
	case "gate_up_proj":
	case "down_proj":
		want, names = []int64{e, h, i}, []string{"down_proj"}
	default:
		return nil, fmt.Errorf("fused experts of the name %s are not known; keep them", last)
	}
	if !slices.Equal(t.Shape, want) {
		return nil, fmt.Errorf("fused experts have the shape %v, config.json says %v; keep them", t.Shape, want)
	}
	rows := want[1] / int64(len(names))
	var parts []part
	for x := range e {
		for k, n := range names {
			parts = append(parts, part{fmt.Sprintf("%s%d.%s", prefix, x, n), x*want[1] + int64(k)*rows, rows, want[2]})
		}
	}
	return parts, nil
}
