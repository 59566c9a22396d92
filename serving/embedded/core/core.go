// Package core decides what an engine computes in each step, and chooses tokens
// from logits: continuous batching over a paged cache, with chunked prefill,
// a prefix cache, priorities, preemption, LoRA slots and the hand-over of keys and
// values between engines.
//
// A Core is a pure step function without clock, lock or goroutine: time is passed
// in, an Executor computes what Next gives and Commit takes the results. It runs
// under the wall clock behind an API and under a virtual clock in a simulation.
package core

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"time"
)

// Limits bound a Core.
type Limits struct {
	Sequences int // running at once
	Tokens    int // in one step
	Blocks    int // of the cache
	BlockSize int // tokens in a block; default BlockSize
	Chunk     int // tokens of one prompt in a step; 0: as many as fit
	Adapters  int // different ones running at once; 0: none may

	// Overcommit admits a sequence when the blocks of its known tokens are free,
	// instead of those of its longest answer. When blocks run out, the least
	// important sequence is thrown out and computed again later.
	Overcommit bool
	Hash       Hash // of blocks; default: SHA-256
	Record     bool // block events, for BlockEvents
}

// Stats are a Core's counters, in tokens where nothing else is said.
type Stats struct {
	Running, Waiting  int // sequences
	UsedBlocks        int
	PrefixQueries     uint64
	PrefixHits        uint64
	ImportQueries     uint64 // that another engine might have computed
	Imported          uint64 // of those, that were imported
	Prompt, Generated uint64
	Recomputed        uint64 // computed before, and lost to a preemption
	Preemptions       uint64 // sequences
	Evictions         uint64 // blocks
	HeldBlocks        int    // for other engines to fetch
	Steps             uint64
}

// Core schedules sequences. They are served in the order of their priority, equals
// first come, first served. Without Overcommit one is admitted when blocks for its
// prompt and its longest answer exist, so that nothing admitted is ever thrown
// out. Long prompts are computed in pieces, behind the running answers. One whose
// beginning is just being computed for another waits those steps and then finds it
// in the cache.
type Core struct {
	limits   Limits
	pool     *pool
	waiting  []*Sequence // in order, like running
	running  []*Sequence
	byID     map[uint64]*Sequence
	held     map[uint64]*Sequence
	coming   map[Key]int    // blocks that running sequences will compute, by how many
	adapters map[string]int // running sequences by adapter
	stats    Stats
	tokens   []int // copies of one step, for Row.Tokens
	events   []BlockEvent
}

// New makes a Core without sequences.
func New(l Limits) (*Core, error) {
	if l.BlockSize == 0 {
		l.BlockSize = BlockSize
	}
	if l.Sequences < 1 || l.Tokens < 1 || l.Blocks < 1 || l.BlockSize < 1 || l.Chunk < 0 || l.Adapters < 0 {
		return nil, fmt.Errorf("limits of %d sequences, %d tokens, %d blocks of %d tokens, %d in a chunk, %d adapters: want the first four at least 1, the others not negative",
			l.Sequences, l.Tokens, l.Blocks, l.BlockSize, l.Chunk, l.Adapters)
	}
	if l.Hash == nil {
		l.Hash = sha{}
	}
	c := &Core{
		limits: l, pool: newPool(l.Blocks), byID: make(map[uint64]*Sequence), held: make(map[uint64]*Sequence),
		coming: make(map[Key]int), adapters: make(map[string]int),
	}
	if l.Record {
		c.pool.removed = func(k Key) { c.events = append(c.events, BlockEvent{Kind: BlockRemoved, Key: k}) }
	}
	return c, nil
}

// usualAnswer is how many tokens room is made for at once.
const usualAnswer = 512

// Limits are the effective ones.
func (c *Core) Limits() Limits { return c.limits }

