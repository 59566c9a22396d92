package guide

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
)

// Bounds of what a grammar keeps. A state is about a kilobyte.
const (
	keepStates    = 1 << 13
	keepMaskBytes = 8 << 20
	// maxStacks bounds a state. Alternatives that begin alike and nest could make
	// twice as many with every level; what goes over the bound is not followed, so
	// that the guide gets narrower and never wrong.
	maxStacks = 512
)

// frame is a call of a rule under way: where it stands or goes on after the call
// above it returns, and its count. Frames of equal content are one.
type frame struct {
	node, count int32
	below       *frame
	id          uint32
	rough       *frame // see clamp; nil: not known
}

type frameKey struct {
	node, count int32
	below       *frame
}

// state is all the places where a text may be.
type state struct {
	tops      []*frame // with an edge over a byte
	accepting bool
	next      []*state // by class of byte; nil: not known
	mask      []uint64 // nil: not known
}

// lazy is the deterministic automaton, made as it is walked.
type lazy struct {
	nodes  []node
	rules  []rule
	root   int32
	class  [256]uint8
	member []byte
	vocab  *Vocabulary
	dead   *state // nothing may follow
	ended  *state // nothing but an end may follow

	mu     sync.Mutex // guards all below, and what frames and states keep
	frames map[frameKey]*frame
	ids    uint32
	states map[string]*state
	masks  map[string][]uint64
	start  *state

	// Of one step, kept to save allocations.
	seen  map[*frame]bool
	tops  []*frame
	final bool
	key   []byte
	path  []*state
}

func newLazy(b *builder, root int32, v *Vocabulary) *lazy {
	l := &lazy{nodes: b.nodes, rules: b.rules, root: root, vocab: v, seen: make(map[*frame]bool), masks: make(map[string][]uint64)}
	l.class, l.member = b.classes()
	l.dead = &state{next: make([]*state, len(l.member))}
	l.ended = &state{accepting: true, next: make([]*state, len(l.member))}
	for i := range l.member {
		l.dead.next[i], l.ended.next[i] = l.dead, l.dead
	}
	l.path = make([]*state, v.trie.longest+1)
	l.forget()
	return l
}

// forget drops what was kept; states that a guide stands at stay good.
func (l *lazy) forget() {
	l.frames, l.states, l.start = make(map[frameKey]*frame), make(map[string]*state), nil
}

func (l *lazy) frame(node, count int32, below *frame) *frame {
	k := frameKey{node, count, below}
	f := l.frames[k]
	if f == nil {
		l.ids++
		f = &frame{node: node, count: count, below: below, id: l.ids}
		l.frames[k] = f
	}
	return f
}

func (l *lazy) begin() *state {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start == nil {
		l.reach(l.frame(l.rules[l.root].start, 0, nil))
		l.start = l.gather()
	}
	return l.start
}

// follow gives the count after e, if e may be taken.
func (l *lazy) follow(f *frame, e *edge) (count int32, ok bool) {
	if e.below >= 0 && f.count >= e.below || f.count < e.atLeast {
		return 0, false
	}
	if !e.count {
		return f.count, true
	}
	if r := &l.rules[l.nodes[f.node].rule]; r.most < 0 {
		return min(f.count+1, r.least), true
	}
	return f.count + 1, true
}

// reach adds f and what is reached from it over no byte.
func (l *lazy) reach(f *frame) {
	if l.seen[f] {
		return
	}
	l.seen[f] = true
	n := &l.nodes[f.node]
	top := false
	for i := range n.edges {
		e := &n.edges[i]
		if !e.silent() {
			top = true
			continue
		}
		count, ok := l.follow(f, e)
		if !ok {
			continue
		}
		to := l.frame(e.to, count, f.below)
		if e.call >= 0 {
			to = l.frame(l.rules[e.call].start, 0, to)
		}
		l.reach(to)
	}
	if f.node == l.rules[n.rule].final {
		if f.below == nil {
			l.final = true
		} else {
			l.reach(f.below)
		}
	}
	if top {
		l.tops = append(l.tops, f)
	}
}

