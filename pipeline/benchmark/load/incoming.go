package load

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// incoming takes answers out of what a connection brings, as it comes and however it is
// cut. Heads are read by net/http, once a request; of bodies, which come in thousands of
// pieces, it keeps nothing.
type incoming struct {
	head  []byte // begun and not ended
	heads int    // bytes, of this answer
	body  body
	begun bool // the body
	last  bool // no answer can follow
}

// maxHead bounds the heads of an answer, as net/http does.
const maxHead = 10 << 20

var (
	errHead     = errors.New("server response headers exceeded 10485760 bytes; aborted")
	errUnsought = errors.New("the server answered what nobody asked")
)

// take takes what was read at that time for a, which may be done and nil; ended tells
// that its body has, and that the next answer may follow unless it is the last. An error
// before the body has begun is one of the head. It does not keep b.
func (p *incoming) take(b []byte, heads *heads, a *answer, at time.Duration) (ended bool, err error) {
	if !p.begun {
		if a == nil {
			return false, errUnsought
		}
		if b, err = p.takeHead(b, heads, a, at); err != nil || !p.begun {
			return false, err
		}
	}
	for {
		piece, rest, over, err := p.body.next(b)
		if a != nil && !a.done && len(piece) > 0 {
			a.feed(piece, at)
		}
		switch {
		case err != nil:
			return false, err
		case over:
			if a != nil {
				a.end(nil, at)
			}
			// Nothing was asked that the rest could answer.
			p.last = p.last || len(rest) > 0
			p.begun, p.heads = false, 0
			return true, nil
		case len(rest) == 0:
			return false, nil
		}
		b = rest
	}
}

// end is what the end of the connection means to the answer: nil if it is its end.
func (p *incoming) end() error {
	switch {
	case p.begun:
		return p.body.end()
	case len(p.head) > 0:
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// takeHead takes the answer's head, if all of it has come, and returns what is behind.
func (p *incoming) takeHead(b []byte, heads *heads, a *answer, at time.Duration) ([]byte, error) {
	for {
		from := len(p.head)
		if from > 0 {
			p.head = append(p.head, b...)
			b = p.head
		}
		n := endOfHead(b, max(0, from-3))
		size := n
		if n < 0 {
			size = len(b)
		}
		if p.heads+size > maxHead {
			return nil, errHead
		}
		if n < 0 {
			if from == 0 {
				p.head = append(p.head, b...)
			}
			return nil, nil
		}
		p.head = nil
		p.heads += n
		ans, rest, err := heads.read(b[:n])
		if err != nil {
			return nil, err
		}
		b = b[n-len(rest):]
		if ans.StatusCode >= 100 && ans.StatusCode < 200 && ans.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		p.begun, p.body, p.last = true, newBody(ans), ans.Close
		a.begin(ans, at)
		return b, nil
	}
}

// endOfHead is the length of the head in b with its blank line, which is looked for
// behind from; -1 if it has no end.
func endOfHead(b []byte, from int) int {
	if len(b) > 0 && b[0] == '\n' {
		return 1
	}
	if len(b) > 1 && b[0] == '\r' && b[1] == '\n' {
		return 2
	}
	for i := from; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return -1
		}
		i += j + 1
		switch {
		case i < len(b) && b[i] == '\n':
			return i + 1
		case i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n':
			return i + 2
		}
	}
}

// heads reads heads, one after the other.
type heads struct {
	text   bytes.Reader
	reader *bufio.Reader
}

// read reads a whole head as net/http does, and returns what of b is behind it.
func (h *heads) read(b []byte) (ans *http.Response, rest []byte, err error) {
	if h.reader == nil {
		h.reader = bufio.NewReader(&h.text)
	}
	h.text.Reset(b)
	h.reader.Reset(&h.text)
	ans, err = http.ReadResponse(h.reader, nil)
	return ans, b[len(b)-h.text.Len()-h.reader.Buffered():], err
}
