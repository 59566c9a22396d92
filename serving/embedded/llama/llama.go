// Package llama computes the Llama family on the CPU in float32: the executor of
// package core for checkpoints in bf16, f16, f32, fp8 (compressed-tensors and the
// fine-grained one) and compressed-tensors int8 and int4. Weights stay in memory as
// they are stored; the cache is float32, bf16 or fp8.
//
// Each row of a product, and each query of the attention, is computed the same way
// whatever else is in the batch, so that a sequence's tokens depend on its own
// prompt, adapter and sampling alone. An Executor belongs to one goroutine; it starts
// others for a step, at most Options.Threads at once. It has no GPU code.
package llama

import (
	"context"
	"errors"
	"fmt"
	"time"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama/kernel"
)

// Options size an Executor.
type Options struct {
	Tokens  int // in one step
	Length  int // of a sequence
	Blocks  int // of core.BlockSize tokens
	Threads int
	// MaxLoRARank bounds the rank of adapters; 0: none can be loaded.
	MaxLoRARank int
	KV          string // KVFloat32, KVBF16, KVFP8; empty: KVFP8 for a checkpoint with a kv_cache_scheme, else KVFloat32
}

// Executor computes one model.
type Executor struct {
	shape   model.Shape
	weights *weights
	pool    *pool
	cache   []layerCache
	dir     string // of the checkpoint
	blocks  int
	kv      string // what the cache is
	// fingerprint is that of the weights, also while they are given back.
	fingerprint [32]byte
	cos         []float32 // position × half a head
	sin         []float32

	tokens                  int // room in the buffers
	x, norm, qkv, attn, mlp []float32
	tmp                     []float32
	logits                  []float32
	scratch                 []attention // one a thread

	maxRank     int
	adapters    map[string]*adapter
	low, change []float32 // what adapters compute: in their rank, and for the result

	ranges []layerRanges // nil: nobody observes
}

// Load reads the checkpoint in dir, whose config.json says s. An error names the
// file and the tensor.
func Load(dir string, s model.Shape, o Options) (*Executor, error) {
	// Past it the angles of all positions depend on how long the sequence has become.
	if s.Rope.Type == "dynamic" && o.Length > s.MaxPositions {
		return nil, fmt.Errorf("loading %s: sequences of %d tokens with dynamic rotary embedding: want at most max_position_embeddings, %d", dir, o.Length, s.MaxPositions)
	}
	w, kv, err := loadWeights(dir, s, o.KV)
	if err != nil {
		return nil, err
	}
	o.KV = kv
	m := newExecutor(s, w, o)
	m.dir = dir
	return m, nil
}

func newExecutor(s model.Shape, w *weights, o Options) *Executor {
	m := &Executor{
		shape: s, weights: w, fingerprint: w.fingerprint, pool: newPool(o.Threads, max(s.Hidden, s.Heads*s.HeadDim, s.Intermediate)),
		tokens: o.Tokens, kv: o.KV, maxRank: o.MaxLoRARank, adapters: make(map[string]*adapter),
	}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	floats := func(n int) []float32 { return make([]float32, o.Tokens*n) }
	m.x, m.norm, m.qkv, m.attn, m.mlp = floats(s.Hidden), floats(s.Hidden), floats(q+2*kv), floats(q), floats(2*s.Intermediate)
	m.tmp = floats(max(s.Hidden, q, s.Intermediate))
	m.logits = make([]float32, min(o.Tokens, tileRows)*s.Vocab)
	m.blocks = o.Blocks
	m.allocate()
	m.scratch = make([]attention, o.Threads)
	for i := range m.scratch {
		m.scratch[i] = newAttention(s, o.Length)
	}
	m.cos, m.sin = rotations(s, o.Length)
	return m
}

// tileRows is how many tokens' logits are in memory at a time.
const tileRows = 64

// errNotFinite is what a computation gives that overflowed.
var errNotFinite = errors.New("logits are not finite")

// Step implements core.Executor.
func (m *Executor) Step(ctx context.Context, b *core.Batch, out []core.Token) (time.Duration, error) {
	start := time.Now()
	if b.Tokens > m.tokens {
		return 0, fmt.Errorf("computing %d tokens in buffers for %d", b.Tokens, m.tokens)
	}
	for _, r := range b.Rows {
		if name := r.Seq.Adapter; name != "" && m.adapters[name] == nil {
			return 0, fmt.Errorf("sequence %d wants the adapter %q: it is not loaded", r.Seq.ID, name)
		}
		if r.Import {
			if err := m.take(r); err != nil {
				return 0, err
			}
		}
	}
	m.forward(b)
	err := m.results(b, out)
	return time.Since(start), err
}

