package bert

import (
	"math"

	"llmops/serving/embedded/llama/kernel"
)

// linear is out rows of in weights.
type linear struct {
	in, out int
	w, bias []float32
	// dynamic quantises each row of x to E4M3 first; room is for that.
	dynamic bool
	room    []float32
}

// panelFloats is how many weights pass by all rows before the next ones: they are
// to stay in the second-level cache.
const panelFloats = 32 << 10

// apply sets y to x · wᵀ + bias.
func (l *linear) apply(y, x []float32, rows, threads int) {
	var scales []float32
	if l.dynamic {
		if len(l.room) < rows*l.in {
			l.room = make([]float32, rows*l.in)
		}
		scales = quantiseRows(l.room, x[:rows*l.in], l.in)
		x = l.room
	}
	step := max(8, panelFloats/l.in/8*8)
	parallel(threads, l.out, 8, func(_, from, to int) {
		for j := from; j < to; j += step {
			n := min(step, to-j)
			kernel.Dot(y[j:], l.out, x, l.in, l.w[j*l.in:], l.in, rows, n, l.in)
			bias := l.bias[j : j+n]
			for i := range rows {
				row := y[i*l.out+j : i*l.out+j+n]
				if l.dynamic {
					for c := range row {
						row[c] *= scales[i]
					}
				}
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
			x[i] = 0.5 * v * (1 + erf(v*(1/math.Sqrt2)))
		}
	},
	"gelu_new": geluTanh, "gelu_pytorch_tanh": geluTanh,
	"relu": func(x []float32) {
		for i, v := range x {
			x[i] = max(v, 0)
		}
	},
}

// erf is the error function to 4e-7, in a third of the time that math.Erf
// takes: the rational approximation of the Eigen library, constant beyond ±4.
func erf(x float32) float32 {
	x = max(-4, min(x, 4))
	y := x * x
	p := float32(-2.72614225801306e-10)
	p = p*y + 2.77068142495902e-08
	p = p*y - 2.10102402082508e-06
	p = p*y - 5.69250639462346e-05
	p = p*y - 7.34990630326855e-04
	p = p*y - 2.95459980854025e-03
	p = p*y - 1.60960333262415e-02
	q := float32(-1.45660718464996e-05)
	q = q*y - 2.13374055278905e-04
	q = q*y - 1.68282697438203e-03
	q = q*y - 7.37332916720468e-03
	q = q*y - 1.42647390514189e-02
	return x * p / q
}

func geluTanh(x []float32) {
	for i, f := range x {
		v := float64(f)
		x[i] = float32(0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
	}
}
