package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/roofline"
	"llmops/serving/embedded/ceiling"
)

// RooflineOf places what was measured of a server that is no run's: of the model whose
// weights are in dir, one copy of it on the GPUs that sys names, or on this machine, whose
// ceilings are c. It is an error when it is not known what could be reached.
func RooflineOf(dir string, sys benchmark.System, points []benchmark.Point, c *ceiling.Ceilings) (*benchmark.Roofline, error) {
	shape, err := model.LoadShape(dir)
	if err != nil {
		return nil, err
	}
	w := Weights{Dir: dir, Scheme: arithmetic(shape.Quant)}
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	for _, f := range files {
		st, serr := os.Stat(f)
		if err = errors.Join(err, serr); serr == nil {
			w.Bytes += st.Size()
		}
	}
	if err != nil || w.Bytes == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no weights, so that it is not known what a token reads", dir))
	}
	s := Spec{Engine: Engine{Kind: sys.Engine, TensorParallel: max(sys.GPUs, 1)}, Placement: Placement{GPU: sys.GPU}, Traffic: meanTraffic(points)}
	var r *roofline.Roof
	if sys.GPU == CPU {
		if s.Engine.Kind == "llmops" { // as our engine says of itself
			s.Engine.Kind = "embedded"
		}
		if r = machineRoof(s, shape, w, c, 1); r == nil {
			return nil, errors.New("of a machine only what llmops doctor --measure measured for the embedded engine is known")
		}
	} else if r, err = roof(s, shape, w); err != nil {
		return nil, err
	} else if r == nil {
		var names []string
		for _, g := range roofline.GPUs() {
			names = append(names, g.Name)
		}
		return nil, fmt.Errorf("%q is no GPU of the catalogue, which has %s", sys.GPU, strings.Join(names, ", "))
	}
	out := rooflineOf(r, points, s.Traffic, 1)
	if out == nil {
		return nil, errors.New("no answer had a second token")
	}
	return out, nil
}

// arithmetic is the scheme that a checkpoint computes in, as far as the roofline tells
// schemes apart: fp8 where weights and activations are.
func arithmetic(q *model.Quantisation) string {
	if q == nil {
		return ""
	}
	fp8 := func(a *model.QuantArgs) bool { return a != nil && a.Bits == 8 && strings.EqualFold(a.Type, "float") }
	all := q.Method == "fp8"
	for _, g := range q.Groups {
		all = fp8(g.Weights) && fp8(g.Activations)
	}
	if all {
		return "fp8-dynamic"
	}
	return ""
}

// meanTraffic is what the points' requests were in the mean.
func meanTraffic(points []benchmark.Point) (t Traffic) {
	in, out, n := 0, 0, 0
	for _, p := range points {
		in, out, n = in+p.Summary.InputTokens, out+p.Summary.OutputTokens, n+p.Summary.Done-p.Summary.Uncounted
	}
	if n > 0 {
		t.Input, t.Output = in/n, out/n
	}
	return t
}
