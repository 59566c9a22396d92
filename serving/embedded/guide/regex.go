package guide

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// regex is a pattern with bounds on how many characters match it.
type regex struct {
	source      string
	json        bool // spelled as in a JSON string
	least, most int  // characters; most -1: no bound
}

// maxPattern bounds a pattern's states by characters that were counted.
const maxPattern = 1 << 15

// spot is where a match may be: at an instruction, after so many characters. ended
// spots have passed the end of the text. Beyond least, or from the first one where
// nothing is counted, characters are no longer told apart.
type spot struct {
	pc    uint32
	count int
	ended bool
}

// build adds the pattern between two nodes, without what cannot be finished.
func (p regex) build(b *builder, from, to int32) error {
	parsed, err := syntax.Parse(p.source, syntax.Perl)
	if err != nil {
		return err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return err
	}
	// A pattern need match only a part: anything may stand before and after it. The
	// spots after a match are at the instruction that matches.
	w := &matcher{regex: p, prog: prog, after: make(map[spot][]arrow), silent: make(map[spot][]spot)}
	first := spot{pc: loopBefore}
	if err := w.explore(first); err != nil {
		return err
	}
	alive := w.alive()
	if !alive[first] {
		return errors.New("no text matches within the bounds of its length")
	}
	nodes := map[spot]int32{}
	at := func(s spot) int32 {
		n, ok := nodes[s]
		if !ok {
			n = b.node()
			nodes[s] = n
		}
		return n
	}
	b.eps(from, at(first))
	for _, s := range w.order {
		if !alive[s] {
			continue
		}
		for _, t := range w.silent[s] {
			if alive[t] {
				b.eps(at(s), at(t))
			}
		}
		for _, a := range w.after[s] {
			if alive[a.to] {
				b.runes(at(s), at(a.to), a.lo, a.hi, p.json)
			}
		}
		if w.matches(s) {
			b.eps(at(s), to)
		}
		if b.full {
			return nil
		}
	}
	return nil
}

// loopBefore is the instruction number of what stands before the match.
const loopBefore = ^uint32(0)

type arrow struct {
	lo, hi rune
	to     spot
}

type matcher struct {
	regex
	prog   *syntax.Prog
	order  []spot
	after  map[spot][]arrow
	silent map[spot][]spot
}

func (w *matcher) matches(s spot) bool {
	return s.pc != loopBefore && w.prog.Inst[s.pc].Op == syntax.InstMatch && s.count >= w.least
}

// more is the count after one more character; false over the bound.
func (w *matcher) more(s spot) (int, bool) {
	if w.most < 0 {
		return min(s.count+1, max(w.least, 1)), true
	}
	return s.count + 1, s.count < w.most
}

func (w *matcher) explore(first spot) error {
	seen := map[spot]bool{first: true}
	w.order = []spot{first}
	meet := func(s spot) {
		if !seen[s] {
			seen[s] = true
			w.order = append(w.order, s)
		}
	}
	for i := 0; i < len(w.order); i++ {
		if len(w.order) > maxPattern {
			return fmt.Errorf("it needs more than %d states", maxPattern)
		}
		s := w.order[i]
		if err := w.leave(s); err != nil {
			return err
		}
		for _, t := range w.silent[s] {
			meet(t)
		}
		for _, a := range w.after[s] {
			meet(a.to)
		}
	}
	return nil
}

