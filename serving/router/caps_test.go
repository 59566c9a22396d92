package router

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/serving/embedded"
	"llmops/serving/route"
)

// capped is v1 with caps.
func capped(t testing.TB, c route.Caps) route.Doc {
	d, err := route.Cap(route.New("m", "run", "v1"), 1, "v1", c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What three replicas have, what a request needs, and where it goes: -1 is nowhere for
// now.
func TestChooseWithinCaps(t *testing.T) {
	for _, c := range []struct {
		name    string
		streams int // of the router
		caps    route.Caps
		routers int
		have    [3]int // streams
		tokens  [3]int // in their caches
		need    int
		want    int
	}{
		{"no caps", 10, route.Caps{}, 1, [3]int{9, 5, 7}, [3]int{1e9, 1e9, 1e9}, 1e9, 1},
		{"the only one with a stream left", 10, route.Caps{Streams: 4}, 1, [3]int{4, 4, 3}, [3]int{}, 5, 2},
		{"all at their caps", 10, route.Caps{Streams: 4}, 1, [3]int{4, 5, 4}, [3]int{}, 5, -1},
		{"above the router's own bound", 2, route.Caps{Streams: 4}, 1, [3]int{3, 4, 4}, [3]int{}, 5, 0},
		{"half of the caps is another router's", 10, route.Caps{Streams: 4}, 2, [3]int{2, 1, 2}, [3]int{}, 5, 1},
		{"of more routers than streams each may send one", 10, route.Caps{Streams: 4}, 9, [3]int{1, 1, 0}, [3]int{}, 5, 2},
		{"the only one with room in its cache", 10, route.Caps{KVTokens: 1000}, 1, [3]int{1, 1, 5}, [3]int{950, 990, 900}, 100, 2},
		{"no cache has room", 10, route.Caps{KVTokens: 1000}, 1, [3]int{1, 1, 5}, [3]int{950, 990, 901}, 100, -1},
		{"to the last token", 10, route.Caps{KVTokens: 1000}, 1, [3]int{1, 1, 1}, [3]int{1000, 1000, 900}, 100, 2},
		{"alone it always has room", 10, route.Caps{KVTokens: 1000}, 1, [3]int{1, 0, 1}, [3]int{1000, 0, 1000}, 5000, 1},
		{"and beside others never", 10, route.Caps{KVTokens: 1000}, 1, [3]int{1, 1, 1}, [3]int{1, 1, 1}, 5000, -1},
		{"one of two caps is enough", 10, route.Caps{Streams: 4, KVTokens: 1000}, 1, [3]int{4, 1, 3}, [3]int{0, 1000, 500}, 100, 2},
		{"both are", 10, route.Caps{Streams: 4, KVTokens: 1000}, 1, [3]int{4, 1, 3}, [3]int{0, 1000, 950}, 100, -1},
		{"caps alone", 0, route.Caps{Streams: 1}, 1, [3]int{1, 1, 0}, [3]int{}, 1, 2},
	} {
		doc := route.New("m", "run", "v1")
		if c.caps != (route.Caps{}) {
			doc = capped(t, c.caps)
		}
		var all []*Replica
		for i := range 3 {
			m := NewReplica(fmt.Sprint(i), "", "m", "v1")
			m.SetHealth(Up)
			m.streams = c.have[i]
			m.tokens.Store(int64(c.tokens[i]))
			all = append(all, m)
		}
		v := NewView("", "", c.streams, []Route{{Doc: doc, Routers: c.routers}}, all)
		for prefix := range uint64(20) { // wherever its prefix is at home
			d, full := Choose(v, &Request{Alias: "m", Tokens: c.need, Prefix: prefix * 7919}, "v1")
			switch {
			case c.want < 0 && (d.Replica != nil || !full):
				t.Errorf("%s: %+v, full %v", c.name, d.Replica, full)
			case c.want >= 0 && c.name != "no caps" && d.Replica != all[c.want]:
				t.Errorf("%s: %+v, want %d", c.name, d.Replica, c.want)
			case c.want >= 0 && d.Replica == nil:
				t.Errorf("%s: nowhere", c.name)
			}
		}
	}
}

// Tokens are booked with the stream, grow with it, and all come back. A request that has
// no room waits, and nobody of its version goes before it.
func TestGateBooksTokens(t *testing.T) {
	m := NewReplica("a", "", "m", "v1")
	m.SetHealth(Up)
	v := NewView("", "", 10, []Route{{Doc: capped(t, route.Caps{KVTokens: 100})}}, []*Replica{m})
	g := Gate{Queue: 8}
	arrive := func(tokens int) *Request {
		r := &Request{Alias: "m", Tokens: tokens}
		if rej := g.Arrive(1, r); rej != nil {
			t.Fatal(rej)
		}
		return r
	}
	first := arrive(40)
	_, d, ok := g.Next(1, v)
	if !ok || m.tokens.Load() != 40 {
		t.Fatalf("%+v, %d tokens", d, m.tokens.Load())
	}
	d.Grow(1)
	d.Grow(29)
	large, small := arrive(31), arrive(5)
	if r, _, ok := g.Next(2, v); ok {
		t.Fatalf("%+v went beside %d tokens", r, m.tokens.Load())
	}
	g.Done(3, d, Usage{Prompt: 999, Output: 999}) // what it took is known now, what was booked comes back
	if n := m.tokens.Load(); n != 0 || m.streams != 0 {
		t.Fatalf("%d tokens, %d streams left of %+v", n, m.streams, first)
	}
	for _, want := range []*Request{large, small} {
		if r, _, ok := g.Next(4, v); !ok || r != want {
			t.Fatalf("%+v, %v", r, ok)
		}
	}
	if m.tokens.Load() != 36 {
		t.Errorf("%d tokens", m.tokens.Load())
	}
	if _, ok := g.Take(5, v, &Request{Alias: "m", Tokens: 65}, "v1"); ok {
		t.Error("a copy was sent over the cap")
	}
	if d, ok := g.Take(5, v, &Request{Alias: "m", Tokens: 64}, "v1"); !ok || m.tokens.Load() != 100 {
		t.Errorf("%+v, %d tokens", d, m.tokens.Load())
	}
}

// Over a long random run no replica is ever above its caps but with what streams grew,
// and all comes back.
func TestCapsHold(t *testing.T) {
	var all []*Replica
	for i := range 3 {
		m := NewReplica(fmt.Sprint(i), "", "m", "v1")
		m.SetHealth(Up)
		all = append(all, m)
	}
	v := NewView("", "", 100, []Route{{Doc: capped(t, route.Caps{Streams: 5, KVTokens: 300})}}, all)
	g := Gate{Queue: 20}
	seed := uint64(3)
	rnd := func(n uint64) uint64 { seed = route.Mix(seed, 11); return seed % n }
	var flying []Decision
	waited := 0
	for now := range time.Duration(20_000) {
		switch rnd(4) {
		case 0, 1:
			g.Arrive(now, &Request{Alias: "m", Prefix: rnd(9), Tokens: int(rnd(120))})
		case 2:
			if len(flying) > 0 {
				i := rnd(uint64(len(flying)))
				g.Done(now, flying[i], Usage{})
				flying = append(flying[:i], flying[i+1:]...)
			}
		case 3:
			if len(flying) > 0 {
				flying[rnd(uint64(len(flying)))].Grow(1)
			}
		}
		for {
			r, d, ok := g.Next(now, v)
			if !ok {
				break
			}
			if m := d.Replica; m.streams > 5 || m.streams > 1 && m.tokens.Load() > 300 {
				t.Fatalf("at %d: %d streams, %d tokens with %+v", now, m.streams, m.tokens.Load(), r)
			}
			flying = append(flying, d)
		}
		if g.Waiting() > 0 {
			waited++
			for _, m := range all { // it waits for a reason
				if m.streams == 0 {
					t.Fatalf("at %d one waits beside an idle replica", now)
				}
			}
		}
	}
	if waited == 0 {
		t.Error("nobody ever waited")
	}
	for _, d := range flying {
		g.Done(20_000, d, Usage{})
	}
	for _, m := range all {
		if m.streams != 0 || m.tokens.Load() != 0 {
			t.Errorf("%d streams and %d tokens are left", m.streams, m.tokens.Load())
		}
	}
}

func TestTokensAreLearned(t *testing.T) {
	y := newTallies()
	if got := y.tokens(100); got != 100 {
		t.Errorf("knowing nothing: %d", got)
	}
	y.learn(100, 150)
	y.learn(300, 250)
	y.learn(100, 100)
	if got := y.tokens(1000); got != 1000 {
		t.Errorf("by 500 for 500: %d", got)
	}
	y.learn(500, 1500)
	if got := y.tokens(10); got != 20 {
		t.Errorf("by 2000 for 1000: %d", got)
	}
}

// stream is a chat that is open until it is told to end.
type stream struct {
	status int
	cancel context.CancelFunc
	done   chan struct{}
}

func openStream(t testing.TB, url string, begun chan<- *stream) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		body := `{"model":"m","stream":true,"max_tokens":200,"min_tokens":200,"ignore_eos":true,"messages":[{"role":"user","content":"the weight"}]}`
		req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return
		}
		defer res.Body.Close()
		s.status = res.StatusCode
		in := bufio.NewReader(res.Body)
		if _, err := in.ReadString('\n'); err == nil && begun != nil {
			begun <- s
		}
		_, _ = io.Copy(io.Discard, in)
	}()
	return s
}

