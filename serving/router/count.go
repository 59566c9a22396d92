package router

import (
	"sync"
	"sync/atomic"
	"time"

	"llmops/serving/openai"
	"llmops/serving/route"
)

// tallies are the counters of one alias since the router started. They outlive
// every view, so that a version keeps its counts when it leaves and returns.
type tallies struct {
	mu       sync.Mutex // guards the maps, not the tallies
	versions map[string]*tally
	mirrored map[string]*tally
	rejected atomic.Uint64 // turned away before any version was chosen

	// What prompts were guessed to have, and what engines said of the same ones.
	guessed, told atomic.Uint64
}

// learn takes what the engine said of a prompt that was guessed to have some tokens.
func (t *tallies) learn(guessed, told int) {
	t.guessed.Add(uint64(guessed))
	t.told.Add(uint64(told))
}

// tokens is a guess by the bytes, corrected by what the guesses so far were worth: the
// tokens of a language or a template are not four bytes everywhere.
func (t *tallies) tokens(guess int) int {
	g := t.guessed.Load()
	if g == 0 {
		return guess
	}
	return int(float64(guess) * float64(t.told.Load()) / float64(g))
}

func newTallies() *tallies {
	return &tallies{versions: map[string]*tally{}, mirrored: map[string]*tally{}}
}

func (t *tallies) of(version string) *tally { return t.get(t.versions, version) }

func (t *tallies) mirror(version string) *tally { return t.get(t.mirrored, version) }

func (t *tallies) get(m map[string]*tally, version string) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	y := m[version]
	if y == nil {
		y = &tally{}
		m[version] = y
	}
	return y
}

// tally counts one version of an alias, and holds its requests in flight, so
// that a report can say how long each has waited.
type tally struct {
	mu     sync.Mutex // guards what follows
	c      route.Counters
	flying *flight // a ring-less doubly linked list
	n      int
}

// flight is one request on its way, from the choice to its end.
type flight struct {
	of         *tally
	stratum    int
	stream     bool
	arrived    time.Duration
	chosen     time.Duration
	begun      bool          // output has come; written under of.mu
	first      time.Duration // when it first did
	last       time.Duration
	seen       openai.Peek
	mismatched bool
	retried    bool
	prev, next *flight // guarded by of.mu
}

// outcome is how a flight ended.
type outcome uint8

const (
	done outcome = iota
	failed
	invalid
	cancelled
)

// begin counts f as chosen.
func (t *tally) begin(f *flight) {
	f.of = t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.Strata[f.stratum].Chosen++
	t.n++
	f.next = t.flying
	if f.next != nil {
		f.next.prev = f
	}
	t.flying = f
}

// token notes that output came at now. The first time is counted at once and
// not at the end, so that a wait which was reported does not vanish for the
// length of a stream.
func (f *flight) token(now time.Duration) {
	f.last = now
	if f.begun {
		return
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.begun, f.first = true, now
	if f.stream {
		s := &f.of.c.Strata[f.stratum]
		s.TTFT.Seen.Add(now - f.chosen)
		s.Arrival.Seen.Add(now - f.arrived)
	}
}

// encoded notes an answer of vectors or scores, which came all at once and has no
// output to count beside its usage.
func (f *flight) encoded(now time.Duration) {
	f.token(now)
	f.seen.Usage = f.seen.Prompt > 0
}

// end counts what became of f, once.
func (f *flight) end(now time.Duration, o outcome) {
	t := f.of
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		t.flying = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	t.n--
	s := &t.c.Strata[f.stratum]
	switch o {
	case done:
		s.Done++
		if f.seen.Refused {
			s.Refusals++
		}
	case failed:
		s.Errors++
	case invalid:
		s.Invalid++
	case cancelled:
		s.Cancelled++
	}
	if f.mismatched {
		t.c.Mismatched++
	}
	if f.retried {
		s.Retried++
	}
	if f.seen.Usage && o == done {
		s.Counted++
		s.InputTokens += uint64(f.seen.Prompt)
		s.CachedTokens += uint64(f.seen.Cached)
		s.OutputTokens += uint64(f.seen.Output)
	}
	if !f.stream || o == invalid {
		return // an answer in one piece has no first token
	}
	if !f.begun {
		// An answer that is complete without any output has no first token
		// either; one that broke off was waited for that long at least.
		if o != done {
			s.TTFT.Gave.Add(now - f.chosen)
			s.Arrival.Gave.Add(now - f.arrived)
		}
		return
	}
	switch n := f.seen.Output; {
	case o != done:
		// Broken off: what the next token was waited for counts, so that a
		// stream which stalls does not look as fast as it began.
		s.TPOT.Add((now - f.first) / time.Duration(max(f.seen.Tokens, 1)))
		s.TPOTChunks++
	case f.seen.Usage && n > 1:
		s.TPOT.Add((f.last - f.first) / time.Duration(n-1))
	case !f.seen.Usage && f.seen.Tokens > 1:
		s.TPOT.Add((f.last - f.first) / time.Duration(f.seen.Tokens-1))
		s.TPOTChunks++
	}
}

// mirrorDropped counts a copy that was not sent.
func (t *tally) mirrorDropped() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.Dropped++
}

// compare counts a copy whose answer and the live one are both complete.
func (t *tally) compare(equal bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.Compared++
	if equal {
		t.c.Equal++
	}
}

// report is the counters as of now, with those who wait counted as waiting
// that long, and the number of requests in flight.
func (t *tally) report(now time.Duration) (route.Counters, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.c
	for f := t.flying; f != nil; f = f.next {
		if f.stream && !f.begun {
			s := &c.Strata[f.stratum]
			s.TTFT.Waiting.Add(now - f.chosen)
			s.Arrival.Waiting.Add(now - f.arrived)
		}
	}
	return c, t.n
}

// fill writes all counters into r.
func (t *tallies) fill(r *route.Report, now time.Duration) {
	collect := func(m map[string]*tally) map[string]*tally {
		t.mu.Lock()
		defer t.mu.Unlock()
		out := make(map[string]*tally, len(m))
		for v, y := range m {
			out[v] = y
		}
		return out
	}
	r.Versions, r.InFlight = map[string]route.Counters{}, map[string]int{}
	for v, y := range collect(t.versions) {
		r.Versions[v], r.InFlight[v] = y.report(now)
	}
	for v, y := range collect(t.mirrored) {
		if r.Mirrored == nil {
			r.Mirrored = map[string]route.Counters{}
		}
		c, n := y.report(now)
		r.Mirrored[v] = c
		r.InFlight[v] += n
	}
}
