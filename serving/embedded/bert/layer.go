package bert

import (
	"math"

	"llmops/serving/embedded/llama/kernel"
)

// linear is out rows of in weights.
type linear struct {
	in, out int
	w, bias []float32
}

// panelFloats is how many weights pass by all rows before the next ones: they are
// to stay in the second-level cache.
const panelFloats = 32 << 10

// apply sets y to x · wᵀ + bias.
func (l *linear) apply(y, x []float32, rows, threads int) {
	step := max(8, panelFloats/l.in/8*8)
	parallel(threads, l.out, 8, func(_, from, to int) {
		for j := from; j < to; j += step {
			n := min(step, to-j)
			kernel.Dot(y[j:], l.out, x, l.in, l.w[j*l.in:], l.in, rows, n, l.in)
			bias := l.bias[j : j+n]
			for i := range rows {
				row := y[i*l.out+j : i*l.out+j+n]
				for c := range row {
					row[c] += bias[c]
				}
			}
		}
	})
}

// layerNorm is one with weight and bias.
type layerNorm struct{ weight, bias []float32 }

// apply normalises x + more in place; more may be nil.
func (l *layerNorm) apply(x, more []float32, eps float64) {
	n := len(l.weight)
	for i := 0; i < len(x); i += n {
		row := x[i : i+n]
		var sum float64
		for j := range row {
			if more != nil {
				row[j] += more[i+j]
			}
			sum += float64(row[j])
		}
		mean := sum / float64(n)
		sum = 0
		for _, v := range row {
			d := float64(v) - mean
			sum += d * d
		}
		r := 1 / math.Sqrt(sum/float64(n)+eps)
		for j, v := range row {
			row[j] = float32((float64(v)-mean)*r)*l.weight[j] + l.bias[j]
		}
	}
}

// activations are those that configurations name.
var activations = map[string]func([]float32){
	"gelu": func(x []float32) {
		for i, v := range x {
			x[i] = float32(0.5 * float64(v) * (1 + math.Erf(float64(v)/math.Sqrt2)))
		}
	},
	"gelu_new": geluTanh, "gelu_pytorch_tanh": geluTanh,
	"relu": func(x []float32) {
		for i, v := range x {
			x[i] = max(v, 0)
		}
	},
}

func geluTanh(x []float32) {
	for i, f := range x {
		v := float64(f)
		x[i] = float32(0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
	}
}
