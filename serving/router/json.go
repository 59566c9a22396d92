package router

import (
	"bytes"
	"encoding/json"
)

// cursor walks JSON without building anything. It finds its way through valid
// documents exactly; of an invalid one it may accept some, since the engine
// behind the router is the judge of that, but it never reads outside of b.
type cursor struct {
	b   []byte
	i   int
	bad bool
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// peek is the first byte of the value at hand, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// open enters the object or array that begins with delim.
func (c *cursor) open(delim byte) bool {
	if c.peek() != delim {
		return false
	}
	c.i++
	return true
}

// member goes to the next member of an object and returns its key, ready to
// read the value; ok is false behind the last. The key is unescaped.
func (c *cursor) member() (key []byte, ok bool) {
	if c.peek() == ',' {
		c.i++
	}
	switch c.peek() {
	case '}':
		c.i++
		return nil, false
	case '"':
	default:
		c.bad = true
		return nil, false
	}
	raw := c.str()
	if c.bad || c.peek() != ':' {
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

// element goes to the next element of an array; false behind the last.
func (c *cursor) element() bool {
	if c.peek() == ',' {
		c.i++
	}
	switch c.peek() {
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
func (c *cursor) str() []byte {
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

// value takes the value at hand.
func (c *cursor) value() []byte {
	switch c.peek() {
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
