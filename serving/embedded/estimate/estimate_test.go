package estimate

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmops/model"
	"llmops/roofline"
	"llmops/serving/embedded/core"
)

var shape70B = model.Shape{Family: "llama", Hidden: 8192, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Intermediate: 28672, Vocab: 128256, EOS: []int{128001}}

func big(edits ...func(*Options)) Options {
	o := Options{GPU: "assumed-192gb", TensorParallel: 8, Shape: shape70B, Parameters: 70e9}
	for _, e := range edits {
		e(&o)
	}
	return o
}

func executor(t testing.TB, o Options) *Executor {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// served is what became of one sequence.
type served struct {
	tokens []int
	finish string
	first  time.Duration // after its arrival
	last   time.Duration
}

// tpot is the mean time between tokens.
func (s served) tpot() float64 { return (s.last - s.first).Seconds() / float64(len(s.tokens)-1) }

// serve runs sequences on a virtual clock from one moment on.
func serve(t testing.TB, e core.Executor, l core.Limits, seqs ...*core.Sequence) []served {
	t.Helper()
	c, err := core.New(l)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]served, len(seqs))
	for i, s := range seqs {
		s.ID = uint64(i)
		if err := c.Add(0, s); err != nil {
			t.Fatal(err)
		}
	}
	var b core.Batch
	var now time.Duration
	out := make([]core.Token, l.Sequences)
	for c.Next(now, &b) {
		took, err := e.Step(t.Context(), &b, out)
		if err != nil {
			t.Fatal(err)
		}
		now += took
		c.Commit(now, &b, out, func(ev core.Event) {
			s := &all[ev.Seq.ID]
			if len(s.tokens) == 0 {
				s.first = now
			}
			s.tokens, s.finish, s.last = append(s.tokens, ev.Token.ID), ev.Finish, now
		})
	}
	return all
}

func limits(e *Executor) core.Limits {
	return core.Limits{Sequences: 512, Tokens: 1 << 20, Blocks: min(e.Blocks(), 1<<15)}
}

// prompt is one that shares nothing with prompts of another seed.
func prompt(n, seed int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = seed*1_000_003 + i
	}
	return p
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got/want-1) <= tolerance) {
		t.Errorf("%s: %.5g, want %.5g within %g %%", what, got, want, 100*tolerance)
	}
}

// What the scheduler and the executor do together is what the formulas say.
func TestAgreesWithRoofline(t *testing.T) {
	for name, o := range map[string]Options{
		"bf16":        big(),
		"fp8":         big(func(o *Options) { o.Weights, o.KV = "fp8", "fp8" }),
		"fp8 math":    big(func(o *Options) { o.Weights, o.KV, o.FP8Arithmetic = "fp8", "fp8", true }),
		"h100 int4":   big(func(o *Options) { o.GPU, o.TensorParallel, o.Weights = "h100-sxm", 4, "int4" }),
		"collectives": big(func(o *Options) { o.Assume = roofline.Assumed(); o.Assume.PrefillCollectives = true }),
	} {
		e := executor(t, o)
		near(t, name+": blocks", float64(e.Blocks()), e.Roof().KVPoolTokens()/core.BlockSize, 0.001)
		for _, n := range []int{2048, 32768} {
			got := serve(t, e, limits(e), &core.Sequence{Prompt: prompt(n, 1), Max: 1})
			near(t, name+": TTFT", got[0].first.Seconds(), e.Roof().PrefillPrompt(n).Seconds, 0.05)
		}
		for _, batch := range []int{1, 32, 192} {
			const context, answer = 2048, 65
			seqs := make([]*core.Sequence, batch)
			for i := range seqs {
				seqs[i] = &core.Sequence{Prompt: prompt(context-answer/2, i), Max: answer}
			}
			got := serve(t, e, limits(e), seqs...)
			near(t, name+": TPOT", got[batch-1].tpot(), e.Roof().DecodeStep(batch, context).Seconds, 0.05)
		}
		// One stream shows what reading the weights takes, and each token of the cache.
		one := func(context int) float64 {
			s := serve(t, e, limits(e), &core.Sequence{Prompt: prompt(context-10, 1), Max: 21})[0]
			return s.tpot() * e.Roof().Deployment().Assume.EndToEndShare
		}
		const far = 30000
		token := (one(far) - one(32)) / (far - 32)
		rest := e.Roof().DecodeStep(1, 32)
		weights := one(32) - 32*token - rest.AllReduceSeconds - rest.FixedSeconds
		near(t, name+": knee", weights/(2048*token), e.Roof().Knee(2048), 0.05)
	}
}

