package pipeline

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/roofline"
	"llmops/serving/deploy"
	"llmops/serving/embedded/ceiling"
	"llmops/serving/engine"
	"llmops/serving/slo"
)

// set gives v a value other than its zero.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"a": "b"}))
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// leaves calls fn with every field of v that is no struct.
func leaves(v reflect.Value, name string, fn func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		f, n := v.Field(i), name+"."+v.Type().Field(i).Name
		if f.Kind() == reflect.Struct {
			leaves(f, n, fn)
			continue
		}
		fn(n, f)
	}
}

// Whatever model.yaml says of the engine or its place makes another version, but for
// how many replicas there are and how they come up.
func TestVersionIsOfAllOptions(t *testing.T) {
	was := Spec{Engine: Engine{Kind: "embedded", MaxModelLen: 2048, MaxNumSeqs: 16}, Placement: Placement{GPU: CPU, Replicas: 1, Pool: Interactive}}
	w := Weights{Digest: "sha256:1"}
	digest := deploymentDigest(w, was.Engine, was.Placement)
	// As it was before there were options, so that what is live stays what it is.
	if want := string(model.DigestOf([]byte(`["sha256:1",{"kind":"embedded","max_model_len":2048,"max_num_seqs":16}]`))); digest != want {
		t.Errorf("the digest of a plain version is %s, want %s", digest, want)
	}
	s := was
	n := 0
	check := func(name string, v reflect.Value) {
		old := reflect.ValueOf(v.Interface())
		set(v)
		if same := deploymentDigest(w, s.Engine, s.Placement) == digest; same != slices.Contains([]string{"Placement.Replicas", "Placement.Loads", "Placement.Warm"}, name) {
			t.Errorf("%s is set: the same version: %v", name, same)
		}
		v.Set(old)
		n++
	}
	leaves(reflect.ValueOf(&s.Engine).Elem(), "Engine", check)
	leaves(reflect.ValueOf(&s.Placement).Elem(), "Placement", check)
	if n < 25 {
		t.Errorf("%d fields", n)
	}
}

