// Package estimate is an executor without arithmetic: it takes for each step the
// time that package roofline says a named GPU would need, and makes tokens up. With
// it the scheduler of package core shows what a fleet of GPUs would do, in a
// simulation on a virtual clock or behind an HTTP server on the wall clock.
//
// [New] prepares an [Executor] from [Options]. Under the same options the same
// prompt gets the same tokens, on every replica and after every restart; they mean
// nothing, so whatever judges a model by its answers has to refuse them. All tokens
// count as equally likely. An Executor belongs to one goroutine. On the wall clock it
// waits, and only for what its own overhead has left of the step.
//
// Where other simulators and engines are documented to behave differently:
//
//   - llm-d-inference-sim draws the time to the first token and between tokens per
//     request, from settings and a standard deviation, and scales them by a factor
//     that grows with the number of running requests. Here both follow from what else
//     is in each step: a longer context, another's prompt and a full cache show.
//   - Its prefill costs a constant and a time per token, linear in the prompt; here
//     attention is quadratic, which at 32k tokens is over a third of the work.
//   - Its hand-over from a prefill engine takes a set time; here an imported prompt
//     costs its one last token, and the transfer is the driver's to add.
//   - Its cache is sized in blocks by hand and its answers are sentences from a list or
//     the prompt's echo; here blocks follow from the GPU's memory, and tokens are drawn
//     from the vocabulary until a sequence's limit.
//   - vLLM sizes its cache by a profiling run and the share of memory it is given;
//     here by weights and a reserve, which differs by its activation peak (some 5 GB).
//   - vLLM admits a sequence when its known tokens fit, and preempts and recomputes
//     when blocks run out. That is core's Limits.Overcommit; without it core reserves
//     the longest answer.
//
// As vLLM is documented to, core gives answers their token before prompts are computed
// further, and computes what was preempted again.
package estimate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"llmops/model"
	"llmops/roofline"
	"llmops/serving/embedded/core"
)

// Options say what is estimated.
type Options struct {
	GPU            string // a name of the roofline's catalogue
	TensorParallel int    // GPUs; default 1
	Shape          model.Shape
	Parameters     float64 // 0: the shape's
	Weights        string  // bf16, fp8, int8 or int4; default bf16
	KV             string  // bf16 or fp8; default bf16
	FP8Arithmetic  bool    // products at the GPU's fp8 rate

	Assume    roofline.Assumptions // the zero value: roofline.Assumed
	BlockSize int                  // default core.BlockSize

	Seed uint64 // of the tokens
	// AnswerTokens ends answers with the first of their stop tokens, after so many
	// tokens in the mean. 0: they go on to their limit.
	AnswerTokens int
	RealTime     bool // wait for the time that a step takes
}

// DTypes are what Options.Weights and Options.KV may be.
func DTypes() (weights, kv []string) { return roofline.DTypes() }

// Executor estimates one copy of a model. It implements core.Executor.
type Executor struct {
	o      Options
	roof   *roofline.Roof
	blocks int
	logits []float32 // for guides
}

var _ core.Executor = (*Executor)(nil)

// New prepares an Executor. An error says what does not fit or is not known.
func New(o Options) (*Executor, error) {
	o.TensorParallel = cmp.Or(o.TensorParallel, 1)
	o.Weights, o.KV, o.BlockSize = cmp.Or(o.Weights, "bf16"), cmp.Or(o.KV, "bf16"), cmp.Or(o.BlockSize, core.BlockSize)
	if o.Assume == (roofline.Assumptions{}) {
		o.Assume = roofline.Assumed()
	}
	gpu, ok := roofline.Lookup(o.GPU)
	if !ok {
		return nil, fmt.Errorf("GPU %q is not in the catalogue; want one of %s", o.GPU, strings.Join(GPUs(), ", "))
	}
	w, known := roofline.WeightBytes(o.Weights)
	kv, also := roofline.KVBytes(o.KV)
	switch {
	case !known || !also:
		return nil, fmt.Errorf("weights in %q and a cache in %q: want bf16, fp8, int8 or int4, and bf16 or fp8", o.Weights, o.KV)
	case o.Shape.Vocab < 2:
		return nil, fmt.Errorf("a vocabulary of %d: want at least 2", o.Shape.Vocab)
	case o.BlockSize < 1 || o.AnswerTokens < 0:
		return nil, fmt.Errorf("blocks of %d tokens, answers of %d: want the first at least 1, the second not negative", o.BlockSize, o.AnswerTokens)
	}
	roof, err := roofline.New(roofline.Deployment{
		GPU: gpu, TensorParallel: o.TensorParallel, Shape: o.Shape, Parameters: o.Parameters,
		WeightBytes: w, KVBytes: kv, FP8Arithmetic: o.FP8Arithmetic, Assume: o.Assume,
	})
	if err != nil {
		return nil, fmt.Errorf("estimating on %s: %w", o.GPU, err)
	}
	e := &Executor{o: o, roof: roof, blocks: int(min(roof.KVPoolTokens()/float64(o.BlockSize), math.MaxInt32))}
	if e.blocks < 1 {
		return nil, fmt.Errorf("estimating on %s: %.1f GB of weights leave no room for a cache on %d of them; use more GPUs or fewer bits",
			o.GPU, roof.WeightBytes()/1e9, o.TensorParallel)
	}
	return e, nil
}

// GPUs are the names that Options.GPU may be.
func GPUs() []string {
	var names []string
	for _, g := range roofline.GPUs() {
		names = append(names, g.Name)
	}
	return names
}

