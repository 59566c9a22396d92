package llama

import (
	"sync"

	"llmops/serving/embedded/llama/kernel"
)

// pool are the threads of an Executor, each with room to widen weights in.
type pool struct {
	threads int
	room    [][]float32
}

func newPool(threads, widest int) *pool {
	p := &pool{threads: threads, room: make([][]float32, threads)}
	for i := range p.room {
		p.room[i] = make([]float32, kernel.Room(widest))
	}
	return p
}

// multiply sets y to x · mᵀ.
func (p *pool) multiply(y, x []float32, m *kernel.Matrix, rows int) {
	p.parallel(m.Rows, 8, func(thread, from, to int) {
		m.Product(y, x, rows, from, to, p.room[thread])
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