func (m *Executor) forward(b *core.Batch) {
	s, w, n := m.shape, m.weights, b.Tokens
	at := 0
	for _, r := range b.Rows {
		for _, t := range r.Tokens {
			w.embed.Row(m.x[at*s.Hidden:(at+1)*s.Hidden], t)
			at++
		}
	}
	for i := range w.layers {
		l := &w.layers[i]
		m.rmsRows(m.norm, m.x, l.attnNorm, n)
		m.product(b, i, &l.qkv, qkvProduct, m.qkv, m.norm)
		m.attend(b, i)
		m.product(b, i, &l.out, outProduct, m.norm, m.attn)
		kernel.Add(m.x[:n*s.Hidden], m.norm)
		m.rmsRows(m.norm, m.x, l.mlpNorm, n)
		m.product(b, i, &l.gateUp, gateUpProduct, m.mlp, m.norm)
		m.product(b, i, &l.down, downProduct, m.norm, m.gate(n))
		kernel.Add(m.x[:n*s.Hidden], m.norm)
	}
}

// product sets y to what a linear makes of x, with what adapters change.
func (m *Executor) product(b *core.Batch, layer int, l *linear, which int, y, x []float32) {
	if m.ranges != nil {
		met(&m.ranges[layer].inputs[which], x[:b.Tokens*l.Cols])
	}
	l.apply(m.pool, y, x, m.tmp, b.Tokens)
	at := 0
	for _, r := range b.Rows {
		n := len(r.Tokens)
		if a := m.adapters[r.Seq.Adapter]; a != nil {
			for i := range a.layers[layer][which] {
				m.adapt(&a.layers[layer][which][i], y[at*l.Rows:], l.Rows, x[at*l.Cols:(at+n)*l.Cols], n)
			}
		}
		at += n
	}
}

// rmsRows normalises rows of the hidden size.
func (m *Executor) rmsRows(dst, x, weight []float32, rows int) {
	h := m.shape.Hidden
	for i := range rows {
		kernel.RMSNorm(dst[i*h:(i+1)*h], x[i*h:(i+1)*h], weight, m.shape.NormEps)
	}
}

// gate computes silu(gate) × up in place and packs the rows to the front: a row is
// written where the ones before it were read.
func (m *Executor) gate(rows int) []float32 {
	wide := m.shape.Intermediate
	for i := range rows {
		both := m.mlp[i*2*wide : (i+1)*2*wide]
		to := m.mlp[i*wide : (i+1)*wide]
		kernel.SiLU(to, both[:wide], both[wide:])
	}
	return m.mlp[:rows*wide]
}

// results computes logits where somebody wants them, in tiles.
func (m *Executor) results(b *core.Batch, out []core.Token) error {
	h := m.shape.Hidden
	tile := min(m.tokens, tileRows)
	type place struct{ row, token int }
	var wanted []place
	flush := func() error {
		if len(wanted) == 0 {
			return nil
		}
		m.logitsOf(m.tmp[:len(wanted)*h], len(wanted))
		for i, p := range wanted {
			if err := m.result(b.Rows[p.row], p.token, m.logits[i*m.shape.Vocab:(i+1)*m.shape.Vocab], &out[p.row]); err != nil {
				return err
			}
		}
		wanted = wanted[:0]
		return nil
	}
	at := 0
	for i, r := range b.Rows {
		out[i] = core.Token{}
		for j := range r.Tokens {
			last := j == len(r.Tokens)-1
			scored := r.Seq.Score && r.Start+j+1 < len(r.Seq.Prompt)
			if scored || last && r.Sample {
				copy(m.tmp[len(wanted)*h:(len(wanted)+1)*h], m.x[at*h:(at+1)*h])
				wanted = append(wanted, place{i, j})
				if len(wanted) == tile {
					if err := flush(); err != nil {
						return err
					}
				}
			}
			at++
		}
	}
	return flush()
}

func (m *Executor) logitsOf(x []float32, rows int) {
	m.rmsRows(m.norm, x, m.weights.norm, rows)
	m.weights.head.apply(m.pool, m.logits, m.norm, m.tmp, rows)
}

func (m *Executor) result(r core.Row, token int, logits []float32, out *core.Token) error {
	s := r.Seq
	for _, l := range logits {
		if l-l != 0 { // NaN or infinite
			return fmt.Errorf("sequence %d at token %d: %w", s.ID, r.Start+token, errNotFinite)
		}
	}
	if next := r.Start + token + 1; s.Score && next < len(s.Prompt) {
		out.Prompt = append(out.Prompt, core.Report(logits, s.Prompt[next], max(s.Sampling.Top, 0)))
		return nil
	}
	if s.Sampling.Top < 0 {
		out.ID = core.Choose(s, logits)
		return nil
	}
	raw := logits
	if s.Sampling.Changes() {
		logits = append([]float32(nil), logits...)
	}
	prompt := out.Prompt
	*out = core.Report(raw, core.Choose(s, logits), s.Sampling.Top)
	out.Prompt = prompt
	return nil
}
