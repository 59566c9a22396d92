package llama

import (
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
		kernel.RoundE4M3(dst, x, s)
		return s
	case fp8Group:
		for from := 0; from < len(x); from += l.blocks {
			to := min(from+l.blocks, len(x))
			s := scaleE4M3(x[from:to])
			kernel.RoundE4M3(dst[from:to], x[from:to], s)
			for i := from; i < to; i++ {
				dst[i] *= s
			}
		}
		return 1
	case fp8Static:
		kernel.RoundE4M3(dst, x, l.input)
	case int8Static:
		kernel.RoundInt8(dst, x, l.input)
	case int8Token:
		s := kernel.MaxAbs(x) / 127 // vLLM's; compressed-tensors itself has 127.5
		if s == 0 {
			s = 1
		}
		kernel.RoundInt8(dst, x, s)
		return s
	}
	return l.input
}

// scaleE4M3 is amax/448, but at least vLLM's smallest scale, which keeps a row of
// near zeros from overflowing.
func scaleE4M3(x []float32) float32 {
	const smallest = 1 / (safetensors.MaxE4M3 * 512.0)
	amax := kernel.MaxAbs(x)
	if amax == 0 {
		return 1
	}
	return max(amax/safetensors.MaxE4M3, smallest)
}
