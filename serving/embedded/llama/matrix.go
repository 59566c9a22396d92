package llama

import (
	"sync"

	"llmops/serving/embedded/llama/kernel"
)

// storage is how the weights of a matrix lie in memory: as in the checkpoint.
// Products widen them to float32, which is exact.
type storage uint8

const (
	storeF32 storage = iota
	storeBF16
	storeF16
	storeE4M3
	storeInt8
	storeInt4 // eight to a word, lowest first, each plus 8
)

// matrix is out rows of in weights. A grouped one has scales that belong to
// weights of its rows; they are multiplied in as the weights are widened.
type matrix struct {
	in, out int
	kind    storage
	f32     []float32
	half    []uint16
	code    []byte
	word    []uint32
	group   int       // columns to a scale; 0: none
	scales  []float32 // row × group
}

func newMatrix(kind storage, in, out int) matrix {
	m := matrix{in: in, out: out, kind: kind}
	switch n := in * out; kind {
	case storeF32:
		m.f32 = make([]float32, n)
	case storeBF16, storeF16:
		m.half = make([]uint16, n)
	case storeE4M3, storeInt8:
		m.code = make([]byte, n)
	case storeInt4:
		m.word = make([]uint32, n/8)
	}
	return m
}

func (m *matrix) groups() int { return (m.in + m.group - 1) / m.group }

// widen sets dst to row i.
func (m *matrix) widen(dst []float32, i int) {
	if m.group == 0 {
		m.part(dst, i*m.in, 1)
		return
	}
	groups := m.groups()
	for g := range groups {
		from, to := g*m.group, min((g+1)*m.group, m.in)
		m.part(dst[from:to], i*m.in+from, m.scales[i*groups+g])
	}
}

func (m *matrix) part(dst []float32, at int, scale float32) {
	switch m.kind {
	case storeF32:
		copy(dst, m.f32[at:])
	case storeBF16:
		kernel.WidenBF16(dst, m.half[at:])
	case storeF16:
		kernel.WidenF16(dst, m.half[at:])
	case storeE4M3:
		kernel.WidenE4M3(dst, m.code[at:], scale)
	case storeInt8:
		kernel.WidenInt8(dst, m.code[at:], scale)
	case storeInt4:
		kernel.WidenInt4(dst, m.word[at/8:], scale)
	}
}

// panelFloats is how many widened weights a thread works on at a time: they are to
// stay in the second-level cache while all rows of the batch pass by. For one row
// the first level will do.
const panelFloats, panelFloatsOfOne = 32 << 10, 4 << 10

// panelRows is how many rows of a matrix make a panel.
func panelRows(in, rows int) int {
	n := panelFloats
	if rows == 1 {
		n = panelFloatsOfOne
	}
	return max(8, n/in/8*8)
}

// pool are the threads of an Executor and their panels.
type pool struct {
	threads int
	panels  [][]float32 // one a thread
}

func newPool(threads, widest int) *pool {
	p := &pool{threads: threads, panels: make([][]float32, threads)}
	for i := range p.panels {
		p.panels[i] = make([]float32, max(panelFloats, 8*widest))
	}
	return p
}

// multiply sets y, rows × out, to x · mᵀ.
func (p *pool) multiply(y, x []float32, m *matrix, rows int) {
	step := panelRows(m.in, rows)
	p.parallel(m.out, 8, func(thread, from, to int) {
		for j := from; j < to; j += step {
			n := min(step, to-j)
			switch {
			case m.kind == storeF32:
				kernel.Dot(y[j:], m.out, x, m.in, m.f32[j*m.in:], m.in, rows, n, m.in)
			case m.kind == storeBF16 && rows == 1:
				kernel.DotBF16(y[j:], x, m.half[j*m.in:], m.in, n, m.in)
			default:
				panel := p.panels[thread][:n*m.in]
				for i := range n {
					m.widen(panel[i*m.in:(i+1)*m.in], j+i)
				}
				kernel.Dot(y[j:], m.out, x, m.in, panel, m.in, rows, n, m.in)
			}
		}
	})
}

// parallel runs span over [0, n) in pieces that are multiples of unit.
func (p *pool) parallel(n, unit int, span func(thread, from, to int)) {
	pieces := min(p.threads, (n+unit-1)/unit)
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