// Add queues r.
func (c *Core) Add(now time.Duration, r *Sequence) error {
	switch {
	case len(r.Prompt) == 0:
		return errors.New("the prompt has no tokens")
	case r.Max < 0, r.Max == 0 && !r.Score:
		return fmt.Errorf("%d tokens to generate: want at least 1", r.Max)
	case r.state != stateNew || c.byID[r.ID] != nil || c.held[r.ID] != nil:
		return fmt.Errorf("sequence %d was added before", r.ID)
	case r.Adapter != "" && c.limits.Adapters == 0:
		return fmt.Errorf("adapter %q: this engine runs none", r.Adapter)
	case r.Import != nil && (r.Imported < 1 || r.Imported > len(r.Prompt) || r.Score):
		return fmt.Errorf("%d imported tokens for a prompt of %d: want 1 to all, and no scores", r.Imported, len(r.Prompt))
	}
	if need := c.need(r); need > len(c.pool.blocks) {
		return fmt.Errorf("%d tokens need %d cache blocks, there are %d", len(r.Prompt)+r.Max, need, len(c.pool.blocks))
	}
	r.state, r.arrived = stateWaiting, now
	r.plain = len(r.Stop) == 0 && r.Guide == nil && !r.Score && r.Import == nil && r.Sampling.Top < 0
	size := c.limits.BlockSize
	key := c.limits.Hash.Root(r.Salt, r.Adapter)
	// Room for a usual answer, so that its tokens allocate nothing.
	usual := min(r.Max, usualAnswer)
	r.output = slices.Grow(r.output, usual)
	r.blocks = slices.Grow(r.blocks, c.blocksFor(len(r.Prompt)+usual))
	r.chain = slices.Grow(r.chain, c.blocksFor(len(r.Prompt)+usual))
	for end := size; end <= len(r.Prompt); end += size {
		key = c.limits.Hash.Next(key, r.Prompt[end-size:end])
		r.chain = append(r.chain, key)
	}
	c.byID[r.ID] = r
	c.waiting = insert(c.waiting, r)
	return nil
}

// insert keeps a queue in order.
func insert(queue []*Sequence, s *Sequence) []*Sequence {
	if n := len(queue); n == 0 || queue[n-1].before(s) {
		return append(queue, s)
	}
	return slices.Insert(queue, place(queue, s), s)
}

// place is where s is in a queue, or would be.
func place(queue []*Sequence, s *Sequence) int {
	return sort.Search(len(queue), func(i int) bool { return !queue[i].before(s) })
}

func remove(queue []*Sequence, s *Sequence) []*Sequence {
	i := place(queue, s)
	return slices.Delete(queue, i, i+1)
}

func (c *Core) blocksFor(tokens int) int {
	return (tokens + c.limits.BlockSize - 1) / c.limits.BlockSize
}

// need is the number of blocks r may come to use. The last token is never fed back.
func (c *Core) need(r *Sequence) int { return c.blocksFor(len(r.Prompt) + max(r.Max-1, 0)) }

// Cancel ends a sequence, and gives up what is held for it; one that is unknown or
// done is ignored. Between Next and Commit it may be called only to give the batch
// up; emit may call it.
func (c *Core) Cancel(now time.Duration, id uint64) {
	if s := c.byID[id]; s != nil {
		c.end(s, false)
	}
	c.Release(id)
}

// end takes s out of its queue; hold keeps its blocks.
func (c *Core) end(s *Sequence, hold bool) {
	if s.state == stateRunning {
		c.running = remove(c.running, s)
		c.leave(s)
	} else {
		c.waiting = remove(c.waiting, s)
	}
	s.state, s.Import = stateDone, nil
	delete(c.byID, s.ID)
	if hold {
		c.held[s.ID] = s
		c.stats.HeldBlocks += len(s.blocks)
		return
	}
	c.pool.release(s.blocks)
	s.blocks = s.blocks[:0]
}

// leave takes back what a running sequence was promised and has promised.
func (c *Core) leave(s *Sequence) {
	if !c.limits.Overcommit {
		c.pool.reserved -= c.need(s) - len(s.blocks)
	}
	for i := s.kept; i < s.promised; i++ {
		c.arrive(s.chain[i])
	}
	if s.Adapter != "" {
		if c.adapters[s.Adapter]--; c.adapters[s.Adapter] == 0 {
			delete(c.adapters, s.Adapter)
		}
	}
}

