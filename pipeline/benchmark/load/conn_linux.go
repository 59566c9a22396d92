package load

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// conn is a connection. A loop reads it, whoever has a request writes to it.
type conn struct {
	host          *host
	loop          *loop
	fd            int
	local, remote net.Addr

	mu    sync.Mutex // guards what follows
	call  *call      // nil: none, or its answer is complete and the body goes on
	out   []byte     // not yet written
	in    incoming
	since time.Time // without a request
	used  bool      // had a request before
	shutd bool
}

// call is a request under way.
type call struct {
	answer
	now   func() time.Duration
	err   error // no answer began
	ended chan struct{}
	last  time.Duration // when something came
}

// stamp is when something came that had come so long ago.
func (x *call) stamp(ago time.Duration) time.Duration {
	// Times of a request do not go back, whatever happens to the wall clock.
	x.last = max(x.now()-ago, x.last, x.res.Sent)
	return x.last
}

// maxReads is how often a connection is read before the next gets its turn.
const maxReads = 64

// start sends wire. It returns false when the server had closed the kept connection, and
// has not seen a byte.
func (c *conn) start(x *call, wire []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.used
	if c.shutd && !used {
		x.err = io.EOF
		close(x.ended)
		return true
	}
	if c.shutd {
		return false
	}
	c.used, c.call, c.out = true, x, wire
	if err := c.flush(); err != nil {
		if used && len(c.out) == len(wire) {
			c.call = nil
			c.shut()
			return false
		}
		c.broke(err)
	}
	return true
}

// flush writes what can be written.
func (c *conn) flush() error {
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		switch err {
		case nil:
			c.out = c.out[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return nil
		default:
			return c.opError("write", err)
		}
	}
	c.out = nil
	return nil
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: os.NewSyscallError(op, err)}
}

// fresh tells that c can have a request.
func (c *conn) fresh() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shutd {
		return false
	}
	var b [1]byte
	if _, _, err := unix.Recvfrom(c.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err != unix.EAGAIN {
		c.shut()
		return false
	}
	return true
}

// cancel ends a request whose caller does not wait any more.
func (c *conn) cancel(x *call, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.call == x {
		c.broke(err)
	}
}

// retire closes a connection that had no request for so long.
func (c *conn) retire(now time.Time, old time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shutd && c.call == nil && c.used && now.Sub(c.since) >= old {
		c.shut()
	}
}

func (c *conn) shut() {
	c.shutd = true
	c.out = nil
	c.loop.remove(c)
	c.host.forget(c)
}

// ready is called by the loop, with what the system says about the connection.
func (c *conn) ready(events uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shutd {
		return
	}
	if events&unix.EPOLLOUT != 0 && len(c.out) > 0 {
		if err := c.flush(); err != nil {
			c.broke(err)
			return
		}
	}
	if events&^uint32(unix.EPOLLOUT) == 0 {
		return
	}
	for range maxReads {
		b, ago, err := c.loop.in.read(c.fd)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			c.broke(c.opError("read", err))
			return
		}
		var at time.Duration
		if c.call != nil {
			at = c.call.stamp(ago)
		}
		if len(b) == 0 {
			c.eof(at)
			return
		}
		if c.take(b, at); c.shutd {
			return
		}
		// A read that got less than it could emptied the socket. What came since is
		// another event, but for an end that this one tells of.
		if len(b) < len(c.loop.in.buf) && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
			return
		}
	}
	c.loop.again(c)
}

// broke ends the connection and its request.
func (c *conn) broke(err error) {
	x := c.call
	c.call = nil
	c.shut()
	if x == nil {
		return
	}
	if c.in.begun {
		x.end(err, x.now())
	} else {
		x.err = err
	}
	close(x.ended)
}

// eof is the server's end of the connection.
func (c *conn) eof(at time.Duration) {
	x := c.call
	if err := c.in.end(); err != nil || x == nil {
		c.broke(err)
		return
	}
	x.end(nil, at)
	c.call = nil
	c.shut()
	close(x.ended)
}

// take takes what was read at that time.
func (c *conn) take(b []byte, at time.Duration) {
	var a *answer
	if c.call != nil {
		a = &c.call.answer
	}
	ended, err := c.in.take(b, c.loop.heads, a, at)
	if err != nil {
		c.broke(err)
		return
	}
	c.settle(ended)
}

// settle decides what becomes of the connection when its request has all that it wants
// or the body has ended.
func (c *conn) settle(ended bool) {
	x := c.call
	if x != nil {
		if !x.done {
			return
		}
		c.call, c.since = nil, time.Now()
	}
	switch {
	case len(c.out) > 0, ended && c.in.last, !ended && x != nil && (x.moved || !x.res.OK()):
		c.shut()
	case ended:
		c.host.put(c)
	}
	// Behind [DONE] only the end of the body is to come; when it has, the connection
	// can be used again.
	if x != nil {
		close(x.ended)
	}
}
