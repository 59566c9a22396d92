package pipeline

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/deploy"
	"llmops/serving/slo"
)

// measured are the answers of a server that takes ttft to begin and a hundredth of it for
// each of nine more tokens, give or take a few per cent.
func measured(ttft time.Duration) []*load.Result {
	var out []*load.Result
	for i := range 60 {
		at := time.Duration(i) * 100 * time.Millisecond
		d := ttft + time.Duration(i*7919%31)*ttft/1000
		r := &load.Result{ID: i, Stream: true, Scheduled: at, Sent: at, FirstToken: at + d, LastToken: at + d + 9*d/100, FirstTokens: 1, Output: 10, Events: 10, Count: load.CountUsage}
		r.End = r.LastToken
		for range 9 {
			r.Gaps = append(r.Gaps, d/100)
		}
		out = append(out, r)
	}
	return out
}

// onboarding drives runs whose benchmark measured what it is told to.
type onboarding struct {
	t      *testing.T
	d      Deps
	spec   Spec
	dir    string
	live   string
	now    time.Time
	before func() // called before the benchmark
}

// run onboards a version that takes ttft, and gives its head and the benchmark's record.
func (o *onboarding) run(version string, ttft time.Duration) (Head, Record, BenchmarkOutput) {
	o.t.Helper()
	arm := func(name string) Arm {
		return Arm{Version: Version{Name: name, Scheme: "fp8"}, Ready: []deploy.Ready{{Replica: fleet.Replica{Addr: "127.0.0.1:1"}}}}
	}
	pass := evidence.Verdict{Claim: "ok", Outcome: evidence.Pass, N: 1}
	o.d.Now = func() time.Time { o.now = o.now.Add(time.Second); return o.now }
	o.d.Stages = []Stage{
		{Name: StageQuantise, Run: func(_ context.Context, a *Attempt) (evidence.Verdict, error) {
			a.Output(Weights{Dir: o.dir, Bytes: 1_000_000})
			return pass, nil
		}},
		{Name: StageDeploy, Run: func(_ context.Context, a *Attempt) (evidence.Verdict, error) {
			a.Output(DeployOutput{Candidate: arm(version), Stable: arm(o.live)})
			return pass, nil
		}},
		{Name: StageBenchmark, Run: func(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
			if o.before != nil {
				o.before()
			}
			var dep DeployOutput
			if err := a.Result(ctx, StageDeploy, &dep); err != nil {
				return evidence.Verdict{}, err
			}
			l := benchmark.Load{Shape: benchmark.Poisson, Rate: a.Spec.Traffic.Rate, Whole: true, Seed: 1, Content: "chats"}
			rs := measured(ttft)
			p := benchmark.Sum(l, rs, load.Stats{Sent: len(rs)}, a.Spec.SLO)
			return judgeBenchmark(ctx, a, dep, benchmark.Options{Plan: l.Rate, SLO: a.Spec.SLO}, []benchmark.Point{p}, [][]*load.Result{rs})
		}},
	}
	run, err := Create(o.t.Context(), o.d, o.spec, Options{})
	if err != nil {
		o.t.Fatal(err)
	}
	if _, err := drive(o.t, o.d, run, ""); err != nil {
		o.t.Fatal(err)
	}
	h, err := Read(o.t.Context(), o.d.Store, run)
	if err != nil {
		o.t.Fatal(err)
	}
	rs, err := Records(o.t.Context(), o.d.Blobs, h)
	if err != nil {
		o.t.Fatal(err)
	}
	var out BenchmarkOutput
	if err := unmarshal(rs[2].Output, &out); err != nil {
		o.t.Fatal(err)
	}
	if h.State == Done {
		o.live = version
	}
	return h, rs[2], out
}

func onboarder(t *testing.T) *onboarding {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":128,"torch_dtype":"bfloat16"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	d := testDeps(t)
	d.Build = "llmops devel"
	return &onboarding{t: t, d: d, dir: dir, live: "v0", now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), spec: Spec{
		Name: "a.model", Engine: Engine{Kind: "embedded", MaxNumSeqs: 16}, Placement: Placement{GPU: CPU, Replicas: 1}, Traffic: Traffic{Rate: 10, Input: 8, Output: 10},
		SLO: slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}}, Benchmark: Benchmark{Regression: 0.1}}}
}

