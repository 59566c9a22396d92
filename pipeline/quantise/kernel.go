package quantise

import (
	"encoding/binary"
	"math"

	"llmops/model/safetensors"
)

// The reference does each operation in the weight's own type: the scale is
// rounded to it, the quotient is rounded to it, and only then does the value
// become E4M3 or an integer. Leaving out the middle rounding changes about 3 %
// of the bytes. Quotients are divisions: for bfloat16 the product with a
// reciprocal rounds to the same, but not where the reciprocal overflows.

// lanes is how many weights are encoded side by side. Weight i of a row is added
// to lane i mod lanes, so that errors do not depend on the kernel.
const lanes = 16

// residue sums up, in steps of a code, the squares of what is lost and of what
// was there. Whoever changes the scale must take it first.
type residue struct{ lost, size [lanes]float32 }

// take adds the residue to sum, in units of the weights, and begins anew.
func (r *residue) take(sum *errorSum, scale float32) {
	var lost, size [4]float64 // so that one addition need not wait for the last
	for i := range lanes {
		lost[i%4] += float64(r.lost[i])
		size[i%4] += float64(r.size[i])
	}
	*r = residue{}
	s := float64(scale) * float64(scale)
	sum.lost += (lost[0] + lost[1] + lost[2] + lost[3]) * s
	sum.size += (size[0] + size[1] + size[2] + size[3]) * s
}

// kernels are one way to compute. n is a multiple of lanes and not zero; the bytes
// of src are n weights of the type that the index stands for, those of dst n
// codes, one byte each.
type kernels struct {
	name string
	// peak is the largest of the weights' bits without their signs, which orders
	// them as magnitudes, NaN above Inf above all others.
	peak [3]func(src *byte, n int) uint32
	fp8  [3]func(dst, src *byte, n int, scale float32, r *residue)
	// whole rounds to integers between -top-1 and top.
	whole [3]func(dst, src *byte, n int, scale, top float32, r *residue)
}

// Indexes of the types that can be computed in.
const (
	bf16 = iota
	f16
	f32
)

func indexOf(d safetensors.DType) int {
	switch d {
	case safetensors.BF16:
		return bf16
	case safetensors.F16:
		return f16
	}
	return f32
}

// portable are the kernels of every machine, and the rest of the others: they
// take any n.
var portable = kernels{name: "go"}

// kernel computes in one type, as fast as the machine can.
type kernel struct {
	fast  *kernels
	d     safetensors.DType
	width int // bytes of a weight
	index int
	r     residue

	y, q [chunk]float32 // quotients, as they are and rounded to the weights' type
}

func (k *kernel) set(d safetensors.DType) {
	k.d, k.width, k.index = d, int(d.Bits()/8), indexOf(d)
	if k.fast == nil {
		k.fast = fastest
	}
}

// split is how many of n weights go to the fast kernels.
func (k *kernel) split(n int) int {
	if k.fast == &portable {
		return 0
	}
	return n &^ (lanes - 1)
}

// amax is the largest magnitude of src, NaN or Inf if it holds one.
func (k *kernel) amax(src []byte) float32 {
	n := len(src) / k.width
	fast := k.split(n)
	var top uint32
	if fast > 0 {
		top = k.fast.peak[k.index](&src[0], fast)
	}
	switch src = src[fast*k.width:]; k.index {
	case f32:
		for ; len(src) >= 4; src = src[4:] {
			top = max(top, binary.LittleEndian.Uint32(src)&0x7fffffff)
		}
		return math.Float32frombits(top)
	case f16:
		return safetensors.FromF16(uint16(max(top, peak16(src))))
	}
	return math.Float32frombits(max(top, peak16(src)) << 16)
}

func peak16(src []byte) (top uint32) {
	for ; len(src) >= 2; src = src[2:] {
		top = max(top, uint32(binary.LittleEndian.Uint16(src)&0x7fff))
	}
	return top
}

// fp8 writes the E4M3 codes of src under scale to dst.
func (k *kernel) fp8(dst, src []byte, scale float32) {
	n := k.split(len(dst))
	if n > 0 {
		k.fast.fp8[k.index](&dst[0], &src[0], n, scale, &k.r)
	}
	for ; n < len(dst); n += chunk {
		out := k.divide(dst, src, n, scale)
		for i := range out {
			code, v := e4m3(k.q[i])
			out[i] = code
			k.lose(n+i, float32(math.Abs(float64(k.y[i])))-v, k.y[i])
		}
	}
}

