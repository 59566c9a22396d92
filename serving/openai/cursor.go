package openai

import (
	"bytes"
	"encoding/json"
)

// Cursor walks JSON without building anything, for programs that see every
// chunk and every prompt go by. It finds its way through valid documents
// exactly; of an invalid one it may accept some, since whoever decodes it is
// the judge of that, but it never reads outside of its bytes.
type Cursor struct {
	b   []byte
	i   int
	bad bool
}

// NewCursor begins at the first value in b.
func NewCursor(b []byte) Cursor { return Cursor{b: b} }

// Pos is the offset of the next byte to be read.
func (c *Cursor) Pos() int { return c.i }

// Bad tells that the document is not valid; nothing more is to be had of it.
func (c *Cursor) Bad() bool { return c.bad }

func (c *Cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// Kind skips white space and is the first byte of the value at hand, 0 at the
// end.
func (c *Cursor) Kind() byte {
	c.space()
	if c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// Open enters the object or array that begins with delim.
func (c *Cursor) Open(delim byte) bool {
	if c.Kind() != delim {
		return false
	}
	c.i++
	return true
}

// Member goes to the next member of an object and returns its key, ready to
// read the value; ok is false behind the last. The key is unescaped.
func (c *Cursor) Member() (key []byte, ok bool) {
	if c.Kind() == ',' {
		c.i++
	}
	switch c.Kind() {
	case '}':
		c.i++
		return nil, false
	case '"':
	default:
		c.bad = true
		return nil, false
	}
	raw := c.str()
	if c.bad || c.Kind() != ':' {
		c.bad = true
		return nil, false
	}
	c.i++
	key = raw[1 : len(raw)-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			key = []byte(s)
		}
	}
	return key, true
}

// Element goes to the next element of an array; false behind the last.
func (c *Cursor) Element() bool {
	if c.Kind() == ',' {
		c.i++
	}
	switch c.Kind() {
	case ']':
		c.i++
		return false
	case 0, '}', ':', ',':
		c.bad = true
		return false
	}
	return true
}

// str takes a string with its quotes.
func (c *Cursor) str() []byte {
	start := c.i
	for i := c.i + 1; ; {
		n := bytes.IndexByte(c.b[min(i, len(c.b)):], '"')
		if n < 0 {
			c.bad = true
			c.i = len(c.b)
			return nil
		}
		i += n + 1
		slashes := 0
		for j := i - 2; j > start && c.b[j] == '\\'; j-- {
			slashes++
		}
		if slashes%2 == 0 {
			c.i = i
			return c.b[start:i]
		}
	}
}

// Value takes the value at hand.
func (c *Cursor) Value() []byte {
	switch c.Kind() {
	case 0:
		c.bad = true
		return nil
	case '"':
		return c.str()
	case '{', '[':
	default:
		start := c.i
		for c.i < len(c.b) {
			switch c.b[c.i] {
			case ',', '}', ']', ' ', '\t', '\n', '\r':
				if c.i == start {
					c.bad = true
				}
				return c.b[start:c.i]
			}
			c.i++
		}
		return c.b[start:c.i]
	}
	start, depth := c.i, 0
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case '"':
			c.str()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				c.i++
				return c.b[start:c.i]
			}
		}
		c.i++
	}
	c.bad = true
	return nil
}

// number reads a count; ok is false for anything but a plain integer that an
// int holds.
func number(raw []byte) (n int, ok bool) {
	if len(raw) == 0 || len(raw) > 15 {
		return 0, false
	}
	for _, d := range raw {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + int(d-'0')
	}
	return n, true
}

// filled tells a string, array or object with something in it.
func filled(raw []byte) bool {
	if len(raw) < 2 {
		return false
	}
	switch raw[0] {
	case '"':
		return len(raw) > 2
	case '[', '{':
		return len(bytes.TrimLeft(raw[1:len(raw)-1], " \t\r\n")) > 0
	}
	return false
}
