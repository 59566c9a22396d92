package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Encoding is one text, or two, as a model takes it: Types tells the second text
// from the first.
type Encoding struct {
	IDs   []int
	Types []int
}

// slot is a part of a template: ids, or a text.
type slot struct {
	text int // 0 and 1; -1: ids
	ids  []int
	kind int
}

// Single encodes one text with what the model expects around it, cut at the end to
// limit tokens in all; 0 is no limit.
func (t *Tokenizer) Single(text string, limit int) Encoding {
	a := t.Encode(text, false)
	if limit > 0 {
		a = a[:max(min(len(a), limit-fixed(t.single)), 0)]
	}
	return fill(t.single, a, nil)
}

// Pair encodes two texts as one sequence. Over the limit the longer one is cut at
// its end first. It is an error for a tokenizer that has no template for pairs.
func (t *Tokenizer) Pair(first, second string, limit int) (Encoding, error) {
	if t.pair == nil {
		return Encoding{}, errors.New("the tokenizer has no template for pairs of texts")
	}
	a, b := t.Encode(first, false), t.Encode(second, false)
	if limit > 0 {
		n, m := longestFirst(len(a), len(b), max(limit-fixed(t.pair), 0))
		a, b = a[:n], b[:m]
	}
	return fill(t.pair, a, b), nil
}

// longestFirst shares room between two texts. Where both are too long each gets a
// half, and the longer one an odd token.
func longestFirst(n, m, room int) (int, int) {
	if n+m <= room {
		return n, m
	}
	half := room / 2
	switch {
	case n <= half:
		return n, room - n
	case m <= half:
		return room - m, m
	}
	if n > m {
		return room - half, half
	}
	return half, room - half
}

func fixed(slots []slot) (n int) {
	for _, s := range slots {
		n += len(s.ids)
	}
	return n
}

func fill(slots []slot, texts ...[]int) Encoding {
	var e Encoding
	for _, s := range slots {
		ids := s.ids
		if s.text >= 0 {
			ids = texts[s.text]
		}
		e.IDs = append(e.IDs, ids...)
		for range ids {
			e.Types = append(e.Types, s.kind)
		}
	}
	return e
}

// piece is one entry of a template in the file.
type piece struct {
	Special *struct {
		ID   string `json:"id"`
		Type int    `json:"type_id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID   string `json:"id"`
		Type int    `json:"type_id"`
	} `json:"Sequence"`
}

type postProcessor struct {
	Type          string            `json:"type"`
	Processors    []json.RawMessage `json:"processors"`
	Single        []piece           `json:"single"`
	Pair          []piece           `json:"pair"`
	SpecialTokens map[string]struct {
		IDs []int `json:"ids"`
	} `json:"special_tokens"`
}

func (t *Tokenizer) readPostProcessor(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var p postProcessor
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
		if t.pair != nil {
			return errors.New("post_processor has two templates")
		}
		var err error
		if t.single, err = t.readTemplate(&p, p.Single, 1); err != nil {
			return err
		}
		t.pair, err = t.readTemplate(&p, p.Pair, 2)
		return err
	default:
		return fmt.Errorf("post_processor %q is not supported", p.Type)
	}
	return nil
}

func (t *Tokenizer) readTemplate(p *postProcessor, pieces []piece, texts int) ([]slot, error) {
	slots := []slot{}
	for _, part := range pieces {
		switch {
		case part.Sequence != nil:
			text := 0
			if part.Sequence.ID == "B" {
				text = 1
			}
			if text >= texts {
				return nil, errors.New("post_processor: the template of one text has a second")
			}
			slots = append(slots, slot{text: text, kind: part.Sequence.Type})
		case part.Special != nil:
			name := part.Special.ID
			s, ok := p.SpecialTokens[name]
			if !ok {
				return nil, fmt.Errorf("post_processor names the token %q but gives it no ids", name)
			}
			for _, id := range s.IDs {
				if id < 0 || id >= len(t.tokens) {
					return nil, fmt.Errorf("post_processor gives %q the id %d, which is no token", name, id)
				}
			}
			slots = append(slots, slot{text: -1, ids: s.IDs, kind: part.Special.Type})
		default:
			return nil, errors.New("post_processor: a part of the template is neither a text nor a token")
		}
	}
	return slots, nil
}
