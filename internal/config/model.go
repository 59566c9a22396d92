// Package config reads the files that people write, model.yaml above all, into
// the types of the packages that use them.
//
// Reading is strict: an unknown or duplicate key, a value in the wrong unit or
// a key that is missing is an error that shows the line, and all of them are
// reported at once. Defaults are filled in here and nowhere else. Only the
// command line imports this package.
package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/download"
	"llmops/pipeline/quantise"
	"llmops/serving/deploy"
	"llmops/serving/slo"
)

// Guards are what a canary can be rolled back on.
var Guards = []string{"ttft", "tpot", "errors", "refusals"}

// encoderGuards are those of encoders, whose answer comes all at once: its end is
// what ttft measures.
var encoderGuards = []string{"ttft", "errors"}

// maxName leaves room in the names of documents and replicas, which begin and
// end with more.
const maxName = 96

// Schemes are the quantisation schemes that there are.
var Schemes = []string{"none", "fp8-dynamic", "fp8-block", "fp8-block-ue8m0", "fp8-static", "int8", "int8-weight", "int4", "int4-tensor"}

// leastRegression is the smallest margin that a benchmark can be held to.
const leastRegression = 0.01

type file struct {
	APIVersion scalar     `yaml:"apiVersion"`
	Kind       scalar     `yaml:"kind"`
	Name       scalar     `yaml:"name"`
	Change     scalar     `yaml:"change"`
	First      scalar     `yaml:"first"`
	Task       scalar     `yaml:"task"`
	Source     scalar     `yaml:"source"`
	Engine     engineFile `yaml:"engine"`
	Quantise   struct {
		Scheme scalar   `yaml:"scheme"`
		Keep   []scalar `yaml:"keep"`
		Scales scalar   `yaml:"scales"`
	} `yaml:"quantise"`
	Placement placementFile `yaml:"placement"`
	Traffic   struct {
		Rate   scalar `yaml:"rate"`
		Input  scalar `yaml:"input"`
		Output scalar `yaml:"output"`
		Replay scalar `yaml:"replay"`
	} `yaml:"traffic"`
	SLO struct {
		Preset      scalar `yaml:"preset"`
		TTFT        scalar `yaml:"ttft"`
		TPOT        scalar `yaml:"tpot"`
		ErrorRate   scalar `yaml:"error_rate"`
		RefusalRate scalar `yaml:"refusal_rate"`
	} `yaml:"slo"`
	Benchmark struct {
		Regression scalar `yaml:"regression"`
	} `yaml:"benchmark"`
	Eval struct {
		Suites []struct {
			Name   scalar `yaml:"name"`
			Items  scalar `yaml:"items"`
			Limit  scalar `yaml:"limit"`
			At     scalar `yaml:"at"`
			Margin scalar `yaml:"margin"`
		} `yaml:"suites"`
		Text       scalar `yaml:"text"`
		Canaries   scalar `yaml:"canaries"`
		Perplexity scalar `yaml:"perplexity"`
		Confidence scalar `yaml:"confidence"`
	} `yaml:"eval"`
	Shadow struct {
		Share scalar `yaml:"share"`
		For   scalar `yaml:"for"`
	} `yaml:"shadow"`
	Canary struct {
		Zone  scalar `yaml:"zone"`
		Steps []struct {
			Weight scalar `yaml:"weight"`
			Bake   scalar `yaml:"bake"`
		} `yaml:"steps"`
		Max        scalar   `yaml:"max"`
		Harm       scalar   `yaml:"harm"`
		RollbackOn []scalar `yaml:"rollback_on"`
	} `yaml:"canary"`
	Standby scalar `yaml:"standby"`
	Caps    struct {
		Streams  scalar `yaml:"streams"`
		KVTokens scalar `yaml:"kv_tokens"`
	} `yaml:"caps"`
	Scale *scaleFile `yaml:"scale"`
}

// Model reads a model.yaml. Paths in it are relative to its folder.
func Model(path string) (pipeline.Spec, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return pipeline.Spec{}, err
	}
	var f file
	src, err := decode(path, &f)
	if err != nil {
		return pipeline.Spec{}, err
	}
	r := &reader{path: path, src: src}
	s := f.spec(r)
	return s, r.err()
}

