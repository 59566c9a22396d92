package tokenizer

import "unicode/utf8"

// Stream decodes one sequence as it grows. What Push and Flush return, put
// together, is what Decode gives for all ids at once.
type Stream struct {
	t    *Tokenizer
	skip bool
	held []byte // the beginning of a character whose end has not come
	some bool   // whether a token came
}

// Stream begins to decode a sequence; with skipSpecial control tokens are left out.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream { return &Stream{t: t, skip: skipSpecial} }

// Push adds one id and returns the text that is now certain.
func (s *Stream) Push(id int) string {
	if s.skip && s.t.special[id] {
		return ""
	}
	if w := s.t.wordPiece; w != nil {
		if id < 0 || id >= len(s.t.tokens) || s.t.bytes[id] == nil {
			return ""
		}
		first := !s.some
		s.some = true
		return w.word(s.t.tokens[id], first)
	}
	s.held = append(s.held, s.t.Bytes(id)...)
	out, rest := lossy(s.held, false)
	s.held = append(s.held[:0], rest...)
	return out
}

// Flush returns what was held back: U+FFFD for a character that never ended.
func (s *Stream) Flush() string {
	out, _ := lossy(s.held, true)
	s.held = s.held[:0]
	return out
}

// lossy decodes b, with one U+FFFD for each longest beginning of a character
// that goes wrong (Unicode 3.9, "maximal subpart"), which is what the reference
// does and strings.ToValidUTF8 does not. Unless end is set an unfinished
// character is returned rather than replaced.
func lossy(b []byte, end bool) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	var out []byte
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out = append(out, b[:n]...)
			b = b[n:]
			continue
		}
		n, whole := subpart(b)
		if !whole && !end {
			break
		}
		out = append(out, string(utf8.RuneError)...)
		b = b[n:]
	}
	return string(out), b
}

// subpart is the length of the wrong character that b begins with; whole is
// false when more bytes could still make it right.
func subpart(b []byte) (n int, whole bool) {
	lo, hi, more := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		more = 1
	case c >= 0xe0 && c <= 0xef:
		more = 2
	case c >= 0xf0 && c <= 0xf4:
		more = 3
	}
	switch b[0] {
	case 0xe0:
		lo = 0xa0
	case 0xed:
		hi = 0x9f
	case 0xf0:
		lo = 0x90
	case 0xf4:
		hi = 0x8f
	}
	n = 1
	for ; more > 0; more-- {
		if n == len(b) {
			return n, false
		}
		if b[n] < lo || b[n] > hi {
			break
		}
		n++
		lo, hi = 0x80, 0xbf
	}
	return n, true
}
