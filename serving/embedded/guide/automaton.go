package guide

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxNodes bounds an automaton; a schema that needs more is refused.
const maxNodes = 1 << 17

// node is a state of the automaton. Rules call one another, as their schemas do, so
// that it is one with a stack.
type node struct {
	rule  int32
	edges []edge
}

// edge leads on over a byte of a range, over a call of a rule, or over nothing.
// Conditions are on the count of the rule's present call.
type edge struct {
	to      int32
	call    int32 // rule; -1: none
	lo, hi  byte  // lo > hi: over no byte
	below   int32 // the count must be; -1: no condition
	atLeast int32 // the count must be
	count   bool  // one more
}

func (e *edge) silent() bool { return e.lo > e.hi }

// rule is a part of the automaton that is entered at start and left at final. Its
// count tells below least from below most (-1: no upper bound) and is no finer.
type rule struct {
	start, final int32
	least, most  int32
	name         string // the place in the schema
}

type builder struct {
	nodes []node
	rules []rule
	at    int32 // the rule that new nodes belong to
	full  bool
}

func newBuilder() *builder { return &builder{} }

// rule begins a new rule, to which nodes belong from now on.
func (b *builder) rule() int32 {
	r := int32(len(b.rules))
	b.rules = append(b.rules, rule{most: -1})
	b.at = r
	b.rules[r].start = b.node()
	b.rules[r].final = b.node()
	return r
}

func (b *builder) node() int32 {
	if len(b.nodes) >= maxNodes {
		b.full = true // the caller goes on with one node and check refuses
		return 0
	}
	b.nodes = append(b.nodes, node{rule: b.at})
	return int32(len(b.nodes) - 1)
}

func (b *builder) add(from int32, e edge) {
	if !b.full {
		b.nodes[from].edges = append(b.nodes[from].edges, e)
	}
}

// plain is an edge over nothing without conditions.
func plain(to int32) edge { return edge{to: to, call: -1, lo: 1, below: -1} }

func over(lo, hi byte, to int32) edge {
	e := plain(to)
	e.lo, e.hi = lo, hi
	return e
}

func (b *builder) eps(from, to int32)                { b.add(from, plain(to)) }
func (b *builder) bytes(from, to int32, lo, hi byte) { b.add(from, over(lo, hi, to)) }

// literal adds a chain and returns its end.
func (b *builder) literal(from int32, text string) int32 {
	for i := range len(text) {
		to := b.node()
		b.bytes(from, to, text[i], text[i])
		from = to
	}
	return from
}

// literals adds texts, which share the nodes of a common beginning.
func (b *builder) literals(from, to int32, texts []string) {
	after := make(map[byte][]string)
	if b.full {
		return
	}
	for _, t := range texts {
		if t == "" {
			b.eps(from, to)
			continue
		}
		after[t[0]] = append(after[t[0]], t[1:])
	}
	for _, c := range slices.Sorted(maps.Keys(after)) {
		next := b.node()
		b.bytes(from, next, c, c)
		b.literals(next, to, after[c])
	}
}

// invoke adds a call and returns the node after it.
func (b *builder) invoke(from, rule int32) int32 {
	e := plain(b.node())
	e.call = rule
	b.add(from, e)
	return e.to
}

// separator adds sep, and the one space that may follow it.
func (b *builder) separator(from int32, sep string) int32 {
	from = b.literal(from, sep)
	to := b.node()
	b.eps(from, to)
	b.bytes(from, to, ' ', ' ')
	return to
}

// check refuses automata that are too large, rules without an end and rules that
// call themselves before a byte.
func (b *builder) check(root int32) error {
	if b.full {
		return fmt.Errorf("the schema needs more than %d states", maxNodes)
	}
	ends := b.ends()
	for r, ok := range ends {
		if !ok {
			return fmt.Errorf("schema at %q: no finite value is valid", b.rules[r].name)
		}
	}
	const fresh, open, done = 0, 1, 2
	mark := make([]uint8, len(b.rules))
	var visit func(r int32) error
	visit = func(r int32) error {
		mark[r] = open
		for _, callee := range b.callsFirst(r) {
			switch mark[callee] {
			case open:
				return fmt.Errorf("schema at %q: keyword \"$ref\" leads back to itself without a value between", b.rules[callee].name)
			case fresh:
				if err := visit(callee); err != nil {
					return err
				}
			}
		}
		mark[r] = done
		return nil
	}
	if root < 0 || int(root) >= len(b.rules) {
		return errors.New("the grammar has no root")
	}
	for r := range b.rules {
		if mark[r] == fresh {
			if err := visit(int32(r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ends tells which rules' ends can be reached, by calls of rules of which that is
// true in turn.
func (b *builder) ends() []bool {
	ends := make([]bool, len(b.rules))
	reached := make([]bool, len(b.nodes))
	waiting := make([][]int32, len(b.rules)) // nodes that are reached when the rule has an end
	var todo []int32
	reach := func(n int32) {
		if !reached[n] {
			reached[n] = true
			todo = append(todo, n)
		}
	}
	for _, r := range b.rules {
		reach(r.start)
	}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for i := range b.nodes[n].edges {
			if e := &b.nodes[n].edges[i]; e.call < 0 || ends[e.call] {
				reach(e.to)
			} else {
				waiting[e.call] = append(waiting[e.call], e.to)
			}
		}
		if r := b.nodes[n].rule; n == b.rules[r].final {
			ends[r] = true
			for _, to := range waiting[r] {
				reach(to)
			}
			waiting[r] = nil
		}
	}
	return ends
}

// callsFirst lists what r may call before it has taken a byte. No rule is empty.
func (b *builder) callsFirst(r int32) (callees []int32) {
	seen := map[int32]bool{b.rules[r].start: true}
	todo := []int32{b.rules[r].start}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, e := range b.nodes[n].edges {
			switch {
			case e.call >= 0:
				callees = append(callees, e.call)
			case e.silent() && !seen[e.to]:
				seen[e.to] = true
				todo = append(todo, e.to)
			}
		}
	}
	return callees
}

// classes numbers the bytes that no edge tells apart, and gives one of each.
func (b *builder) classes() (class [256]uint8, member []byte) {
	var cut [257]bool
	cut[0] = true
	for i := range b.nodes {
		for _, e := range b.nodes[i].edges {
			if !e.silent() {
				cut[e.lo], cut[int(e.hi)+1] = true, true
			}
		}
	}
	for c := range 256 {
		if cut[c] {
			member = append(member, byte(c))
		}
		class[c] = uint8(len(member) - 1)
	}
	return class, member
}
