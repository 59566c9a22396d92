package llama

import (
	"math"

	"gonum.org/v1/gonum/blas"

	"llmops/model"
	"llmops/serving/embedded/core"
)

// queryTile is how many tokens of one sequence attend together. A tile computes
// scores up to its last token, so that a wide one wastes work on the masked half.
const queryTile = core.BlockSize

// attention is the scratch space of one thread.
type attention struct {
	q      []float32 // (token, head of the group) × head dim
	scores []float32 // the same rows × positions
	out    []float32
}

func newAttention(s model.Shape, maxLen int) attention {
	rows := queryTile * s.Heads / s.KVHeads
	padded := (maxLen + core.BlockSize - 1) / core.BlockSize * core.BlockSize
	return attention{q: aligned(rows * s.HeadDim), scores: aligned(rows * padded), out: aligned(rows * s.HeadDim)}
}

// attend rotates queries and keys, stores keys and values, and sets attn to what
// each token sees of its sequence up to itself.
func (m *Executor) attend(b *core.Batch, layer int) {
	c, window := &m.cache[layer], m.shape.Window(layer)
	at := 0
	for _, r := range b.Rows {
		m.store(r, at, &m.weights.layers[layer], c)
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
	threads := min(m.threads, work)
	// Tiles differ in length, so threads take every n-th instead of a stretch.
	parallel(threads, threads, 1, func(first, _ int) {
		for i := first; i < work; i += threads {
			t := tiles[i/m.shape.KVHeads]
			r := b.Rows[t.row]
			m.tile(&m.scratch[first], r, c, window, t.from, min(queryTile, len(r.Tokens)-t.from), t.at, i%m.shape.KVHeads)
		}
	})
}

// store normalises and rotates the queries and keys of one row and puts keys and
// values into the cache.
func (m *Executor) store(r core.Row, at int, l *layer, c *layerCache) {
	s := m.shape
	d, half := s.HeadDim, s.HeadDim/2
	q, kv := s.Heads*d, s.KVHeads*d
	for i := range r.Tokens {
		pos := r.Start + i
		row := m.qkv[(at+i)*(q+2*kv) : (at+i+1)*(q+2*kv)]
		cos, sin := m.cos[pos*half:(pos+1)*half], m.sin[pos*half:(pos+1)*half]
		for h := range s.Heads + s.KVHeads {
			v := row[h*d : (h+1)*d]
			if h < s.Heads && l.qNorm != nil {
				rms(v, v, l.qNorm, s.NormEps)
			} else if l.kNorm != nil {
				rms(v, v, l.kNorm, s.NormEps)
			}
			for j := range half {
				x, y := v[j], v[j+half]
				v[j], v[j+half] = x*cos[j]-y*sin[j], y*cos[j]+x*sin[j]
			}
		}
		block := int(r.Blocks[pos/core.BlockSize])
		for h := range s.KVHeads {
			slot := ((block*s.KVHeads+h)*core.BlockSize + pos%core.BlockSize) * d
			copy(c.k[slot:slot+d], row[q+h*d:])
			copy(c.v[slot:slot+d], row[q+kv+h*d:])
		}
	}
}

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
	if window == 0 {
		window = start + n
	}
	first := max(start-window+1, 0) / core.BlockSize
	blocks := r.Blocks[first : (start+n-1)/core.BlockSize+1]
	width := len(blocks) * core.BlockSize
	for i, block := range blocks {
		k := c.k[(int(block)*s.KVHeads+kvh)*core.BlockSize*d:]
		kernel.Sgemm(blas.NoTrans, blas.Trans, rows, core.BlockSize, d, 1, a.q, d, k, d, 0, a.scores[i*core.BlockSize:], width)
	}
	scale := float32(1 / math.Sqrt(float64(d)))
	for i := range n {
		for g := range group {
			row := a.scores[(i*group+g)*width : (i*group+g+1)*width]
			seen := start + i + 1
			softmax(row, max(seen-window, 0)-first*core.BlockSize, seen-first*core.BlockSize, scale)
		}
	}
	out := a.out[:rows*d]
	clear(out)
	for i, block := range blocks {
		v := c.v[(int(block)*s.KVHeads+kvh)*core.BlockSize*d:]
		kernel.Sgemm(blas.NoTrans, blas.NoTrans, rows, d, core.BlockSize, 1, a.scores[i*core.BlockSize:], width, v, d, 1, out, d)
	}
	for i := range n {
		copy(m.attn[(at+i)*q+kvh*group*d:(at+i)*q+(kvh+1)*group*d], out[i*group*d:])
	}
}

// softmax normalises the scores in [from, to) and sets the others to zero.
func softmax(row []float32, from, to int, scale float32) {
	seen := row[from:to]
	top := seen[0]
	for _, v := range seen {
		top = max(top, v)
	}
	var sums [lanes]float32
	for i, v := range seen {
		e := exp32((v - top) * scale)
		seen[i] = e
		sums[(from+i)%lanes] += e // by position: a tile's first block is no matter
	}
	r := 1 / ((sums[0] + sums[1]) + (sums[2] + sums[3]))
	for i := range seen {
		seen[i] *= r
	}
	clear(row[:from])
	clear(row[to:])
}

// exp32 is e^x to within two units of the last place. It is what softmax and SiLU
// spend their time in: math.Exp on float64 takes three times as long.
func exp32(x float32) float32 {
	switch {
	case x < -87: // below, the result is no normal number
		return 0
	case x > 88:
		return float32(math.Inf(1))
	case x != x:
		return x
	}
	// x = n ln 2 + r with |r| ≤ ln 2 / 2; the first constant has few bits, so that its product with n is exact.
	const shift = 0x1.8p23 // adding it rounds to an integer
	n := x*math.Log2E + shift
	bits := int32(math.Float32bits(n)) - int32(math.Float32bits(shift))
	n -= shift
	r := x - n*0.693359375
	r -= n * -2.12194440e-4
	// Cephes' polynomial for e^r.
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	p = p*r*r + r + 1
	return p * math.Float32frombits(uint32(bits+127)<<23)
}
