// Package kernel has the inner loops of a language model on one core: products with
// a Matrix of stored weights, dot products of rows, weighted sums, softmax and SiLU. On amd64 with AVX2 they are assembly, chosen when the program starts;
// elsewhere they are Go.
//
// A result depends on its operands alone: a dot product is summed in the same order
// however many rows and columns are computed at once. The two implementations round
// differently. The functions keep no state and start no goroutine; the caller keeps
// slices long enough and lengths multiples of Lanes.
package kernel

import "math"

// Lanes is how many partial sums a dot product has: element i goes to sum i mod
// Lanes. Every row length is a multiple of it.
const Lanes = 8

// Dot sets y[i*ldy+j] to the product of row i of x and row j of w, over k elements.
func Dot(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, rows, cols, k int) {
	if rows == 0 || cols == 0 {
		return
	}
	_, _, _ = y[(rows-1)*ldy+cols-1], x[(rows-1)*ldx+k-1], w[(cols-1)*ldw+k-1]
	if simd {
		dotSIMD(y, ldy, x, ldx, w, ldw, rows, cols, k)
		return
	}
	for i := range rows {
		for j := range cols {
			y[i*ldy+j] = dot(x[i*ldx:i*ldx+k], w[j*ldw:j*ldw+k])
		}
	}
}

// reduce is the order in which partial sums are added up.
func reduce(s *[Lanes]float32) float32 {
	return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}

func dot(x, w []float32) float32 {
	var s [Lanes]float32
	for i := 0; i+Lanes <= len(x); i += Lanes {
		a, b := x[i:i+Lanes:i+Lanes], w[i:i+Lanes:i+Lanes]
		for l := range s {
			s[l] += a[l] * b[l]
		}
	}
	return reduce(&s)
}

// Mix adds to each row of out, of d elements, the rows of v weighted with the n
// elements of its row of weights, in their order.
func Mix(out []float32, weights []float32, ldw int, v []float32, rows, n, d int) {
	if rows == 0 || n == 0 {
		return
	}
	_, _, _ = out[rows*d-1], weights[(rows-1)*ldw+n-1], v[n*d-1]
	if simd {
		mixSIMD(out, weights, ldw, v, rows, n, d)
		return
	}
	for i := range rows {
		to := out[i*d : (i+1)*d]
		for p, f := range weights[i*ldw : i*ldw+n] {
			for j, x := range v[p*d : (p+1)*d] {
				to[j] += f * x
			}
		}
	}
}

// Softmax sets row to e^(scale·(v−max)), normalised to the sum 1. An infinitely
// negative element becomes 0 and leaves the others as they would be without it. At
// least one is finite.
func Softmax(row []float32, scale float32) {
	if simd {
		softmax8(&row[0], len(row)/Lanes, scale)
		return
	}
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	var sums [Lanes]float32
	for i, v := range row {
		e := exp((v - top) * scale)
		row[i] = e
		sums[i%Lanes] += e
	}
	r := 1 / reduce(&sums)
	for i := range row {
		row[i] *= r
	}
}

// SiLU sets dst to gate/(1+e^−gate) · up. dst may be gate or up.
func SiLU(dst, gate, up []float32) {
	if len(dst) == 0 {
		return
	}
	gate, up = gate[:len(dst)], up[:len(dst)]
	if simd {
		silu8(&dst[0], &gate[0], &up[0], len(dst)/Lanes)
		return
	}
	for i, g := range gate {
		dst[i] = g / (1 + exp(-g)) * up[i]
	}
}

// exp is e^x to within two units of the last place: 0 below -87, where the result
// is no normal number, and e^88 above 88.
func exp(x float32) float32 {
	switch {
	case x < -87:
		return 0
	case x > 88:
		x = 88
	case x != x:
		return x
	}
	// x = n ln 2 + r with |r| ≤ ln 2 / 2; the first constant has few bits, so that its product with n is exact.
	const shift = 0x1.8p23 // adding it rounds to an integer
	n := x*math.Log2E + shift
	bits := int32(math.Float32bits(n)) - int32(math.Float32bits(shift))
	n -= shift
	r := x - n*0.693359375
	r -= n * -2.12194440e-4
	// Cephes' polynomial for e^r.
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	p = p*r*r + r + 1
	return p * math.Float32frombits(uint32(bits+127)<<23)
}
