package pipeline

import (
	"reflect"
	"testing"

	"llmops/evidence"
	"llmops/pipeline/quantise"
	"llmops/roofline"
)

// Every scheme has a bound, and what is served on several GPUs is quantised for
// them, by itself.
func TestQuantiseStage(t *testing.T) {
	for _, scheme := range quantise.Schemes() {
		if maxWeightError[scheme] == 0 {
			t.Errorf("%s has no bound: it would never pass", scheme)
		}
	}
	s := Spec{Quantise: Quantise{Scheme: quantise.Int4, Keep: []string{"lm_head"}}}
	one := quantiseKey("sha256:1", s, "")
	s.Engine.TensorParallel = 4
	if got, err := quantiseOptions(s); err != nil || got.TensorParallel != 4 || got.Scheme != quantise.Int4 || len(got.Keep) != 1 {
		t.Errorf("options %+v", got)
	}
	if reflect.DeepEqual(one, quantiseKey("sha256:1", s, "")) {
		t.Error("weights for one GPU are taken for four")
	}
	s.Quantise.Scales = "/moved"
	if a, b := quantiseKey("sha256:1", s, "sha256:2"), quantiseKey("sha256:1", s, "sha256:3"); reflect.DeepEqual(a, b) {
		t.Error("weights with some scales are taken for those with others")
	}
	s.Quantise.Scales, s.Engine.TensorParallel = "", 1
	if !reflect.DeepEqual(one, quantiseKey("sha256:1", s, "")) {
		t.Error("one GPU is not one GPU")
	}
}

// Only what an engine would quantise again is warned of, by the catalogue's names.
func TestRequantised(t *testing.T) {
	for _, c := range []struct {
		scheme, gpu string
		want        int
	}{{quantise.FP8Block, "b200-sxm", 1}, {quantise.FP8Block, "gb200", 1}, {quantise.FP8Block, "h100-sxm", 0}, {quantise.FP8BlockUE8M0, "b200-sxm", 0}, {quantise.FP8Dynamic, "gb200", 0}} {
		if _, ok := roofline.Lookup(c.gpu); !ok {
			t.Errorf("no GPU %s", c.gpu)
		}
		if got := requantised(c.scheme, c.gpu); len(got) != c.want {
			t.Errorf("%s on %s: %q", c.scheme, c.gpu, got)
		}
	}
}

// A tensor past the bound fails, and nothing to judge is no pass.
func TestJudgeWeights(t *testing.T) {
	dir := "../serving/embedded/llama/testdata/llama"
	for _, c := range []struct {
		errors []float64
		want   evidence.Outcome
	}{{[]float64{0.01, 0.05}, evidence.Pass}, {[]float64{0.01, 0.0501}, evidence.Fail}, {nil, evidence.Inconclusive}} {
		rep := quantise.Report{Dir: dir, Scheme: quantise.FP8Dynamic}
		for _, e := range c.errors {
			rep.Tensors = append(rep.Tensors, quantise.TensorReport{Name: "a", Error: e})
		}
		if v, err := judgeWeights(rep); err != nil || v.Outcome != c.want {
			t.Errorf("%v: %v %v, want %v", c.errors, v.Outcome, err, c.want)
		}
	}
}
