package quantise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// part is one matrix of a checkpoint, [out, in]: a whole tensor or a piece of one
// that holds many, whose rows are counted over all but its last dimension.
type part struct {
	module     string // of the output, without .weight
	first      int64  // row of the tensor
	rows, cols int64
	// Of a matrix that is stored [in, out]: how long the tensor's rows are, 0 for
	// others, and where in them it begins.
	across, left int64
}

// read has raw hold rows of the matrix from row on, elements of width bytes each.
// The tensor is what r reads; turned is room for those of another order.
func (p part) read(r io.ReaderAt, raw, turned *[]byte, row, rows, width int64) error {
	*raw = grow(*raw, rows*p.cols*width)
	if p.across == 0 {
		_, err := r.ReadAt(*raw, (p.first+row)*p.cols*width)
		return err
	}
	*turned = grow(*turned, rows*p.cols*width)
	for k := range p.cols {
		if _, err := r.ReadAt((*turned)[k*rows*width:(k+1)*rows*width], ((p.first+k)*p.across+p.left+row)*width); err != nil {
			return err
		}
	}
	turn(*raw, *turned, p.cols, rows, width)
	return nil
}

// turn writes the columns of src, rows by cols elements of 2 or 4 bytes, as the rows
// of dst, in squares that stay in a core's cache.
func turn(dst, src []byte, rows, cols, width int64) {
	const side = 32
	for r := int64(0); r < rows; r += side {
		for c := int64(0); c < cols; c += side {
			for i := r; i < min(r+side, rows); i++ {
				for k := c; k < min(c+side, cols); k++ {
					if from, to := src[(i*cols+k)*width:], dst[(k*rows+i)*width:]; width == 2 {
						binary.LittleEndian.PutUint16(to, binary.LittleEndian.Uint16(from))
					} else {
						binary.LittleEndian.PutUint32(to, binary.LittleEndian.Uint32(from))
					}
				}
			}
		}
	}
}

// outFirst are the families that store all experts of a layer as [experts, out,
// in] with gate above up, inFirst those as [experts, in, out] with gate to the left
// of up. A wrong guess loads, and answers noise.
var (
	outFirst = []string{"qwen3_5_moe"}
	inFirst  = []string{"llama4", "qwen3_vl_moe"}
)

// fused takes a tensor of all experts apart, as engines load them: one matrix an
// expert, gate and up each of their own.
func fused(t safetensors.Tensor, shape model.Shape) ([]part, error) {
	name := strings.TrimSuffix(t.Name, ".weight")
	prefix, last := name[:strings.LastIndexByte(name, '.')+1], name[strings.LastIndexByte(name, '.')+1:]
	family := strings.TrimSuffix(shape.Family, "_text")
	in := slices.Contains(inFirst, family)
	switch {
	case family == "gpt_oss":
		return nil, errors.New("experts of gpt_oss interleave gate and up, and no engine loads them one by one; keep them")
	case !in && !slices.Contains(outFirst, family):
		return nil, fmt.Errorf("the order of a %s model's fused experts %v is not known: a wrong guess loads and answers noise; keep them", family, t.Shape)
	}
	e, h, i := int64(shape.Experts.Count), int64(shape.Hidden), int64(shape.Experts.Intermediate)
	rows, cols, names := i, h, []string{"gate_proj", "up_proj"}
	switch last {
	case "gate_up_proj":
	case "down_proj":
		rows, cols, names = h, i, []string{"down_proj"}
	default:
		return nil, fmt.Errorf("fused experts of the name %s are not known; keep them", last)
	}
	n := int64(len(names))
	want := []int64{e, n * rows, cols}
	if in {
		want = []int64{e, cols, n * rows}
	}
	if !slices.Equal(t.Shape, want) {
		return nil, fmt.Errorf("fused experts have the shape %v, config.json says %v; keep them", t.Shape, want)
	}
	var parts []part
	for x := range e {
		for k, name := range names {
			p := part{module: fmt.Sprintf("%s%d.%s", prefix, x, name), rows: rows, cols: cols}
			if in {
				p.first, p.across, p.left = x*cols, n*rows, int64(k)*rows
			} else {
				p.first = (x*n + int64(k)) * rows
			}
			parts = append(parts, p)
		}
	}
	return parts, nil
}
