package quantise

import (
	"math"
	"sync"

	"llmops/model/safetensors"
)

// The reference does each operation in the weight's own type: the scale is
// rounded to it, the quotient is rounded to it, and only then does the value
// become E4M3 or an integer. Leaving out the middle rounding changes about 3 %
// of the bytes.

// toBF16 rounds to the nearest bfloat16, ties to even.
func toBF16(f float32) float32 {
	b := math.Float32bits(f)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// toF16 rounds to the nearest IEEE half, ties to even; out of range is Inf.
func toF16(f float32) float32 {
	a := math.Abs(float64(f))
	switch {
	case a >= 65520:
		return float32(math.Inf(1)) * sign(f)
	case a < 1.0/(1<<14): // subnormal: multiples of 2^-24
		return float32(math.RoundToEven(float64(f)*(1<<24)) / (1 << 24))
	}
	_, exp := math.Frexp(float64(f))
	step := math.Ldexp(1, exp-11)
	return float32(math.RoundToEven(float64(f)/step) * step)
}

func sign(f float32) float32 {
	if f < 0 {
		return -1
	}
	return 1
}

// arithmetic is a weight's type as the reference computes in it.
type arithmetic struct {
	round func(float32) float32
	eps   float32 // stands for a scale of exactly zero
}

func arithmeticOf(d safetensors.DType) arithmetic {
	switch d {
	case safetensors.BF16:
		return arithmetic{toBF16, 0.0078125}
	case safetensors.F16:
		return arithmetic{toF16, 0.0009765625}
	}
	return arithmetic{func(f float32) float32 { return f }, 1.1920929e-7}
}

// bf16Code maps the upper half of a bfloat16 quotient's bits to its E4M3 byte.
var bf16Code = sync.OnceValue(func() *[1 << 16]byte {
	t := new([1 << 16]byte)
	for i := range t {
		t[i] = safetensors.ToE4M3(clamp(math.Float32frombits(uint32(i)<<16), -safetensors.MaxE4M3, safetensors.MaxE4M3))
	}
	return t
})

func clamp(x, lo, hi float32) float32 { return min(max(x, lo), hi) }

// amax is the largest magnitude of the row, NaN or Inf if it holds one.
func amax(row []float32) float32 {
	var top float32
	for _, x := range row {
		if a := float32(math.Abs(float64(x))); !(a <= top) {
			top = a
			if a != a {
				return a
			}
		}
	}
	return top
}

// scale is amax over half the width of the code range, in the weight's type.
func (a arithmetic) scale(amax, half float32) float32 {
	s := a.round(amax / half)
	if s == 0 {
		return a.eps
	}
	return s
}

// fp8Row writes the E4M3 codes of row under scale to dst.
func (a arithmetic) fp8Row(dst []byte, row []float32, scale float32, bf16 bool) {
	if bf16 {
		code := bf16Code()
		for i, x := range row {
			q := x / scale
			b := math.Float32bits(q)
			dst[i] = code[(b+0x7fff+b>>16&1)>>16]
		}
		return
	}
	for i, x := range row {
		dst[i] = safetensors.ToE4M3(clamp(a.round(x/scale), -safetensors.MaxE4M3, safetensors.MaxE4M3))
	}
}

// intRow writes row under scale as signed bytes of so many bits.
func (a arithmetic) intRow(dst []byte, row []float32, scale float32, bits int64) {
	top := float32(int(1)<<(bits-1)) - 1
	for i, x := range row {
		dst[i] = byte(int8(math.RoundToEven(float64(clamp(a.round(x/scale), -top-1, top)))))
	}
}

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

// widen decodes whole elements of BF16 and hands other types on.
func widen(dst []float32, d safetensors.DType, src []byte) error {
	if d != safetensors.BF16 {
		_, err := safetensors.Floats(dst, d, src)
		return err
	}
	dst = dst[:len(src)/2]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[2*i])<<16 | uint32(src[2*i+1])<<24)
	}
	return nil
}
