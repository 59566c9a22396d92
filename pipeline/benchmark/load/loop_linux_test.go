package load

import (
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"

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
