package pipeline

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"llmops/evidence"
	"llmops/model"
	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/eval"
	"llmops/roofline"
	"llmops/serving/deploy"
	"llmops/serving/openai"
)

// fewestPrompts are sent before one comes a second time and is cached.
const fewestPrompts = 60

// benchmarkRates are offered as parts of the planned rate.
var benchmarkRates = [...]float64{0.5, 1, 1.5}

// BenchmarkOutput is what the benchmark stage leaves. Points have the digests of their
// results, which are blobs, as their files.
type BenchmarkOutput struct {
	System     benchmark.System      `json:"system"`
	Points     []benchmark.Point     `json:"points"`
	Regression *benchmark.Regression `json:"regression,omitempty"`
	Roofline   *benchmark.Roofline   `json:"roofline,omitempty"` // nil: none is known
}

func runBenchmark(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var dep DeployOutput
	if err := a.Result(ctx, StageDeploy, &dep); err != nil {
		return evidence.Verdict{}, err
	}
	requests, err := benchmarkRequests(a.Spec, dep.Candidate.Version.Dir)
	if err != nil {
		return evidence.Verdict{}, err
	}
	o := a.Spec.load()
	o.Content = content(a.Spec, requests)
	for _, r := range benchmarkRates {
		o.Rates = append(o.Rates, r*o.Plan)
	}
	if a.Spec.Task == "" {
		if o.Tokenizer, err = tokenizer.Load(dep.Candidate.Version.Dir); err != nil {
			return evidence.Verdict{}, err
		}
	}
	var bases []string
	for _, r := range dep.Candidate.Ready {
		bases = append(bases, "http://"+r.Addr)
	}
	points, results, err := benchmark.Sweep(ctx, bases, requests, o, a.Progress)
	if err != nil {
		return evidence.Verdict{}, err
	}
	return judgeBenchmark(ctx, a, dep, o, points, results)
}

// load is what the benchmark offers, but for what is asked.
func (s Spec) load() benchmark.Options {
	return benchmark.Options{Plan: s.Traffic.Rate, SLO: s.SLO, Seed: 1, Margin: s.Benchmark.Regression}
}

// judgeBenchmark keeps what was measured and says whether it is good enough: for the
// service level, and beside the version before.
func judgeBenchmark(ctx context.Context, a *Attempt, dep DeployOutput, o benchmark.Options, points []benchmark.Point, results [][]*load.Result) (evidence.Verdict, error) {
	replicas := len(dep.Candidate.Ready)
	out := BenchmarkOutput{System: system(a, dep, replicas), Points: points}
	var err error
	for i, rs := range results {
		if points[i].File, err = keepResults(ctx, a.Deps.Blobs, rs); err != nil {
			return evidence.Verdict{}, err
		}
	}
	v := benchmark.Judge(points, o)
	if v, err = regression(ctx, a, dep, &out, results, v); err != nil {
		return evidence.Verdict{}, err
	}
	r, err := candidateRoof(ctx, a, replicas)
	if err != nil {
		return evidence.Verdict{}, err
	}
	out.Roofline = rooflineOf(r, points, a.Spec.Traffic, replicas)
	a.Output(out)
	for _, p := range points {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%g/s: %s", p.Rate, p.Describe()))
		if s := share(r, p, a.Spec.Traffic, replicas); s != "" {
			v.Warnings = append(v.Warnings, fmt.Sprintf("%g/s: %s", p.Rate, s))
		}
	}
	return v, nil
}

// candidateRoof is the roofline of what is measured on so many replicas; nil where none
// is known.
func candidateRoof(ctx context.Context, a *Attempt, replicas int) (*roofline.Roof, error) {
	var w Weights
	if err := a.Result(ctx, StageQuantise, &w); err != nil {
		return nil, err
	}
	shape, err := model.LoadShape(w.Dir)
	if err != nil {
		return nil, err
	}
	if a.Deps.Ceilings != nil && a.Spec.Placement.GPU == CPU {
		return machineRoof(a.Spec, shape, w, a.Deps.Ceilings(), replicas), nil
	}
	return roof(a.Spec, shape, w)
}

// benchmarkRequests are what the benchmark sends.
func benchmarkRequests(s Spec, dir string) ([]*load.Request, error) {
	if s.Task != "" {
		return encoderRequests(s)
	}
	prompts, err := benchmarkPrompts(s, dir)
	if err != nil {
		return nil, err
	}
	out := make([]*load.Request, len(prompts))
	for i, p := range prompts {
		if out[i], err = benchmark.Chat(s.Name, s.Traffic.Output, p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// rerankWidth is how many passages a benchmarked request ranks.
const rerankWidth = 10

// encoderRequests are the passages of the first suite, one a request, or each query
// with some passages.
func encoderRequests(s Spec) ([]*load.Request, error) {
	c, _, err := eval.ReadCorpus(s.Eval.Suites[0].Items, 0)
	if err != nil {
		return nil, err
	}
	var out []*load.Request
	add := func(r *load.Request, err error) error {
		out = append(out, r)
		return err
	}
	if s.Task == deploy.Embedding {
		for _, p := range c.Passages {
			if err := add(load.Embed(s.Name, p.Text)); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	for i, q := range c.Queries {
		var texts []string
		for k := range min(rerankWidth, len(c.Passages)) {
			texts = append(texts, c.Passages[(i*rerankWidth+k)%len(c.Passages)].Text)
		}
		if err := add(load.Rerank(s.Name, q.Text, texts)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// benchmarkPrompts are the prompts of the first suite that are nearest to the
// planned traffic in tokens, in an order that takes documents apart: a document
// that is asked about twice in a row would be cached the second time.
func benchmarkPrompts(s Spec, dir string) ([][]openai.Message, error) {
	items, _, err := eval.ReadItems(s.Eval.Suites[0].Items, 0)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	template, err := chat.Load(dir)
	if err != nil {
		return nil, err
	}
	type prompt struct {
		messages []openai.Message
		off      int
	}
	prompts := make([]prompt, len(items))
	for i, it := range items {
		text, err := template.Render(chat.Request{Messages: mustJSON(it.Messages), Prompt: true})
		if err != nil {
			return nil, fmt.Errorf("rendering item %s: %w", it.ID, err)
		}
		off := len(tok.Encode(text, true)) - s.Traffic.Input
		prompts[i] = prompt{it.Messages, max(off, -off)}
	}
	slices.SortStableFunc(prompts, func(x, y prompt) int { return x.off - y.off })
	prompts = prompts[:min(len(prompts), max(fewestPrompts, len(prompts)/3))]
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(prompts), func(i, j int) { prompts[i], prompts[j] = prompts[j], prompts[i] })
	out := make([][]openai.Message, len(prompts))
	for i, p := range prompts {
		out[i] = p.messages
	}
	return out, nil
}
