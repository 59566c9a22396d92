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
	kernel kernel
	raw    []byte // in the type that is computed in
	source []byte // of a source in blocks, or of another order
	codes  []byte // one byte a weight, until packed
	scales []byte
	table  []float32 // of a source in blocks
	sizes  []byte    // of table
}

// perWeight is how many bytes a strip holds of each weight of the matrix.
func perWeight(d safetensors.DType, p part) int64 {
	switch {
	case d == safetensors.F8E4M3:
		return 1 + 2 + 1
	case p.across > 0:
		return 2*d.Bits()/8 + 1
	}
	return d.Bits()/8 + 1
}

// read has raw hold rows of the matrix from row on, in the type of s.
func (b *strip) read(c *safetensors.Checkpoint, s Step, p part, row, rows int64) error {
	b.kernel.set(s.dtype())
	r, err := c.Reader(s.Name)
	if err != nil {
		return err
	}
	into := &b.raw
	if s.inverse.Name != "" {
		into = &b.source
	}
	if err := p.read(r, into, &b.source, row, rows, s.Tensor.DType.Bits()/8); err != nil {
		return fmt.Errorf("row %d: %w", row, err)
	}
	if s.inverse.Name == "" {
		return nil
	}
	return b.multiply(c, s, p.first+row, p.cols)
}

// multiply undoes the quantisation of the source: code times scale in float32,
// rounded once to bfloat16, as compressed-tensors' dequantiser has it.
func (b *strip) multiply(c *safetensors.Checkpoint, s Step, first, cols int64) error {
	height, width := s.block[0], s.block[1]
	rows, across := int64(len(b.source))/cols, s.inverse.Shape[1]
	top, last := first/height, (first+rows-1)/height
	size := s.inverse.DType.Bits() / 8
	b.sizes, b.table = grow(b.sizes, (last-top+1)*across*size), grow(b.table, (last-top+1)*across)
	r, err := c.Reader(s.inverse.Name)
	if err != nil {
		return err
	}
	if _, err := r.ReadAt(b.sizes, top*across*size); err != nil {
		return fmt.Errorf("%s: %w", s.inverse.Name, err)
	}
	if _, err := safetensors.Floats(b.table, s.inverse.DType, b.sizes); err != nil {
		return err
	}
	b.raw = grow(b.raw, 2*rows*cols)
	for i := range rows {
		row, out, scales := b.source[i*cols:(i+1)*cols], b.raw[2*i*cols:], b.table[((first+i)/height-top)*across:]
		for k, scale := range scales[:across] {
			from, to := int64(k)*width, min(int64(k+1)*width, cols)
			for j, code := range row[from:to] {
				v := toBF16(safetensors.FromE4M3(code) * scale)
				binary.LittleEndian.PutUint16(out[2*(from+int64(j)):], uint16(math.Float32bits(v)>>16))
			}
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

// encode turns raw, rows of cols, into codes and scales. whole is the scale of
// the matrix if it has one. at is the first row, which errors count from.
func (b *strip) encode(cols, at int64, whole float32) (sum errorSum, err error) {
	k := &b.kernel
	wide := int64(k.width)
	rows := int64(len(b.raw)) / (cols * wide)
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
					if top = max(top, k.amax(b.raw[(i*cols+c)*wide:(i*cols+c1)*wide])); !finite(top) {
						return sum, fmt.Errorf("row %d: %w", at+i, errNotFinite)
					}
				}
				if top == 0 {
					sum.zeroRows++
				}
				scale = b.to.scale(k.d, top)
				b.scales = appendFloat(b.scales, k.d, scale)
			}
			for i := r; i < r1; i++ {
				b.row(i*cols+c, i*cols+c1, scale)
			}
			k.r.take(&sum, scale)
		}
	}
	return sum, nil
}

// row encodes weights from to to, which share a scale.
func (b *strip) row(from, to int64, scale float32) {
	k := &b.kernel
	codes, raw := b.codes[from:to], b.raw[from*int64(k.width):to*int64(k.width)]
	if b.to.float {
		k.fp8(codes, raw, scale)
		return
	}
	k.whole(codes, raw, scale, float32(int(1)<<(b.to.bits-1))-1)
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

// errorSum adds up how far codes are from their weights, as squares.
type errorSum struct {
	lost, size float64
	zeroRows   int
}

func (e *errorSum) join(o errorSum) {
	e.lost, e.size, e.zeroRows = e.lost+o.lost, e.size+o.size, e.zeroRows+o.zeroRows
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

// halfBits is the IEEE half of a value that toF16 has rounded.
func halfBits(f float32) uint16 {
	b := math.Float32bits(f)
	sign, exp, man := uint16(b>>16&0x8000), int(b>>23&0xff)-127+15, uint16(b>>13&0x3ff)
	switch {
	case exp >= 31 && f != f:
		return sign | 0x7e00
	case exp >= 31:
		return sign | 0x7c00
	case exp < 1: // multiples of 2^-24
		return sign | uint16(math.Abs(float64(f))*(1<<24))
	}
	return sign | uint16(exp)<<10 | man
}
