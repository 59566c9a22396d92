package llama

import (
	"math"

	"llmops/model/safetensors"
	"llmops/serving/embedded/llama/kernel"
)

// rounding is what is done to activations before they meet quantised weights.
type rounding uint8

const (
	roundNone  rounding = iota
	fp8Token            // E4M3, one scale a token
	fp8Group            // E4M3, one scale for each group of a token's columns
	fp8Static           // E4M3, the scale of the checkpoint
	int8Token           // int8, one scale a token
	int8Static          // int8, the scale of the checkpoint
)

// linear is a matrix with what belongs to it.
type linear struct {
	kernel.Matrix
	scale  []float32 // of each output; nil: none
	bias   []float32 // nil: none
	round  rounding
	input  float32 // the static scale
	blocks int     // columns to a group of fp8Group
}

// apply sets y to the product for rows of x; tmp has room for x.
func (l *linear) apply(p *pool, y, x, tmp []float32, rows int) {
	var scales []float32
	if l.round != roundNone {
		scales = make([]float32, rows)
		for i := range rows {
			scales[i] = l.quantise(tmp[i*l.Cols:(i+1)*l.Cols], x[i*l.Cols:(i+1)*l.Cols])
		}
		x = tmp
	}
	p.multiply(y, x, &l.Matrix, rows)
	if l.scale == nil && l.bias == nil && scales == nil {
		return
	}
	for i := range rows {
		row, s := y[i*l.Rows:(i+1)*l.Rows], float32(1)
		if scales != nil {
			s = scales[i]
		}
		switch {
		case l.scale != nil:
			for j, v := range l.scale[:len(row)] {
				row[j] *= s * v
			}
		case s != 1:
			for j := range row {
				row[j] *= s
			}
		}
		for j, b := range l.bias {
			row[j] += b
		}
	}
}

// quantise rounds x into dst and returns the scale the product is to be multiplied
// with.
func (l *linear) quantise(dst, x []float32) float32 {
	switch l.round {
	case fp8Token:
		s := scaleE4M3(x)
		roundE4M3(dst, x, s)
		return s
	case fp8Group:
		for from := 0; from < len(x); from += l.blocks {
			to := min(from+l.blocks, len(x))
			s := scaleE4M3(x[from:to])
			roundE4M3(dst[from:to], x[from:to], s)
			for i := from; i < to; i++ {
				dst[i] *= s
			}
		}
		return 1
	case fp8Static:
		roundE4M3(dst, x, l.input)
	case int8Static:
		roundInt8(dst, x, l.input)
	case int8Token:
		s := largest(x) / 127
		if s == 0 {
			s = 1
		}
		roundInt8(dst, x, s)
		return s
	}
	return l.input
}

func largest(x []float32) float32 {
	var a uint32
	for _, v := range x {
		a = max(a, math.Float32bits(v)&^(1<<31)) // magnitudes are ordered like their bits
	}
	return math.Float32frombits(a)
}

// scaleE4M3 is amax/448, but at least vLLM's smallest scale, which keeps a row of
// near zeros from overflowing.
func scaleE4M3(x []float32) float32 {
	const smallest = 1 / (safetensors.MaxE4M3 * 512.0)
	amax := largest(x)
	if amax == 0 {
		return 1
	}
	return max(amax/safetensors.MaxE4M3, smallest)
}

// roundE4M3 sets dst to the E4M3 values next to x/scale, ties to even.
func roundE4M3(dst, x []float32, scale float32) {
	for i, v := range x {
		bits := math.Float32bits(v / scale)
		sign, bits := bits&(1<<31), bits&^(1<<31)
		switch {
		case bits > 0x43e00000 && bits <= 0x7f800000: // over 448
			bits = 0x43e00000
		case bits < 0x3c800000: // under 2⁻⁶: adding 2¹⁴ rounds to a multiple of 2⁻⁹
			const magic = 1 << 14
			bits = math.Float32bits(math.Float32frombits(bits) + magic - magic)
		case bits < 0x7f800000:
			bits = (bits + 0x7ffff + bits>>20&1) &^ 0xfffff
		}
		dst[i] = math.Float32frombits(bits | sign)
	}
}

func roundInt8(dst, x []float32, scale float32) {
	const magic = 0x1.8p23 // adding it rounds to an integer
	for i, v := range x {
		q := max(-128, min(v/scale, 127))
		q += magic
		dst[i] = q - magic
	}
}
