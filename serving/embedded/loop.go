package embedded

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"llmops/serving/embedded/core"
)

// errClosed is what requests get that are under way when the Server is closed.
var errClosed = errors.New("the engine is shutting down")

// loop runs the core and its executor. Others reach them through its inbox only.
type loop struct {
	core    *core.Core
	exec    core.Executor
	metrics *metrics
	events  *publisher // nil: nobody wants them

	residents *residents // of the loop's goroutine; nil: no adapters
	retired   []string   // of the loop's goroutine; adapters that are to be forgotten

	start time.Time
	done  chan struct{}
	wake  chan struct{} // of capacity 1

	mu     sync.Mutex
	inbox  []func(now time.Duration) // guarded by mu; called by the loop's goroutine
	closed bool                      // guarded by mu

	requests map[uint64]*request // of the loop's goroutine
	lastID   uint64              // of the loop's goroutine
}

func newLoop(c *core.Core, exec core.Executor, m *metrics) *loop {
	return &loop{
		core: c, exec: exec, metrics: m, start: time.Now(),
		done: make(chan struct{}), wake: make(chan struct{}, 1), requests: make(map[uint64]*request),
	}
}

func (l *loop) now() time.Duration { return time.Since(l.start) }

func (l *loop) post(f func(now time.Duration)) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errClosed
	}
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// submit starts the requests of one call.
func (l *loop) submit(rs []*request) error {
	return l.post(func(now time.Duration) {
		for _, r := range rs {
			l.lastID++
			r.seq.ID = l.lastID
			l.requests[r.seq.ID] = r
			if err := l.core.Add(now, r.seq); err != nil {
				l.fail(now, r, err)
			}
		}
	})
}

// cancel gives up those of the requests that have not ended.
func (l *loop) cancel(rs []*request) {
	// After closing there is nothing left to give up.
	_ = l.post(func(now time.Duration) {
		for _, r := range rs {
			if l.requests[r.seq.ID] == r {
				l.core.Cancel(now, r.seq.ID)
				l.finish(now, r, "abort")
			}
		}
	})
}

// run steps until ctx ends.
func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	var b core.Batch
	out := make([]core.Token, l.core.Limits().Sequences)
	for ctx.Err() == nil {
		l.receive()
		now := l.now()
		if !l.core.Next(now, &b) {
			l.metrics.set(l.core, 0)
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
			continue
		}
		if l.fetchAdapters(&b) {
			continue
		}
		_, err := l.exec.Step(ctx, &b, out)
		now = l.now()
		if err != nil {
			for _, row := range b.Rows {
				l.fail(now, l.requests[row.Seq.ID], err)
			}
			continue
		}
		l.core.Commit(now, &b, out, func(e core.Event) { l.emit(now, e) })
		l.publish()
		l.metrics.set(l.core, b.Tokens)
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.receive()
	for _, r := range l.requests {
		l.fail(l.now(), r, errClosed)
	}
}

// fetchAdapters loads what b needs. Requests whose adapter cannot be had fail, and
// it is true: the batch is void then.
func (l *loop) fetchAdapters(b *core.Batch) bool {
	if l.residents == nil {
		return false
	}
	for i, key := range l.retired {
		if l.core.HasAdapter(key) {
			continue
		}
		l.residents.forget(key)
		l.retired = slices.Delete(l.retired, i, i+1)
		break // one a step is enough
	}
	failed := l.residents.ready(b.Rows)
	for i, err := range failed {
		l.fail(l.now(), l.requests[b.Rows[i].Seq.ID], err)
	}
	return failed != nil
}

func (l *loop) publish() {
	if l.events == nil {
		return
	}
	if e := l.core.BlockEvents(); len(e) > 0 {
		l.events.publish(e, time.Now())
	}
}

func (l *loop) receive() {
	l.mu.Lock()
	inbox := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range inbox {
		f(l.now())
	}
}

func (l *loop) emit(now time.Duration, e core.Event) {
	r := l.requests[e.Seq.ID]
	u := r.advance(e)
	if e.Token != nil {
		l.metrics.token(now, r)
	}
	if u.finish != "" {
		if e.Finish == "" { // a stop string, which the core does not know
			l.core.Cancel(now, r.seq.ID)
		}
		l.finish(now, r, u.finish)
	}
	r.call.push(u)
}

func (l *loop) finish(now time.Duration, r *request, reason string) {
	delete(l.requests, r.seq.ID)
	l.metrics.finished(now, r, reason)
}

func (l *loop) fail(now time.Duration, r *request, err error) {
	l.core.Cancel(now, r.seq.ID)
	l.finish(now, r, "error")
	r.call.push(update{index: r.index, err: err})
}
