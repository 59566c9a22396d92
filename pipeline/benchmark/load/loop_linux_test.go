package load

import (
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"llmops/serving/openai"
)

// known is how many connections c has.
func known(c *Client) (n int) {
	c.loops.mu.Lock()
	defer c.loops.mu.Unlock()
	for _, h := range c.loops.hosts {
		h.mu.Lock()
		n += len(h.conns)
		h.mu.Unlock()
	}
	return n
}

func settled(c *Client, want int) {
	for known(c) != want {
		runtime.Gosched()
	}
}

// A connection that the server closed while nobody used it is let go, and one whose
// server goes on behind [DONE] is not used until the body has ended.
func TestConnectionsThatAreNotKept(t *testing.T) {
	end := make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		s := openai.NewWriter(w)
		s.Send(delta(openai.Delta{Content: "a"}))
		s.Done()
		if r.Header.Get("X-Conversation-Id") == "goes on" {
			<-end
		}
	})
	c := client(t)
	target := c.Target(srv.URL, nil)
	if r := ask(t, target, chat(t)); !r.OK() {
		t.Errorf("%+v", r)
	}
	srv.CloseClientConnections()
	settled(c, 0)
	q := chat(t)
	q.Conversation = "goes on"
	if r := ask(t, target, q); !r.OK() || known(c) != 1 {
		t.Errorf("%+v", r)
	}
	if r := ask(t, target, chat(t)); !r.OK() || known(c) != 2 {
		t.Errorf("%+v", r)
	}
	close(end)
	h := c.loops.hosts[0]
	for n := 0; n < 2; {
		runtime.Gosched()
		h.mu.Lock()
		n = len(h.idle)
		h.mu.Unlock()
	}
	if r := ask(t, target, chat(t)); !r.OK() || known(c) != 2 {
		t.Errorf("%+v", r)
	}
	h.sweep(time.Hour)
	if n := known(c); n != 2 {
		t.Errorf("%d connections, none of them old", n)
	}
	h.sweep(0)
	if n := known(c); n != 0 || len(h.idle) != 0 {
		t.Errorf("%d connections behind the sweep, %d idle", n, len(h.idle))
	}
}

// An answer that breaks off takes its connection with it.
func TestBrokenConnectionsAreClosed(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		s := openai.NewWriter(w)
		_ = s.Error(&openai.Error{Message: "x"})
		<-r.Context().Done()
		_, _ = io.WriteString(w, "x")
	})
	c := client(t)
	if r := ask(t, c.Target(srv.URL, nil), chat(t)); r.Kind != KindStream || known(c) != 0 {
		t.Errorf("%+v", r)
	}
}

// What lay unread says for how long it did, and times of a request do not go back.
func TestReadSaysWhenItCame(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := own(here.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var in inbox
	if _, _, err := in.read(fd); err != unix.EAGAIN {
		t.Errorf("of nothing: %v", err)
	}
	// The system begins to stamp some time after the first socket has asked it to.
	var b []byte
	for ago := time.Duration(0); ago == 0; {
		if _, err := there.Write([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		for at := time.Now(); time.Since(at) < 20*ms; {
			runtime.Gosched()
		}
		if b, ago, err = in.read(fd); string(b) != "abc" || err != nil || ago != 0 && ago < 10*ms || ago > believable {
			t.Fatalf("%q, came %v ago, %v", b, ago, err)
		}
	}
	there.Close()
	for err = unix.EAGAIN; err == unix.EAGAIN; {
		b, _, err = in.read(fd)
	}
	if len(b) != 0 || err != nil {
		t.Errorf("at the end %q, %v", b, err)
	}

	x := call{answer: answer{res: &Result{Sent: 5 * ms}}, now: func() time.Duration { return 9 * ms }}
	for i, c := range []struct{ ago, want time.Duration }{{6 * ms, 5 * ms}, {time.Millisecond, 8 * ms}, {3 * ms, 8 * ms}, {0, 9 * ms}} {
		if at := x.stamp(c.ago); at != c.want {
			t.Errorf("stamp %d is %v", i, at)
		}
	}
}
