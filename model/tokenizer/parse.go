package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

type file struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         struct {
		Type         string            `json:"type"`
		Vocab        map[string]int    `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
		IgnoreMerges bool              `json:"ignore_merges"`
		ByteFallback bool              `json:"byte_fallback"`
		Dropout      *float64          `json:"dropout"`
		Prefix       string            `json:"continuing_subword_prefix"`
		Unknown      string            `json:"unk_token"`
		MaxChars     *int              `json:"max_input_chars_per_word"`
		Suffix       string            `json:"end_of_word_suffix"`
	} `json:"model"`
}

// maxID bounds ids, which size tables: four times the largest vocabulary in use.
const maxID = 1 << 20

// Parse reads the text of a tokenizer.json.
func Parse(b []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	m := &f.Model
	t := &Tokenizer{
		vocab: m.Vocab, ignoreMerges: m.IgnoreMerges,
		special: make(map[int]bool), added: make(map[string]int), words: make(map[string][]int),
	}
	var err error
	if t.normalise, err = normaliser(f.Normalizer); err != nil {
		return nil, err
	}
	var byteLevel bool
	if t.split, byteLevel, err = splitters(f.PreTokenizer); err != nil {
		return nil, err
	}
	switch m.Type {
	case "BPE", "":
		if err := checkByteLevel(&f, byteLevel); err != nil {
			return nil, err
		}
	case "WordPiece":
		if byteLevel || len(t.split) == 0 {
			return nil, errors.New("pre_tokenizer: WordPiece wants words, such as those of BertPreTokenizer")
		}
		if err := t.readWordPiece(&f); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("model %q is not supported: only BPE and WordPiece are", m.Type)
	}
	if err := t.readVocab(f.AddedTokens); err != nil {
		return nil, err
	}
	if t.wordPiece == nil {
		if err := t.readBytes(m.Unknown != ""); err != nil {
			return nil, err
		}
		if err := t.readMerges(m.Merges); err != nil {
			return nil, err
		}
	}
	t.single = []slot{{}}
	if err := t.readPostProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	return t, nil
}

// checkByteLevel refuses what a byte-level BPE cannot be.
func checkByteLevel(f *file, byteLevel bool) error {
	m := &f.Model
	switch {
	case m.ByteFallback:
		return errors.New("byte_fallback is not supported: only byte-level tokenizers are")
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is not supported: encoding would be random")
	case m.Prefix != "" || m.Suffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case !byteLevel:
		return errors.New("pre_tokenizer has no ByteLevel: only byte-level tokenizers are supported")
	}
	return checkDecoder(f.Decoder)
}

func (t *Tokenizer) readVocab(added []addedToken) error {
	put := func(id int, token string) error {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q has the id %d: want 0 to %d", token, id, maxID-1)
		}
		for len(t.tokens) <= id {
			t.tokens, t.bytes = append(t.tokens, ""), append(t.bytes, nil)
		}
		t.tokens[id], t.bytes[id] = token, []byte(token)
		if t.wordPiece == nil {
			t.bytes[id] = unspell(token)
		}
		return nil
	}
	for token, id := range t.vocab {
		// Two spellings of one id would make decoding depend on the order of a map.
		if id >= 0 && id < len(t.bytes) && t.bytes[id] != nil {
			return fmt.Errorf("id %d has two tokens", id)
		}
		if err := put(id, token); err != nil {
			return err
		}
	}
	var before, after []addedToken
	for _, a := range added {
		if err := put(a.ID, a.Content); err != nil {
			return err
		}
		t.added[a.Content] = a.ID
		if a.Special {
			t.special[a.ID] = true
		}
		if a.Normalized {
			a.Content = t.normalise(a.Content)
			after = append(after, a)
		} else {
			before = append(before, a)
		}
	}
	t.raw, t.cooked = newMatcher(before), newMatcher(after)
	return nil
}

// readBytes finds the tokens of single bytes. A byte that never came in training may
// have none: it is left out of what is encoded, as the reference does.
func (t *Tokenizer) readBytes(unknown bool) error {
	found := 0
	for b := range 256 {
		id, ok := t.vocab[string(byteRune[b])]
		if !ok {
			t.byteID[b] = -1
			continue
		}
		t.byteID[b] = id
		found++
	}
	if unknown && found < 256 {
		return errors.New("vocabulary lacks single bytes and has an unk_token for them, which is not supported")
	}
	if found == 0 {
		return errors.New("vocabulary has no token for any single byte: it is no byte-level one")
	}
	return nil
}

func (t *Tokenizer) readMerges(merges []json.RawMessage) error {
	t.merges = make(map[pair]merge, len(merges))
	for rank, raw := range merges {
		var two []string
		if json.Unmarshal(raw, &two) != nil {
			var one string
			if err := json.Unmarshal(raw, &one); err != nil {
				return fmt.Errorf("reading merge %d: %w", rank, err)
			}
			two = strings.Split(one, " ")
		}
		if len(two) != 2 {
			return fmt.Errorf("merge %d has %d parts, want 2", rank, len(two))
		}
		left, ok1 := t.vocab[two[0]]
		right, ok2 := t.vocab[two[1]]
		id, ok3 := t.vocab[two[0]+two[1]]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("merge %d, of %q and %q: the vocabulary lacks a part or the whole", rank, two[0], two[1])
		}
		t.merges[pair{left, right}] = merge{rank, id}
	}
	return nil
}

func checkDecoder(raw json.RawMessage) error {
	var d struct {
		Type     string            `json:"type"`
		Decoders []json.RawMessage `json:"decoders"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return errors.New("decoder is missing: want ByteLevel")
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return fmt.Errorf("reading decoder: %w", err)
	}
	if d.Type == "Sequence" && len(d.Decoders) == 1 {
		return checkDecoder(d.Decoders[0])
	}
	if d.Type != "ByteLevel" {
		return fmt.Errorf("decoder %q is not supported", d.Type)
	}
	return nil
}

func normaliser(raw json.RawMessage) (func(string) string, error) {
	var n struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return func(s string) string { return s }, nil
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, fmt.Errorf("reading normalizer: %w", err)
	}
	switch n.Type {
	case "BertNormalizer":
		n := bertNormaliser{CleanText: true, Chinese: true, Lowercase: true}
		if err := json.Unmarshal(raw, &n); err != nil {
			return nil, fmt.Errorf("reading normalizer: %w", err)
		}
		return n.apply, nil
	case "Lowercase":
		return lower, nil
	case "NFC":
		return normalForm(norm.NFC), nil
	case "NFD":
		return normalForm(norm.NFD), nil
	case "NFKC":
		return normalForm(norm.NFKC), nil
	case "NFKD":
		return normalForm(norm.NFKD), nil
	case "Sequence":
		var all []func(string) string
		for _, inner := range n.Normalizers {
			f, err := normaliser(inner)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		return func(s string) string {
			for _, f := range all {
				s = f(s)
			}
			return s
		}, nil
	}
	return nil, fmt.Errorf("normalizer %q is not supported", n.Type)
}
