package router

import (
	"context"
	"io"
	"slices"
	"sync"

	"llmops/serving/route"
)

// pair compares the live answer with that of a copy, whichever ends last.
type pair struct {
	of *tally

	mu    sync.Mutex // guards what follows
	ended int
	ok    [2]bool
	text  [2]uint64
}

func (p *pair) end(i int, ok bool, text uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.ok[i], p.text[i] = ok, text
	if p.ended == 2 && p.ok[0] && p.ok[1] {
		p.of.compare(p.text[0] == p.text[1])
	}
}

// copyTo sends a copy of the request to a shadow version. The live request
// waits for nothing here: without a free slot or replica there is no copy.
func (c *call) copyTo(a *aliasView, version string) {
	r, t := c.r, a.counts.mirror(version)
	select {
	case r.mirrors <- struct{}{}:
	default:
		t.mirrorDropped()
		return
	}
	free := func() { <-r.mirrors }
	r.copies.Lock()
	defer r.copies.Unlock()
	if r.copies.stop == nil {
		free()
		return
	}
	r.mu.Lock()
	d, ok := r.gate.Take(r.o.Now(), r.view.Load(), &c.q, version)
	r.mu.Unlock()
	if !ok {
		t.mirrorDropped()
		free()
		return
	}
	// The client may leave; the copy is compared for its own sake.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.req.Context()), r.o.Wait)
	r.copies.stop[&cancel] = struct{}{}
	m := &mirrored{r: r, d: d, encode: c.encode, path: c.req.URL.Path, rest: slices.Clone(c.rest), body: slices.Clone(c.body)}
	m.f = flight{stratum: route.StratumOf(c.wish.tokens), stream: c.wish.stream || c.encode, arrived: d.At, chosen: d.At}
	t.begin(&m.f)
	// Vectors that differ in their last digit are not different answers: a hash
	// cannot compare them.
	if c.pair == nil && !c.encode {
		c.pair = &pair{of: t}
		m.pair = c.pair
	}
	r.copies.wg.Go(func() {
		defer free()
		defer func() {
			cancel()
			r.copies.Lock()
			delete(r.copies.stop, &cancel)
			r.copies.Unlock()
		}()
		m.run(ctx)
	})
}

// mirrored is a copy on its way.
type mirrored struct {
	r          *Router
	d          Decision
	path       string
	rest, body []byte
	f          flight
	pair       *pair
	encode     bool
}

func (m *mirrored) run(ctx context.Context) {
	o := failed
	defer func() {
		now := m.r.o.Now()
		if m.encode && o == done {
			m.f.encoded(now)
		}
		m.f.end(now, o)
		m.r.release(m.d, Usage{m.f.seen.Prompt, m.f.seen.Output})
		if m.pair != nil {
			m.pair.end(1, o == done, m.f.seen.Text)
		}
	}()
	ans, err := m.d.Replica.ask(ctx, m.path, m.rest, m.body, m.r.o.Wait)
	if err != nil {
		m.d.Replica.lost(err)
		return
	}
	defer ans.close()
	if v := ans.Header[HeaderVersion]; len(v) > 0 && v[0] != m.d.Version {
		m.f.mismatched = true
	}
	var s sniffer
	s.begin(ans)
	defer s.end()
	for {
		piece, err := ans.next(ctx)
		if err == io.EOF {
			o = s.outcome(&m.f.seen, ans.Status)
			return
		}
		if err != nil {
			return
		}
		before := m.f.seen.Tokens
		if _, token := s.feed(&m.f.seen, piece); token {
			m.d.Grow(m.f.seen.Tokens - before)
			m.f.token(m.r.o.Now())
			ans.patience = m.r.o.Stall
		}
	}
}
