package tokenizer

import "container/heap"

// bpe merges the bytes of word, lowest rank first and leftmost among equals.
func (t *Tokenizer) bpe(word string) []int {
	if t.ignoreMerges {
		if id, ok := t.vocab[spell([]byte(word))]; ok {
			return []int{id}
		}
	}
	symbols := make([]symbol, 0, len(word))
	for i := range len(word) {
		if id := t.byteID[word[i]]; id >= 0 {
			symbols = append(symbols, symbol{id: id, prev: len(symbols) - 1, next: len(symbols) + 1})
		}
	}
	n := len(symbols)
	if n == 0 {
		return nil
	}
	symbols[n-1].next = -1
	var q candidates
	offer := func(left int) {
		if left < 0 || symbols[left].next < 0 {
			return
		}
		p := pair{symbols[left].id, symbols[symbols[left].next].id}
		if m, ok := t.merges[p]; ok {
			heap.Push(&q, candidate{merge: m, at: left, pair: p})
		}
	}
	for i := range n {
		offer(i)
	}
	for len(q) > 0 {
		c := heap.Pop(&q).(candidate)
		left := &symbols[c.at]
		// A candidate is stale when one of its two symbols has been merged since.
		if left.gone || left.next < 0 || left.id != c.pair.left || symbols[left.next].id != c.pair.right {
			continue
		}
		right := &symbols[left.next]
		right.gone = true
		left.id, left.next = c.id, right.next
		if left.next >= 0 {
			symbols[left.next].prev = c.at
		}
		offer(left.prev)
		offer(c.at)
	}
	var ids []int
	for i := 0; i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

type symbol struct {
	id, prev, next int
	gone           bool
}

type candidate struct {
	merge
	at int
	pair
}

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// GPT-2 spells each byte as a printable character, so that a vocabulary is text:
// printable Latin-1 as itself, the other 68 bytes as U+0100 onwards.
var byteRune = func() (t [256]rune) {
	extra := rune(256)
	for b := range t {
		t[b] = rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			t[b] = extra
			extra++
		}
	}
	return t
}()

var runeByte = func() map[rune]byte {
	m := make(map[rune]byte, len(byteRune))
	for b, r := range byteRune {
		m[r] = byte(b)
	}
	return m
}()

func spell(b []byte) string {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = byteRune[c]
	}
	return string(out)
}

// unspell gives the bytes of a token, which are its own text when it holds a
// character that spells no byte, as added tokens may.
func unspell(token string) []byte {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := runeByte[r]
		if !ok {
			return []byte(token)
		}
		out = append(out, b)
	}
	return out
}
