package load

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// body takes HTTP/1.1's framing off an answer's body, as its bytes come and however they
// are cut: in chunks, of a length, or until the connection closes. It is as strict as
// net/http is, and keeps at most the line at hand.
type body struct {
	state  bodyState
	left   uint64 // bytes of the chunk, or of the body
	line   []byte // begun and not ended
	excess int64  // bytes of framing beyond what the content is worth
}

type bodyState uint8

const (
	bodyOpen    bodyState = iota // all that comes
	bodySized                    // left bytes
	chunkSize                    // a line with the length of a chunk
	chunkData                    // left bytes of it
	chunkEnd                     // and a line end
	bodyTrailer                  // lines until a blank one
	bodyEnded
)

const maxLineOfBody = 4096

var (
	errLine    = errors.New("a line of the body's framing is too long")
	errChunk   = errors.New("malformed chunked encoding")
	errExcess  = errors.New("chunked encoding contains too much non-data")
	errTrailer = errors.New("suspiciously long trailer after the body")
)

// newBody is how ans says that its body is framed.
func newBody(ans *http.Response) body {
	switch {
	case ans.Body == http.NoBody:
		return body{state: bodyEnded} // as of a status that has none, whatever the head says
	case len(ans.TransferEncoding) > 0 && ans.TransferEncoding[0] == "chunked":
		return body{state: chunkSize}
	case ans.ContentLength >= 0:
		return body{state: bodySized, left: uint64(ans.ContentLength)}
	}
	return body{}
}

// next returns the next piece of content in b, which may be empty, and what of b is
// behind it, until the rest is empty. ended tells that the body has; the rest is then
// none of its own.
func (d *body) next(b []byte) (piece, rest []byte, ended bool, err error) {
	for {
		switch d.state {
		case bodyOpen:
			return b, nil, false, nil
		case bodySized, chunkData:
			n := min(uint64(len(b)), d.left)
			piece, b = b[:n], b[n:]
			switch d.left -= n; {
			case d.left > 0:
			case d.state == chunkData:
				d.state = chunkEnd
			default:
				d.state = bodyEnded
			}
			return piece, b, d.state == bodyEnded, nil
		case bodyEnded:
			return nil, b, true, nil
		}
		line, more, ok, err := d.cut(b)
		if err != nil || !ok {
			return nil, nil, false, err
		}
		b = more
		if err := d.framing(line); err != nil {
			return nil, b, false, err
		}
	}
}

// cut takes a line with its end off what is kept and b; without an end it keeps b.
func (d *body) cut(b []byte) (line, rest []byte, ok bool, err error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		d.line = append(d.line, b...)
		if len(d.line) >= maxLineOfBody {
			return nil, nil, false, errLine
		}
		return nil, nil, false, nil
	}
	line, rest = b[:i+1], b[i+1:]
	if len(d.line) > 0 {
		line = append(d.line, line...)
		d.line = line[:0]
	}
	if len(line) >= maxLineOfBody {
		return nil, nil, false, errLine
	}
	return line, rest, true, nil
}

func (d *body) framing(line []byte) error {
	if d.state == bodyTrailer {
		// Nobody sends trailers; what they say is nothing that is asked for here.
		if d.left += uint64(len(line)); d.left > maxLineOfBody {
			return errTrailer
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			d.state = bodyEnded
		}
		return nil
	}
	// A bare LF ends a line of a header, and none of this encoding: RFC 9112, erratum 7633.
	if i := bytes.IndexByte(line, '\r'); i < 0 || i != len(line)-2 {
		return errChunk
	}
	if d.state == chunkEnd {
		if d.state = chunkSize; len(line) != 2 {
			return errChunk
		}
		return nil
	}
	size, _, _ := bytes.Cut(bytes.TrimRight(line[:len(line)-2], " \t"), []byte(";"))
	n, err := hex(size)
	if err != nil {
		return err
	}
	// As net/http counts it: framing of 16 bytes a chunk and of twice its content is
	// free, and all the rest together may be 16 KiB.
	d.excess = max(0, d.excess+int64(len(line))-16-2*int64(min(n, 1<<60)))
	if d.excess > 16<<10 {
		return errExcess
	}
	if d.left, d.state = n, chunkData; n == 0 {
		d.state = bodyTrailer
	}
	return nil
}

func hex(b []byte) (n uint64, err error) {
	if len(b) == 0 || len(b) > 16 {
		return 0, errChunk
	}
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, errChunk
		}
		n = n<<4 | uint64(c)
	}
	return n, nil
}

// end is what the end of the connection means to the body.
func (d *body) end() error {
	if d.state == bodyOpen || d.state == bodyEnded {
		return nil
	}
	return io.ErrUnexpectedEOF
}
