package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// wordPiece is the model of the BERT family: words are cut into the longest pieces
// that the vocabulary has, from the left.
type wordPiece struct {
	prefix   string // of pieces that go on a word
	unknown  int
	maxChars int
	cleanup  bool // whether decoding joins punctuation
}

// pieces cuts a word, which is unknown as a whole when a part of it is.
func (t *Tokenizer) pieces(word string) []int {
	w := t.wordPiece
	if utf8.RuneCountInString(word) > w.maxChars {
		return []int{w.unknown}
	}
	var ids []int
	piece := make([]byte, 0, len(w.prefix)+len(word))
	for at := 0; at < len(word); {
		piece = piece[:0]
		if at > 0 {
			piece = append(piece, w.prefix...)
		}
		piece = append(piece, word[at:]...)
		id, ok := t.vocab[string(piece)]
		for end := len(word); !ok; {
			_, n := utf8.DecodeLastRuneInString(word[at:end])
			end -= n
			if end == at {
				return []int{w.unknown}
			}
			piece = piece[:len(piece)-n]
			id, ok = t.vocab[string(piece)]
		}
		ids = append(ids, id)
		if at > 0 {
			at += len(piece) - len(w.prefix)
		} else {
			at = len(piece)
		}
	}
	return ids
}

// word is what a token adds to a decoded text, first or not.
func (w *wordPiece) word(token string, first bool) string {
	if !first {
		if rest, ok := strings.CutPrefix(token, w.prefix); ok {
			token = rest
		} else {
			token = " " + token
		}
	}
	if w.cleanup {
		for _, c := range cleanups {
			token = strings.ReplaceAll(token, c[0], c[1])
		}
	}
	return token
}

// cleanups come in this order, as each sees what those before it left.
var cleanups = [][2]string{
	{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
	{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
}

func (t *Tokenizer) readWordPiece(f *file) error {
	m := &f.Model
	w := &wordPiece{prefix: m.Prefix, maxChars: 100}
	if m.MaxChars != nil {
		w.maxChars = *m.MaxChars
	}
	id, ok := m.Vocab[m.Unknown]
	if !ok {
		return fmt.Errorf("unk_token %q is not in the vocabulary", m.Unknown)
	}
	w.unknown = id
	var d struct {
		Type    string `json:"type"`
		Prefix  string `json:"prefix"`
		Cleanup bool   `json:"cleanup"`
	}
	if err := json.Unmarshal(f.Decoder, &d); err != nil || d.Type != "WordPiece" || d.Prefix != w.prefix {
		return fmt.Errorf("decoder %s: want WordPiece with the prefix %q", f.Decoder, w.prefix)
	}
	w.cleanup = d.Cleanup
	t.wordPiece = w
	return nil
}

// bertNormaliser is BERT's own normaliser.
type bertNormaliser struct {
	CleanText bool  `json:"clean_text"`
	Chinese   bool  `json:"handle_chinese_chars"`
	Strip     *bool `json:"strip_accents"` // null: as lowercase
	Lowercase bool  `json:"lowercase"`
}

func (n bertNormaliser) apply(s string) string {
	strip := n.Lowercase
	if n.Strip != nil {
		strip = *n.Strip
	}
	if n.CleanText || n.Chinese {
		s = n.clean(s)
	}
	if strip {
		s = stripMarks(decompose(s))
	}
	if n.Lowercase {
		s = lower(s)
	}
	return s
}

func (n bertNormaliser) clean(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		switch {
		case n.CleanText && unicode.Is(control8, r):
		case n.CleanText && unicode.Is(unicode.White_Space, r):
			b.WriteByte(' ')
		case n.Chinese && chinese(r):
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// chinese are the blocks that BERT puts blanks around. One begins at U+2B920, not at
// U+2B820, as in the reference.
func chinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b73f ||
		r >= 0x2b740 && r <= 0x2b81f || r >= 0x2b920 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}

var decompose = normalForm(norm.NFD)

func stripMarks(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(marks8, r) {
			return -1
		}
		return r
	}, s)
}

// lower is Unicode's full mapping without context. Of single characters only the
// dotted I becomes two.
func lower(s string) string {
	return strings.Map(unicode.ToLower, strings.ReplaceAll(s, "İ", "i̇"))
}

// bertWords splits at blanks, which it drops, and around punctuation.
func bertWords(dst []string, piece string) []string {
	begin := 0
	flush := func(end int) {
		if begin < end {
			dst = append(dst, piece[begin:end])
		}
	}
	for i, r := range piece {
		blank, punct := unicode.Is(unicode.White_Space, r), unicode.Is(punctuation8, r)
		if !blank && !punct {
			continue
		}
		flush(i)
		begin = i + utf8.RuneLen(r)
		if punct {
			dst = append(dst, piece[i:begin])
		}
	}
	flush(len(piece))
	return dst
}