// whole writes the codes of src under scale, integers between -top-1 and top, to
// dst.
func (k *kernel) whole(dst, src []byte, scale, top float32) {
	n := k.split(len(dst))
	if n > 0 {
		k.fast.whole[k.index](&dst[0], &src[0], n, scale, top, &k.r)
	}
	for ; n < len(dst); n += chunk {
		out := k.divide(dst, src, n, scale)
		for i := range out {
			// Adding 1.5·2²³ leaves no bits below one: the sum is rounded to even.
			const magic = 3 << 22
			v := float32(clamp(k.q[i], -top-1, top)+magic) - magic
			out[i] = byte(int8(v))
			k.lose(n+i, k.y[i]-v, k.y[i])
		}
	}
}

func (k *kernel) lose(i int, d, y float32) {
	// The conversions keep a compiler from fusing, which would round otherwise.
	k.r.lost[i%lanes] += float32(d * d)
	k.r.size[i%lanes] += float32(y * y)
}

// chunk is how many weights are computed at a time without assembly.
const chunk = 16 * lanes

// divide has y and q hold the next quotients from weight n on, and returns where
// their codes go.
func (k *kernel) divide(dst, src []byte, n int, scale float32) []byte {
	dst = dst[n:min(n+chunk, len(dst))]
	y, q := k.y[:len(dst)], k.q[:len(dst)]
	k.widen(y, src[n*k.width:])
	switch k.index {
	case bf16:
		for i := range y {
			y[i] /= scale
			q[i] = toBF16(y[i])
		}
	case f16:
		for i := range y {
			y[i] /= scale
			q[i] = toF16(y[i])
		}
	default:
		for i := range y {
			y[i] /= scale
			q[i] = y[i]
		}
	}
	return dst
}

// widen decodes as many weights as dst has room for.
func (k *kernel) widen(dst []float32, src []byte) {
	switch k.index {
	case bf16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case f16:
		for i := range dst {
			dst[i] = safetensors.FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	}
}

// e4m3 is the code that is nearest to q, ties to even, and the magnitude that it
// stands for. Adding 2²⁰ times the power of two below |q|, but at least that of
// the smallest normal number, leaves three bits after the leading one, which are
// the code's last.
func e4m3(q float32) (code byte, v float32) {
	b := math.Float32bits(q)
	a := min(math.Float32frombits(b&0x7fffffff), safetensors.MaxE4M3)
	power := max(math.Float32bits(a)&0x7f800000, 121<<23)
	magic := power + 20<<23
	sum := float32(a + math.Float32frombits(magic))
	return byte(b>>31<<7 + power>>20 - 121<<3 + math.Float32bits(sum) - magic), sum - math.Float32frombits(magic)
}

// toBF16 rounds to the nearest bfloat16, ties to even.
func toBF16(f float32) float32 {
	b := math.Float32bits(f)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// toF16 rounds to the nearest IEEE half, ties to even; out of range is Inf. It adds
// what leaves ten bits after the leading one, and none below 2⁻²⁴.
func toF16(f float32) float32 {
	b := math.Float32bits(f)
	a := math.Float32frombits(b & 0x7fffffff)
	switch {
	case a != a:
		return f
	case a >= 65520:
		a = float32(math.Inf(1))
	default:
		magic := math.Float32frombits(max(b&0x7f800000, 113<<23) + 13<<23)
		a = float32(a+magic) - magic
	}
	return math.Float32frombits(math.Float32bits(a) | b&0x80000000)
}

// arithmetic is a weight's type as the reference computes in it.
type arithmetic struct {
	round func(float32) float32
	eps   float32 // stands for a scale of exactly zero
	least int     // exponent of the smallest power of two that is a scale
}

func arithmeticOf(d safetensors.DType) arithmetic {
	switch d {
	case safetensors.BF16:
		return arithmetic{toBF16, 0.0078125, -126}
	case safetensors.F16:
		return arithmetic{toF16, 0.0009765625, -24}
	}
	return arithmetic{func(f float32) float32 { return f }, 1.1920929e-7, -126}
}

// scale is amax over half the width of the code range, in the weight's type.
func (a arithmetic) scale(amax, half float32) float32 {
	s := a.round(amax / half)
	if s == 0 {
		return a.eps
	}
	return s
}

// power is the least power of two from scale on that the weight's type and E8M0 have.
func (a arithmetic) power(scale float32) float32 {
	if scale == 0 {
		return a.eps
	}
	frac, exp := math.Frexp(float64(scale))
	if frac == 0.5 { // 2^(exp-1) already
		exp--
	}
	return float32(math.Ldexp(1, max(exp, a.least)))
}

func clamp(x, lo, hi float32) float32 { return min(max(x, lo), hi) }

// pack4 turns signed bytes into four bits each, raised by 8, the first in the
// lowest bits of a word; dst may be codes.
func pack4(dst, codes []byte) {
	for i := range len(codes) / 2 {
		dst[i] = (codes[2*i]+8)&15 | (codes[2*i+1]+8)<<4
	}
}

// pack8 raises signed bytes by 128, in place.
func pack8(codes []byte) {
	for i := range codes {
		codes[i] ^= 0x80
	}
}
