package guide

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"llmops/model/tokenizer"
)

// keepGrammars bounds how many grammars a vocabulary keeps.
const keepGrammars = 32

// Vocabulary is what the tokens of a model stand for, made once for a tokenizer.
type Vocabulary struct {
	tokens [][]byte // by id; nil: never allowed
	eos    []int
	trie   trie

	mu       sync.Mutex
	grammars map[string]*Grammar // guarded by mu
	order    []string            // of grammars, the latest last; guarded by mu
}

// NewVocabulary makes a vocabulary. Tokens without bytes are never allowed; the ids
// of eos end an answer. The slices must not be changed afterwards.
func NewVocabulary(tokens [][]byte, eos []int) (*Vocabulary, error) {
	if len(eos) == 0 {
		return nil, errors.New("a vocabulary needs a token that ends the answer")
	}
	tokens = slices.Clone(tokens)
	for _, id := range eos {
		if id < 0 {
			return nil, fmt.Errorf("the end of an answer is token %d", id)
		}
		if id < len(tokens) {
			tokens[id] = nil
		}
	}
	return &Vocabulary{tokens: tokens, eos: slices.Clone(eos), trie: newTrie(tokens), grammars: make(map[string]*Grammar)}, nil
}

// TokenizerVocabulary is the vocabulary of t without its special tokens.
func TokenizerVocabulary(t *tokenizer.Tokenizer, eos []int) (*Vocabulary, error) {
	tokens := make([][]byte, t.Size())
	for id := range tokens {
		if !t.Special(id) {
			tokens[id] = t.Bytes(id)
		}
	}
	return NewVocabulary(tokens, eos)
}

// grammar finds a grammar by key, or builds it.
func (v *Vocabulary) grammar(key string, build func(*builder) (int32, error)) (*Grammar, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.grammars[key]; g != nil {
		i := slices.Index(v.order, key)
		v.order = append(slices.Delete(v.order, i, i+1), key)
		return g, nil
	}
	b := newBuilder()
	root, err := build(b)
	if err != nil {
		return nil, err
	}
	if err := b.check(root); err != nil {
		return nil, err
	}
	g := &Grammar{vocab: v, lazy: newLazy(b, root, v)}
	if len(v.order) == keepGrammars {
		delete(v.grammars, v.order[0])
		v.order = slices.Delete(v.order, 0, 1)
	}
	v.grammars[key], v.order = g, append(v.order, key)
	return g, nil
}

// trie holds the tokens' bytes in the order of a walk from the root, so that a
// subtree is a stretch of the arrays.
type trie struct {
	byte    []byte
	depth   []uint16
	skip    []int32 // the node after the subtree
	first   []int32 // of the node's tokens in ids; one more entry than nodes
	ids     []int32
	longest int
}

func newTrie(tokens [][]byte) trie {
	var t trie
	for id, b := range tokens {
		// What is longer than this no answer needs, and depth has 16 bits.
		if len(b) > 0 && len(b) < 1<<12 {
			t.ids = append(t.ids, int32(id))
			t.longest = max(t.longest, len(b))
		}
	}
	slices.SortFunc(t.ids, func(a, b int32) int { return bytes.Compare(tokens[a], tokens[b]) })
	var open []int32 // the path to the last node
	var last []byte
	for i, id := range t.ids {
		b := tokens[id]
		same := 0
		for same < len(b) && same < len(last) && b[same] == last[same] {
			same++
		}
		for len(open) > same {
			t.skip[open[len(open)-1]] = int32(len(t.byte))
			open = open[:len(open)-1]
		}
		for d := same; d < len(b); d++ {
			open = append(open, int32(len(t.byte)))
			t.byte, t.depth = append(t.byte, b[d]), append(t.depth, uint16(d))
			t.skip, t.first = append(t.skip, 0), append(t.first, int32(i))
		}
		last = b
	}
	for _, n := range open {
		t.skip[n] = int32(len(t.byte))
	}
	t.first = append(t.first, int32(len(t.ids)))
	return t
}