// leave finds what follows s.
func (w *matcher) leave(s spot) error {
	silent := func(pc uint32, ended bool) { w.silent[s] = append(w.silent[s], spot{pc, s.count, ended}) }
	take := func(lo, hi rune, pc uint32) {
		if n, ok := w.more(s); ok && !s.ended {
			w.after[s] = append(w.after[s], arrow{lo, hi, spot{pc, n, false}})
		}
	}
	if s.pc == loopBefore {
		silent(uint32(w.prog.Start), s.ended)
		take(0, unicode.MaxRune, loopBefore)
		return nil
	}
	in := &w.prog.Inst[s.pc]
	switch in.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		silent(in.Out, s.ended)
		silent(in.Arg, s.ended)
	case syntax.InstCapture, syntax.InstNop:
		silent(in.Out, s.ended)
	case syntax.InstFail:
	case syntax.InstMatch:
		take(0, unicode.MaxRune, s.pc)
	case syntax.InstEmptyWidth:
		switch need := syntax.EmptyOp(in.Arg); {
		case need == syntax.EmptyBeginText:
			if s.count == 0 {
				silent(in.Out, s.ended)
			}
		case need == syntax.EmptyEndText:
			silent(in.Out, true)
		default:
			return errors.New("word and line boundaries are not supported")
		}
	case syntax.InstRuneAny:
		take(0, unicode.MaxRune, in.Out)
	case syntax.InstRuneAnyNotNL:
		take(0, '\n'-1, in.Out)
		take('\n'+1, unicode.MaxRune, in.Out)
	case syntax.InstRune, syntax.InstRune1:
		if len(in.Rune) == 1 {
			r := in.Rune[0]
			take(r, r, in.Out)
			if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					take(f, f, in.Out)
				}
			}
			return nil
		}
		for i := 0; i+1 < len(in.Rune); i += 2 {
			take(in.Rune[i], in.Rune[i+1], in.Out)
		}
	}
	return nil
}

// alive are the spots from which the end can be reached.
func (w *matcher) alive() map[spot]bool {
	before := make(map[spot][]spot)
	var todo []spot
	alive := make(map[spot]bool)
	for _, s := range w.order {
		for _, t := range w.silent[s] {
			before[t] = append(before[t], s)
		}
		for _, a := range w.after[s] {
			before[a.to] = append(before[a.to], s)
		}
		if w.matches(s) {
			alive[s] = true
			todo = append(todo, s)
		}
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, t := range before[s] {
			if !alive[t] {
				alive[t] = true
				todo = append(todo, t)
			}
		}
	}
	return alive
}

// runes adds the spellings of the characters lo to hi, without surrogates.
func (b *builder) runes(from, to int32, lo, hi rune, json bool) {
	if json {
		for r := lo; r <= min(hi, '\\'); r++ {
			if r < 0x20 || r == '"' || r == '\\' {
				var s strings.Builder
				writeRune(&s, r)
				b.eps(b.literal(from, s.String()), to)
			}
		}
		for _, span := range [][2]rune{{' ', '"' - 1}, {'"' + 1, '\\' - 1}} {
			b.utf8(from, to, max(lo, span[0]), min(hi, span[1]))
		}
		lo = max(lo, '\\'+1)
	}
	b.utf8(from, to, lo, hi)
}

// utf8 adds the encodings of lo to hi.
func (b *builder) utf8(from, to int32, lo, hi rune) {
	if lo > hi {
		return
	}
	for _, last := range []rune{0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff} {
		if lo <= last && last < hi {
			b.utf8(from, to, lo, last)
			b.utf8(from, to, last+1, hi)
			return
		}
	}
	if lo >= 0xd800 && hi <= 0xdfff {
		return
	}
	if hi <= 0x7f {
		b.bytes(from, to, byte(lo), byte(hi))
		return
	}
	// Split until each byte but the first has its full range or is fixed by those
	// before it.
	for _, bits := range []int{6, 12, 18} {
		m := rune(1)<<bits - 1
		if lo&^m == hi&^m {
			break
		}
		if lo&m != 0 {
			b.utf8(from, to, lo, lo|m)
			b.utf8(from, to, lo|m+1, hi)
			return
		}
		if hi&m != m {
			b.utf8(from, to, lo, hi&^m-1)
			b.utf8(from, to, hi&^m, hi)
			return
		}
	}
	var first, last [utf8.UTFMax]byte
	n := utf8.EncodeRune(first[:], lo)
	utf8.EncodeRune(last[:], hi)
	for i := range n {
		next := to
		if i < n-1 {
			next = b.node()
		}
		b.bytes(from, next, first[i], last[i])
		from = next
	}
}
