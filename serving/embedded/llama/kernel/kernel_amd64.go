package kernel

import "golang.org/x/sys/cpu"

var simd = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C

// Strides are in elements, steps are of Lanes elements; no count may be zero.

// dot3 computes three rows by 4·quads columns.
//
//go:noescape
func dot3(y *float32, ldy int, x *float32, ldx int, w *float32, ldw int, quads, steps int)

// dot1 computes one row by 8·octs columns.
//
//go:noescape
func dot1(y, x, w *float32, ldw int, octs, steps int)

// dot11 computes one product.
//
//go:noescape
func dot11(x, w *float32, steps int) float32

// dotBF16 computes one row by 4·quads columns.
//
//go:noescape
func dotBF16(y, x *float32, w *uint16, ldw int, quads, steps int)

// mix4 computes four rows by 16 columns, mix1x4 one by 32, mix1 one by 8.
//
//go:noescape
func mix4(out *float32, ldo int, weights *float32, ldw int, v *float32, ldv int, n int)

//go:noescape
func mix1x4(out, weights, v *float32, ldv int, n int)

//go:noescape
func mix1(out, weights, v *float32, ldv int, n int)

//go:noescape
func softmax8(row *float32, steps int, scale float32)

//go:noescape
func silu8(dst, gate, up *float32, steps int)

//go:noescape
func widenBF16(dst *float32, src *uint16, steps int)

//go:noescape
func widenF16(dst *float32, src *uint16, steps int)

//go:noescape
func widenE4M3(dst *float32, src *byte, steps int, scale float32)

//go:noescape
func widenInt8(dst *float32, src *byte, steps int, scale float32)

//go:noescape
func widenInt4(dst *float32, src *uint32, steps int, scale float32)

func dotSIMD(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, rows, cols, k int) {
	steps := k / Lanes
	i := 0
	if quads := cols / 4; quads > 0 {
		for ; i+3 <= rows; i += 3 {
			dot3(&y[i*ldy], ldy, &x[i*ldx], ldx, &w[0], ldw, quads, steps)
			for j := quads * 4; j < cols; j++ {
				for r := i; r < i+3; r++ {
					y[r*ldy+j] = dot11(&x[r*ldx], &w[j*ldw], steps)
				}
			}
		}
	}
	for ; i < rows; i++ {
		octs := cols / 8
		if octs > 0 {
			dot1(&y[i*ldy], &x[i*ldx], &w[0], ldw, octs, steps)
		}
		for j := octs * 8; j < cols; j++ {
			y[i*ldy+j] = dot11(&x[i*ldx], &w[j*ldw], steps)
		}
	}
}

func dotBF16SIMD(y, x []float32, w []uint16, ldw, cols, k int) {
	steps := k / Lanes
	quads := cols / 4
	if quads > 0 {
		dotBF16(&y[0], &x[0], &w[0], ldw, quads, steps)
	}
	var last [4]float32
	for j := quads * 4; j < cols; j++ {
		// One column as four equal ones.
		dotBF16(&last[0], &x[0], &w[j*ldw], 0, 1, steps)
		y[j] = last[0]
	}
}

func mixSIMD(out []float32, weights []float32, ldw int, v []float32, rows, n, d int) {
	one := func(i, j int) {
		for ; j+32 <= d; j += 32 {
			mix1x4(&out[i*d+j], &weights[i*ldw], &v[j], d, n)
		}
		for ; j < d; j += Lanes {
			mix1(&out[i*d+j], &weights[i*ldw], &v[j], d, n)
		}
	}
	i := 0
	for ; i+4 <= rows; i += 4 {
		j := 0
		for ; j+16 <= d; j += 16 {
			mix4(&out[i*d+j], d, &weights[i*ldw], ldw, &v[j], d, n)
		}
		for r := i; j < d && r < i+4; r++ {
			one(r, j)
		}
	}
	for ; i < rows; i++ {
		one(i, 0)
	}
}
