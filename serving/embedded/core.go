package embedded

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Sequence is one prompt and what is generated for it. The exported fields are
// set before Add and not changed after.
type Sequence struct {
	ID       uint64
	Prompt   []int
	Salt     string // sequences of different salts share no cached block
	Max      int    // tokens to generate at most; 0 only scores the prompt
	Stop     []int  // ids that end it, once Sampling.Min is reached
	Score    bool   // give the log probabilities of the prompt's tokens
	Sampling Sampling

	output   []int
	blocks   []int32
	chain    []blockKey // of the prompt's full blocks, then of the output's as they fill
	kept     int        // blocks that are in the cache, or were found there
	computed int        // tokens whose keys and values are in blocks
	cached   int        // of those, how many were found at admission
	arrived  time.Duration
	admitted time.Duration
	state    seqState
}

type seqState uint8

const (
	seqNew seqState = iota
	seqWaiting
	seqRunning
	seqDone
)

// Output is what has been generated so far; it is valid until the next Commit.
func (s *Sequence) Output() []int { return s.output }

// Cached is the number of prompt tokens that the cache held.
func (s *Sequence) Cached() int { return s.cached }

// Arrived is when Add was called, Admitted when its first token was scheduled.
func (s *Sequence) Arrived() time.Duration  { return s.arrived }
func (s *Sequence) Admitted() time.Duration { return s.admitted }

// at is the token at a position of prompt and output together.
func (s *Sequence) at(i int) int {
	if i < len(s.Prompt) {
		return s.Prompt[i]
	}
	return s.output[i-len(s.Prompt)]
}

func (s *Sequence) length() int { return len(s.Prompt) + len(s.output) }

// Batch is the work of one step. It and what it refers to are valid until Commit.
type Batch struct {
	Rows   []Row
	Tokens int // over all rows
}

// Row is a run of one sequence's tokens.
type Row struct {
	Seq    *Sequence
	Start  int     // position of the first token
	Tokens []int   // at least one
	Blocks []int32 // where keys and values of the whole sequence lie
	Sample bool    // these are the last known tokens: choose the next
}

// Token is one token with its log probability before penalties and temperature.
// Rank is 1 for the most likely. Top are the most likely ones, best first.
// Prompt, for a Row of a sequence with Score, are the tokens after those of the
// row, as far as they are of the prompt.
type Token struct {
	ID      int
	Logprob float32
	Rank    int
	Top     []Ranked
	Prompt  []Token
}

// Ranked is a token that might have been.
type Ranked struct {
	ID      int
	Logprob float32
}

// Event tells what a step brought for one sequence.
type Event struct {
	Seq    *Sequence
	Prompt []Token // scores of further prompt tokens
	Token  *Token  // the generated token, or nil
	Finish string  // why the sequence ended: "stop", "length", or "" while it goes on
}

// Limits bound a Core.
type Limits struct {
	Sequences int // running at once
	Tokens    int // in one step
	Blocks    int // of the cache
}

// Stats are a Core's counters, in tokens where nothing else is said.
type Stats struct {
	Running, Waiting  int // sequences
	UsedBlocks        int
	PrefixQueries     uint64
	PrefixHits        uint64
	Prompt, Generated uint64
}

// Core decides what each step computes: continuous batching over a paged cache.
// It is a pure step function without clock, lock or goroutine; time is passed in.
//
// Sequences are served first come, first served. One is admitted when blocks for
// its prompt and its longest answer exist, so that nothing admitted is ever thrown
// out; long prompts are computed in pieces, behind the running answers. One whose
// beginning is just being computed for another waits those steps and then finds it
// in the cache.
type Core struct {
	limits  Limits
	pool    *pool
	waiting []*Sequence
	running []*Sequence
	byID    map[uint64]*Sequence
	coming  map[blockKey]int // prompt blocks that running sequences will compute, by how many
	stats   Stats
	tokens  []int // backs Row.Tokens of one batch
}

