package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// MaxE4M3 is the largest finite value of F8_E4M3.
const MaxE4M3 = 448

var e4m3 = func() (t [256]float32) {
	for i := range t {
		exp, man := i>>3&15, float64(i&7)
		v := math.Ldexp(8+man, exp-10)
		switch {
		case exp == 0:
			v = math.Ldexp(man, -9)
		case i&0x7f == 0x7f:
			v = math.NaN()
		}
		if i&0x80 != 0 {
			v = -v
		}
		t[i] = float32(v)
	}
	return t
}()

// FromE4M3 is the value of one F8_E4M3 byte.
func FromE4M3(b byte) float32 { return e4m3[b] }

// ToE4M3 rounds f to F8_E4M3, ties to even, without saturating: over 464, where
// the next step would be 480, the result is NaN, as in torch. Clamp to MaxE4M3 first.
func ToE4M3(f float32) byte {
	bits := math.Float32bits(f)
	sign := byte(bits >> 24 & 0x80)
	bits &= 0x7fffffff
	switch {
	case bits > 0x43e80000: // over 464, or NaN
		return sign | 0x7f
	case bits < 0x3c800000: // under 2^-6: adding 2^14 makes the hardware round to a multiple of 2^-9
		const magic = uint32(141) << 23
		return sign | byte(math.Float32bits(math.Float32frombits(bits)+math.Float32frombits(magic))-magic)
	}
	bits += 0xc407ffff + bits>>20&1
	return sign | byte(bits>>20)
}

// FromF16 is the value of an IEEE half.
func FromF16(h uint16) float32 {
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(man) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// Floats decodes src, whole elements of one of BF16, F16, F32, F64 and F8_E4M3,
// into dst and returns how many there were.
func Floats(dst []float32, d DType, src []byte) (int, error) {
	switch d {
	case BF16, F16, F32, F64, F8E4M3:
	default:
		return 0, fmt.Errorf("decoding %s as floats: not supported", d)
	}
	n := len(src) / int(d.Bits()/8)
	if len(dst) < n {
		return 0, fmt.Errorf("decoding %d elements into room for %d", n, len(dst))
	}
	for i := range dst[:n] {
		switch d {
		case BF16:
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		case F16:
			dst[i] = FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		case F32:
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		case F64:
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		case F8E4M3:
			dst[i] = e4m3[src[i]]
		}
	}
	return n, nil
}
