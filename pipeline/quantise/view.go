package quantise

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// view is a matrix or vector of a checkpoint as the numbers that an engine
// computes with, however they are stored.
type view struct {
	name       string // as an unquantised checkpoint has it
	rows, cols int64  // all but the last dimension as one, and the last
	stored     safetensors.Tensor
	part       part               // of stored
	bits       int64              // of a code in words of 32 bits; 0: not packed
	scale      safetensors.Tensor // no name: none
	height     int64              // rows and columns that share a scale
	width      int64
}

// how says how the view is stored, "" if it is not there.
func (v view) how() string {
	switch {
	case v.name == "":
		return ""
	case v.bits > 0:
		return fmt.Sprintf("INT%d", v.bits)
	}
	return v.stored.DType.String()
}

// size is the bytes of its codes or numbers.
func (v view) size() int64 {
	bits := v.bits
	if bits == 0 && v.name != "" {
		bits = v.stored.DType.Bits()
	}
	return v.rows * v.cols * bits / 8
}

// float reports whether read can decode the view.
func (v view) float() bool {
	switch v.stored.DType {
	case safetensors.BF16, safetensors.F16, safetensors.F32, safetensors.F64:
		return true
	}
	return v.scale.Name != ""
}

// aside are tensors that are no weights: what belongs to codes, and what engines
// scale activations with.
var aside = []string{".weight_scale", ".weight_scale_inv", ".weight_shape", ".input_scale", ".k_scale", ".v_scale"}

// viewsOf lists the weights of a checkpoint by name. Fused experts whose order is
// known are listed one by one.
func viewsOf(c *safetensors.Checkpoint, shape model.Shape) (map[string]view, error) {
	out := map[string]view{}
	for _, t := range c.Tensors() {
		if slices.ContainsFunc(aside, func(s string) bool { return strings.HasSuffix(t.Name, s) }) {
			continue
		}
		if len(t.Shape) == 3 && strings.Contains(t.Name, ".experts.") {
			if parts, err := fused(t, shape); err == nil {
				for _, p := range parts {
					out[p.module+".weight"] = view{name: p.module + ".weight", rows: p.rows, cols: p.cols, stored: t, part: p}
				}
				continue
			}
		}
		v, err := viewOf(c, t, shape.Quant)
		if err != nil {
			return nil, fmt.Errorf("%s: tensor %s: %w", c.Dir, t.Name, err)
		}
		out[v.name] = v
	}
	return out, nil
}

func viewOf(c *safetensors.Checkpoint, t safetensors.Tensor, q *model.Quantisation) (view, error) {
	v := view{name: t.Name, rows: 1, cols: 1, stored: t}
	if n := len(t.Shape); n > 0 {
		v.cols = t.Shape[n-1]
		for _, d := range t.Shape[:n-1] {
			v.rows *= d
		}
	}
	module, packed := strings.CutSuffix(t.Name, ".weight_packed")
	if packed {
		v.name = module + ".weight"
		dims, err := whole(c, module+".weight_shape", safetensors.I64)
		if err != nil {
			return v, err
		}
		if len(dims) != 16 || t.DType != safetensors.I32 || len(t.Shape) != 2 {
			return v, fmt.Errorf("packed weights of type %s and shape %v are not known", t.DType, t.Shape)
		}
		v.rows, v.cols = int64(binary.LittleEndian.Uint64(dims)), int64(binary.LittleEndian.Uint64(dims[8:]))
		if v.cols < 1 || v.rows != t.Shape[0] || t.Shape[1] > 1<<40 || t.Shape[1]*32%v.cols != 0 {
			return v, fmt.Errorf("weight_shape is %d × %d, which %v cannot hold", v.rows, v.cols, t.Shape)
		}
		if v.bits = t.Shape[1] * 32 / v.cols; v.bits != 4 && v.bits != 8 {
			return v, fmt.Errorf("%d bits a weight: only 4 and 8 are known", v.bits)
		}
	} else {
		module = strings.TrimSuffix(t.Name, ".weight")
	}
	codes := packed || t.DType == safetensors.I8 || t.DType == safetensors.F8E4M3
	for _, suffix := range []string{".weight_scale", ".weight_scale_inv"} {
		if s, ok := c.Lookup(module + suffix); ok && codes {
			v.scale = s
			return v, v.spread(q)
		}
	}
	if packed {
		return v, fmt.Errorf("%s.weight_scale is missing", module)
	}
	return v, nil
}