// Blocks is how many blocks of Options.BlockSize tokens the GPUs' memory holds.
func (e *Executor) Blocks() int { return e.blocks }

// Roof is the arithmetic behind the steps.
func (e *Executor) Roof() *roofline.Roof { return e.roof }

// Describe says in a line what is estimated, for whoever lists models.
func (e *Executor) Describe() string {
	arithmetic := "bf16"
	if e.o.FP8Arithmetic {
		arithmetic = "fp8"
	}
	return fmt.Sprintf("estimate, not computed: %.3g B parameters in %s, cache in %s, arithmetic in %s, on %d × %s; tokens are made up",
		e.roof.WeightBytes()/e.roof.Deployment().WeightBytes/1e9, e.o.Weights, e.o.KV, arithmetic, e.o.TensorParallel, e.o.GPU)
}

// Step implements core.Executor.
func (e *Executor) Step(ctx context.Context, b *core.Batch, out []core.Token) (time.Duration, error) {
	begun := time.Time{}
	if e.o.RealTime {
		begun = time.Now()
	}
	took := e.Time(b)
	e.Fill(b, out)
	if e.o.RealTime {
		if err := wait(ctx, took-time.Since(begun)); err != nil {
			return 0, err
		}
	}
	return took, nil
}

// Time is how long a step takes, the first half of Step. A driver of many replicas
// fills their tokens in when a step ends, into one buffer for all.
func (e *Executor) Time(b *core.Batch) time.Duration {
	var w roofline.Work
	for i := range b.Rows {
		// A row of one token reads the cache as decoding does, whether the token
		// was generated or is the rest of a prompt.
		if r := &b.Rows[i]; len(r.Tokens) == 1 {
			e.roof.Decode(&w, r.Start+1)
		} else {
			e.roof.Prefill(&w, r.Start, len(r.Tokens))
		}
	}
	return time.Duration(e.roof.Step(w).Seconds * float64(time.Second))
}

// Fill makes the tokens of a step up, the second half of Step.
func (e *Executor) Fill(b *core.Batch, out []core.Token) {
	for i := range b.Rows {
		r := &b.Rows[i]
		if !r.Seq.Plain() {
			e.token(r, &out[i])
			continue
		}
		t := &out[i]
		t.ID, t.Logprob, t.Rank, t.Top, t.Prompt = e.draw(r), 0, 0, nil, nil
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// draw gives a token that depends on the seeds, on the last token of the row and on
// where it stands. A sequence's own seed comes in with its first token, and by that
// into the others.
func (e *Executor) draw(r *core.Row) int {
	last := len(r.Tokens) - 1
	at, seed := r.Start+last, e.o.Seed
	if at < len(r.Seq.Prompt) {
		seed ^= r.Seq.Sampling.Seed
	}
	hi, _ := bits.Mul64(mix(seed, uint64(r.Tokens[last])<<32^uint64(at)), uint64(e.o.Shape.Vocab))
	return int(hi)
}

// mix is the finalizer of splitmix64 over both.
func mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// token makes up the token of a row that asks for more than any.
func (e *Executor) token(r *core.Row, t *core.Token) {
	*t = core.Token{}
	s := r.Seq
	if s.Score {
		for at := r.Start + 1; at <= min(r.Start+len(r.Tokens), len(s.Prompt)-1); at++ {
			t.Prompt = append(t.Prompt, e.report(s.Prompt[at], s.Sampling.Top))
		}
	}
	if !r.Sample {
		return
	}
	id := e.choose(r)
	if prompt := t.Prompt; s.Sampling.Top >= 0 {
		*t = e.report(id, s.Sampling.Top)
		t.Prompt = prompt
	}
	t.ID = id
}

// report describes one of equally likely tokens.
func (e *Executor) report(id, top int) core.Token {
	each := float32(-math.Log(float64(e.o.Shape.Vocab)))
	t := core.Token{ID: id, Logprob: each, Rank: 1}
	for i := range min(top, e.o.Shape.Vocab) {
		t.Top = append(t.Top, core.Ranked{ID: (id + i) % e.o.Shape.Vocab, Logprob: each})
	}
	return t
}

// choose takes the next token that may come from where draw points to.
func (e *Executor) choose(r *core.Row) int {
	s, vocab := r.Seq, e.o.Shape.Vocab
	at := e.draw(r)
	if s.Guide != nil {
		if e.logits == nil {
			e.logits = make([]float32, vocab)
		}
		clear(e.logits)
		s.Guide.Mask(e.logits)
		for i := range vocab {
			if id := (at + i) % vocab; !math.IsInf(float64(e.logits[id]), -1) {
				return id
			}
		}
		return at
	}
	given := r.Start + len(r.Tokens) - len(s.Prompt)
	if len(s.Stop) > 0 && e.o.AnswerTokens > 0 && given >= max(e.length(s), s.Sampling.Min) {
		return s.Stop[0]
	}
	for i := range min(vocab, len(s.Stop)+1) {
		if id := (at + i) % vocab; !slices.Contains(s.Stop, id) {
			return id
		}
	}
	return at
}

// length is how many tokens come before the stop token: geometric, by the prompt.
func (e *Executor) length(s *core.Sequence) int {
	x := mix(e.o.Seed^s.Sampling.Seed, uint64(len(s.Prompt)))
	for _, id := range s.Prompt[max(0, len(s.Prompt)-8):] {
		x = mix(x, uint64(id))
	}
	u := (float64(x>>11) + 0.5) / (1 << 53)
	p := 1 / float64(e.o.AnswerTokens)
	if p >= 1 {
		return 0
	}
	return int(math.Log(u) / math.Log(1-p))
}
