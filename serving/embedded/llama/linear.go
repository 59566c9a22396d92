package llama

import (
	"math"
	"sync"
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"llmops/model/safetensors"
)

// aligned allocates n floats from a 16-byte boundary. The dot product of the
// library peels unaligned elements off first, so that its sum would depend on
// where a row happens to lie.
func aligned(n int) []float32 {
	b := make([]float32, n+3)
	off := 0
	for uintptr(unsafe.Pointer(&b[off]))%16 != 0 {
		off++
	}
	return b[off : off+n : off+n]
}

// lanes is what every row length is a multiple of, so that all rows are aligned.
const lanes = 4

// Tiles keep the library's path fixed: from four blocks of 64 on it would start
// goroutines and cut the sums in pieces. Below, each element is one dot product
// over the whole row, whatever else is in the batch.
const tileRows, tileCols = 64, 128

var kernel gonum.Implementation

// multiply sets y = x · wᵀ, with x of rows × k, w of n × k and y of rows × n.
func multiply(threads int, y, x, w []float32, rows, n, k int) {
	span := func(from, to int) {
		for j := from; j < to; j += tileCols {
			cols := min(tileCols, to-j)
			for i := 0; i < rows; i += tileRows {
				r := min(tileRows, rows-i)
				kernel.Sgemm(blas.NoTrans, blas.Trans, r, cols, k, 1, x[i*k:], k, w[j*k:], k, 0, y[i*n+j:], n)
			}
		}
	}
	parallel(threads, n, tileCols, span)
}

// parallel runs span over [0, n) in pieces that are multiples of unit.
func parallel(threads, n, unit int, span func(from, to int)) {
	pieces := min(threads, (n+unit-1)/unit)
	if pieces < 2 {
		span(0, n)
		return
	}
	step := (n + pieces - 1) / pieces
	step = (step + unit - 1) / unit * unit
	var wg sync.WaitGroup
	for from := 0; from < n; from += step {
		wg.Go(func() { span(from, min(from+step, n)) })
	}
	wg.Wait()
}

// linear is a matrix as it is multiplied with: f32 values, for fp8 the values of
// its codes with the scales beside them.
type linear struct {
	in, out int
	w       []float32
	scale   []float32 // of each output; nil: none
	bias    []float32 // nil: none
	// dynamic quantises each token's activations to E4M3 first, with the scale
	// amax/448, so that both factors of every product are fp8 values.
	dynamic bool
}

// apply sets y to the product for rows of x; tmp has room for x.
func (l *linear) apply(threads int, y, x, tmp []float32, rows int) {
	if !l.dynamic {
		multiply(threads, y, x, l.w, rows, l.out, l.in)
		l.finish(y, rows, nil)
		return
	}
	scales := make([]float32, rows)
	for i := range rows {
		scales[i] = quantiseRow(tmp[i*l.in:(i+1)*l.in], x[i*l.in:(i+1)*l.in])
	}
	multiply(threads, y, tmp, l.w, rows, l.out, l.in)
	l.finish(y, rows, scales)
}

func (l *linear) finish(y []float32, rows int, scales []float32) {
	if l.scale == nil && l.bias == nil {
		return
	}
	for i := range rows {
		row := y[i*l.out : (i+1)*l.out]
		if l.scale != nil {
			s := float32(1)
			if scales != nil {
				s = scales[i]
			}
			for j := range row {
				row[j] *= s * l.scale[j]
			}
		}
		for j, b := range l.bias {
			row[j] += b
		}
	}
}

// quantiseRow rounds x to E4M3 values in dst and returns the scale they are to be
// multiplied with.
func quantiseRow(dst, x []float32) float32 {
	var amax float32
	for _, v := range x {
		amax = max(amax, float32(math.Abs(float64(v))))
	}
	if amax == 0 {
		clear(dst)
		return 1
	}
	// vLLM's smallest scale, which keeps a row of near zeros from overflowing.
	const smallest = 1 / (safetensors.MaxE4M3 * 512.0)
	scale := max(amax/safetensors.MaxE4M3, smallest)
	for i, v := range x {
		q := max(-safetensors.MaxE4M3, min(v/scale, safetensors.MaxE4M3))
		dst[i] = safetensors.FromE4M3(safetensors.ToE4M3(q))
	}
	return scale
}