// Two real engines, each capped at two streams: four run, the fifth waits and goes when
// one of them ends, and what does not fit the queue is told when to come back.
func TestCapsOfRealEngines(t *testing.T) {
	s := newStore(t)
	putRoute(t, s, capped(t, route.Caps{Streams: 2, KVTokens: 1_000_000, From: "a test"}))
	// No stream ends by itself while the test looks on.
	fault, err := embedded.ParseFault("stall:after=3")
	if err != nil {
		t.Fatal(err)
	}
	deploy(t, s, "m", "v1", own(t, embedded.Options{Version: "v1", Fault: fault}), own(t, embedded.Options{Version: "v1", Fault: fault}))
	r, srv := start(t, Options{Store: s, Queue: 1, QueueTime: time.Minute, Stall: time.Hour}, "m/v1")

	begun := make(chan *stream, 8)
	var all []*stream
	for range 4 {
		all = append(all, openStream(t, srv.URL, begun))
	}
	for range 4 {
		<-begun
	}
	loads := func() (streams [2]int, tokens int) {
		st, _ := r.State("m")
		for i, l := range st.Loads {
			streams[i], tokens = l.Streams, tokens+l.KVTokens
		}
		return streams, tokens
	}
	if got, tokens := loads(); got != [2]int{2, 2} || tokens < 4*5 {
		t.Errorf("streams %v, %d tokens", got, tokens)
	}
	all = append(all, openStream(t, srv.URL, begun))
	until(t, "the fifth waits", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.gate.Waiting() == 1 })
	status, body, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "x", true))
	if status != 429 || h.Get("Retry-After") == "" || !strings.Contains(body, "queue_full") {
		t.Errorf("beyond the queue: %d, %v, %s", status, h, body)
	}
	text := page(t, srv.URL+"/metrics")
	for _, want := range []string{
		`llmops_router_cap_streams{model="m",version="v1"} 2`, `llmops_router_cap_kv_tokens{model="m",version="v1"} 1000000`,
		`llmops_router_replica_streams{model="m",version="v1",replica="m-v1/engine-0"} 2`, `llmops_router_rejected_total{model="m"} 1`,
		`llmops_router_replica_kv_tokens{model="m",version="v1",replica="m-v1/engine-1"} `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	all[0].cancel()
	if fifth := <-begun; fifth != all[4] {
		t.Error("another stream than the fifth began")
	}
	if got, _ := loads(); got != [2]int{2, 2} {
		t.Errorf("streams %v", got)
	}
	for _, s := range all {
		s.cancel()
		<-s.done
	}
	until(t, "all has come back", func() bool { got, tokens := loads(); return got == [2]int{} && tokens == 0 })

	// A second router that is there takes its part of the caps.
	put(t, s, "job/router", fleet.Job{Name: "router", Kind: fleet.Router})
	for i := range 2 {
		put(t, s, fmt.Sprintf("replica/router/main-%d", i), fleet.Replica{ID: fmt.Sprint(i), Addr: "x", State: fleet.Healthy})
	}
	until(t, "the caps are shared", func() bool { st, _ := r.State("m"); return st.Caps["v1"].Streams == 1 })
}

// A cap on tokens holds against concurrent arrivals, whatever they add up to.
func TestCapOfTokensUnderLoad(t *testing.T) {
	e := newEngine(t, "v1", "a", " b", " c")
	s := newStore(t)
	putRoute(t, s, capped(t, route.Caps{KVTokens: 30}))
	deploy(t, s, "m", "v1", e.addr())
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	e.set(func(w http.ResponseWriter, r *http.Request) {
		<-release
		e.answer(w, r)
	})
	r, srv := start(t, Options{Store: s, Queue: 100, QueueTime: time.Minute}, "m/v1")
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() { // seven tokens each, by their bytes and as the engine counts
			if status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "x", true)); status != 200 {
				t.Error(status, body)
			}
		})
	}
	t.Cleanup(let) // before the servers end, which wait for their requests
	until(t, "all but four wait", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.gate.Waiting() == 36 })
	if st, _ := r.State("m"); st.Loads[0].Streams != 4 || st.Loads[0].KVTokens != 28 {
		t.Errorf("%+v", st.Loads)
	}
	let()
	wg.Wait()
	until(t, "all has come back", func() bool {
		st, _ := r.State("m")
		return st.Loads[0].Streams == 0 && st.Loads[0].KVTokens == 0
	})
}
