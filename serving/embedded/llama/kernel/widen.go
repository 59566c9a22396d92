package kernel

import (
	"math"

	"llmops/model/safetensors"
)

// WidenBF16 sets dst to the bfloat16 values in src.
func WidenBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	if simd && len(dst) > 0 {
		widenBF16(&dst[0], &src[0], len(dst)/Lanes)
		return
	}
	for i, v := range src {
		dst[i] = math.Float32frombits(uint32(v) << 16)
	}
}

// WidenF16 sets dst to the IEEE halves in src.
func WidenF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	if simd && len(dst) > 0 {
		widenF16(&dst[0], &src[0], len(dst)/Lanes)
		return
	}
	for i, v := range src {
		dst[i] = safetensors.FromF16(v)
	}
}

// WidenE4M3 sets dst to the F8_E4M3 values in src, none of them NaN, times scale.
func WidenE4M3(dst []float32, src []byte, scale float32) {
	src = src[:len(dst)]
	if simd && len(dst) > 0 {
		// As halves the codes are 2⁻⁸ of what they stand for.
		widenE4M3(&dst[0], &src[0], len(dst)/Lanes, scale*256)
		return
	}
	for i, v := range src {
		dst[i] = safetensors.FromE4M3(v) * scale
	}
}

// WidenInt8 sets dst to the signed bytes in src times scale.
func WidenInt8(dst []float32, src []byte, scale float32) {
	src = src[:len(dst)]
	if simd && len(dst) > 0 {
		widenInt8(&dst[0], &src[0], len(dst)/Lanes, scale)
		return
	}
	for i, v := range src {
		dst[i] = float32(int8(v)) * scale
	}
}

// WidenInt4 sets dst to the nibbles in src, lowest first, each less 8, times scale.
func WidenInt4(dst []float32, src []uint32, scale float32) {
	src = src[:len(dst)/8]
	if simd && len(dst) > 0 {
		widenInt4(&dst[0], &src[0], len(dst)/Lanes, scale)
		return
	}
	for i := range dst {
		dst[i] = float32(int(src[i/8]>>(4*(i%8))&15)-8) * scale
	}
}