func TestTokens(t *testing.T) {
	e := executor(t, big())
	ask := func(e *Executor, s core.Sequence) served {
		if s.Prompt == nil {
			s.Prompt = prompt(100, 1)
		}
		s.Max = max(s.Max, 50)
		return serve(t, e, core.Limits{Sequences: 1, Tokens: 512, Blocks: 128}, &s)[0]
	}
	plain := ask(e, core.Sequence{})
	if len(plain.tokens) != 50 || plain.finish != "length" {
		t.Errorf("%d tokens, %q", len(plain.tokens), plain.finish)
	}
	for _, id := range plain.tokens {
		if id < 0 || id >= shape70B.Vocab {
			t.Errorf("token %d is outside of the vocabulary", id)
		}
	}
	slices.Sort(plain.tokens)
	if n := len(slices.Compact(plain.tokens)); n < 48 {
		t.Errorf("%d different tokens of 50", n)
	}
	same := ask(executor(t, big()), core.Sequence{})
	bare := ask(e, core.Sequence{Sampling: core.Sampling{Top: -1}})
	for what, s := range map[string]served{
		"another seed":          ask(executor(t, big(func(o *Options) { o.Seed = 1 })), core.Sequence{}),
		"another request seed":  ask(e, core.Sequence{Sampling: core.Sampling{Seed: 1}}),
		"another prompt":        ask(e, core.Sequence{Prompt: prompt(100, 2)}),
		"a longer prompt":       ask(e, core.Sequence{Prompt: prompt(101, 1)}),
		"those of before alike": {},
	} {
		if slices.Equal(s.tokens, same.tokens) {
			t.Errorf("%s gives the same tokens", what)
		}
	}
	if !slices.Equal(bare.tokens, same.tokens) {
		t.Error("asking for log probabilities changes the tokens")
	}

	// Whatever would end an answer does not come by chance, and comes when asked for.
	tiny := big(func(o *Options) { o.Shape.Vocab = 3 })
	if s := ask(executor(t, tiny), core.Sequence{Stop: []int{0, 2}}); s.finish != "length" || slices.Contains(s.tokens, 0) {
		t.Errorf("%q after %v", s.finish, s.tokens)
	}
	if s := ask(executor(t, tiny), core.Sequence{Stop: []int{0, 1, 2}}); s.finish != "stop" {
		t.Errorf("a vocabulary of stops gives %q", s.finish)
	}
	ending := executor(t, big(func(o *Options) { o.AnswerTokens = 20 }))
	sum := 0
	for i := range 400 {
		s := ask(ending, core.Sequence{Prompt: prompt(40, i), Stop: []int{7}, Max: 1000, Sampling: core.Sampling{Min: 2}})
		if s.finish != "stop" || s.tokens[len(s.tokens)-1] != 7 || len(s.tokens) < 3 {
			t.Fatalf("answer %d: %q after %d tokens", i, s.finish, len(s.tokens))
		}
		sum += len(s.tokens)
	}
	near(t, "mean answer", float64(sum)/400, 20, 0.15)
}

// evens allows even tokens only.
type evens struct{ seen []int }

func (g *evens) Mask(logits []float32) {
	for i := 1; i < len(logits); i += 2 {
		logits[i] = float32(math.Inf(-1))
	}
}
func (g *evens) Accept(id int) { g.seen = append(g.seen, id) }

