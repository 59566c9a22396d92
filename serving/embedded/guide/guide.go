// Package guide restricts what a model may answer, token by token, to the JSON
// texts of a schema, to one of several choices or to a regular expression.
//
// Compile makes a Grammar of a schema and a Vocabulary, the tokens of a model as
// bytes; a Grammar makes one Guide for each answer, which masks logits and follows
// the tokens that are chosen. A token may span several parts of the JSON text or end
// within a character. While the text is not complete a Guide always allows some
// token that leads to an end, as far as the vocabulary spells every byte; once it is
// complete and cannot go on, only the tokens that end the answer are allowed.
//
// The text is compact JSON with at most one space after each comma and colon, so
// that a weak model cannot go on with blanks. Properties come in the schema's order.
// Numbers have at most 20 digits before the point, 20 after it and 3 in the exponent,
// a bounded number no exponent. Unpaired surrogates are not written.
//
// Understood are type (also a list), properties, required, additionalProperties,
// items, prefixItems, minItems, maxItems, enum, const, anyOf, oneOf of alternatives
// that cannot overlap, allOf of one, $ref within the schema, recursion included,
// $defs and definitions, minLength, maxLength, pattern in RE2's syntax (its characters
// are escaped only where JSON requires it), minimum, maximum, exclusiveMinimum and
// exclusiveMaximum. Annotations are ignored. Every other keyword is an error that
// names it and its place. Where a schema leaves more open the guide is narrower: an
// object with properties but without additionalProperties has no others, keywords
// of one type imply that type, and the keys of additional properties need no escapes.
//
// A Vocabulary and a Grammar are safe for concurrent use; a Guide belongs to one
// answer. Nothing here validates a finished text.
package guide

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	mathbits "math/bits"
	"slices"
)

// Grammar is a compiled schema for one vocabulary. What its guides meet is kept, so
// that a state's mask is computed once.
type Grammar struct {
	vocab *Vocabulary
	lazy  *lazy
}

// Compile makes the grammar of a JSON schema. An error is the schema's, and names
// the JSON pointer and the keyword. The latest schemas of a vocabulary are kept.
func Compile(schema []byte, vocab *Vocabulary) (*Grammar, error) {
	return vocab.grammar("schema\x00"+string(schema), func(b *builder) (int32, error) { return compileSchema(b, schema) })
}

// JSONObject is the grammar of any JSON object.
func JSONObject(vocab *Vocabulary) (*Grammar, error) {
	return Compile([]byte(`{"type":"object"}`), vocab)
}

// Choice is the grammar of a few plain texts.
func Choice(texts []string, vocab *Vocabulary) (*Grammar, error) {
	var key bytes.Buffer
	key.WriteString("choice")
	for _, t := range texts {
		key.WriteByte(0)
		key.WriteString(t)
	}
	return vocab.grammar(key.String(), func(b *builder) (int32, error) {
		if len(texts) == 0 {
			return 0, errors.New("choice is an empty list")
		}
		r := b.rule()
		if slices.Contains(texts, "") {
			return 0, errors.New("choice has an empty text")
		}
		b.literals(b.rules[r].start, b.rules[r].final, texts)
		return r, nil
	})
}

// Regex is the grammar of the plain texts that a pattern in RE2's syntax matches as
// a whole.
func Regex(pattern string, vocab *Vocabulary) (*Grammar, error) {
	return vocab.grammar("regex\x00"+pattern, func(b *builder) (int32, error) {
		r := b.rule()
		if err := (regex{source: `^(?:` + pattern + `)$`, most: -1}).build(b, b.rules[r].start, b.rules[r].final); err != nil {
			return 0, fmt.Errorf("regex %q: %w", pattern, err)
		}
		return r, nil
	})
}

// New begins an answer.
func (g *Grammar) New() *Guide { return &Guide{g: g, at: g.lazy.begin()} }

// Guide follows one answer. It implements the Guide of package core.
type Guide struct {
	g  *Grammar
	at *state
}

// Mask sets the logits of all tokens that may not come next to -Inf. It allocates
// nothing in a state that was met before.
func (g *Guide) Mask(logits []float32) {
	allowed := g.g.lazy.mask(g.at)
	inf := float32(math.Inf(-1))
	for w, bits := range allowed {
		if w*64 >= len(logits) {
			return
		}
		span := logits[w*64 : min(w*64+64, len(logits))]
		if bits == 0 {
			for i := range span {
				span[i] = inf
			}
			continue
		}
		for not := ^bits; not != 0; not &= not - 1 {
			if i := mathbits.TrailingZeros64(not); i < len(span) {
				span[i] = inf
			}
		}
	}
	for i := len(allowed) * 64; i < len(logits); i++ {
		logits[i] = inf
	}
}

// Accept moves on by a token that was chosen. After one that Mask does not allow
// only an end is allowed.
func (g *Guide) Accept(id int) { g.at = g.g.lazy.accept(g.at, id) }

// Complete reports whether the answer may end here.
func (g *Guide) Complete() bool { return g.at.accepting }
