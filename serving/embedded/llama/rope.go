package llama

import (
	"cmp"
	"fmt"
	"math"

	"llmops/model"
)

// checkRope refuses rotary embeddings that cannot be computed.
func checkRope(r model.Rope) error {
	switch r.Type {
	case "default", "dynamic":
		return nil
	case "linear", "yarn":
		if r.Factor < 1 {
			return fmt.Errorf("rotary embedding %s with the factor %g: want at least 1", r.Type, r.Factor)
		}
		return nil
	case "llama3":
		if r.Factor < 1 || r.LowFreq <= 0 || r.HighFreq <= r.LowFreq {
			return fmt.Errorf("rotary embedding llama3 with the factor %g, low_freq_factor %g, high_freq_factor %g: want at least 1, and two that rise", r.Factor, r.LowFreq, r.HighFreq)
		}
		return nil
	}
	return fmt.Errorf("rotary embedding %q is not supported: want default, linear, dynamic, llama3 or yarn", r.Type)
}

// rotations tabulates cosines and sines, position × half a head, as transformers
// computes them: frequencies and angles in float32.
func rotations(s model.Shape, length int) (cos, sin []float32) {
	half := s.HeadDim / 2
	cos, sin = make([]float32, length*half), make([]float32, length*half)
	frequencies, factor := rope(s)
	for i, f := range frequencies {
		for pos := range length {
			a := float64(float32(pos) * f)
			cos[pos*half+i], sin[pos*half+i] = float32(math.Cos(a))*factor, float32(math.Sin(a))*factor
		}
	}
	return cos, sin
}

// rope gives the angle by which each pair turns from one position to the next, and
// what cosines and sines are multiplied with.
func rope(s model.Shape) (frequencies []float32, factor float32) {
	r := s.Rope
	r.OriginalMax = cmp.Or(r.OriginalMax, s.MaxPositions)
	half := s.HeadDim / 2
	frequencies = make([]float32, half)
	for i := range frequencies {
		frequencies[i] = float32(1 / math.Pow(r.Theta, float64(2*i)/float64(s.HeadDim)))
	}
	switch r.Type {
	// "dynamic" starts to differ from the default past max_position_embeddings,
	// which is as long as a sequence may be here.
	case "linear":
		for i := range frequencies {
			frequencies[i] /= float32(r.Factor)
		}
	case "llama3":
		for i, f := range frequencies {
			frequencies[i] = llama3(r, f)
		}
	case "yarn":
		return frequencies, yarn(r, s.HeadDim, frequencies)
	}
	return frequencies, 1
}

// llama3 slows low frequencies down and leaves high ones, with a ramp between.
func llama3(r model.Rope, f float32) float32 {
	length, original := 2*math.Pi/float64(f), float64(r.OriginalMax)
	switch {
	case length < original/r.HighFreq:
		return f
	case length > original/r.LowFreq:
		return f / float32(r.Factor)
	}
	smooth := (original/length - r.LowFreq) / (r.HighFreq - r.LowFreq)
	return float32((1-smooth)*float64(f)/r.Factor + smooth*float64(f))
}

// yarn (arXiv:2309.00071) does the same with a ramp over dimensions, and sharpens
// the attention by the factor it returns.
func yarn(r model.Rope, dim int, frequencies []float32) float32 {
	// dimension is the one that turns n times over the original length.
	dimension := func(n float64) float64 {
		return float64(dim) * math.Log(float64(r.OriginalMax)/(n*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := dimension(cmp.Or(r.BetaFast, 32)), dimension(cmp.Or(r.BetaSlow, 1))
	if !r.Smooth {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i, f := range frequencies {
		ramp := min(max(float32(float64(i)-low)/float32(high-low), 0), 1)
		keep := 1 - ramp
		frequencies[i] = f/float32(r.Factor)*(1-keep) + f*keep
	}
	scale := func(m float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(r.Factor) + 1
	}
	switch {
	case r.AttentionFactor != 0:
		return float32(r.AttentionFactor)
	case r.Mscale != 0 && r.MscaleAllDim != 0:
		return float32(scale(r.Mscale) / scale(r.MscaleAllDim))
	}
	return float32(scale(1))
}
