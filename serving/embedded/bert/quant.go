package bert

import (
	"errors"
	"fmt"
	"math"

	"llmops/model"
	"llmops/model/safetensors"
)

// checkQuantisation refuses schemes other than compressed-tensors' fp8 by channel
// or tensor, with activations dynamic by token or none.
func checkQuantisation(q *model.Quantisation) error {
	switch {
	case q == nil:
		return nil
	case q.Method != "compressed-tensors" || q.Status != "" && q.Status != "compressed" || len(q.Groups) != 1:
		return fmt.Errorf("quantised weights (%s) are not supported", q.Scheme())
	}
	w, a := q.Groups[0].Weights, q.Groups[0].Activations
	fp8 := func(x *model.QuantArgs) bool { return x.Type == "float" && x.Bits == 8 && x.Symmetric }
	switch {
	case w == nil || !fp8(w) || w.Strategy != "channel" && w.Strategy != "tensor":
		return fmt.Errorf("weights in %s are not supported: want fp8 by channel or tensor", w)
	case a != nil && (!fp8(a) || !a.Dynamic || a.Strategy != "token"):
		return fmt.Errorf("activations in %s are not supported: want fp8, dynamic by token, or none", a)
	}
	return nil
}

// codes tells whether a matrix is stored in fp8.
func (l *loader) codes(name string) (bool, error) {
	t, ok := l.c.Lookup(name)
	if !ok || t.DType != safetensors.F8E4M3 {
		return false, nil
	}
	if l.quant == nil {
		return false, fmt.Errorf("tensor %q is F8_E4M3, but quantization_config does not say how it is quantised", name)
	}
	return true, nil
}

// fp8 reads the values of a matrix's codes, times their scales: both are float32,
// and a row's scale is the same for all its products.
func (l *loader) fp8(module string, out, in int) ([]float32, error) {
	w, err := l.values(module+".weight", out, in)
	if err != nil {
		return nil, err
	}
	name := module + ".weight_scale"
	t, ok := l.c.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing: the weight is quantised and means nothing without it", name)
	}
	n := int(t.Elements())
	if n != out && n != 1 {
		return nil, fmt.Errorf("tensor %q has %d scales, want %d or 1", name, n, out)
	}
	shape := make([]int, len(t.Shape))
	for i, d := range t.Shape {
		shape[i] = int(d)
	}
	scales, err := l.floats(name, shape...)
	if err != nil {
		return nil, err
	}
	for i := range out {
		s := scales[min(i, n-1)]
		if s <= 0 {
			return nil, fmt.Errorf("tensor %q has the scale %g: want a positive one", name, s)
		}
		for j := range in {
			w[i*in+j] *= s
		}
	}
	return w, nil
}

var errMixed = errors.New("query, key and value are not quantised alike: they are computed as one")

// quantiseRows rounds each row of x to E4M3 values in room and returns what each is to
// be multiplied with.
func quantiseRows(room, x []float32, in int) (scales []float32) {
	// vLLM's smallest scale, which keeps a row of near zeros from overflowing.
	const smallest = 1 / (safetensors.MaxE4M3 * 512.0)
	for at := 0; at < len(x); at += in {
		row, to := x[at:at+in], room[at:at+in]
		var amax float32
		for _, v := range row {
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		scale := max(amax/safetensors.MaxE4M3, smallest)
		for i, v := range row {
			to[i] = safetensors.FromE4M3(safetensors.ToE4M3(max(-safetensors.MaxE4M3, min(v/scale, safetensors.MaxE4M3))))
		}
		scales = append(scales, scale)
	}
	return scales
}
