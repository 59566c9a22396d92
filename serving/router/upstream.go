package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"sync"
	"time"
)

// The router speaks HTTP/1.1 to its engines by itself. What it needs is small,
// and net/http's transport costs two more goroutine switches a request and
// cannot say whether the engine had answered anything when a connection broke,
// on which the second try depends.

const (
	maxHead     = 64 << 10
	idleFor     = 4 * time.Second // below the 5 s after which uvicorn, under vLLM, closes
	maxIdle     = 64              // connections a replica
	dialTimeout = 2 * time.Second
	// peerTimeout is how long an engine's machine may acknowledge nothing, which even
	// one whose engine hangs does. What waits for it is asked of another, or told.
	peerTimeout = 10 * time.Second
)

// dialer makes connections to engines. A stream is silent while its prompt is
// computed, so that probes of the connection have to tell who is gone.
var dialer = net.Dialer{
	Timeout:         dialTimeout,
	Control:         userTimeout(peerTimeout),
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3},
}

var (
	errMalformed = errors.New("malformed answer")
	errTooLarge  = errors.New("answer's head is too large")
)

// pool keeps a replica's idle connections, the latest used first. It is safe
// for concurrent use; its zero value with an address is ready.
type pool struct {
	addr string

	mu     sync.Mutex // guards what follows
	idle   []*conn
	closed bool
}

// conn is one connection with its read buffer.
type conn struct {
	net.Conn
	buf      []byte
	r, w     int // unread bytes are buf[r:w]
	since    time.Time
	deadline time.Time
}

func (p *pool) get(ctx context.Context) (c *conn, reused bool, err error) {
	p.mu.Lock()
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if time.Since(c.since) < idleFor {
			p.mu.Unlock()
			return c, true, nil
		}
		_ = c.Close()
	}
	p.mu.Unlock()
	nc, err := dialer.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, false, err
	}
	return &conn{Conn: nc, buf: make([]byte, 8<<10)}, false, nil
}

func (p *pool) put(c *conn) {
	c.since, c.deadline = time.Now(), time.Time{}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= maxIdle {
		_ = c.Close()
		return
	}
	p.idle = append(p.idle, c)
}

// close ends the idle connections and those that are still to come back.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drain()
}

// drain ends the idle connections.
func (p *pool) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		_ = c.Close()
	}
	p.idle = nil
}

// answer is a response whose body is still to be read with next, and which
// must be closed.
type answer struct {
	Status int
	Header http.Header

	pool    *pool
	c       *conn
	unhook  func() bool
	framing framing
	left    int64 // of the chunk, or of the whole body
	inChunk bool  // behind a chunk's data, before its line end
	keep    bool
	eof     bool

	// patience bounds each wait for more of the body. It begins as that for
	// the head: engines that send their head at once are silent until the
	// prefill is done.
	patience time.Duration
	// beforeRead runs whenever the answer has to wait for the engine.
	beforeRead func() error
}

type framing uint8

const (
	byLength framing = iota
	chunked
	untilClose
)

// transportError is a failure of the connection.
type transportError struct {
	dialling bool // there was no connection yet
	reused   bool // nothing was answered on a connection that had been idle
	err      error
}

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

// ask sends head and body and reads the head of the answer, for at most wait.
func (p *pool) ask(ctx context.Context, head, body []byte, wait time.Duration) (*answer, error) {
	c, reused, err := p.get(ctx)
	if err != nil {
		return nil, &transportError{dialling: true, err: err}
	}
	a, err := p.askOn(ctx, c, head, body, wait)
	var te *transportError
	if reused && errors.As(err, &te) && c.w == 0 && !isTimeout(err) {
		// The engine may have closed it just as we took it, and then the
		// others that are idle, too.
		te.reused = true
		p.drain()
	}
	return a, err
}

func (p *pool) askOn(ctx context.Context, c *conn, head, body []byte, wait time.Duration) (*answer, error) {
	a := &answer{pool: p, c: c, patience: wait}
	// A deadline in the past ends a read or write that is under way, before
	// the first byte of the answer as well as after.
	a.unhook = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	c.setDeadline(wait)
	if ctx.Err() != nil { // the hook may have run before
		a.drop()
		return nil, &transportError{err: context.Cause(ctx)}
	}
	c.r, c.w = 0, 0
	var err error
	if len(body) == 0 {
		_, err = c.Write(head)
	} else {
		bufs := net.Buffers{head, body}
		_, err = bufs.WriteTo(c.Conn)
	}
	// An engine that refuses a body unread may have answered and closed.
	if rerr := a.readHead(); rerr != nil {
		if err == nil {
			err = rerr
		}
		a.drop()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &transportError{err: err}
	}
	if err != nil {
		a.keep = false
	}
	return a, nil
}

// setDeadline has the connection fail after d, give or take an eighth: a timer
// for each chunk would cost more than reading it.
func (c *conn) setDeadline(d time.Duration) {
	now := time.Now()
	if left := c.deadline.Sub(now); left <= d && left > d-d/8 {
		return
	}
	c.deadline = now.Add(d)
	_ = c.SetDeadline(c.deadline)
}

