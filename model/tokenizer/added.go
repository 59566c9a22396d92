package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is looked for in the text itself, before splitting.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	Lstrip     bool   `json:"lstrip"`
	Rstrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// matcher finds added tokens, the leftmost first and the longest among those.
type matcher struct {
	byFirst map[byte][]addedToken // longest first
}

func newMatcher(tokens []addedToken) matcher {
	m := matcher{byFirst: make(map[byte][]addedToken)}
	for _, t := range tokens {
		if t.Content != "" {
			m.byFirst[t.Content[0]] = append(m.byFirst[t.Content[0]], t)
		}
	}
	for _, list := range m.byFirst {
		slices.SortStableFunc(list, func(a, b addedToken) int { return len(b.Content) - len(a.Content) })
	}
	return m
}

// each calls fn for every stretch of text in order, with id -1 between tokens.
func (m matcher) each(text string, fn func(piece string, id int)) {
	if len(m.byFirst) == 0 {
		if text != "" {
			fn(text, -1)
		}
		return
	}
	done := 0
	for i := 0; i < len(text); {
		t, ok := m.at(text, i)
		if !ok {
			i++
			continue
		}
		begin, end := i, i+len(t.Content)
		i = end
		if t.SingleWord && (endsWithWord(text[:begin]) || startsWithWord(text[end:])) {
			continue
		}
		if t.Lstrip {
			begin = max(done, len(strings.TrimRightFunc(text[:begin], unicode.IsSpace)))
		}
		if t.Rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if begin < done {
			continue // an earlier token's rstrip took this place
		}
		if done < begin {
			fn(text[done:begin], -1)
		}
		fn(text[begin:end], t.ID)
		done = end
	}
	if done < len(text) {
		fn(text[done:], -1)
	}
}

func (m matcher) at(text string, i int) (addedToken, bool) {
	for _, t := range m.byFirst[text[i]] {
		if strings.HasPrefix(text[i:], t.Content) {
			return t, true
		}
	}
	return addedToken{}, false
}

// wordRune is Unicode's word character (UTS 18, annex C), as the reference has it.
func wordRune(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.M, unicode.Nd, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && wordRune(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && wordRune(r)
}