func warned(r Record, text string) bool {
	return strings.Contains(strings.Join(r.Verdict.Warnings, "\n"), text)
}

// A version is held against the one that is live: slower it ends the run though the service
// level holds.
func TestSlowerVersionIsRefused(t *testing.T) {
	o := onboarder(t)
	h, r, out := o.run("v1", 100*time.Millisecond)
	if h.State != Done || r.Verdict.Outcome != evidence.Pass || !warned(r, "the first of its kind") || out.Regression.Verdict != nil {
		t.Fatalf("the first: %s, %+v", h.State, r.Verdict)
	}
	if rs, err := ReadResults(t.Context(), o.d.Blobs, out.Points[0].File); err != nil || len(rs) != 60 {
		t.Errorf("%d results on record, %v", len(rs), err)
	}
	h, r, out = o.run("v2", 130*time.Millisecond)
	if h.State != Refused || h.Reason != "benchmark: fail" || r.Verdict.Outcome != evidence.Fail || out.Regression.Against != "v1" || !out.Regression.Paired {
		t.Fatalf("a third slower: %s, %+v", h.State, r.Verdict)
	}
	if v := r.Verdict; len(v.Parts) != 2 || v.Parts[0].Outcome != evidence.Pass || v.Parts[1].Outcome != evidence.Fail || !strings.Contains(v.Claim, "no figure is more than 10% worse than in v1") {
		t.Errorf("%+v", v)
	}
	// What was refused never went live: the next is held against v1 still.
	h, r, out = o.run("v3", 104*time.Millisecond)
	if h.State != Done || r.Verdict.Outcome != evidence.Pass || out.Regression.Against != "v1" {
		t.Fatalf("hardly slower: %s, %+v", h.State, r.Verdict)
	}
	// Rolled back to v1, v1 is what it is held against, and not v3, which went live later.
	o.live = "v1"
	if h, _, out = o.run("v4", 112*time.Millisecond); h.State != Refused || out.Regression.Against != "v1" {
		t.Errorf("%s against %s", h.State, out.Regression.Against)
	}
	// Back on a version that nobody benchmarked, it is the newest that went live.
	o.live = "v0"
	if h, _, out = o.run("v5", 112*time.Millisecond); h.State != Done || out.Regression.Against != "v3" {
		t.Errorf("%s against %s", h.State, out.Regression.Against)
	}
}

// What cannot be compared is said, and never passes in silence.
func TestVersionsThatCannotBeCompared(t *testing.T) {
	o := onboarder(t)
	o.run("v1", 100*time.Millisecond)
	o.spec.Placement.GPU = "l4"
	h, r, out := o.run("v2", 500*time.Millisecond)
	if h.State != Done || !warned(r, "not held against v1, which cannot be compared (GPU: cpu and l4)") || out.Regression.Verdict != nil {
		t.Errorf("%s: %+v", h.State, r.Verdict)
	}
	o.spec.Benchmark.Regression = 0
	if h, r, out = o.run("v3", 900*time.Millisecond); h.State != Done || !warned(r, "regression is off: TTFT p50 is 913") || len(out.Regression.Changes) == 0 {
		t.Errorf("%s: %+v", h.State, r.Verdict)
	}
	// Records that are gone, as those of a run on another machine are.
	o.spec.Benchmark.Regression = 0.1
	o.before = func() {
		blobs := filepath.Join(o.d.Dir, "blobs")
		_ = filepath.WalkDir(blobs, func(path string, e os.DirEntry, err error) error {
			if b, rerr := os.ReadFile(path); rerr == nil && strings.Contains(string(b), `"stage":"benchmark"`) && strings.Contains(string(b), `"verdict"`) {
				return os.Remove(path)
			}
			return err
		})
		o.before = nil
	}
	if h, r, out = o.run("v4", 100*time.Millisecond); h.State != Done || out.Regression.Verdict != nil || !warned(r, "its records are not on this machine") {
		t.Errorf("%s: %+v", h.State, r.Verdict)
	}
}