// NewCore makes a Core without sequences.
func NewCore(l Limits) (*Core, error) {
	if l.Sequences < 1 || l.Tokens < 1 || l.Blocks < 1 {
		return nil, fmt.Errorf("limits %+v: each must be at least 1", l)
	}
	return &Core{limits: l, pool: newPool(l.Blocks), byID: make(map[uint64]*Sequence), coming: make(map[blockKey]int)}, nil
}

// Add queues r.
func (c *Core) Add(now time.Duration, r *Sequence) error {
	switch {
	case len(r.Prompt) == 0:
		return errors.New("the prompt has no tokens")
	case r.Max < 0, r.Max == 0 && !r.Score:
		return fmt.Errorf("%d tokens to generate: want at least 1", r.Max)
	case r.state != seqNew || c.byID[r.ID] != nil:
		return fmt.Errorf("sequence %d was added before", r.ID)
	}
	if need := c.need(r); need > len(c.pool.blocks) {
		return fmt.Errorf("%d tokens need %d cache blocks, there are %d", len(r.Prompt)+r.Max, need, len(c.pool.blocks))
	}
	r.state, r.arrived = seqWaiting, now
	key := rootKey(r.Salt)
	for end := BlockSize; end <= len(r.Prompt); end += BlockSize {
		key = key.next(r.Prompt[end-BlockSize : end])
		r.chain = append(r.chain, key)
	}
	c.byID[r.ID] = r
	c.waiting = append(c.waiting, r)
	return nil
}

// need is the number of blocks r may come to use. The last token is never fed back.
func (c *Core) need(r *Sequence) int {
	return (len(r.Prompt) + max(r.Max-1, 0) + BlockSize - 1) / BlockSize
}

// Cancel ends a sequence; one that is unknown or done is ignored. Between Next and
// Commit it may be called only to give the batch up; emit may call it.
func (c *Core) Cancel(now time.Duration, id uint64) {
	if s := c.byID[id]; s != nil {
		c.end(s)
	}
}

func (c *Core) end(s *Sequence) {
	if s.state == seqRunning {
		c.pool.reserved -= c.need(s) - len(s.blocks)
		// The last block first: a chain is useless without its beginning.
		for _, b := range slices.Backward(s.blocks) {
			c.pool.release(b)
		}
		for i := s.kept; i < len(s.Prompt)/BlockSize; i++ {
			c.arrive(s.chain[i])
		}
		c.running = slices.DeleteFunc(c.running, func(r *Sequence) bool { return r == s })
	} else {
		c.waiting = slices.DeleteFunc(c.waiting, func(r *Sequence) bool { return r == s })
	}
	s.blocks, s.state = nil, seqDone
	delete(c.byID, s.ID)
}

// Next fills b with the next step's work. It is false when there is none.
func (c *Core) Next(now time.Duration, b *Batch) bool {
	b.Rows, b.Tokens = b.Rows[:0], 0
	c.tokens = c.tokens[:0]
	// Growing would move the slices that rows already hold.
	c.tokens = slices.Grow(c.tokens, c.limits.Tokens)
	for _, s := range c.running { // answers first, so that a long prompt delays no one by more than a step
		if s.length()-s.computed == 1 {
			c.schedule(b, s)
		}
	}
	for _, s := range c.running {
		if s.length()-s.computed > 1 {
			c.schedule(b, s)
		}
	}
	for len(c.waiting) > 0 && len(c.running) < c.limits.Sequences && b.Tokens < c.limits.Tokens {
		s := c.waiting[0]
		if !c.admit(now, s) {
			break
		}
		c.waiting = slices.Delete(c.waiting, 0, 1)
		c.schedule(b, s)
	}
	return len(b.Rows) > 0
}

func (c *Core) admit(now time.Duration, s *Sequence) bool {
	hits, worth := c.lookup(s)
	if !worth {
		return false
	}
	idle := 0 // hits that come out of the free blocks
	for _, i := range hits {
		if c.pool.blocks[i].refs == 0 {
			idle++
		}
	}
	rest := c.need(s) - len(hits)
	if rest+idle > c.pool.free-c.pool.reserved {
		return false
	}
	for _, i := range hits {
		c.pool.share(i)
	}
	c.pool.reserved += rest
	s.blocks, s.kept = hits, len(hits)
	s.cached = len(hits) * BlockSize
	s.computed = s.cached
	s.state, s.admitted = seqRunning, now
	for _, key := range s.chain[s.kept:] {
		c.coming[key]++
	}
	c.running = append(c.running, s)
	c.stats.PrefixQueries += uint64(len(s.Prompt))
	c.stats.PrefixHits += uint64(s.cached)
	return true
}