// Held gives the blocks that are kept for another engine, and how many tokens lie
// in them.
func (c *Core) Held(id uint64) (blocks []int32, tokens int, ok bool) {
	s := c.held[id]
	if s == nil {
		return nil, 0, false
	}
	return s.blocks, s.computed, true
}

// HeldIDs gives the sequences whose blocks are kept for another engine.
func (c *Core) HeldIDs() iter.Seq[uint64] { return maps.Keys(maps.Clone(c.held)) }

// Release gives up what is held for another engine.
func (c *Core) Release(id uint64) {
	s := c.held[id]
	if s == nil {
		return
	}
	delete(c.held, id)
	c.stats.HeldBlocks -= len(s.blocks)
	c.pool.release(s.blocks)
	s.blocks = s.blocks[:0]
}

// Reset empties the prefix cache. It does nothing and returns false while blocks
// are in use.
func (c *Core) Reset() bool {
	if c.pool.used() > 0 {
		return false
	}
	c.pool.clear()
	if c.limits.Record {
		c.events = append(c.events, BlockEvent{Kind: AllBlocksCleared})
	}
	return true
}

// BlockEvents gives what has happened since the last call, if it is recorded.
func (c *Core) BlockEvents() []BlockEvent {
	e := c.events
	c.events = nil
	return e
}

// Next fills b with the next step's work. It is false when there is none.
func (c *Core) Next(now time.Duration, b *Batch) bool {
	b.Rows, b.Tokens = b.Rows[:0], 0
	// Growing would move the slices that rows already hold.
	c.tokens = slices.Grow(c.tokens[:0], c.limits.Tokens)
	prompts, preempted := 0, c.stats.Preemptions
	// Answers first, so that a long prompt delays no one by more than a step. The
	// running are in order and victims come from the end, so that no row of this
	// pass loses its blocks.
	for i := 0; i < len(c.running); i++ {
		s := c.running[i]
		if s.Len()-s.computed > 1 {
			prompts++
			continue
		}
		if len(s.blocks)*c.limits.BlockSize <= s.computed && c.limits.Overcommit {
			for c.pool.free == 0 && len(c.running) > i {
				c.preempt(c.running[len(c.running)-1])
			}
			if len(c.running) <= i {
				break // s itself was the last
			}
		}
		c.schedule(b, s)
	}
	for i := 0; prompts > 0 && i < len(c.running); i++ {
		s := c.running[i]
		if s.Len()-s.computed == 1 {
			continue
		}
		for len(s.blocks)*c.limits.BlockSize <= s.computed && c.limits.Overcommit && c.pool.free == 0 {
			// An answer at the end has its row already, and gives blocks back when it
			// ends; prompts that all wait for each other never would.
			last := c.running[len(c.running)-1]
			if last == s || last.Len()-last.computed == 1 {
				break
			}
			c.preempt(last)
		}
		c.schedule(b, s)
	}
	if c.stats.Preemptions > preempted && len(b.Rows) > 0 {
		return true // what was thrown out would come straight back
	}
	for at := 0; at < len(c.waiting) && len(c.running) < c.limits.Sequences && b.Tokens < c.limits.Tokens; {
		s := c.waiting[at]
		if s.Adapter != "" && c.adapters[s.Adapter] == 0 && len(c.adapters) >= c.limits.Adapters {
			at++ // the others need not wait for a slot
			continue
		}
		if !c.admit(now, s) {
			break
		}
		c.waiting = slices.Delete(c.waiting, at, at+1)
		c.schedule(b, s)
	}
	return len(b.Rows) > 0
}

