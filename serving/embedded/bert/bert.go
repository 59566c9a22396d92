// Package bert computes encoders of the BERT family on the CPU in float32: pooled
// embeddings of texts as sentence-transformers computes them, and scores of pairs of
// texts by a cross-encoder with one label.
//
// Load reads a folder with config.json, tokenizer.json, safetensors in bf16, f16 or
// f32 and the files of sentence-transformers, of which modules.json says how token
// vectors are pooled; without it they are averaged. The texts of a batch lie one
// behind the other without padding, and each row is computed the same way whatever
// else is in the batch, so that a result depends on its own text alone.
//
// An Encoder is used by one goroutine at a time; it starts others while it computes,
// at most Options.Threads at once. RoBERTa, DistilBERT, decoders, relative positions
// and weights quantised otherwise than fp8 by channel or tensor are refused.
package bert

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"

	"llmops/model/tokenizer"
	"llmops/serving/embedded/llama/kernel"
)

// DefaultTokens is how many tokens are computed at once: the buffers of a model of
// 384 wide then take 30 MB.
const DefaultTokens = 2048

// Options size an Encoder.
type Options struct {
	Threads int // that compute; default 1
	Tokens  int // computed at once; default DefaultTokens and at least the longest input
}

// Encoder is one model.
type Encoder struct {
	o       Options
	config  config
	pooling pooling
	weights weights
	tok     *tokenizer.Tokenizer

	x, y, qkv, mlp []float32 // of Options.Tokens rows
	scratch        []scratch // one a thread
}

// scratch is what one thread needs for one head of one text.
type scratch struct {
	scores, values, out []float32
}

// Load reads the model in dir.
func Load(dir string, o Options) (*Encoder, error) {
	c, err := loadConfig(dir)
	if err != nil {
		return nil, err
	}
	e := &Encoder{config: c}
	if e.pooling, err = loadPooling(dir); err != nil {
		return nil, err
	}
	e.config.Positions = e.pooling.within(c.Positions)
	o.Threads = cmp.Or(o.Threads, 1)
	o.Tokens = max(cmp.Or(o.Tokens, DefaultTokens), e.config.Positions)
	e.o = o
	if e.tok, err = tokenizer.Load(dir); err != nil {
		return nil, err
	}
	if n := e.tok.Size(); n > c.Vocab {
		return nil, fmt.Errorf("loading %s: tokenizer.json has %d tokens, config.json a vocabulary of %d", dir, n, c.Vocab)
	}
	if e.weights, err = loadWeights(dir, c); err != nil {
		return nil, err
	}
	e.x, e.y = make([]float32, o.Tokens*c.Hidden), make([]float32, o.Tokens*c.Hidden)
	e.qkv, e.mlp = make([]float32, o.Tokens*3*c.Hidden), make([]float32, o.Tokens*c.Intermediate)
	e.scratch = make([]scratch, o.Threads)
	for i := range e.scratch {
		wide, d := pad(e.config.Positions), c.Hidden/c.Heads
		e.scratch[i] = scratch{make([]float32, queryTile*wide), make([]float32, wide*d), make([]float32, queryTile*d)}
	}
	return e, nil
}

// Length is how many tokens an input of the model in dir may have, which needs no
// weights.
func Length(dir string) (int, error) {
	c, err := loadConfig(dir)
	if err != nil {
		return 0, err
	}
	p, err := loadPooling(dir)
	if err != nil {
		return 0, err
	}
	return p.within(c.Positions), nil
}

// Tokenizer is the model's own.
func (e *Encoder) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// Length is how many tokens an input may have.
func (e *Encoder) Length() int { return e.config.Positions }

// Width is the length of an embedding.
func (e *Encoder) Width() int { return e.config.Hidden }

// Scores reports whether the model is a cross-encoder, for Score, and not one for
// Embed.
func (e *Encoder) Scores() bool { return e.config.scores }

// Embed gives a vector for each input.
func (e *Encoder) Embed(ctx context.Context, inputs []tokenizer.Encoding) ([][]float32, error) {
	if e.config.scores {
		return nil, fmt.Errorf("embedding: %s gives scores of pairs, not embeddings", e.config.Architecture)
	}
	out := make([][]float32, 0, len(inputs))
	err := e.batches(ctx, inputs, func(rows []float32) {
		v := make([]float32, e.config.Hidden)
		e.pooling.pool(v, rows)
		out = append(out, v)
	})
	return out, err
}

// Score gives a relevance for each input, which is a pair of texts.
func (e *Encoder) Score(ctx context.Context, pairs []tokenizer.Encoding) ([]float32, error) {
	if !e.config.scores {
		return nil, fmt.Errorf("scoring: %s gives embeddings, not scores", e.config.Architecture)
	}
	h := e.config.Hidden
	pooled := make([]float32, h)
	out := make([]float32, 0, len(pairs))
	err := e.batches(ctx, pairs, func(rows []float32) {
		e.weights.pooler.apply(pooled, rows[:h], 1, 1)
		for i, v := range pooled {
			pooled[i] = float32(math.Tanh(float64(v)))
		}
		var logit [1]float32
		e.weights.classifier.apply(logit[:], pooled, 1, 1)
		if e.config.sigmoid {
			logit[0] = float32(1 / (1 + math.Exp(-float64(logit[0]))))
		}
		out = append(out, logit[0])
	})
	return out, err
}