// lookup finds the cached beginning of a prompt. Its last token is always computed,
// for its logits; scoring wants the logits of all, so it finds nothing. worth is
// false when more of the beginning is about to be cached.
func (c *Core) lookup(s *Sequence) (hits []int32, worth bool) {
	if s.Score {
		return nil, true
	}
	for n, key := range s.chain {
		if (n+1)*BlockSize >= len(s.Prompt) {
			break
		}
		i, ok := c.pool.cached[key]
		if !ok {
			return hits, c.coming[key] == 0
		}
		hits = append(hits, i)
	}
	return hits, true
}

// arrive takes back one promise of a block.
func (c *Core) arrive(key blockKey) {
	if c.coming[key]--; c.coming[key] <= 0 {
		delete(c.coming, key)
	}
}

func (c *Core) schedule(b *Batch, s *Sequence) {
	n := min(s.length()-s.computed, c.limits.Tokens-b.Tokens)
	if n <= 0 {
		return
	}
	for len(s.blocks)*BlockSize < s.computed+n {
		c.pool.reserved--
		s.blocks = append(s.blocks, c.pool.take())
	}
	first := len(c.tokens)
	for i := range n {
		c.tokens = append(c.tokens, s.at(s.computed+i))
	}
	b.Rows = append(b.Rows, Row{
		Seq: s, Start: s.computed, Tokens: c.tokens[first:len(c.tokens):len(c.tokens)], Blocks: s.blocks,
		Sample: s.computed+n == s.length() && s.Max > 0,
	})
	b.Tokens += n
}

// Commit takes the results of b, one Token a row, and calls emit once for each
// sequence that has something to tell.
func (c *Core) Commit(now time.Duration, b *Batch, out []Token, emit func(Event)) {
	if len(out) < len(b.Rows) {
		panic("embedded: fewer results than rows")
	}
	for i, r := range b.Rows {
		s := r.Seq
		if s.state != seqRunning {
			continue
		}
		s.computed += len(r.Tokens)
		c.stats.Prompt += uint64(max(0, min(s.computed, len(s.Prompt))-r.Start))
		e := Event{Seq: s, Prompt: out[i].Prompt}
		if r.Sample {
			t := out[i]
			t.Prompt = nil
			s.output = append(s.output, t.ID)
			e.Token = &t
			c.stats.Generated++
		}
		c.keep(s)
		switch {
		case e.Token != nil && slices.Contains(s.Stop, e.Token.ID):
			e.Finish = "stop"
		case s.computed >= len(s.Prompt) && len(s.output) >= s.Max:
			e.Finish = "length"
		}
		if e.Finish != "" {
			c.end(s)
		}
		if e.Token != nil || e.Prompt != nil || e.Finish != "" {
			emit(e)
		}
	}
}

// keep enters the blocks that are now full into the cache.
func (c *Core) keep(s *Sequence) {
	for ; (s.kept+1)*BlockSize <= s.computed; s.kept++ {
		n := s.kept
		if n == len(s.chain) {
			var tokens [BlockSize]int
			for i := range tokens {
				tokens[i] = s.at(n*BlockSize + i)
			}
			last := rootKey(s.Salt)
			if n > 0 {
				last = s.chain[n-1]
			}
			s.chain = append(s.chain, last.next(tokens[:]))
		}
		if n < len(s.Prompt)/BlockSize {
			c.arrive(s.chain[n])
		}
		c.pool.keep(s.blocks[n], s.chain[n])
	}
}

// Stats gives the counters.
func (c *Core) Stats() Stats {
	s := c.stats
	s.Running, s.Waiting, s.UsedBlocks = len(c.running), len(c.waiting), c.pool.used()
	return s
}
