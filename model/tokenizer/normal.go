package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The library breaks runs of more than 30 marks with a joiner, as Unicode's
// stream-safe format has it and plain normalisation has not. A run of marks and the
// marks of the character before it stay under that as long as they are no more than
// safeMarks, each of which is two at most.
const safeMarks = 13

// normalForm normalises to one of Unicode's forms.
func normalForm(f norm.Form) func(string) string {
	compose := f == norm.NFC || f == norm.NFKC
	apart := norm.NFD
	if f == norm.NFKC || f == norm.NFKD {
		apart = norm.NFKD
	}
	return func(s string) string {
		if !longMarks(s) {
			return f.String(s)
		}
		return normaliseAll(s, apart, compose)
	}
}

func longMarks(s string) bool {
	run := 0
	for _, r := range s {
		if r < 0x300 || !unicode.Is(unicode.M, r) {
			run = 0
		} else if run++; run > safeMarks {
			return true
		}
	}
	return false
}

// normaliseAll does what Unicode 3.11 says, step by step.
func normaliseAll(s string, apart norm.Form, compose bool) string {
	var runes []rune
	for _, r := range s {
		runes = append(runes, []rune(apart.String(string(r)))...)
	}
	class := func(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }
	for i := 0; i < len(runes); {
		j := i
		for j < len(runes) && class(runes[j]) != 0 {
			j++
		}
		slices.SortStableFunc(runes[i:j], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		i = j + 1
	}
	if !compose {
		return string(runes)
	}
	var out []rune
	starter, last := -1, uint8(0) // the last starter in out, the class of what follows it
	for _, r := range runes {
		c := class(r)
		if starter >= 0 && (starter == len(out)-1 || last < c && last != 0) {
			var b strings.Builder
			b.WriteRune(out[starter])
			b.WriteRune(r)
			if one := norm.NFC.String(b.String()); utf8.RuneCountInString(one) == 1 {
				out[starter], _ = utf8.DecodeRuneInString(one)
				continue
			}
		}
		if c == 0 {
			starter = len(out)
		}
		last = c
		out = append(out, r)
	}
	return string(out)
}
