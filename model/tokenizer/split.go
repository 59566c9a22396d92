package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// splitter cuts a piece and appends what it gives to dst.
type splitter func(dst []string, piece string) []string

// gpt2Pattern is what ByteLevel splits by when it is told to.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

type preTokenizer struct {
	Type           string            `json:"type"`
	Sequence       []json.RawMessage `json:"pretokenizers"`
	AddPrefixSpace bool              `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Individual     bool              `json:"individual_digits"`
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	Pattern        struct {
		Regex  *string
		String *string
	} `json:"pattern"`
}

// splitters reads a pre_tokenizer. byteLevel reports whether it ends in bytes.
func splitters(raw json.RawMessage) (out []splitter, byteLevel bool, err error) {
	var p preTokenizer
	if len(raw) == 0 || string(raw) == "null" {
		return nil, false, nil
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, false, fmt.Errorf("reading pre_tokenizer: %w", err)
	}
	switch p.Type {
	case "Sequence":
		for _, inner := range p.Sequence {
			if byteLevel {
				return nil, false, errors.New("pre_tokenizer: something follows ByteLevel")
			}
			s, last, err := splitters(inner)
			if err != nil {
				return nil, false, err
			}
			out, byteLevel = append(out, s...), last
		}
		return out, byteLevel, nil
	case "BertPreTokenizer":
		return []splitter{bertWords}, false, nil
	case "ByteLevel":
		if p.AddPrefixSpace {
			out = append(out, prefixSpace)
		}
		if p.UseRegex == nil || *p.UseRegex {
			s, err := bySpans(gpt2Pattern, "Isolated", false)
			if err != nil {
				return nil, false, err
			}
			out = append(out, s)
		}
		return out, true, nil
	case "Digits":
		behavior := "Contiguous"
		if p.Individual {
			behavior = "Isolated"
		}
		s, err := cut(digitSpans, behavior, false)
		return []splitter{s}, false, err
	case "Split":
		var s splitter
		switch {
		case p.Pattern.Regex != nil:
			s, err = bySpans(*p.Pattern.Regex, p.Behavior, p.Invert)
		case p.Pattern.String != nil && *p.Pattern.String != "":
			s, err = cut(stringSpans(*p.Pattern.String), p.Behavior, p.Invert)
		default:
			err = errors.New("pre_tokenizer Split: no pattern")
		}
		return []splitter{s}, false, err
	}
	return nil, false, fmt.Errorf("pre_tokenizer %q is not supported", p.Type)
}

func prefixSpace(dst []string, piece string) []string {
	if piece != "" && !strings.HasPrefix(piece, " ") {
		piece = " " + piece
	}
	return append(dst, piece)
}

// span is a stretch of a piece, in bytes; spans cover the piece without gaps.
type span struct {
	begin, end int
	match      bool
}

type spanner func(piece string) []span

func bySpans(pattern, behavior string, invert bool) (splitter, error) {
	re, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer Split: pattern %q: %w", pattern, err)
	}
	return cut(func(piece string) []span { return regexSpans(re, piece) }, behavior, invert)
}

func regexSpans(re *regexp2.Regexp, piece string) []span {
	runes := []rune(piece)
	var spans []span
	at, runeAt := 0, 0
	advance := func(to int) (begin int) {
		begin = at
		for ; runeAt < to; runeAt++ {
			at += utf8.RuneLen(runes[runeAt])
		}
		return begin
	}
	// Without a timeout a match cannot fail; every pattern here is one that ends.
	for m, err := re.FindRunesMatch(runes); m != nil && err == nil; m, err = re.FindNextMatch(m) {
		if m.Length == 0 {
			continue
		}
		if m.Index > runeAt {
			begin := advance(m.Index)
			spans = append(spans, span{begin, at, false})
		}
		begin := advance(m.Index + m.Length)
		spans = append(spans, span{begin, at, true})
	}
	if at < len(piece) {
		spans = append(spans, span{at, len(piece), false})
	}
	return spans
}

func stringSpans(s string) spanner {
	return func(piece string) []span {
		var spans []span
		for at := 0; at < len(piece); {
			i := strings.Index(piece[at:], s)
			if i < 0 {
				return append(spans, span{at, len(piece), false})
			}
			if i > 0 {
				spans = append(spans, span{at, at + i, false})
			}
			spans = append(spans, span{at + i, at + i + len(s), true})
			at += i + len(s)
		}
		return spans
	}
}

func digitSpans(piece string) []span {
	var spans []span
	for i, r := range piece {
		end := i + utf8.RuneLen(r)
		match := unicode.IsNumber(r)
		if n := len(spans); n > 0 && !match && !spans[n-1].match {
			spans[n-1].end = end
			continue
		}
		spans = append(spans, span{i, end, match})
	}
	return spans
}

func cut(find spanner, behavior string, invert bool) (splitter, error) {
	var join func(a, b span) bool // whether b goes on in a's piece
	switch behavior {
	case "Isolated", "Removed":
		join = func(a, b span) bool { return false }
	case "MergedWithPrevious":
		join = func(a, b span) bool { return b.match && !a.match }
	case "MergedWithNext":
		join = func(a, b span) bool { return a.match && !b.match }
	case "Contiguous":
		join = func(a, b span) bool { return a.match == b.match }
	default:
		return nil, fmt.Errorf("pre_tokenizer Split: behavior %q is not supported", behavior)
	}
	return func(dst []string, piece string) []string {
		spans := find(piece)
		for i := 0; i < len(spans); {
			spans[i].match = spans[i].match != invert
			j := i + 1
			for ; j < len(spans); j++ {
				last, next := spans[j-1], spans[j]
				next.match = next.match != invert
				if !join(last, next) {
					break
				}
				spans[j] = next
			}
			if behavior != "Removed" || !spans[i].match {
				dst = append(dst, piece[spans[i].begin:spans[j-1].end])
			}
			i = j
		}
		return dst
	}, nil
}