// Each option of the engine reaches its adapter.
func TestEngineJobPassesAllOptions(t *testing.T) {
	plain := serve(Spec{}, Version{}, Engine{Kind: "vllm"})
	e := Engine{Kind: "vllm"}
	leaves(reflect.ValueOf(&e).Elem(), "Engine", func(name string, v reflect.Value) {
		if name == "Engine.Kind" {
			return
		}
		old := reflect.ValueOf(v.Interface())
		set(v)
		if reflect.DeepEqual(serve(Spec{}, Version{}, e), plain) {
			t.Errorf("%s is set and the engine is not told", name)
		}
		v.Set(old)
	})
	j, err := engineJob(Spec{Name: "q", Placement: Placement{GPU: "h100-sxm", Replicas: 2, Pool: "batch", Zone: "az1", Near: "r7"}},
		Version{Name: "v3", Dir: "/w"}, Engine{Kind: "vllm", Image: "own", TensorParallel: 4, PipelineParallel: 2, Env: map[string]string{"A": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	g := j.Groups[0]
	if j.Pool != "batch" || j.Zone != "az1" || g.Near != "r7" || g.Image != "own" || g.Count != 2 || g.GPU != (fleet.Need{Kind: "H100 80GB HBM3", Count: 8}) || g.Env["A"] != "1" {
		t.Errorf("%+v", j)
	}
	if args := strings.Join(g.Argv, " "); !strings.Contains(args, "--host ${LLMOPS_HOST} --port ${LLMOPS_PORT}") || !strings.Contains(args, "--tensor-parallel-size 4 --pipeline-parallel-size 2") {
		t.Errorf("%s", args)
	}
	if j, err = engineJob(Spec{Name: "q", Placement: Placement{GPU: CPU}}, Version{Dir: "/w"}, Engine{Kind: "vllm"}); err != nil || j.Groups[0].GPU.Count != 0 {
		t.Errorf("%+v, %v", j, err)
	}
}

// What makes answers less exact is not the parent's.
func TestReference(t *testing.T) {
	e := Engine{Kind: "vllm", MaxNumSeqs: 4, KVCache: engine.FP8, Speculative: engine.Speculative{Method: "ngram", Tokens: 2}, Fault: "x", Sleep: true}
	if got, want := e.reference(), (Engine{Kind: "vllm", MaxNumSeqs: 4, Sleep: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// A candidate is never held against itself while something else is live.
func TestEvalReference(t *testing.T) {
	arm := func(name string, replicas ...string) Arm {
		a := Arm{Version: Version{Name: name}}
		for _, at := range replicas {
			a.Ready = append(a.Ready, deploy.Ready{Replica: fleet.Replica{Addr: at}})
		}
		return a
	}
	for _, c := range []struct {
		name                      string
		parent, candidate, stable Arm
		want                      string
	}{
		{"quantised", arm("v2", "p"), arm("v3", "c"), arm("v1", "s"), "v2"},
		{"other options", arm("v3", "c"), arm("v3", "c"), arm("v1", "s"), "v1"},
		{"the first", arm("v0", "p"), arm("v0", "p"), arm("v0", "p"), "v0"},
		{"live and without a replica", arm("v3", "c"), arm("v3", "c"), arm("v1"), "v1"},
	} {
		if got := (DeployOutput{Parent: c.parent, Candidate: c.candidate, Stable: c.stable}).reference(); got.Version.Name != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Version.Name, c.want)
		}
	}
}

// full is a fleet that has no place for jobs with GPUs.
type full struct {
	fleet.Scheduler
	asked []fleet.Job
}

func (f *full) Plan(_ context.Context, j fleet.Job) (fleet.Plan, error) {
	f.asked = append(f.asked, j)
	if j.Groups[0].GPU.Count > 0 {
		return fleet.Plan{Reasons: []string{"2 nodes have no device that matches"}}, nil
	}
	return fleet.Plan{Fits: true}, nil
}

func TestPlanAsksTheFleet(t *testing.T) {
	for _, c := range []struct {
		name  string
		e     Engine
		gpu   string
		jobs  int
		wants evidence.Outcome
	}{
		{"the processor", Engine{Kind: "vllm"}, CPU, 1, evidence.Pass},
		{"a GPU", Engine{Kind: "vllm", TensorParallel: 2}, "h100-sxm", 1, evidence.Fail},
		{"another cache for the candidate", Engine{Kind: "vllm", KVCache: engine.FP8}, "h100-sxm", 2, evidence.Fail},
	} {
		d := testDeps(t)
		f := &full{Scheduler: d.Scheduler}
		d.Scheduler = f
		a := &Attempt{Deps: d, Spec: Spec{Name: "a.model", Engine: c.e, Placement: Placement{GPU: c.gpu, Replicas: 1, Pool: Interactive}}}
		w := Weights{Dir: "/w", Digest: "sha256:1"}
		vs, err := planFleet(t.Context(), a, w, w)
		if err != nil || len(vs) != c.jobs || len(f.asked) != c.jobs {
			t.Fatalf("%s: %v, %v, asked %d", c.name, vs, err, len(f.asked))
		}
		for _, v := range vs {
			if v.Outcome != c.wants || c.wants == evidence.Fail && !slices.Contains(v.Warnings, "2 nodes have no device that matches") {
				t.Errorf("%s: %+v", c.name, v)
			}
		}
	}
}

// llama70b is a published shape: 80 layers, 8192 wide, 64 heads of 128, 8 of them for
// keys and values.
var llama70b = model.Shape{Layers: 80, Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, Intermediate: 28672, Vocab: 128256, MaxPositions: 131072}

func TestPlanRoof(t *testing.T) {
	s := Spec{Engine: Engine{Kind: "vllm", MaxModelLen: 8192, TensorParallel: 4}, Placement: Placement{GPU: "h100-sxm"},
		Traffic: Traffic{Input: 1000, Output: 200}, SLO: slo.Class{TPOT: slo.Bound{Limit: 50 * time.Millisecond}}}
	for _, c := range []struct {
		name   string
		gb     float64
		edit   func(*Spec)
		fits   bool
		tokens int
	}{
		// 4 × 80 GB × 0.92 = 294 GB; 141 GB of weights and 4 × 6.6 GiB of vLLM's leave 125 GB, 320 KiB a token.
		{"bf16 on four", 141, func(*Spec) {}, true, 381_632},
		// 4 × 80 GB × 0.85 = 272 GB; 131 GB.
		{"another engine on four", 141, func(s *Spec) { s.Engine.Kind = "sglang" }, true, 399_780},
		{"bf16 on one", 141, func(s *Spec) { s.Engine.TensorParallel = 1 }, false, 0},
		{"bf16 on one in four stages", 141, func(s *Spec) { s.Engine.TensorParallel, s.Engine.PipelineParallel = 1, 4 }, true, 381_632},
		{"heads that do not divide", 141, func(s *Spec) { s.Engine.TensorParallel = 3 }, false, 0},
	} {
		s := s
		c.edit(&s)
		var out PlanOutput
		v := planRoof(s, llama70b, Weights{Bytes: int64(c.gb * 1e9)}, &out)
		if (v.Outcome == evidence.Pass) != c.fits || len(v.Warnings) == 0 {
			t.Errorf("%s: %+v", c.name, v)
		}
		if c.fits && (max(out.Roof.KVTokens-c.tokens, c.tokens-out.Roof.KVTokens) > 100 || out.Roof.GPUs != 4) {
			t.Errorf("%s: %+v", c.name, out.Roof)
		}
	}
	s.Placement.GPU = CPU
	var out PlanOutput
	if v := planRoof(s, llama70b, Weights{Bytes: 1}, &out); v.Claim != "" || out.Roof != nil {
		t.Errorf("%+v, %+v", v, out.Roof)
	}
}

func TestShareOfTheRoof(t *testing.T) {
	s := Spec{Engine: Engine{Kind: "vllm", TensorParallel: 4}, Placement: Placement{GPU: "h100-sxm"}, Traffic: Traffic{Input: 1000, Output: 200}}
	r, err := roof(s, llama70b, Weights{Bytes: 141e9})
	if err != nil {
		t.Fatal(err)
	}
	p := benchmark.Point{Rate: 4, Summary: load.Summary{TPOT: load.Dist{Mean: 40e6}, E2ESent: load.Dist{Mean: 8e9}}}
	// 4/s × 8 s over two replicas are 16 sequences; 35 GB a GPU at 0.7 × 3.35 TB/s are 15 ms and more.
	got := share(r, p, s.Traffic, 2)
	if !strings.Contains(got, "40.00 ms a token at 16 sequences a replica") || !strings.Contains(got, "at the roofline of h100-sxm, where memory binds") {
		t.Error(got)
	}
	if share(nil, p, s.Traffic, 1) != "" || share(r, benchmark.Point{}, s.Traffic, 1) != "" {
		t.Error("a share of nothing")
	}
}

func TestBinding(t *testing.T) {
	for want, step := range map[string]roofline.Step{
		"memory":                        {MemorySeconds: 3, ComputeSeconds: 2, AllReduceSeconds: 1, FixedSeconds: 1},
		"arithmetic":                    {MemorySeconds: 2, ComputeSeconds: 3, AllReduceSeconds: 3},
		"the GPUs' wait for each other": {MemorySeconds: 2, ComputeSeconds: 3, AllReduceSeconds: 4},
		"the fixed time of a step":      {MemorySeconds: 2, ComputeSeconds: 3, FixedSeconds: 4},
	} {
		if got := binding(step); got != want {
			t.Errorf("%+v: %s, want %s", step, got, want)
		}
	}
}

// A replica without a GPU is held against what its machine was measured to do, and
// against nothing where it was not.
func TestRoofOfThisMachine(t *testing.T) {
	r := func(best float64) ceiling.Reading { return ceiling.Reading{Best: best, Median: best, N: 5} }
	c := &ceiling.Ceilings{Measured: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), BufferBytes: 256 << 20,
		Machine: ceiling.Machine{Threads: 2, CacheBytes: 32 << 20, MemoryBytes: 16 << 30},
		One:     ceiling.Rates{Threads: 1, Read: r(16e9), Row: r(20e9), F32: r(90e9), BF16: r(80e9)},
		All:     ceiling.Rates{Threads: 2, Read: r(28e9), Row: r(32e9), F32: r(140e9), BF16: r(130e9)}}
	s := Spec{Engine: Engine{Kind: "embedded"}, Placement: Placement{GPU: CPU}, Traffic: Traffic{Input: 100, Output: 20}}
	small := model.Shape{Layers: 16, Hidden: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, Intermediate: 8192, Vocab: 128256}
	one := benchmark.Point{Rate: 1, Summary: load.Summary{TPOT: load.Dist{Mean: 250e6}, E2ESent: load.Dist{Mean: 1e9}}}
	for _, w := range []struct {
		name     string
		bytes    int64
		rate     float64
		replicas int
		want     string
	}{
		// 2.5 GB at 20 GB/s, and 120 tokens of 64 KiB in f32.
		{"one sequence", 2_500_000_000, 1, 1, "at 1 sequences a replica: 50% of the 125.39 ms at the roofline of this machine, measured on 2026-03-01, where memory binds"},
		{"two replicas have 16 GB/s each", 2_500_000_000, 1, 2, "63% of the 156.74 ms"},
		{"a batch", 2_500_000_000, 40, 1, "where arithmetic binds; nothing is faster than its roof"},
		{"in the caches", 60_000_000, 1, 1, "its caches hold the weights, where arithmetic binds"},
	} {
		p := one
		p.Rate = w.rate
		got := share(machineRoof(s, small, Weights{Bytes: w.bytes}, c, w.replicas), p, s.Traffic, w.replicas)
		if !strings.Contains(got, w.want) {
			t.Errorf("%s: %s", w.name, got)
		}
	}
	s.Placement.Replicas, s.SLO.TPOT.Limit = 2, 156*time.Millisecond
	if got := planMachine(s, small, Weights{Bytes: 2_500_000_000}, c); len(got) != 1 || !strings.HasPrefix(got[0], "a token of one sequence takes 156.74 ms at the least and a prompt of 100 tokens ") || !strings.HasSuffix(got[0], "where memory binds; the service level of 156.00 ms cannot be kept") {
		t.Errorf("%q", got)
	}
	s.SLO.TPOT.Limit = 157 * time.Millisecond
	if got := planMachine(s, small, Weights{Bytes: 2_500_000_000}, c); len(got) != 1 || !strings.HasSuffix(got[0], "where memory binds") {
		t.Errorf("%q", got)
	}
	if got := planMachine(s, small, Weights{Bytes: 1e9}, nil); got != nil {
		t.Errorf("%q", got)
	}
	for name, none := range map[string]*roofline.Roof{
		"not measured":      machineRoof(s, small, Weights{Bytes: 1e9}, nil, 1),
		"a shape of naught": machineRoof(s, model.Shape{}, Weights{Bytes: 1e9}, c, 1),
		"a GPU":             machineRoof(Spec{Engine: s.Engine, Placement: Placement{GPU: "h100-sxm"}}, small, Weights{Bytes: 1e9}, c, 1),
		"another engine":    machineRoof(Spec{Engine: Engine{Kind: "ollama"}, Placement: s.Placement}, small, Weights{Bytes: 1e9}, c, 1),
		"an encoder":        machineRoof(Spec{Engine: s.Engine, Placement: s.Placement, Task: deploy.Embedding}, small, Weights{Bytes: 1e9}, c, 1),
	} {
		if none != nil {
			t.Errorf("%s has a roof: %+v", name, none.Deployment().GPU)
		}
	}
}

// Adapters that requests name are in the job, where routers find them.
func TestAdaptersOfAJob(t *testing.T) {
	lora := engine.LoRA{Modules: map[string]string{"latin": "/b", "french": "/a"}}
	for kind, want := range map[string]string{"vllm": "french,latin", "embedded": "french,latin", "tgi": ""} {
		j, err := engineJob(Spec{Name: "q", Placement: Placement{GPU: CPU}}, Version{Dir: "/w"}, Engine{Kind: kind, LoRA: lora})
		if err != nil || j.Meta["adapters"] != want {
			t.Errorf("%s: %q, %v", kind, j.Meta["adapters"], err)
		}
	}
}

// Routers are started with the records that the fleet's file asks for.
func TestRouterJobRecords(t *testing.T) {
	a := &Attempt{Deps: Deps{Dir: "/state"}}
	j, err := a.routerJob(0, routerName)
	if err != nil || slices.Contains(j.Groups[0].Argv, "--records") {
		t.Errorf("%v, %v", j.Groups, err)
	}
	a.Deps.Records = Recording{Dir: "/r", Size: 64 << 20}
	if j, err = a.routerJob(0, routerName); err != nil || !strings.Contains(strings.Join(j.Groups[0].Argv, " "), " --records /r --records-size 65536KiB --state /state") {
		t.Errorf("%v, %v", j.Groups, err)
	}
}