func (f *file) spec(r *reader) pipeline.Spec {
	dir := filepath.Dir(r.path)
	r.oneOf("apiVersion", f.APIVersion, "", "llmops/v1")
	r.oneOf("kind", f.Kind, "", "Model")
	task := f.task(r)
	s := pipeline.Spec{
		Name: r.text(f.Name, ""), File: r.path,
		Change:    pipeline.Change(r.oneOf("change", f.Change, "infra", "infra")),
		First:     r.oneOf("first", f.First, "ask", "ask", "parent"),
		Task:      task,
		Source:    f.source(r, dir),
		Engine:    f.engine(r, dir),
		Quantise:  f.quantise(r, dir),
		Placement: f.placement(r, dir),
		Traffic:   f.traffic(r, dir, task),
		SLO:       f.slo(r, task),
		Benchmark: f.benchmark(r),
		Eval:      f.eval(r, dir, task),
		Shadow:    pipeline.Shadow{Share: r.part("shadow.share", f.Shadow.Share, 0.05), For: r.span("shadow.for", f.Shadow.For, 7*24*time.Hour)},
		Canary:    f.canary(r, task),
		Standby:   r.duration("standby", f.Standby, 48*time.Hour),
		Caps:      pipeline.Caps{Streams: r.integer("caps.streams", f.Caps.Streams, 0), KVTokens: r.integer("caps.kv_tokens", f.Caps.KVTokens, 0)},
	}
	r.generates(task, f.Caps.KVTokens, "caps.kv_tokens")
	if n, most := s.Caps.KVTokens, s.Engine.MaxModelLen; n > 0 && n < most {
		r.complain(f.Caps.KVTokens, "caps.kv_tokens is %d, less than one sequence of engine.max_model_len, %d", n, most)
	}
	s.Scale = f.scale(r, s.Placement)
	f.engineCan(r, s)
	switch n := len(fleet.Escape(s.Name)); {
	case n == 0:
		r.missing("name", "it is what clients put in \"model\"")
	case strings.Contains(s.Name, "@"):
		r.complain(f.Name, "name holds an @, behind which clients ask for a version")
	case n > maxName:
		r.complain(f.Name, "name has %d bytes, want at most %d, where one other than a letter, a digit, - and _ counts three", n, maxName)
	}
	if t := s.Traffic; s.Engine.MaxModelLen > 0 && t.Input+t.Output > s.Engine.MaxModelLen {
		r.complain(cmpSet(f.Traffic.Input, f.Traffic.Output), "traffic.input and traffic.output are %d tokens together, more than engine.max_model_len, %d", t.Input+t.Output, s.Engine.MaxModelLen)
	}
	return s
}

// generates complains about a key that means something for generated text alone.
func (r *reader) generates(task deploy.Task, s scalar, key string) {
	if task != "" && s.set() {
		r.complain(s, "%s: a model for %s generates no text; leave it out", key, task)
	}
}

func (f *file) source(r *reader, dir string) string {
	v := r.text(f.Source, "")
	switch {
	case v == "":
		r.missing("source", "give the folder that holds config.json and the weights")
	case !download.Local(v):
		if err := download.CheckSource(v); err != nil {
			r.complain(f.Source, "%v", err)
		}
		return v
	case strings.Contains(v, "://"):
		r.complain(f.Source, "source %q: want a folder, hf://org/name@revision, s3://bucket/prefix or https://host/folder/", v)
	default:
		return abs(dir, v)
	}
	return ""
}

