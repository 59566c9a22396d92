package load

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Client keeps connections to servers, since a handshake for each request is no load
// that a router sends. It may be used by many targets at a time.
//
// Where a server speaks plain HTTP and the system is Linux, the streams are read by an
// event loop a core, which costs less than a goroutine for each. TLS, other systems and
// answers that redirect are net/http's; what results say is the same.
type Client struct {
	HTTP  *http.Client // for what is no load, and all that the loops do not do
	loops loops
}

// NewClient is a client for many streams. Close ends it.
func NewClient() *Client {
	return &Client{HTTP: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true,
		MaxIdleConns: DefaultMaxOpen, MaxIdleConnsPerHost: DefaultMaxOpen, IdleConnTimeout: idleTimeout,
		// A chunk of a stream is some 200 bytes; large buffers only cost memory
		// at ten thousand of them.
		ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
	}}}
}

var dialer = &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}

// idleTimeout is how long a connection is kept that nobody uses.
const idleTimeout = 30 * time.Second

// Close closes all connections. No request may be under way, and none may follow.
func (c *Client) Close() {
	c.HTTP.CloseIdleConnections()
	c.loops.close()
}

// Target sends to the server at base, http://host:port with or without /v1, with header
// on each request.
func (c *Client) Target(base string, header http.Header) Target {
	p := &poster{base: strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1"), header: header, client: c.HTTP}
	if u, err := url.Parse(p.base); err == nil && u.Scheme == "http" && u.User == nil {
		return c.loops.target(u, p)
	}
	return p.send
}

// poster makes requests to a server, and sends them with net/http.
type poster struct {
	base   string
	header http.Header
	client *http.Client
}

func (p *poster) request(ctx context.Context, r *Request) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for k, v := range p.header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	if r.Conversation != "" {
		req.Header.Set("X-Conversation-Id", r.Conversation)
	}
	return req, nil
}

// idleClosed ends the error of net/http for a kept connection that the server closed
// before the request was written, and stale is how many of these a request may meet.
const (
	idleClosed = "http: server closed idle connection"
	stale      = 5
)

// pieces are what an answer is read into.
var pieces = sync.Pool{New: func() any { return new([4 << 10]byte) }}

func (p *poster) send(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
	var ans *http.Response
	for range stale {
		req, err := p.request(ctx, r)
		if err != nil {
			res.fail(KindConnect, err)
			return
		}
		if res.Sent == 0 {
			res.Sent = now()
		}
		if ans, err = p.client.Do(req); err == nil {
			res.Kind, res.Error = "", ""
			break
		}
		res.fail(KindConnect, err)
		// The server closed a kept connection while it was idle, and has not seen
		// the request. That is no failure of its, and takes the time that it takes.
		if !strings.HasSuffix(err.Error(), idleClosed) {
			return
		}
	}
	if ans == nil {
		return
	}
	defer ans.Body.Close()
	a := answer{base: p.base, r: r, res: res}
	a.begin(ans, now())
	body, piece := ans.Body, pieces.Get().(*[4 << 10]byte)
	defer pieces.Put(piece)
	for !a.done {
		n, err := body.Read(piece[:])
		at := now()
		a.feed(piece[:n], at)
		switch err {
		case nil:
		case io.EOF:
			a.end(nil, at)
		default:
			a.end(err, at)
		}
	}
	a.close()
}
