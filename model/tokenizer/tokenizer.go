// Package tokenizer turns text into token ids and back, for tokenizers that a
// Hugging Face tokenizer.json describes: byte-level BPE as of GPT-2, Qwen2, Llama 3,
// DeepSeek-V3 and their descendants, with any Split pattern, and BERT's WordPiece.
//
// A Tokenizer is immutable but for a cache of words and is safe for concurrent
// use; a Stream, which decodes one answer token by token, is not. A tokenizer.json
// with a part that is not supported is refused by name rather than run almost right.
//
// It does not pad, train or know chat templates, and SentencePiece models without
// byte level are refused.
package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"
)

// Tokenizer encodes and decodes text.
type Tokenizer struct {
	vocab     map[string]int // without added tokens
	tokens    []string       // by id, as spelled in the file; "" where there is none
	bytes     [][]byte       // by id
	special   map[int]bool
	added     map[string]int
	raw       matcher // added tokens looked for before normalising
	cooked    matcher // and after
	normalise func(string) string
	split     []splitter
	single    []slot // what the post-processor puts around a text
	pair      []slot // and around two; nil: nothing is said

	byteID       [256]int
	merges       map[pair]merge
	ignoreMerges bool
	wordPiece    *wordPiece // nil: byte-level BPE

	mu    sync.RWMutex
	words map[string][]int // guarded by mu
}

type pair struct{ left, right int }
type merge struct{ rank, id int }

// cacheWords bounds the word cache; at the mean of ten bytes a word it stays under some megabytes.
const cacheWords, cacheWordBytes = 1 << 15, 48

// Load reads tokenizer.json in dir.
func Load(dir string) (*Tokenizer, error) {
	name := filepath.Join(dir, "tokenizer.json")
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading tokenizer: %w", err)
	}
	t, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", name, err)
	}
	return t, nil
}

// Size is one more than the largest id.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// ID finds a token by its spelling in the file, added tokens first.
func (t *Tokenizer) ID(token string) (int, bool) {
	if id, ok := t.added[token]; ok {
		return id, true
	}
	id, ok := t.vocab[token]
	return id, ok
}

// Special reports whether id is a control token, which plain text leaves out.
func (t *Tokenizer) Special(id int) bool { return t.special[id] }

// Bytes is what id stands for, of WordPiece as it is spelled in the file, alone perhaps not UTF-8;
// nil for an id that is no token. The caller must not change it.
func (t *Tokenizer) Bytes(id int) []byte {
	if id < 0 || id >= len(t.bytes) {
		return nil
	}
	return t.bytes[id]
}

// Encode gives the ids of text, which should be UTF-8: other bytes become
// U+FFFD. With special set the ids that the model expects around a sequence,
// such as the beginning-of-text token, are added.
func (t *Tokenizer) Encode(text string, special bool) []int {
	if special {
		return fill(t.single, t.Encode(text, false)).IDs
	}
	var ids []int
	if !utf8.ValidString(text) {
		text, _ = lossy([]byte(text), true)
	}
	t.raw.each(text, func(piece string, id int) {
		if id >= 0 {
			ids = append(ids, id)
			return
		}
		t.cooked.each(t.normalise(piece), func(piece string, id int) {
			if id >= 0 {
				ids = append(ids, id)
				return
			}
			ids = t.encodePiece(ids, piece)
		})
	})
	return ids
}

func (t *Tokenizer) encodePiece(ids []int, piece string) []int {
	pieces := []string{piece}
	for _, s := range t.split {
		var next []string
		for _, p := range pieces {
			next = s(next, p)
		}
		pieces = next
	}
	for _, p := range pieces {
		ids = t.encodeWord(ids, p)
	}
	return ids
}

func (t *Tokenizer) encodeWord(ids []int, word string) []int {
	if word == "" {
		return ids
	}
	t.mu.RLock()
	known, ok := t.words[word]
	t.mu.RUnlock()
	if ok {
		return append(ids, known...)
	}
	var found []int
	if t.wordPiece != nil {
		found = t.pieces(word)
	} else {
		found = t.bpe(word)
	}
	if len(word) <= cacheWordBytes {
		t.mu.Lock()
		if len(t.words) < cacheWords {
			t.words[strings.Clone(word)] = found
		}
		t.mu.Unlock()
	}
	return append(ids, found...)
}

// Decode gives the text of ids. Bytes that are not UTF-8 become U+FFFD, as in the
// reference; ids that are no tokens are left out, and with skipSpecial control tokens too.
func (t *Tokenizer) Decode(ids []int, skipSpecial bool) string {
	s := Stream{t: t, skip: skipSpecial}
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	b.WriteString(s.Flush())
	return b.String()
}
