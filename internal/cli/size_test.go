package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"llmops/model"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/roofline"
)

const register = "../../examples/assumptions.yaml"

// Everything that size and cost print fits a terminal of 80 columns.
func TestSizeFitsTheTerminal(t *testing.T) {
	for _, args := range [][]string{
		{"size"}, {"size", "--all"}, {"size", "--claims"}, {"size", "--tornado"}, {"size", "--tornado=cost.output"}, {"size", "--explain", "fleet.nodes"}, {"size", "--explain", "share.hbm"},
		{"size", "--what-if", "weights.dtype=fp8", "--what-if", "kv.dtype=fp8"}, {"size", "--sweep", "layout.tp=2,4,8,16", "--what-if", "layout.batch=30"}, {"cost"},
		{"size", "--case", "8b"}, {"cost", "--case", "documents"},
	} {
		r := run(t, t.TempDir(), append([]string{args[0], register}, args[1:]...)...)
		if r.code != 0 {
			t.Fatalf("%v exits %d: %s", args, r.code, r.err)
		}
		for l := range strings.Lines(r.out) {
			if l = strings.TrimSuffix(l, "\n"); utf8.RuneCountInString(l) > pageWidth || strings.HasSuffix(l, " ") {
				t.Errorf("%v prints %q", args, l)
			}
		}
	}
	for _, list := range []string{"--keys", "--gpus"} {
		r := run(t, t.TempDir(), "size", list)
		if r.code != 0 || r.out == "" {
			t.Errorf("%s exits %d: %s", list, r.code, r.err)
		}
		for l := range strings.Lines(r.out) {
			if utf8.RuneCountInString(strings.TrimSuffix(l, "\n")) > pageWidth {
				t.Errorf("%s prints %q", list, l)
			}
		}
	}
}

