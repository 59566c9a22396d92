package sim

import "time"

type kind uint8

const (
	stepped kind = iota // replica of has done a step since boot mark
	arrival
	expired // request of with id mark has waited for long enough
	fault   // number of begins, or ends when mark is set
	probe   // replica of
	warm
	sample
	end
)

type event struct {
	at    time.Duration
	order uint64 // equals go in the order in which they were pushed
	mark  uint64
	of    int
	kind  kind
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// queue is a binary heap. container/heap would box each event.
type queue struct {
	heap   []event
	pushed uint64
}

func (q *queue) push(e event) {
	q.pushed++
	e.order = q.pushed
	q.heap = append(q.heap, e)
	h := q.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
}

func (q *queue) pop() event {
	h := q.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	q.heap = h
	i := 0
	for len(h) > 0 {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	if len(h) > 0 {
		h[i] = last
	}
	return top
}
