package kernel

import (
	"math"

	"llmops/model/safetensors"
)

// RMSNorm sets dst to x / √(mean of squares + eps) · weight. dst may be x.
func RMSNorm(dst, x, weight []float32, eps float64) {
	dst, weight = dst[:len(x)], weight[:len(x)]
	var sum float32
	if simd {
		sum = squares8(&x[0], len(x)/Lanes)
	} else {
		sum = dot(x, x)
	}
	r := float32(1 / math.Sqrt(float64(sum)/float64(len(x))+eps))
	if simd {
		scale8(&dst[0], &x[0], &weight[0], len(x)/Lanes, r)
		return
	}
	for i, v := range x {
		dst[i] = v * r * weight[i]
	}
}

// Add adds y to x.
func Add(x, y []float32) {
	y = y[:len(x)]
	if simd && len(x) > 0 {
		add8(&x[0], &y[0], len(x)/Lanes)
		return
	}
	for i, v := range y {
		x[i] += v
	}
}

// MaxAbs is the largest magnitude in x.
func MaxAbs(x []float32) float32 {
	if simd && len(x) > 0 {
		return maxAbs8(&x[0], len(x)/Lanes)
	}
	var a uint32
	for _, v := range x {
		a = max(a, math.Float32bits(v)&^(1<<31)) // magnitudes are ordered like their bits
	}
	return math.Float32frombits(a)
}

// RoundE4M3 sets dst to the F8_E4M3 values next to x/scale, ties to even.
func RoundE4M3(dst, x []float32, scale float32) {
	dst = dst[:len(x)]
	if simd && len(x) > 0 {
		roundE4M38(&dst[0], &x[0], len(x)/Lanes, scale)
		return
	}
	for i, v := range x {
		dst[i] = safetensors.FromE4M3(safetensors.ToE4M3(max(-safetensors.MaxE4M3, min(v/scale, safetensors.MaxE4M3))))
	}
}

// RoundInt8 sets dst to the whole numbers from -128 to 127 next to x/scale, ties to even.
func RoundInt8(dst, x []float32, scale float32) {
	dst = dst[:len(x)]
	if simd && len(x) > 0 {
		roundInt88(&dst[0], &x[0], len(x)/Lanes, scale)
		return
	}
	for i, v := range x {
		dst[i] = float32(math.RoundToEven(float64(max(-128, min(v/scale, 127)))))
	}
}