// batches computes as many inputs at once as fit and calls fn with the rows of each.
func (e *Encoder) batches(ctx context.Context, inputs []tokenizer.Encoding, fn func(rows []float32)) error {
	for i, in := range inputs {
		if err := e.check(in); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
	}
	for len(inputs) > 0 {
		n, tokens := 0, 0
		for n < len(inputs) && tokens+len(inputs[n].IDs) <= e.o.Tokens {
			tokens += len(inputs[n].IDs)
			n++
		}
		if err := e.forward(ctx, inputs[:n], tokens); err != nil {
			return err
		}
		at := 0
		for _, in := range inputs[:n] {
			rows := e.x[at*e.config.Hidden : (at+len(in.IDs))*e.config.Hidden]
			for _, v := range rows {
				if v-v != 0 {
					return fmt.Errorf("computing %s: a value is not finite", e.config.Architecture)
				}
			}
			fn(rows)
			at += len(in.IDs)
		}
		inputs = inputs[n:]
	}
	return nil
}

func (e *Encoder) check(in tokenizer.Encoding) error {
	switch {
	case len(in.IDs) == 0:
		return fmt.Errorf("it has no tokens")
	case len(in.IDs) > e.config.Positions:
		return fmt.Errorf("it has %d tokens, the model takes %d", len(in.IDs), e.config.Positions)
	case len(in.Types) != len(in.IDs):
		return fmt.Errorf("it has %d tokens and %d types", len(in.IDs), len(in.Types))
	}
	for i, id := range in.IDs {
		if id < 0 || id >= e.config.Vocab || in.Types[i] < 0 || in.Types[i] >= e.config.Types {
			return fmt.Errorf("token %d of type %d: want ids below %d and types below %d", id, in.Types[i], e.config.Vocab, e.config.Types)
		}
	}
	return nil
}

// forward leaves the last layer's rows in x.
func (e *Encoder) forward(ctx context.Context, inputs []tokenizer.Encoding, tokens int) error {
	c, w := &e.config, &e.weights
	h := c.Hidden
	at := 0
	for _, in := range inputs {
		for i, id := range in.IDs {
			row := e.x[at*h : (at+1)*h]
			word, position, kind := w.word[id*h:(id+1)*h], w.position[i*h:(i+1)*h], w.kind[in.Types[i]*h:(in.Types[i]+1)*h]
			for j := range row {
				row[j] = word[j] + kind[j] + position[j]
			}
			at++
		}
	}
	x, y, qkv, mlp := e.x[:tokens*h], e.y[:tokens*h], e.qkv[:tokens*3*h], e.mlp[:tokens*c.Intermediate]
	w.norm.apply(x, nil, c.Eps)
	for i := range w.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := &w.layers[i]
		l.qkv.apply(qkv, x, tokens, e.o.Threads)
		e.attend(inputs)
		l.attention.apply(qkv[:tokens*h], y, tokens, e.o.Threads) // queries are no longer wanted
		l.attentionNorm.apply(x, qkv[:tokens*h], c.Eps)
		l.up.apply(mlp, x, tokens, e.o.Threads)
		parallel(e.o.Threads, len(mlp), 1, func(_, from, to int) { c.activation(mlp[from:to]) })
		l.down.apply(y, mlp, tokens, e.o.Threads)
		l.outputNorm.apply(x, y, c.Eps)
	}
	return nil
}

// queryTile is how many tokens of one text attend together.
const queryTile = 16

func pad(n int) int { return (n + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes }

// attend sets y to what each token of a text sees of all of it.
func (e *Encoder) attend(inputs []tokenizer.Encoding) {
	type job struct{ at, n, head int }
	var jobs []job
	at := 0
	for _, in := range inputs {
		for head := range e.config.Heads {
			jobs = append(jobs, job{at, len(in.IDs), head})
		}
		at += len(in.IDs)
	}
	// Texts differ in length, so threads take every n-th instead of a stretch.
	threads := min(e.o.Threads, len(jobs))
	parallel(threads, threads, 1, func(thread, _, _ int) {
		for i := thread; i < len(jobs); i += threads {
			e.head(&e.scratch[thread], jobs[i].at, jobs[i].n, jobs[i].head)
		}
	})
}

// head computes one head of the text whose n rows begin at at.
func (e *Encoder) head(s *scratch, at, n, head int) {
	h := e.config.Hidden
	d := h / e.config.Heads
	wide := pad(n)
	stride := 3 * h
	q, k, v := e.qkv[at*stride+head*d:], e.qkv[at*stride+h+head*d:], e.qkv[at*stride+2*h+head*d:]
	for i := range n {
		copy(s.values[i*d:(i+1)*d], v[i*stride:])
	}
	scale := float32(1 / math.Sqrt(float64(d)))
	for from := 0; from < n; from += queryTile {
		rows := min(queryTile, n-from)
		kernel.Dot(s.scores, wide, q[from*stride:], stride, k, stride, rows, n, d)
		for i := range rows {
			row := s.scores[i*wide : (i+1)*wide]
			for j := n; j < wide; j++ {
				row[j] = float32(math.Inf(-1))
			}
			kernel.Softmax(row, scale)
		}
		out := s.out[:rows*d]
		clear(out)
		kernel.Mix(out, s.scores, wide, s.values, rows, n, d)
		for i := range rows {
			copy(e.y[(at+from+i)*h+head*d:], out[i*d:(i+1)*d])
		}
	}
}

// parallel runs span over [0, n) in pieces that are multiples of unit.
func parallel(threads, n, unit int, span func(thread, from, to int)) {
	pieces := min(threads, (n+unit-1)/unit)
	if pieces < 2 {
		span(0, 0, n)
		return
	}
	step := (n + pieces - 1) / pieces
	step = (step + unit - 1) / unit * unit
	var wg sync.WaitGroup
	for thread, from := 0, 0; from < n; thread, from = thread+1, from+step {
		wg.Go(func() { span(thread, from, min(from+step, n)) })
	}
	wg.Wait()
}
