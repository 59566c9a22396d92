//go:build !amd64

package kernel

var simd = false

func dotSIMD([]float32, int, []float32, int, []float32, int, int, int, int) {}
func dotBF16SIMD(_, _ []float32, _ []uint16, _, _, _ int)                   {}
func mixSIMD(_, _ []float32, _ int, _ []float32, _, _, _ int)               {}
func softmax8(*float32, int, float32)                                       {}
func silu8(_, _, _ *float32, _ int)                                         {}
func widenBF16(*float32, *uint16, int)                                      {}
func widenF16(*float32, *uint16, int)                                       {}
func widenE4M3(*float32, *byte, int, float32)                               {}
func widenInt8(*float32, *byte, int, float32)                               {}
func widenInt4(*float32, *uint32, int, float32)                             {}