// gather makes a state of what was reached.
func (l *lazy) gather() *state {
	tops, final := l.tops, l.final
	clear(l.seen)
	l.tops, l.final = l.tops[:0], false
	if len(tops) == 0 {
		if final {
			return l.ended
		}
		return l.dead
	}
	slices.SortFunc(tops, func(a, b *frame) int { return cmp.Compare(a.id, b.id) })
	tops = tops[:min(len(tops), maxStacks)]
	l.key = appendKey(l.key[:0], tops, final)
	if s := l.states[string(l.key)]; s != nil {
		return s
	}
	if len(l.states) >= keepStates {
		l.forget()
	}
	s := &state{tops: slices.Clone(tops), accepting: final, next: make([]*state, len(l.member))}
	l.states[string(l.key)] = s
	return s
}

func appendKey(key []byte, tops []*frame, final bool) []byte {
	if final {
		key = append(key, 1)
	} else {
		key = append(key, 0)
	}
	for _, f := range tops {
		key = binary.LittleEndian.AppendUint32(key, f.id)
	}
	return key
}

// step gives the state after a byte of class c.
func (l *lazy) step(s *state, c uint8) *state {
	if t := s.next[c]; t != nil {
		return t
	}
	b := l.member[c]
	for _, f := range s.tops {
		n := &l.nodes[f.node]
		for i := range n.edges {
			e := &n.edges[i]
			if b < e.lo || b > e.hi || e.silent() {
				continue
			}
			if count, ok := l.follow(f, e); ok {
				l.reach(l.frame(e.to, count, f.below))
			}
		}
	}
	t := l.gather()
	s.next[c] = t
	return t
}

func (l *lazy) accept(s *state, id int) *state {
	if slices.Contains(l.vocab.eos, id) || id < 0 || id >= len(l.vocab.tokens) {
		return l.ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.vocab.tokens[id] {
		s = l.step(s, l.class[b])
	}
	if s == l.dead {
		return l.ended
	}
	return s
}

func (l *lazy) mask(s *state) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.mask != nil {
		return s.mask
	}
	rough := make([]*frame, len(s.tops))
	for i, f := range s.tops {
		rough[i] = l.clamp(f)
	}
	slices.SortFunc(rough, func(a, b *frame) int { return cmp.Compare(a.id, b.id) })
	key := appendKey(nil, slices.Compact(rough), s.accepting)
	if m := l.masks[string(key)]; m != nil {
		s.mask = m
		return m
	}
	s.mask = l.walk(s)
	if (len(l.masks)+1)*len(s.mask)*8 > keepMaskBytes {
		clear(l.masks)
		l.forget() // states hold their masks
	}
	l.masks[string(key)] = s.mask
	return s.mask
}

// clamp makes frames equal whose counts no single token can tell apart, because it
// is too short to reach a bound: their masks are equal.
func (l *lazy) clamp(f *frame) *frame {
	if f.rough != nil {
		return f.rough
	}
	longest := int32(l.vocab.trie.longest)
	r := &l.rules[l.nodes[f.node].rule]
	count := f.count
	switch {
	case r.most >= 0 && r.most-count <= longest:
	case count >= r.least:
		count = r.least
	case r.least-count > longest:
		count = 0
	}
	below := f.below
	if below != nil {
		below = l.clamp(below)
	}
	f.rough = f
	if count != f.count || below != f.below {
		f.rough = l.frame(f.node, count, below)
		f.rough.rough = f.rough
	}
	return f.rough
}

// walk tries every token.
func (l *lazy) walk(s *state) []uint64 {
	v := l.vocab
	size := len(v.tokens)
	for _, id := range v.eos {
		size = max(size, id+1)
	}
	m := make([]uint64, (size+63)/64)
	t := &v.trie
	l.path[0] = s
	for i := 0; i < len(t.byte); {
		d := t.depth[i]
		c := l.class[t.byte[i]]
		to := l.path[d].next[c]
		if to == nil {
			to = l.step(l.path[d], c)
		}
		if to == l.dead {
			i = int(t.skip[i])
			continue
		}
		l.path[d+1] = to
		for _, id := range t.ids[t.first[i]:t.first[i+1]] {
			m[id>>6] |= 1 << (id & 63)
		}
		i++
	}
	if s.accepting {
		for _, id := range v.eos {
			m[id>>6] |= 1 << (id & 63)
		}
	}
	clear(l.path)
	return m
}
