package router

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// wire is a connection that yields given bytes.
type wire struct {
	net.Conn
	io.Reader
}

func (w wire) Read(b []byte) (int, error)         { return w.Reader.Read(b) }
func (w wire) Write(b []byte) (int, error)        { return len(b), nil }
func (w wire) Close() error                       { return nil }
func (w wire) SetDeadline(t time.Time) error      { return nil }
func (w wire) SetReadDeadline(t time.Time) error  { return nil }
func (w wire) SetWriteDeadline(t time.Time) error { return nil }

// answerOf reads an answer from r to its end.
func answerOf(r io.Reader) (*answer, string, error) {
	p := &pool{}
	c := &conn{Conn: wire{Reader: r}, buf: make([]byte, 256)}
	a, err := p.askOn(context.Background(), c, []byte("x"), nil, time.Minute)
	if err != nil {
		return nil, "", err
	}
	defer a.close()
	var body strings.Builder
	for {
		b, err := a.next(context.Background())
		if err == io.EOF {
			return a, body.String(), nil
		}
		if err != nil {
			return a, body.String(), err
		}
		body.Write(b)
	}
}

func TestAnswer(t *testing.T) {
	for _, tt := range []struct {
		name, in, body string
		status         int
		keep           bool
		err            string
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello", "hello", 200, true, ""},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", "abc0123456789", 200, true, ""},
		{"trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", "a", 200, true, ""},
		{"until close", "HTTP/1.1 200 OK\r\n\r\nabc", "abc", 200, false, ""},
		{"old", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", "a", 200, false, ""},
		{"close", "HTTP/1.1 503 \r\nConnection: close\r\nContent-Length: 1\r\n\r\na", "a", 503, false, ""},
		{"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", 200, true, ""},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", "", 204, true, ""},
		{"continue first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", 200, true, ""},
		{"long head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 5000) + "\r\nContent-Length: 1\r\n\r\na", "a", 200, true, ""},
		{"excess", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "a", 200, true, ""},
		{"both framings", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "a", 200, false, ""},
		{"short", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "hel", 200, true, "unexpected EOF"},
		{"short chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "hel", 200, true, "unexpected EOF"},
		{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "a", 200, true, "unexpected EOF"},
		{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "", 200, true, "malformed"},
		{"bytes behind a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "a", 200, true, "malformed"},
		{"huge chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "", 200, true, "malformed"},
		{"endless chunk line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 9000), "", 200, true, "malformed"},
		{"nothing", "", "", 0, false, "unexpected EOF"},
		{"half a head", "HTTP/1.1 200 OK\r\nX", "", 0, false, "unexpected EOF"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "", 0, false, "malformed"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "", 0, false, "malformed"},
		{"gzip transfer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "", 0, false, "malformed"},
		{"switching", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "", 0, false, "malformed"},
		{"folded header", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "", 0, false, "malformed"},
		{"endless head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 100_000), "", 0, false, "too large"},
	} {
		for i, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
			a, body, err := answerOf(r)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || body != tt.body {
					t.Errorf("%s (%d): body %q, error %v", tt.name, i, body, err)
				}
				continue
			}
			if err != nil || a.Status != tt.status || body != tt.body || a.keep != tt.keep {
				t.Errorf("%s (%d): body %q, error %v, answer %+v", tt.name, i, body, err, a)
			}
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 Not Found\r\n\r\nx"))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, body, err := answerOf(bytes.NewReader(in))
		a2, body2, err2 := answerOf(iotest.HalfReader(bytes.NewReader(in)))
		if (err == nil) != (err2 == nil) || body != body2 || (a == nil) != (a2 == nil) {
			t.Fatalf("%q: %q, %v in one read, %q, %v in several", in, body, err, body2, err2)
		}
		if err != nil || bytes.HasPrefix(in, []byte("HTTP/1.1 1")) || bytes.HasPrefix(in, []byte("HTTP/1.0 1")) {
			return // the oracle does not skip informational answers
		}
		res, err := http.ReadResponse(newBufio(in), nil)
		if err != nil {
			return // stricter than we need to be
		}
		want, err := io.ReadAll(res.Body)
		if err == nil && (a.Status != res.StatusCode || body != string(want)) {
			t.Fatalf("%q: %d %q, net/http reads %d %q", in, a.Status, body, res.StatusCode, want)
		}
	})
}

func TestPool(t *testing.T) {
	conns := 0
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Big") != "" {
			w.Write(bytes.Repeat([]byte("x"), 100_000))
			return
		}
		w.Write(body)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns++
		}
	}
	srv.Start()
	defer srv.Close()
	p := &pool{addr: srv.Listener.Addr().String()}
	defer p.close()
	ask := func(extra string, body string) (string, error) {
		head := "POST / HTTP/1.1\r\nHost: x\r\n" + extra + "Content-Length: " + itoa(len(body)) + "\r\n\r\n"
		a, err := p.ask(t.Context(), []byte(head), []byte(body), time.Minute)
		if err != nil {
			return "", err
		}
		defer a.close()
		var out []byte
		for {
			b, err := a.next(t.Context())
			if err == io.EOF {
				return string(out), nil
			}
			if err != nil {
				return "", err
			}
			out = append(out, b...)
		}
	}
	big := strings.Repeat("y", 50_000)
	for _, body := range []string{"a", "", big} {
		if got, err := ask("", body); err != nil || got != body {
			t.Fatalf("%d bytes came back as %d: %v", len(body), len(got), err)
		}
	}
	if got, err := ask("X-Big: 1\r\n", ""); err != nil || len(got) != 100_000 {
		t.Fatal(len(got), err)
	}
	if conns != 1 {
		t.Errorf("%d connections for four requests in turn", conns)
	}
	// The engine closes what is idle: the next request takes a new connection.
	srv.CloseClientConnections()
	var te *transportError
	if _, err := ask("", "b"); !errors.As(err, &te) || !te.reused {
		t.Errorf("on a connection that was closed: %v", err)
	}
	if got, err := ask("", "b"); err != nil || got != "b" {
		t.Errorf("after the engine closed: %q, %v", got, err)
	}
	if conns != 2 {
		t.Errorf("%d connections", conns)
	}
	srv.Close()
	p.drain()
	if _, err := ask("", "c"); !errors.As(err, &te) || !te.dialling {
		t.Errorf("a dead engine: %v", err)
	}
}
