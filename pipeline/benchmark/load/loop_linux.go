package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loops are the event loops of a client and the hosts that it knows. The first request
// starts them.
type loops struct {
	mu    sync.Mutex // guards what follows
	all   []*loop
	hosts []*host
	next  int
}

// maxLoops is more than any server can keep busy that streams to one client.
const maxLoops = 8

// pick gives each connection to the next loop.
func (l *loops) pick() (*loop, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := min(runtime.GOMAXPROCS(0), maxLoops); len(l.all) < n; {
		one, err := newLoop()
		if err != nil {
			return nil, err
		}
		l.all = append(l.all, one)
	}
	l.next++
	return l.all[l.next%len(l.all)], nil
}

func (l *loops) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hosts {
		h.sweep(0)
	}
	for _, one := range l.all {
		one.close()
	}
	l.all, l.hosts = nil, nil
}

func (l *loops) target(u *url.URL, p *poster) Target {
	port := u.Port()
	if port == "" {
		port = "80"
	}
	h := &host{poster: p, loops: l, addr: net.JoinHostPort(u.Hostname(), port)}
	// What net/http refuses or translates, it does itself.
	if !ascii(u.Host) || !sendable(p.header) {
		return p.send
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts = append(l.hosts, h)
	return h.send
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

// sendable tells that all of h can be sent as it is.
func sendable(h http.Header) bool {
	for k, values := range h {
		if !ascii(k) {
			return false
		}
		for _, v := range values {
			if !printable(v) {
				return false
			}
		}
	}
	return true
}

func printable(v string) bool {
	return strings.IndexFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0
}

// loop reads the connections that it watches.
//
// Its gate is a descriptor that the runtime's poller watches, so that a goroutine without
// anything to read holds no thread, and timers and the loop get on with one core. Behind
// the gate are the connections' descriptor and a timer. Where chunks are far apart the
// first is open, and each is read as it comes. Where they are dense it is shut, and what
// came is read once a pause: waking a thread costs more than reading a chunk. When a chunk
// came is told by the system, and does not depend on when it is read.
type loop struct {
	gate         *os.File
	fd, up, rest int // of the gate, the connections, and the timer
	open         bool
	last         time.Time // turn
	ended        chan struct{}
	in           inbox
	heads        *heads

	mu    sync.Mutex // guards what follows
	conns []*conn    // by their descriptor
}

// pause is how long a chunk may lie unread, and its acknowledgement be late, when they
// are dense. At tens of thousands of chunks a second ten share a wake-up.
const pause = 250 * time.Microsecond

func newLoop() (*loop, error) {
	l := &loop{ended: make(chan struct{}), heads: new(heads), open: true}
	if err := l.make(); err != nil {
		return nil, err
	}
	raw, err := l.gate.SyscallConn()
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(l.ended)
		events := make([]unix.EpollEvent, 256)
		conns := make([]*conn, len(events))
		// It returns when the gate is closed, and only then.
		_ = raw.Read(func(uintptr) bool {
			for again := true; again; {
				n := 0
				for more := true; more; {
					var one int
					one, more = l.turn(events, conns)
					n += one
				}
				again = l.wait(n)
			}
			return false
		})
	}()
	return l, nil
}

// make makes the descriptors.
func (l *loop) make() (err error) {
	if l.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if l.up, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		_ = unix.Close(l.fd)
		return os.NewSyscallError("epoll_create1", err)
	}
	if l.rest, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		_, _ = unix.Close(l.fd), unix.Close(l.up)
		return os.NewSyscallError("timerfd_create", err)
	}
	err = errors.Join(unix.SetNonblock(l.fd, true),
		unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, l.up, &unix.EpollEvent{Events: unix.EPOLLIN}),
		unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, l.rest, &unix.EpollEvent{Events: unix.EPOLLIN}))
	if err != nil {
		_, _, _ = unix.Close(l.fd), unix.Close(l.up), unix.Close(l.rest)
		return os.NewSyscallError("epoll_ctl", err)
	}
	l.gate = os.NewFile(uintptr(l.fd), "epoll")
	return nil
}

func (l *loop) close() {
	_ = l.gate.Close()
	<-l.ended
	_, _ = unix.Close(l.up), unix.Close(l.rest)
}

// turn takes what has come; more tells that this may not have been all.
func (l *loop) turn(events []unix.EpollEvent, conns []*conn) (n int, more bool) {
	n, err := poll(l.up, events)
	if err != nil {
		return 0, err == unix.EINTR
	}
	l.mu.Lock()
	for i := range n {
		conns[i] = l.conns[events[i].Fd]
	}
	l.mu.Unlock()
	for i, c := range conns[:n] {
		// A descriptor may have been closed since, and be another's by now. That one
		// is told of bytes that it has not got, which does no harm.
		if c != nil {
			c.ready(events[i].Events)
		}
		conns[i] = nil
	}
	return n, n == len(events)
}

// wait says what ends the wait that follows n events: the next one, or a pause. again
// tells not to wait yet: the gate has opened, and is silent about what came before.
func (l *loop) wait(n int) (again bool) {
	now := time.Now()
	dense := n > 1 || l.open && n > 0 && now.Sub(l.last) < pause/2
	l.last = now
	if dense {
		_ = unix.TimerfdSettime(l.rest, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(pause))}, nil)
	}
	if open := !dense; open == l.open {
		return false
	}
	l.open = !dense
	var watch unix.EpollEvent
	if l.open {
		watch.Events = unix.EPOLLIN
	}
	_ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_MOD, l.up, &watch)
	return l.open
}