func TestGuideAndReports(t *testing.T) {
	e := executor(t, big())
	g := &evens{}
	serve(t, e, limits(e), &core.Sequence{Prompt: prompt(10, 1), Max: 40, Guide: g})
	if len(g.seen) != 40 || slices.ContainsFunc(g.seen, func(id int) bool { return id%2 != 0 }) {
		t.Errorf("the guide saw %v", g.seen)
	}
	c, err := core.New(core.Limits{Sequences: 1, Tokens: 6, Blocks: 4})
	if err != nil {
		t.Fatal(err)
	}
	s := &core.Sequence{Prompt: prompt(10, 1), Max: 1, Score: true, Sampling: core.Sampling{Top: 3}}
	if err := c.Add(0, s); err != nil {
		t.Fatal(err)
	}
	var scored []int
	var b core.Batch
	out := make([]core.Token, 1)
	for c.Next(0, &b) {
		if _, err := e.Step(t.Context(), &b, out); err != nil {
			t.Fatal(err)
		}
		c.Commit(0, &b, out, func(ev core.Event) {
			for _, p := range ev.Prompt {
				scored = append(scored, p.ID)
			}
			if ev.Token == nil {
				return
			}
			near(t, "logprob", float64(ev.Token.Logprob), -math.Log(128256), 1e-6)
			if len(ev.Token.Top) != 3 || ev.Token.Top[0].ID != ev.Token.ID {
				t.Errorf("alternatives %v", ev.Token.Top)
			}
		})
	}
	if !slices.Equal(scored, s.Prompt[1:]) {
		t.Errorf("scored %v, want %v", scored, s.Prompt[1:])
	}
}

// On the wall clock a step takes its time, and no longer than the caller waits.
func TestRealTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := big(func(o *Options) { o.RealTime = true })
		e := executor(t, o)
		begun := time.Now()
		got := serve(t, e, limits(e), &core.Sequence{Prompt: prompt(2048, 1), Max: 20})
		if took := time.Since(begun); took != got[0].last {
			t.Errorf("took %v by the wall, %v by the executor", took, got[0].last)
		}
		o.RealTime = false
		if quick := serve(t, executor(t, o), limits(e), &core.Sequence{Prompt: prompt(2048, 1), Max: 20}); quick[0].last != got[0].last {
			t.Errorf("virtual %v, real %v", quick[0].last, got[0].last)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		b := core.Batch{Rows: []core.Row{{Seq: &core.Sequence{}, Tokens: []int{1, 2}}}}
		if _, err := e.Step(ctx, &b, make([]core.Token, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestRefusalsAndDescription(t *testing.T) {
	for want, edit := range map[string]func(*Options){
		"h100-sxm":        func(o *Options) { o.GPU = "h100" },
		"weights in":      func(o *Options) { o.Weights = "fp4" },
		"and a cache in":  func(o *Options) { o.KV = "int4" },
		"vocabulary":      func(o *Options) { o.Shape.Vocab = 0 },
		"layers":          func(o *Options) { o.Shape.Layers = 0 },
		"leave no room":   func(o *Options) { o.GPU, o.TensorParallel = "l4", 4 },
		"negative":        func(o *Options) { o.AnswerTokens = -1 },
		"this arithmetic": func(o *Options) { o.GPU, o.FP8Arithmetic = "a100-80gb", true },
	} {
		if _, err := New(big(edit)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
	got := executor(t, big(func(o *Options) { o.Weights, o.KV = "fp8", "fp8" })).Describe()
	if want := "estimate, not computed: 70 B parameters in fp8, cache in fp8, arithmetic in bf16, on 8 × assumed-192gb; tokens are made up"; got != want {
		t.Errorf("describes itself as %q", got)
	}
}

// batch is a step of n sequences that decode at a context of 2,048.
func batch(n int) *core.Batch {
	b := &core.Batch{Tokens: n}
	for i := range n {
		b.Rows = append(b.Rows, core.Row{Seq: &core.Sequence{Sampling: core.Sampling{Top: -1}}, Start: 2047, Tokens: []int{i}, Sample: true})
	}
	return b
}

func TestStepDoesNotAllocate(t *testing.T) {
	e, b, out := executor(t, big()), batch(32), make([]core.Token, 32)
	if n := testing.AllocsPerRun(100, func() { _, _ = e.Step(t.Context(), b, out) }); n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

func BenchmarkStep(b *testing.B) {
	e, step, out := executor(b, big()), batch(100), make([]core.Token, 100)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = e.Step(b.Context(), step, out)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/row")
}