func abs(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func (f *file) quantise(r *reader, dir string) pipeline.Quantise {
	q := pipeline.Quantise{Scheme: r.oneOf("quantise.scheme", f.Quantise.Scheme, "none", Schemes...)}
	if q.Scheme == "none" {
		q.Scheme = ""
	}
	for _, k := range f.Quantise.Keep {
		q.Keep = append(q.Keep, k.text)
	}
	q.Scales = abs(dir, r.text(f.Quantise.Scales, ""))
	switch {
	case q.Scales == "" && q.Scheme == quantise.FP8Static:
		r.missing("quantise.scales", "fp8-static needs the scales of activations, which llmops quantise scales measures")
	case q.Scales != "" && q.Scheme == "":
		r.complain(f.Quantise.Scales, "quantise.scales: the scheme is none, which has no scales; leave it out")
	default:
		r.exists(f.Quantise.Scales, "quantise.scales", q.Scales)
	}
	return q
}

func (f *file) traffic(r *reader, dir string, task deploy.Task) pipeline.Traffic {
	r.generates(task, f.Traffic.Output, "traffic.output")
	t := pipeline.Traffic{
		Rate:   r.rate("traffic.rate", f.Traffic.Rate, 0),
		Input:  r.integer("traffic.input", f.Traffic.Input, 0),
		Output: r.integer("traffic.output", f.Traffic.Output, 0),
		Replay: abs(dir, r.text(f.Traffic.Replay, "")),
	}
	for key, unset := range map[string]bool{"traffic.rate": t.Rate == 0, "traffic.input": t.Input == 0, "traffic.output": t.Output == 0 && task == ""} {
		if unset {
			r.missing(key, "the benchmark and the plan are made for it")
		}
	}
	r.exists(f.Traffic.Replay, "traffic.replay", t.Replay)
	return t
}

// exists complains about a path of the file that is not there.
func (r *reader) exists(s scalar, key, path string) {
	if path == "" {
		return
	}
	if _, err := os.Stat(path); err != nil {
		r.complain(s, "%s: %v", key, err)
	}
}

func (f *file) slo(r *reader, task deploy.Task) slo.Class {
	r.generates(task, f.SLO.TPOT, "slo.tpot")
	r.generates(task, f.SLO.RefusalRate, "slo.refusal_rate")
	presets := slo.Presets()
	names := []string{}
	for n := range presets {
		names = append(names, n)
	}
	slices.Sort(names)
	c := presets[r.oneOf("slo.preset", f.SLO.Preset, "interactive", names...)]
	if f.SLO.TTFT.set() {
		c.TTFT = slo.Bound{Quantile: 0.95, Limit: r.span("slo.ttft", f.SLO.TTFT, 0)}
	}
	if f.SLO.TPOT.set() {
		c.TPOT = slo.Bound{Quantile: 0.95, Limit: r.span("slo.tpot", f.SLO.TPOT, 0)}
	}
	if task != "" {
		c.TPOT = slo.Bound{}
	}
	c.ErrorRate = r.part("slo.error_rate", f.SLO.ErrorRate, 0)
	c.RefusalRate = r.part("slo.refusal_rate", f.SLO.RefusalRate, 0)
	return c
}

func (f *file) benchmark(r *reader) pipeline.Benchmark {
	if f.Benchmark.Regression.text == "off" {
		return pipeline.Benchmark{}
	}
	b := pipeline.Benchmark{Regression: r.suffixed("benchmark.regression", f.Benchmark.Regression, benchmark.DefaultMargin, "10%, or off", map[string]float64{"%": 100})}
	if f.Benchmark.Regression.set() && b.Regression < leastRegression {
		r.complain(f.Benchmark.Regression, "benchmark.regression is %q, want at least %.0f%%: less than that no two runs of one version agree by", f.Benchmark.Regression.text, 100*leastRegression)
	}
	return b
}

func (f *file) eval(r *reader, dir string, task deploy.Task) pipeline.Eval {
	r.generates(task, f.Eval.Text, "eval.text")
	r.generates(task, f.Eval.Canaries, "eval.canaries")
	e := pipeline.Eval{
		Text:       abs(dir, r.text(f.Eval.Text, "")),
		Canaries:   abs(dir, r.text(f.Eval.Canaries, "")),
		Perplexity: r.number("eval.perplexity", f.Eval.Perplexity, 1.01),
		Confidence: r.share("eval.confidence", f.Eval.Confidence, 0.95),
	}
	r.exists(f.Eval.Text, "eval.text", e.Text)
	r.exists(f.Eval.Canaries, "eval.canaries", e.Canaries)
	if f.Eval.Perplexity.set() && e.Text == "" {
		r.complain(f.Eval.Perplexity, "eval.perplexity needs eval.text, the file to measure it on")
	}
	if e.Perplexity <= 1 {
		r.complain(f.Eval.Perplexity, "eval.perplexity is %v, want more than 1: it is the ratio to the source's that is still accepted", e.Perplexity)
	}
	if e.Confidence <= 0.5 || e.Confidence >= 1 {
		r.complain(f.Eval.Confidence, "eval.confidence is %v, want more than 50%% and less than 100%%", e.Confidence)
	}
	seen := map[string]bool{}
	for _, in := range f.Eval.Suites {
		su := pipeline.Suite{Name: r.text(in.Name, ""), Margin: r.points("eval.suites.margin", in.Margin, 0)}
		if task != "" {
			su.At = r.integer("eval.suites.at", in.At, 10)
		} else if in.At.set() {
			r.complain(in.At, "eval.suites.at: only an encoder's suite has it, as the k of recall@k")
		}
		if in.Limit.set() {
			su.Limit = r.integer("eval.suites.limit", in.Limit, 0)
		}
		if su.Name == "" || su.Margin <= 0 || su.Margin >= 1 || seen[su.Name] {
			r.complain(cmpSet(in.Name, in.Margin), "a suite needs a name of its own and a margin above 0pt and below 100pt, such as 0.5pt")
			continue
		}
		seen[su.Name] = true
		su.Items = abs(dir, r.text(in.Items, filepath.Join("evals", su.Name+".jsonl")))
		r.exists(cmpSet(in.Items, in.Name), "items of suite "+su.Name, su.Items)
		e.Suites = append(e.Suites, su)
	}
	if len(e.Suites) == 0 {
		r.missing("eval.suites", "without items nothing can be said about parity")
	}
	return e
}

func cmpSet(a, b scalar) scalar {
	if a.set() {
		return a
	}
	return b
}

func (f *file) canary(r *reader, task deploy.Task) pipeline.Canary {
	guards := Guards
	if task != "" {
		guards = encoderGuards
	}
	if f.Canary.Zone.set() {
		r.complain(f.Canary.Zone, "canary.zone: a fleet of one machine has no zones; leave it out")
	}
	c := pipeline.Canary{
		Max:  r.times("canary.max", f.Canary.Max, 4),
		Harm: r.number("canary.harm", f.Canary.Harm, 1.25),
	}
	if c.Harm <= 1 {
		r.complain(f.Canary.Harm, "canary.harm is %v, want more than 1: at 1 a difference of nothing is rolled back once there is enough traffic", c.Harm)
	}
	last := 0.0
	for i, st := range f.Canary.Steps {
		step := pipeline.Step{Weight: r.share("canary.steps.weight", st.Weight, 0), Bake: r.duration("canary.steps.bake", st.Bake, 0)}
		if step.Weight <= last || step.Weight >= 1 || step.Bake <= 0 {
			r.complain(cmpSet(st.Weight, st.Bake), "canary step %d: want a weight above the one before and below 100%%, and a bake", i+1)
		}
		last = step.Weight
		c.Steps = append(c.Steps, step)
	}
	if len(c.Steps) == 0 {
		c.Steps = []pipeline.Step{{Weight: 0.01, Bake: 24 * time.Hour}, {Weight: 0.1, Bake: 2 * time.Hour}, {Weight: 0.5, Bake: 2 * time.Hour}}
	}
	for _, g := range f.Canary.RollbackOn {
		if !slices.Contains(guards, g.text) {
			r.complain(g, "canary.rollback_on: %q is none of %s", g.text, strings.Join(guards, ", "))
			continue
		}
		c.RollbackOn = append(c.RollbackOn, g.text)
	}
	if len(c.RollbackOn) == 0 {
		c.RollbackOn = slices.Clone(guards)
	}
	return c
}