// preempt throws a running sequence out, to be computed again.
func (c *Core) preempt(s *Sequence) {
	c.running = c.running[:len(c.running)-1]
	c.leave(s)
	c.pool.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.kept, s.promised, s.computed = 0, 0, 0
	s.state = stateWaiting
	c.waiting = insert(c.waiting, s)
	c.stats.Preemptions++
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
	need := c.need(s)
	if c.limits.Overcommit {
		need = c.blocksFor(s.Len())
	}
	rest := need - len(hits)
	if rest+idle > c.pool.free-c.pool.reserved {
		return false
	}
	for _, i := range hits {
		c.pool.share(i)
	}
	if !c.limits.Overcommit {
		c.pool.reserved += rest
	}
	again := s.highest > 0
	s.blocks, s.kept = hits, len(hits)
	s.computed = len(hits) * c.limits.BlockSize
	if !again {
		s.admitted = now
		c.stats.PrefixQueries += uint64(len(s.Prompt))
		c.stats.PrefixHits += uint64(s.computed)
	}
	// The last token is computed anew, for its logits.
	if s.Import != nil {
		c.stats.ImportQueries += uint64(len(s.Prompt) - s.computed)
	}
	if n := min(s.Imported, len(s.Prompt)-1); s.Import != nil && n > s.computed {
		c.stats.Imported += uint64(n - s.computed)
		s.computed = n
	}
	if !again {
		s.cached = s.computed
	}
	s.state, s.promised = stateRunning, len(s.chain)
	for _, key := range s.chain[s.kept:] {
		c.coming[key]++
	}
	if s.Adapter != "" {
		c.adapters[s.Adapter]++
	}
	c.running = insert(c.running, s)
	return true
}

// lookup finds the cached beginning of a sequence. Its last token is always
// computed, for its logits; scoring wants the logits of all, so it finds nothing.
// worth is false when more of the beginning is about to be cached.
func (c *Core) lookup(s *Sequence) (hits []int32, worth bool) {
	if s.Score {
		return nil, true
	}
	hits = s.blocks[:0]
	for n, key := range s.chain {
		if (n+1)*c.limits.BlockSize >= s.Len() {
			break
		}
		i, ok := c.pool.find(key)
		if !ok {
			return hits, c.coming[key] == 0
		}
		hits = append(hits, i)
	}
	return hits, true
}

// arrive takes back one promise of a block.
func (c *Core) arrive(key Key) {
	if n := c.coming[key]; n > 1 {
		c.coming[key] = n - 1
	} else {
		delete(c.coming, key)
	}
}

// schedule gives s as much of the step as is left and as blocks allow.
func (c *Core) schedule(b *Batch, s *Sequence) {
	n := min(s.Len()-s.computed, c.limits.Tokens-b.Tokens)
	if c.limits.Chunk > 0 {
		n = min(n, c.limits.Chunk)
	}
	if n <= 0 {
		return
	}
	size := c.limits.BlockSize
	for len(s.blocks)*size < s.computed+n {
		if !c.limits.Overcommit {
			c.pool.reserved--
		} else if c.pool.free == 0 {
			// Answers took the blocks that were free at admission.
			if n = len(s.blocks)*size - s.computed; n <= 0 {
				return
			}
			break
		}
		s.blocks = append(s.blocks, c.pool.take())
	}
	// Field by field: a literal would be made elsewhere and copied.
	at := len(b.Rows)
	b.Rows = slices.Grow(b.Rows, 1)[:at+1]
	r := &b.Rows[at]
	r.Seq, r.Start, r.Tokens, r.Blocks = s, s.computed, c.span(s, s.computed, n), s.blocks
	r.Sample = s.computed+n == s.Len() && s.Max > 0
	r.Import, r.ImportFrom = !s.plain && s.Import != nil && s.computed > s.kept*size, s.kept*size
	b.Tokens += n
}

// span is n tokens of s: where they lie or, over the end of the prompt, a copy that
// lasts until the next step.
func (c *Core) span(s *Sequence, from, n int) []int {
	prompt := len(s.Prompt)
	switch {
	case from >= prompt:
		return s.output[from-prompt : from-prompt+n : from-prompt+n]
	case from+n <= prompt:
		return s.Prompt[from : from+n : from+n]
	}
	first := len(c.tokens)
	c.tokens = append(append(c.tokens, s.Prompt[from:]...), s.output[:from+n-prompt]...)
	return c.tokens[first:len(c.tokens):len(c.tokens)]
}

