package quantise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"llmops/model/safetensors"
)

var errNotFinite = errors.New("holds NaN or Inf; the weights are damaged and no scheme can represent them")

// strip turns some rows of one matrix into codes and scales. Its slices are used
// again for the next one.
type strip struct {
	to     scheme
	raw    []byte
	values []float32
	codes  []byte // one byte a weight, until packed
	scales []byte
	table  []float32 // of a source in blocks
}

// perWeight is how many bytes a strip holds of each weight.
func perWeight(d safetensors.DType) int64 { return d.Bits()/8 + 4 + 1 }

// read decodes rows first to first+rows of the tensor that s is about.
func (b *strip) read(c *safetensors.Checkpoint, s Step, first, rows int64) error {
	cols := s.Shape[len(s.Shape)-1]
	width := s.Tensor.DType.Bits() / 8
	b.raw, b.values = grow(b.raw, rows*cols*width), grow(b.values, rows*cols)
	r, err := c.Reader(s.Name)
	if err != nil {
		return err
	}
	if _, err := r.ReadAt(b.raw, first*cols*width); err != nil {
		return fmt.Errorf("row %d: %w", first, err)
	}
	if err := widen(b.values, s.Tensor.DType, b.raw); err != nil || s.inverse.Name == "" {
		return err
	}
	return b.multiply(c, s, first, cols)
}

// multiply undoes the quantisation of the source: code times scale in float32,
// rounded once to bfloat16, as compressed-tensors' dequantiser has it.
func (b *strip) multiply(c *safetensors.Checkpoint, s Step, first, cols int64) error {
	height, width := s.block[0], s.block[1]
	across := s.inverse.Shape[1]
	top := first / height
	last := (first + int64(len(b.values))/cols - 1) / height
	size := s.inverse.DType.Bits() / 8
	raw := make([]byte, (last-top+1)*across*size)
	b.table = grow(b.table, (last-top+1)*across)
	r, err := c.Reader(s.inverse.Name)
	if err != nil {
		return err
	}
	if _, err := r.ReadAt(raw, top*across*size); err != nil {
		return fmt.Errorf("%s: %w", s.inverse.Name, err)
	}
	if _, err := safetensors.Floats(b.table, s.inverse.DType, raw); err != nil {
		return err
	}
	for i := int64(0); i*cols < int64(len(b.values)); i++ {
		row, scales := b.values[i*cols:(i+1)*cols], b.table[((first+i)/height-top)*across:]
		for k := range row {
			row[k] = toBF16(row[k] * scales[int64(k)/width])
		}
	}
	return nil
}

func grow[T any](b []T, n int64) []T {
	if int64(cap(b)) < n {
		return make([]T, n)
	}
	return b[:n]
}

// encode turns the values, rows of cols, into codes and scales. whole is the
// scale of the matrix if it has one. at is the first row, which errors count
// from.
func (b *strip) encode(d safetensors.DType, cols, at int64, whole float32) (sum errorSum, err error) {
	a := arithmeticOf(d)
	rows := int64(len(b.values)) / cols
	b.codes, b.scales = grow(b.codes, rows*cols), b.scales[:0]
	height, width := int64(1), cols
	switch {
	case b.to.whole:
		height = rows
	case b.to.group > 0:
		width = b.to.group
	case b.to.block > 0:
		height, width = b.to.block, b.to.block
	}
	for r := int64(0); r < rows; r += height {
		for c := int64(0); c < cols; c += width {
			r1, c1 := min(r+height, rows), min(c+width, cols)
			scale := whole
			if !b.to.whole {
				var top float32
				for i := r; i < r1; i++ {
					if top = max(top, amax(b.values[i*cols+c:i*cols+c1])); !finite(top) {
						return sum, fmt.Errorf("row %d: %w", at+i, errNotFinite)
					}
				}
				if top == 0 {
					sum.zeroRows++
				}
				scale = a.scale(top, b.to.half())
				b.scales = appendFloat(b.scales, d, scale)
			}
			for i := r; i < r1; i++ {
				b.row(a, d, i*cols+c, i*cols+c1, scale, &sum)
			}
		}
	}
	return sum, nil
}

// row encodes values from to to, which share a scale.
func (b *strip) row(a arithmetic, d safetensors.DType, from, to int64, scale float32, sum *errorSum) {
	values, codes := b.values[from:to], b.codes[from:to]
	if b.to.float {
		a.fp8Row(codes, values, scale, d == safetensors.BF16)
		for i, c := range codes {
			sum.add(values[i], safetensors.FromE4M3(c)*scale)
		}
		return
	}
	a.intRow(codes, values, scale, b.to.bits)
	for i, c := range codes {
		sum.add(values[i], float32(int8(c))*scale)
	}
}

// packed is the codes as they are stored.
func (b *strip) packed() []byte {
	switch {
	case !b.to.packed():
		return b.codes
	case b.to.bits == 4:
		pack4(b.codes, b.codes)
		return b.codes[:len(b.codes)/2]
	}
	pack8(b.codes)
	return b.codes
}

// errorSum adds up how far codes are from their weights.
type errorSum struct {
	diff, size float64
	zeroRows   int
}

func (e *errorSum) add(x, q float32) {
	d := float64(x) - float64(q)
	e.diff += d * d
	e.size += float64(x) * float64(x)
}

func (e *errorSum) join(o errorSum) {
	e.diff, e.size, e.zeroRows = e.diff+o.diff, e.size+o.size, e.zeroRows+o.zeroRows
}

func finite(f float32) bool { return f-f == 0 }

// appendFloat appends f, which is representable in d, in d's bytes.
func appendFloat(b []byte, d safetensors.DType, f float32) []byte {
	switch d {
	case safetensors.BF16:
		return binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(f)>>16))
	case safetensors.F16:
		return binary.LittleEndian.AppendUint16(b, halfBits(f))
	}
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
}

// halfBits is the IEEE half of a positive value that toF16 has rounded.
func halfBits(f float32) uint16 {
	if f < 1.0/(1<<14) {
		return uint16(f * (1 << 24))
	}
	frac, exp := math.Frexp(float64(f))
	return uint16(exp+14)<<10 | uint16(frac*2048)&0x3ff
}
