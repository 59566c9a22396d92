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
	switch {
	case m.Type != "BPE" && m.Type != "":
		return nil, fmt.Errorf("model %q is not supported: only BPE is", m.Type)
	case m.ByteFallback:
		return nil, errors.New("byte_fallback is not supported: only byte-level tokenizers are")
	case m.Dropout != nil && *m.Dropout != 0:
		return nil, errors.New("dropout is not supported: encoding would be random")
	case m.Prefix != "" || m.Suffix != "":
		return nil, errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	split, byteLevel, err := splitters(f.PreTokenizer)
	if err != nil {
		return nil, err
	}
	if !byteLevel {
		return nil, errors.New("pre_tokenizer has no ByteLevel: only byte-level tokenizers are supported")
	}
	if err := checkDecoder(f.Decoder); err != nil {
		return nil, err
	}
	normalise, err := normaliser(f.Normalizer)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{
		vocab: m.Vocab, split: split, normalise: normalise, ignoreMerges: m.IgnoreMerges,
		special: make(map[int]bool), added: make(map[string]int), words: make(map[string][]int),
	}
	if err := t.readVocab(f.AddedTokens); err != nil {
		return nil, err
	}
	if err := t.readMerges(m.Merges); err != nil {
		return nil, err
	}
	if err := t.readPostProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tokenizer) readVocab(added []addedToken) error {
	put := func(id int, token string) error {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q has the id %d: want 0 to %d", token, id, maxID-1)
		}
		for len(t.tokens) <= id {
			t.tokens, t.bytes = append(t.tokens, ""), append(t.bytes, nil)
		}
		t.tokens[id], t.bytes[id] = token, unspell(token)
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
	for b := range 256 {
		id, ok := t.vocab[string(byteRune[b])]
		if !ok {
			return fmt.Errorf("vocabulary has no token for the byte 0x%02x", b)
		}
		t.byteID[b] = id
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

func (t *Tokenizer) readPostProcessor(raw json.RawMessage) error {
	var p struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []map[string]struct {
			ID string `json:"id"`
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int `json:"ids"`
		} `json:"special_tokens"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("reading post_processor: %w", err)
	}
	switch p.Type {
	case "ByteLevel": // trims offsets only
	case "Sequence":
		for _, inner := range p.Processors {
			if err := t.readPostProcessor(inner); err != nil {
				return err
			}
		}
	case "TemplateProcessing":
		var before, after []int
		into := &before
		for _, part := range p.Single {
			if _, ok := part["Sequence"]; ok {
				into = &after
				continue
			}
			name := part["SpecialToken"].ID
			s, ok := p.SpecialTokens[name]
			if !ok {
				return fmt.Errorf("post_processor names the token %q but gives it no ids", name)
			}
			for _, id := range s.IDs {
				if id < 0 || id >= len(t.tokens) {
					return fmt.Errorf("post_processor gives %q the id %d, which is no token", name, id)
				}
			}
			*into = append(*into, s.IDs...)
		}
		t.before, t.after = append(before, t.before...), append(t.after, after...)
	default:
		return fmt.Errorf("post_processor %q is not supported", p.Type)
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
	case "NFC":
		return norm.NFC.String, nil
	case "NFD":
		return norm.NFD.String, nil
	case "NFKC":
		return norm.NFKC.String, nil
	case "NFKD":
		return norm.NFKD.String, nil
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