// Commit takes the results of b, one Token a row, and calls emit once for each
// sequence that has something to tell.
func (c *Core) Commit(now time.Duration, b *Batch, out []Token, emit func(Event)) {
	if len(out) < len(b.Rows) {
		panic("core: fewer results than rows")
	}
	c.stats.Steps++
	for i := range b.Rows {
		r := &b.Rows[i]
		s := r.Seq
		if s.state != stateRunning {
			continue
		}
		if !s.plain {
			s.Import = nil
		}
		s.computed += len(r.Tokens)
		c.count(s, r.Start)
		e := Event{Seq: s, Prompt: out[i].Prompt}
		if len(e.Prompt) > 0 { // after a preemption they come again
			e.Prompt = e.Prompt[min(max(s.scored-r.Start, 0), len(e.Prompt)):]
			s.scored += len(e.Prompt)
		}
		if r.Sample {
			e.Token = &out[i]
			e.Token.Prompt = nil
			s.output = append(s.output, e.Token.ID)
			c.stats.Generated++
			if !s.plain && s.Guide != nil {
				s.Guide.Accept(e.Token.ID)
			}
		}
		if (s.kept+1)*c.limits.BlockSize <= s.computed {
			c.keep(s)
		}
		switch {
		case e.Token != nil && !s.plain && slices.Contains(s.Stop, e.Token.ID):
			e.Finish = "stop"
		case s.computed >= len(s.Prompt) && len(s.output) >= s.Max:
			e.Finish = "length"
		}
		if e.Finish != "" {
			c.end(s, s.Hold)
		}
		if e.Token != nil || len(e.Prompt) > 0 || e.Finish != "" {
			emit(e)
		}
	}
}

// count tells what was computed for the first time from what was computed again.
func (c *Core) count(s *Sequence, start int) {
	if start < s.highest {
		c.stats.Recomputed += uint64(min(s.computed, s.highest) - start)
		start = s.highest
	}
	if n := min(s.computed, len(s.Prompt)) - start; n > 0 {
		c.stats.Prompt += uint64(n)
	}
	s.highest = max(s.highest, s.computed)
}

// keep enters the blocks that are now full into the cache.
func (c *Core) keep(s *Sequence) {
	size := c.limits.BlockSize
	for ; (s.kept+1)*size <= s.computed; s.kept++ {
		n := s.kept
		parent := Key{}
		if n > 0 {
			parent = s.chain[n-1]
		}
		if n == len(s.chain) {
			from := parent
			if n == 0 {
				from = c.limits.Hash.Root(s.Salt, s.Adapter)
			}
			s.chain = append(s.chain, c.limits.Hash.Next(from, c.span(s, n*size, size)))
		}
		if n < s.promised {
			c.arrive(s.chain[n])
		}
		if c.pool.keep(s.blocks[n], s.chain[n]) && c.limits.Record {
			c.events = append(c.events, BlockEvent{
				Kind: BlockStored, Key: s.chain[n], Parent: parent, Tokens: slices.Clone(c.span(s, n*size, size)), Adapter: s.Adapter, Salt: s.Salt,
			})
		}
	}
}

// Stats gives the counters.
func (c *Core) Stats() Stats {
	s := c.stats
	s.Running, s.Waiting, s.UsedBlocks, s.Evictions = len(c.running), len(c.waiting), c.pool.used(), c.pool.evicted
	return s
}

// HasAdapter tells whether a sequence of the adapter is running or waiting.
func (c *Core) HasAdapter(name string) bool {
	return c.adapters[name] > 0 || slices.ContainsFunc(c.waiting, func(s *Sequence) bool { return s.Adapter == name })
}

// Adapters names the adapters of the running sequences and those that are only
// waited for, each sorted.
func (c *Core) Adapters() (running, waiting []string) {
	for a := range c.adapters {
		running = append(running, a)
	}
	for _, s := range c.waiting {
		if s.Adapter != "" && c.adapters[s.Adapter] == 0 {
			waiting = append(waiting, s.Adapter)
		}
	}
	slices.Sort(running)
	slices.Sort(waiting)
	return running, slices.Compact(waiting)
}