// runReport writes the JSON report of a run whose replicas reach a share of the roofline.
func runReport(t *testing.T, gpu string, reached float64, edit func(*pipeline.PlanOutput, *pipeline.BenchmarkOutput)) string {
	t.Helper()
	shape, err := model.ParseShape(must(t, os.ReadFile, "../../examples/simulate/llama-70b.json"))
	if err != nil {
		t.Fatal(err)
	}
	g, _ := roofline.Lookup(gpu)
	d := roofline.Deployment{GPU: g, TensorParallel: 8, Shape: shape, Parameters: 70e9, WeightBytes: 2, KVBytes: 2, Assume: roofline.Assumed()}
	r, err := roofline.New(d)
	if err != nil {
		t.Fatal(err)
	}
	const streams, done, input, output = 40, 500, 1500, 250
	tpot := r.DecodeStep(streams, input+output/2).RooflineSeconds / reached
	e2e := tpot * output
	sum := load.Summary{Attempted: done, Done: done, InputTokens: done * input, OutputTokens: done * output, RequestRate: streams / e2e}
	sum.TPOT, sum.E2ESent = load.Dist{N: done, Mean: tpot * 1e9}, load.Dist{N: done, Mean: e2e * 1e9}
	plan := pipeline.PlanOutput{Parameters: 70_000_000_000, Roof: &pipeline.Roof{GPU: gpu, GPUs: 8}}
	// The last rate failed in part: it measures an overload.
	failed := sum
	failed.Done, failed.TPOT.Mean = done-1, sum.TPOT.Mean*9
	bench := pipeline.BenchmarkOutput{Points: []benchmark.Point{{Rate: 1, Summary: sum}, {Rate: 2, Summary: failed}}}
	if edit != nil {
		edit(&plan, &bench)
	}
	s := shown{Head: pipeline.Head{Run: "r1"}}
	for stage, v := range map[string]any{pipeline.StagePlan: plan, pipeline.StageBenchmark: bench} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		s.Records = append(s.Records, pipeline.Record{Stage: stage, Output: b})
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func must(t *testing.T, read func(string) ([]byte, error), path string) []byte {
	t.Helper()
	b, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A run calibrates the share that is left end to end, and nothing else.
func TestSizeTakesARun(t *testing.T) {
	args := func(path string) []string {
		return []string{"size", register, "--what-if", "node.gpu=h200-sxm", "--what-if", "layout.batch=40", "--run", path, "--output", "json"}
	}
	r := run(t, t.TempDir(), args(runReport(t, "h200-sxm", 0.52, nil))...)
	var out sized
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
		t.Fatalf("exit %d, %v: %s", r.code, err, r.err)
	}
	if !strings.Contains(r.err, "run r1 went to 40 streams a replica") {
		t.Errorf("it says %q", r.err)
	}
	found := false
	for _, a := range out.Assumptions {
		if a.Key == "share.end_to_end" {
			found = true
			if math.Abs(a.Value-0.52) > 1e-6 || a.Row != "measured" || a.Source != "run r1" {
				t.Errorf("calibrated to %+v", a)
			}
		}
	}
	if !found {
		t.Error("no share.end_to_end")
	}
	for want, path := range map[string]string{
		"it measured 8 × h100-sxm, and the assumptions are of 8": runReport(t, "h100-sxm", 0.5, nil),
		"and the roofline of these assumptions is":               runReport(t, "h200-sxm", 1.1, nil),
		"had no GPU of the catalogue":                            runReport(t, "h200-sxm", 0.5, func(p *pipeline.PlanOutput, _ *pipeline.BenchmarkOutput) { p.Roof = nil }),
		"a model of 8e+09 parameters":                            runReport(t, "h200-sxm", 0.5, func(p *pipeline.PlanOutput, _ *pipeline.BenchmarkOutput) { p.Parameters = 8_000_000_000 }),
		"no rate at which all requests were answered":            runReport(t, "h200-sxm", 0.5, func(_ *pipeline.PlanOutput, b *pipeline.BenchmarkOutput) { b.Points = b.Points[1:] }),
	} {
		if r := run(t, t.TempDir(), args(path)...); r.code != exitUsage || !strings.Contains(r.err, want) || r.out != "" {
			t.Errorf("exit %d: %q, want %q in it", r.code, r.err, want)
		}
	}
}

func TestRanges(t *testing.T) {
	order := []string{"A1", "A2", "A3", "A4", "B1", "B2", "B3"}
	for in, want := range map[string]string{
		"A1 A2 A3 A4":       "A1-A4",
		"A1 A2":             "A1 A2",
		"A2 A3 A4 B1 B3":    "A2-A4 B1 B3",
		"A3 A4 B1 B2":       "A3 A4 B1 B2",
		"A1 B1 B2 B3 guess": "A1 B1-B3 guess",
		"":                  "",
	} {
		if got := strings.Join(ranges(strings.Fields(in), order), " "); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

// Measured ceilings take the place of the assumed shares and fabric, and a run is held
// against them.
func TestSizeTakesCeilings(t *testing.T) {
	const roofs = "../../roofline/size/testdata/ceilings.json"
	values := func(args ...string) (map[string]settled, string) {
		t.Helper()
		r := run(t, t.TempDir(), append([]string{"size", register, "--what-if", "node.gpu=h200-sxm", "--measured", roofs, "--output", "json"}, args...)...)
		var out sized
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
			t.Fatalf("exit %d, %v: %s", r.code, err, r.err)
		}
		all := map[string]settled{}
		for _, a := range out.Assumptions {
			all[a.Key] = a
		}
		return all, r.err
	}
	got, said := values()
	for key, want := range map[string]float64{"share.hbm": 0.75, "share.flops": 0.75, "fabric.bandwidth": 270e9, "fabric.latency": 10e-6} {
		if a := got[key]; math.Abs(a.Value/want-1) > 1e-3 || a.Row != "measured" || a.Source != roofs {
			t.Errorf("%+v, want %v", a, want)
		}
	}
	if !strings.Contains(said, "is of NVIDIA H200, 2026-03-01") {
		t.Errorf("it says %q", said)
	}
	// The run reached 52 % of the assumed roof, and another share of the measured one.
	path := runReport(t, "h200-sxm", 0.52, nil)
	if got, _ := values("--what-if", "layout.batch=40", "--run", path); got["share.end_to_end"].Row != "measured" || math.Abs(got["share.end_to_end"].Value-0.5195) > 1e-4 {
		t.Errorf("%+v", got["share.end_to_end"])
	}
	for want, args := range map[string][]string{
		"says nothing of a GPU":              {"--measured", "../../roofline/size/testdata/ceilings-cpu.json"},
		"want what jobs/ceilings.nomad.hcl":  {"--measured", register},
		"no such file":                       {"--measured", "nowhere.json"},
		"and node.gpu is h100-sxm":           {"--measured", roofs, "--what-if", "node.gpu=h100-sxm"},
		"and node.bandwidth is 3e+12: set n": {"--measured", roofs, "--what-if", "node.bandwidth=3TB/s"},
	} {
		if r := run(t, t.TempDir(), append([]string{"size", register}, args...)...); r.code != exitUsage || !strings.Contains(r.err, want) || r.out != "" {
			t.Errorf("exit %d: %q, want %q in it", r.code, r.err, want)
		}
	}
}
