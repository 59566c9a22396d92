package llama

import (
	"math"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama/kernel"
)

// queryTile is how many tokens of one sequence attend together. A tile computes
// scores up to its last token, so that a wide one wastes work on the masked half.
const queryTile = core.BlockSize

// attention is the scratch space of one thread.
type attention struct {
	q      []float32 // (token, head of the group) × head dim
	scores []float32 // the same rows × positions
	out    []float32
	block  []float32 // keys or values of a block, widened
}

func newAttention(s model.Shape, maxLen int) attention {
	rows := queryTile * s.Heads / s.KVHeads
	padded := (maxLen + core.BlockSize - 1) / core.BlockSize * core.BlockSize
	return attention{
		q: make([]float32, rows*s.HeadDim), scores: make([]float32, rows*padded),
		out: make([]float32, rows*s.HeadDim), block: make([]float32, core.BlockSize*s.HeadDim),
	}
}

// attend rotates queries and keys, stores keys and values, and sets attn to what
// each token sees of its sequence up to itself.
func (m *Executor) attend(b *core.Batch, layer int) {
	c, window := &m.cache[layer], m.shape.Window(layer)
	at := 0
	for _, r := range b.Rows {
		m.store(r, at, layer, c)
		at += len(r.Tokens)
	}
	type tile struct{ row, from, at int }
	var tiles []tile
	at = 0
	for i, r := range b.Rows {
		for from := 0; from < len(r.Tokens); from += queryTile {
			tiles = append(tiles, tile{i, from, at + from})
		}
		at += len(r.Tokens)
	}
	work := len(tiles) * m.shape.KVHeads
	threads := min(m.pool.threads, work)
	// Tiles differ in length, so threads take every n-th instead of a stretch.
	m.pool.parallel(threads, 1, func(first, _, _ int) {
		for i := first; i < work; i += threads {
			t := tiles[i/m.shape.KVHeads]
			r := b.Rows[t.row]
			m.tile(&m.scratch[first], r, c, window, t.from, min(queryTile, len(r.Tokens)-t.from), t.at, i%m.shape.KVHeads)
		}
	})
}

// store normalises and rotates the queries and keys of one row and puts keys and
// values into the cache.
func (m *Executor) store(r core.Row, at, layer int, c *layerCache) {
	s, l := m.shape, &m.weights.layers[layer]
	d, half := s.HeadDim, s.HeadDim/2
	q, kv := s.Heads*d, s.KVHeads*d
	for i := range r.Tokens {
		pos := r.Start + i
		row := m.qkv[(at+i)*(q+2*kv) : (at+i+1)*(q+2*kv)]
		cos, sin := m.cos[pos*half:(pos+1)*half], m.sin[pos*half:(pos+1)*half]
		for h := range s.Heads + s.KVHeads {
			v := row[h*d : (h+1)*d]
			if h < s.Heads && l.qNorm != nil {
				kernel.RMSNorm(v, v, l.qNorm, s.NormEps)
			} else if l.kNorm != nil {
				kernel.RMSNorm(v, v, l.kNorm, s.NormEps)
			}
			first, second := v[:half], v[half:d]
			for j, x := range first {
				y := second[j]
				first[j], second[j] = x*cos[j]-y*sin[j], y*cos[j]+x*sin[j]
			}
		}
		if m.ranges != nil {
			met(&m.ranges[layer].keys, row[q:q+kv])
			met(&m.ranges[layer].values, row[q+kv:])
		}
		block := r.Blocks[pos/core.BlockSize]
		for h := range s.KVHeads {
			to := m.slot(block, h) + pos%core.BlockSize*d
			c.k.put(to, h, row[q+h*d:q+(h+1)*d])
			c.v.put(to, h, row[q+kv+h*d:q+kv+(h+1)*d])
		}
	}
}

var masked = float32(math.Inf(-1))

// tile computes n tokens of row r from its token from on, which is row at of the
// batch, for the queries that share the KV head kvh. With a window, positions that
// no query of the tile sees are left out by whole blocks.
func (m *Executor) tile(a *attention, r core.Row, c *layerCache, window, from, n, at, kvh int) {
	s := m.shape
	d, group := s.HeadDim, s.Heads/s.KVHeads
	q, kv := s.Heads*d, s.KVHeads*d
	rows := n * group
	for i := range n {
		copy(a.q[i*group*d:(i+1)*group*d], m.qkv[(at+i)*(q+2*kv)+kvh*group*d:])
	}
	start := r.Start + from
	end := start + n
	if window == 0 {
		window = end
	}
	first := max(start-window+1, 0) / core.BlockSize * core.BlockSize
	blocks := r.Blocks[first/core.BlockSize : (end-1)/core.BlockSize+1]
	width := len(blocks) * core.BlockSize
	for i, block := range blocks {
		known := min(core.BlockSize, end-first-i*core.BlockSize)
		k := c.k.tokens(a.block, m.slot(block, kvh), kvh, known)
		kernel.Dot(a.scores[i*core.BlockSize:], width, a.q, d, k, d, rows, known, d)
	}
	scale := float32(1 / math.Sqrt(float64(d)))
	for i := range n {
		seen := start + i + 1
		for g := range group {
			row := a.scores[(i*group+g)*width : (i*group+g+1)*width]
			mask(row[:max(seen-window, first)-first])
			mask(row[seen-first:])
			kernel.Softmax(row, scale)
		}
	}
	out := a.out[:rows*d]
	clear(out)
	for i, block := range blocks {
		known := min(core.BlockSize, end-first-i*core.BlockSize)
		v := c.v.tokens(a.block, m.slot(block, kvh), kvh, known)
		kernel.Mix(out, a.scores[i*core.BlockSize:], width, v, rows, known, d)
	}
	for i := range n {
		copy(m.attn[(at+i)*q+kvh*group*d:(at+i)*q+(kvh+1)*group*d], out[i*group*d:])
	}
}

func mask(row []float32) {
	for i := range row {
		row[i] = masked
	}
}
