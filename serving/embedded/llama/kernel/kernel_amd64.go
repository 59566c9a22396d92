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

// packed3, packed2 and packed1 compute as many rows by 4·quads columns of packed
// weights.
//
//go:noescape
func packed3(y *float32, ldy int, x *float32, ldx int, w *float32, quads, steps int)

//go:noescape
func packed2(y *float32, ldy int, x *float32, ldx int, w *float32, quads, steps int)

//go:noescape
func packed1(y, x, w *float32, quads, steps int)

// packedBF16, packedE4M3 and packedInt8 are packed1 for weights that are not widened
// yet. That of E4M3 gives 2⁻²⁰ of the products.
//
//go:noescape
func packedBF16(y, x *float32, w *byte, quads, steps int)

//go:noescape
func packedE4M3(y, x *float32, w *byte, quads, steps int)

//go:noescape
func packedInt8(y, x *float32, w *byte, quads, steps int)

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
func maxAbs8(x *float32, steps int) float32

//go:noescape
func roundE4M38(dst, x *float32, steps int, scale float32)

//go:noescape
func roundInt88(dst, x *float32, steps int, scale float32)

//go:noescape
func squares8(x *float32, steps int) float32

//go:noescape
func scale8(dst, x, weight *float32, steps int, by float32)

//go:noescape
func add8(x, y *float32, steps int)

// The following widen steps of four rows; scales are four.
//
//go:noescape
func widenBF16(dst *float32, src *byte, steps int)

//go:noescape
func widenF16(dst *float32, src *byte, steps int)

//go:noescape
func widenE4M3(dst *float32, src *byte, steps int, scales *float32)

//go:noescape
func widenInt8(dst *float32, src *byte, steps int, scales *float32)

//go:noescape
func widenInt4(dst *float32, src *byte, steps int, scales *float32)

func widenSIMD(dst []float32, f Format, src []byte, steps int, scales *[4]float32) {
	_, _ = dst[4*Lanes*steps-1], src[4*f.Bytes()*steps-1]
	switch f {
	case F32:
		for i := range steps * 4 {
			for l := range Lanes {
				dst[i*Lanes+l] = element(f, src[i*f.Bytes():], l) * scales[i%4]
			}
		}
	case BF16:
		widenBF16(&dst[0], &src[0], steps)
	case F16:
		widenF16(&dst[0], &src[0], steps)
	case E4M3:
		larger := *scales
		for i := range larger {
			larger[i] *= 256
		}
		widenE4M3(&dst[0], &src[0], steps, &larger[0])
	case Int8:
		widenInt8(&dst[0], &src[0], steps, &scales[0])
	case Int4:
		widenInt4(&dst[0], &src[0], steps, &scales[0])
	}
}

// fused reports whether one row can be multiplied without widening first.
func (m *Matrix) fused() bool {
	return m.Group == 0 && (m.Format == BF16 || m.Format == E4M3 || m.Format == Int8)
}

func (m *Matrix) fusedProduct(y, x []float32, w []byte, quads int) {
	switch m.Format {
	case BF16:
		packedBF16(&y[0], &x[0], &w[0], quads, m.steps())
	case Int8:
		packedInt8(&y[0], &x[0], &w[0], quads, m.steps())
	case E4M3:
		packedE4M3(&y[0], &x[0], &w[0], quads, m.steps())
		for i := range y[:4*quads] {
			y[i] *= 1 << 20
		}
	}
}

func dotPackedSIMD(y []float32, ldy int, x []float32, ldx int, w []float32, rows, quads, steps int) {
	i := 0
	for ; i+3 <= rows; i += 3 {
		packed3(&y[i*ldy], ldy, &x[i*ldx], ldx, &w[0], quads, steps)
	}
	switch rows - i {
	case 2:
		packed2(&y[i*ldy], ldy, &x[i*ldx], ldx, &w[0], quads, steps)
	case 1:
		packed1(&y[i*ldy], &x[i*ldx], &w[0], quads, steps)
	}
}

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