// fill reads more into the buffer, which must have room.
func (a *answer) fill() error {
	c := a.c
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	n, err := c.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

func (a *answer) readHead() error {
	for {
		if err := a.fill(); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		for {
			n, err := a.parseHead(a.c.buf[a.c.r:a.c.w])
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			a.c.r += n
			if a.Status >= 200 {
				return nil
			}
			// 100 and 103 come before the answer itself.
		}
		if a.c.w == len(a.c.buf) && a.c.r == 0 {
			if len(a.c.buf) >= maxHead {
				return errTooLarge
			}
			a.c.buf = append(a.c.buf, make([]byte, len(a.c.buf))...)
		}
	}
}

// parseHead reads the head in b and returns its length, 0 when it is not all
// there.
func (a *answer) parseHead(b []byte) (int, error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return 0, nil
	}
	line, rest, _ := bytes.Cut(b[:end+2], []byte("\r\n"))
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return 0, fmt.Errorf("%w: status line %q", errMalformed, line[:min(len(line), 40)])
	}
	status, ok := number(line[9:12])
	if !ok || status < 100 || bytes.ContainsAny(line, "\r\n") {
		return 0, fmt.Errorf("%w: status line %q", errMalformed, line[:min(len(line), 40)])
	}
	a.Status = status
	a.Header = make(http.Header, 8)
	a.keep = line[7] == '1'
	a.framing, a.left = untilClose, 0
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || len(key) == 0 || bytes.ContainsAny(key, " \t") || bytes.ContainsAny(line, "\r\n\x00") {
			return 0, fmt.Errorf("%w: header line %q", errMalformed, line[:min(len(line), 40)])
		}
		value = bytes.Trim(value, " \t")
		name := textproto.CanonicalMIMEHeaderKey(string(key))
		switch name {
		case "Content-Length":
			n, ok := number(value)
			if !ok || a.framing == byLength && a.left != int64(n) {
				return 0, fmt.Errorf("%w: content length %q", errMalformed, value)
			}
			if a.framing != chunked {
				a.framing, a.left = byLength, int64(n)
			}
		case "Transfer-Encoding":
			if !bytes.EqualFold(value, []byte("chunked")) {
				return 0, fmt.Errorf("%w: transfer encoding %q", errMalformed, value)
			}
			a.framing, a.left = chunked, 0
			continue
		case "Connection":
			switch {
			case bytes.EqualFold(value, []byte("close")):
				a.keep = false
			case bytes.EqualFold(value, []byte("keep-alive")):
				a.keep = true
			}
			continue
		case "Keep-Alive", "Proxy-Connection", "Trailer", "Upgrade":
			continue
		}
		a.Header[name] = append(a.Header[name], string(value))
	}
	switch {
	case a.Status == http.StatusSwitchingProtocols:
		return 0, fmt.Errorf("%w: status %d", errMalformed, a.Status)
	case a.Status == http.StatusNoContent || a.Status == http.StatusNotModified:
		a.framing, a.left = byLength, 0
	case a.framing == chunked:
		// Of both the chunks count, and such a connection is not used again.
		if a.Header["Content-Length"] != nil {
			delete(a.Header, "Content-Length")
			a.keep = false
		}
	case a.framing == untilClose:
		a.keep = false
	}
	return end + 4, nil
}

// next returns the next piece of the body as it lies in the buffer, valid
// until the next call, and io.EOF behind the last. A body that ends early is
// io.ErrUnexpectedEOF. ctx is the one the question was asked under.
func (a *answer) next(ctx context.Context) ([]byte, error) {
	for {
		if a.eof {
			return nil, io.EOF
		}
		have := a.c.buf[a.c.r:a.c.w]
		switch a.framing {
		case byLength:
			if a.left == 0 {
				a.eof = true
				continue
			}
			if len(have) > 0 {
				return a.take(have), nil
			}
		case untilClose:
			if len(have) > 0 {
				a.c.r = a.c.w
				return have, nil
			}
		case chunked:
			if a.left > 0 {
				if len(have) > 0 {
					a.inChunk = true
					return a.take(have), nil
				}
				break
			}
			i := bytes.IndexByte(have, '\n')
			if i < 0 {
				if len(have) >= len(a.c.buf)/2 {
					return nil, fmt.Errorf("%w: chunk line of %d bytes", errMalformed, len(have))
				}
				break
			}
			line := bytes.TrimSuffix(have[:i], []byte("\r"))
			a.c.r += i + 1
			if err := a.chunkLine(line); err != nil {
				return nil, err
			}
			continue
		}
		if a.beforeRead != nil {
			if err := a.beforeRead(); err != nil {
				return nil, err
			}
		}
		a.c.setDeadline(a.patience)
		// Behind the deadline, which may have undone the one of the hook.
		if ctx.Err() != nil {
			return nil, &transportError{err: context.Cause(ctx)}
		}
		if err := a.fill(); err != nil {
			if err == io.EOF && a.framing == untilClose {
				a.eof = true
				continue
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, &transportError{err: err}
		}
	}
}

func (a *answer) take(have []byte) []byte {
	n := int(min(a.left, int64(len(have))))
	a.left -= int64(n)
	a.c.r += n
	return have[:n]
}

// trailer is what left holds between the last chunk and the end.
const trailer = -1

func (a *answer) chunkLine(line []byte) error {
	switch {
	case a.left == trailer:
		a.eof = len(line) == 0
		return nil
	case a.inChunk:
		if len(line) != 0 {
			return fmt.Errorf("%w: %d bytes behind a chunk", errMalformed, len(line))
		}
		a.inChunk = false
		return nil
	}
	size, _, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 62)
	if err != nil {
		return fmt.Errorf("%w: chunk size %q", errMalformed, size[:min(len(size), 40)])
	}
	a.left = int64(n)
	if n == 0 {
		a.left = trailer
	}
	return nil
}

// close gives the connection back when the answer was read to its end, and
// ends it otherwise.
func (a *answer) close() {
	if !a.unhook() || !a.eof || !a.keep || a.c.r != a.c.w {
		_ = a.c.Close()
		return
	}
	a.pool.put(a.c)
}

func (a *answer) drop() {
	a.unhook()
	_ = a.c.Close()
}

// number reads a count; ok is false for anything but plain digits.
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