// spread settles how many rows and columns share a scale.
func (v *view) spread(q *model.Quantisation) error {
	s := v.scale.Shape
	switch {
	case v.scale.Elements() == 1:
		v.height, v.width = max(v.rows, 1), max(v.cols, 1)
	case len(s) == 2 && s[0] == v.rows && s[1] > 0 && v.cols%s[1] == 0:
		v.height, v.width = 1, v.cols/s[1]
	case len(s) == 2 && q != nil:
		block := q.Block
		for _, g := range q.Groups {
			if g.Weights != nil && len(g.Weights.Block) == 2 {
				block = g.Weights.Block
			}
		}
		if len(block) == 2 && block[0] > 0 && block[1] > 0 && s[0] == ceil(v.rows, int64(block[0])) && s[1] == ceil(v.cols, int64(block[1])) {
			v.height, v.width = int64(block[0]), int64(block[1])
			return nil
		}
		fallthrough
	default:
		return fmt.Errorf("its scales have the shape %v, which is neither one, nor one a row, group or block of %d × %d", s, v.rows, v.cols)
	}
	return nil
}

// whole reads all of a small tensor.
func whole(c *safetensors.Checkpoint, name string, d safetensors.DType) ([]byte, error) {
	t, ok := c.Lookup(name)
	if !ok || t.DType != d {
		return nil, fmt.Errorf("%s is missing or not %s", name, d)
	}
	r, err := c.Reader(name)
	if err != nil {
		return nil, err
	}
	b := make([]byte, t.Size())
	_, err = r.ReadAt(b, 0)
	return b, err
}

// reader decodes rows of views, its buffers used again.
type reader struct {
	c      *safetensors.Checkpoint
	raw    []byte
	turned []byte
	values []float32
	scales []float32
	of     string // whose scales are read
}

// read returns rows first to first+rows of v, valid until the next call.
func (r *reader) read(v view, first, rows int64) ([]float32, error) {
	n := rows * v.cols
	bits := v.bits
	if bits == 0 {
		bits = v.stored.DType.Bits()
	}
	r.raw, r.values = grow(r.raw, n*bits/8), grow(r.values, n)
	f, err := r.c.Reader(v.stored.Name)
	if err != nil {
		return nil, err
	}
	if v.part.across > 0 {
		err = v.part.read(f, &r.raw, &r.turned, first, rows, bits/8)
	} else {
		_, err = f.ReadAt(r.raw, (v.part.first+first)*v.cols*bits/8)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s at row %d: %w", v.stored.Name, first, err)
	}
	switch {
	case v.bits == 4:
		for i, b := range r.raw {
			r.values[2*i], r.values[2*i+1] = float32(b&15)-8, float32(b>>4)-8
		}
	case v.bits == 8:
		for i, b := range r.raw {
			r.values[i] = float32(b) - 128
		}
	case v.stored.DType == safetensors.I8:
		for i, b := range r.raw {
			r.values[i] = float32(int8(b))
		}
	default:
		if _, err := safetensors.Floats(r.values, v.stored.DType, r.raw); err != nil {
			return nil, err
		}
	}
	return r.values, r.multiply(v, first, rows)
}

func (r *reader) multiply(v view, first, rows int64) error {
	if v.scale.Name == "" {
		return nil
	}
	if r.of != v.scale.Name {
		b, err := whole(r.c, v.scale.Name, v.scale.DType)
		if err != nil {
			return err
		}
		r.scales = grow(r.scales, v.scale.Elements())
		if _, err := safetensors.Floats(r.scales, v.scale.DType, b); err != nil {
			return err
		}
		r.of = v.scale.Name
	}
	across := ceil(v.cols, v.width)
	for i := range rows {
		row, scales := r.values[i*v.cols:(i+1)*v.cols], r.scales[(first+i)/v.height*across:]
		for k := range row {
			row[k] *= scales[int64(k)/v.width]
		}
	}
	return nil
}

// bytes returns n bytes of what is stored, valid until the next call.
func (r *reader) bytes(v view, at, n int64) ([]byte, error) {
	r.raw = grow(r.raw, n)
	f, err := r.c.Reader(v.stored.Name)
	if err != nil {
		return nil, err
	}
	_, err = f.ReadAt(r.raw, at)
	return r.raw, err
}