// Each change is told once; a connection that can be read is read until it cannot.
const watched = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

func (l *loop) add(c *conn) error {
	l.mu.Lock()
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, make([]*conn, max(64, len(l.conns)))...)
	}
	l.conns[c.fd] = c
	l.mu.Unlock()
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.up, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: watched, Fd: int32(c.fd)}))
}

// again has the loop look at c in its next turn.
func (l *loop) again(c *conn) {
	_ = unix.EpollCtl(l.up, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: watched, Fd: int32(c.fd)})
}

func (l *loop) remove(c *conn) {
	l.mu.Lock()
	l.conns[c.fd] = nil
	l.mu.Unlock()
	_ = unix.Close(c.fd)
}

// host is a server and the connections to it.
type host struct {
	*poster
	loops *loops
	addr  string

	mu    sync.Mutex // guards what follows
	conns map[*conn]struct{}
	idle  []*conn // some of them closed
	timer *time.Timer
}

// send is the Target of a host. The caller waits while a loop reads.
func (h *host) send(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
	if !printable(r.Conversation) {
		h.poster.send(ctx, r, now, res)
		return
	}
	wire, err := h.wire(r)
	if err != nil {
		res.fail(KindConnect, err)
		return
	}
	res.Sent = now()
	for range stale {
		c, err := h.get(ctx)
		if err != nil {
			res.fail(KindConnect, h.failed(r, err))
			return
		}
		x := &call{answer: answer{base: h.base, r: r, res: res}, now: now, ended: make(chan struct{})}
		if !c.start(x, wire) {
			continue
		}
		select {
		case <-x.ended:
		case <-ctx.Done():
			c.cancel(x, ctx.Err())
		}
		switch {
		case x.moved:
			h.poster.send(ctx, r, now, res)
			return
		case x.err != nil:
			res.fail(KindConnect, h.failed(r, x.err))
			return
		}
		x.close()
		return
	}
	res.fail(KindConnect, h.failed(r, fmt.Errorf("%d kept connections in turn were closed by the server", stale)))
}

// wire is the bytes of r.
func (h *host) wire(r *Request) ([]byte, error) {
	req, err := h.request(context.Background(), r)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(512 + len(r.Body))
	if err := req.Write(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// failed is err as net/http tells it.
func (h *host) failed(r *Request, err error) error {
	return &url.Error{Op: "Post", URL: h.base + r.Path, Err: err}
}

// get is a connection without a request. The one that was used last is the first to be
// taken, so that what is not needed gets old.
func (h *host) get(ctx context.Context) (*conn, error) {
	for {
		h.mu.Lock()
		n := len(h.idle)
		if n == 0 {
			h.mu.Unlock()
			return h.dial(ctx)
		}
		c := h.idle[n-1]
		h.idle = h.idle[:n-1]
		h.mu.Unlock()
		if c.fresh() {
			return c, nil
		}
	}
}

func (h *host) dial(ctx context.Context) (*conn, error) {
	// A dialer that knows of the deadline may be the first to notice it, and call it a
	// timeout of its own.
	dial, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	nc, err := dialer.DialContext(dial, "tcp", h.addr)
	if err != nil {
		return nil, err
	}
	tcp := nc.(*net.TCPConn)
	c := &conn{host: h, local: nc.LocalAddr(), remote: nc.RemoteAddr()}
	if c.fd, err = own(tcp); err != nil {
		return nil, err
	}
	if c.loop, err = h.loops.pick(); err != nil {
		_ = unix.Close(c.fd)
		return nil, err
	}
	h.mu.Lock()
	if h.conns == nil {
		h.conns = map[*conn]struct{}{}
	}
	h.conns[c] = struct{}{}
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.loop.add(c); err != nil {
		c.shut()
		return nil, err
	}
	return c, nil
}

// own takes the descriptor of a connection from the runtime's poller.
func own(tcp *net.TCPConn) (fd int, err error) {
	defer tcp.Close()
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil {
		return 0, cerr
	}
	if err == nil {
		stamped(fd)
	}
	return fd, os.NewSyscallError("dup", err)
}

func (h *host) put(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.idle = append(h.idle, c)
	if h.timer == nil {
		h.timer = time.AfterFunc(idleTimeout, func() { h.sweep(idleTimeout) })
	}
}

func (h *host) forget(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}

// sweep closes connections that have had no request for so long, and looks again later
// as long as there are any.
func (h *host) sweep(old time.Duration) {
	h.mu.Lock()
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	all := make([]*conn, 0, len(h.conns))
	for c := range h.conns {
		all = append(all, c)
	}
	h.mu.Unlock()
	now := time.Now()
	for _, c := range all {
		c.retire(now, old)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	open := h.idle[:0]
	for _, c := range h.idle {
		if _, ok := h.conns[c]; ok {
			open = append(open, c)
		}
	}
	clear(h.idle[len(open):])
	h.idle = open
	if len(h.conns) > 0 && old > 0 && h.timer == nil {
		h.timer = time.AfterFunc(old, func() { h.sweep(old) })
	}
}
