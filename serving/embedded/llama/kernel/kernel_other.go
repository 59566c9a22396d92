//go:build !amd64

package kernel

// There is no assembly: what simd guards is never called.
var simd = false

func dotSIMD([]float32, int, []float32, int, []float32, int, int, int, int)  {}
func dotPackedSIMD([]float32, int, []float32, int, []float32, int, int, int) {}
func widenSIMD([]float32, Format, []byte, int, *[4]float32)                  {}
func mixSIMD(_, _ []float32, _ int, _ []float32, _, _, _ int)                {}
func softmax8(*float32, int, float32)                                        {}
func silu8(_, _, _ *float32, _ int)                                          {}
func widenBF16(*float32, *byte, int)                                         {}
func (m *Matrix) fused() bool                                                { return false }
func (m *Matrix) fusedProduct(_, _ []float32, _ []byte, _ int)               {}
func maxAbs8(*float32, int) float32                                          { return 0 }
func roundE4M38(_, _ *float32, _ int, _ float32)                             {}
func roundInt88(_, _ *float32, _ int, _ float32)                             {}
func squares8(*float32, int) float32                                         { return 0 }
func scale8(_, _, _ *float32, _ int, _ float32)                              {}
func add8(_, _ *float32, _ int)                                              {}
