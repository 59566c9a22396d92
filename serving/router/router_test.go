package router

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/serving/openai"
	"llmops/serving/route"
)

func TestStream(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "hel", "lo ", "wörld")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s}, "m/v1")

	body := chatBody("m", "hi", true)
	status, got, h := post(t, srv.URL+"/v1/chat/completions", body, "Authorization", "Bearer k", "Accept-Encoding", "gzip")
	_, want, _ := post(t, e.URL+"/v1/chat/completions", body)
	if status != 200 || got != want || h.Get(HeaderVersion) != "v1" || !strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		t.Errorf("status %d, header %v, body %q, engine says %q", status, h, got, want)
	}
	if asked := e.got(); asked[0] != body {
		t.Errorf("the engine was asked %q", asked[0])
	}
	c := total(t, r, "m", "v1")
	if c.Chosen != 1 || c.Done != 1 || c.Counted != 1 || c.InputTokens != 7 || c.OutputTokens != 3 || c.TTFT.Seen.N() != 1 || c.Arrival.Seen.N() != 1 || c.TPOT.N() != 1 || c.TPOTChunks != 0 {
		t.Errorf("counted %+v", c)
	}
	// The client of our own reads it, too.
	cl := &openai.Client{BaseURL: srv.URL}
	res, _, err := cl.Chat(t.Context(), &openai.ChatRequest{Sampling: openai.Sampling{Model: "m"}, Messages: []openai.Message{{Role: "user", Content: openai.Text("x")}}}, func(*openai.ChatChunk) error { return nil })
	if err != nil || res.Choices[0].Message.Content.Text != "hello wörld" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestNotStreamed(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a", "b")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s}, "m/v1")
	status, got, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", false))
	if status != 200 || !strings.Contains(got, `"content":"ab"`) {
		t.Errorf("%d %s", status, got)
	}
	c := total(t, r, "m", "v1")
	// An answer in one piece has no first token, and not one after 0 ms.
	if c.Done != 1 || c.OutputTokens != 2 || c.TTFT.Seen.N() != 0 || c.TPOT.N() != 0 {
		t.Errorf("counted %+v", c)
	}
}

// Vectors and scores come in one piece: what the client waits for is its end. A
// copy of such an answer is measured, but not compared as text.
func TestEncoders(t *testing.T) {
	s := newStore(t)
	live, copied := newEngine(t, "v1"), newEngine(t, "v2")
	vectors := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.5]}],"model":"m","usage":{"prompt_tokens":4,"total_tokens":4}}`)
	}
	live.set(vectors)
	copied.set(vectors)
	putRoute(t, s, shadow(t, route.Million))
	deploy(t, s, "m", "v1", live.addr())
	deploy(t, s, "m", "v2", copied.addr())
	r, srv := start(t, Options{Store: s}, "m/v1", "m/v2")
	for path, body := range map[string]string{
		"/v1/embeddings": `{"model":"m","input":["a","b"]}`, "/v1/rerank": `{"model":"m","query":"a","documents":["b"]}`,
		"/rerank": `{"model":"m","query":"a","documents":["b"]}`, "/v1/score": `{"model":"m","text_1":"a","text_2":"b"}`,
	} {
		if status, got, h := post(t, srv.URL+path, body); status != 200 || !strings.Contains(got, "embedding") || h.Get(HeaderVersion) != "v1" {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	until(t, "the copies have ended", func() bool { rep, _ := r.Report("m"); return rep.InFlight["v2"] == 0 })
	rep, _ := r.Report("m")
	for name, c := range map[string]route.Counters{"live": rep.Versions["v1"], "copy": rep.Mirrored["v2"]} {
		if n := c.Total(); n.Done != 4 || n.TTFT.Seen.N() != 4 || n.TPOT.N() != 0 || n.InputTokens != 16 || c.Compared != 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	live.set(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 500) })
	if status, _, _ := post(t, srv.URL+"/v1/embeddings", `{"model":"m","input":"a"}`); status != 500 {
		t.Errorf("status %d", status)
	}
	if c := total(t, r, "m", "v1"); c.Errors != 1 || c.TTFT.Seen.N() != 4 || c.TTFT.Gave.N() != 1 {
		t.Errorf("after an error %+v", c)
	}
}

func TestEndpoints(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a")
	putRoute(t, s, route.New("org/m", "run", "v1"))
	deploy(t, s, "org/m", "v1", e.addr())
	r, srv := start(t, Options{Store: s, MaxBody: 1000}, "org/m/v1")
	_ = r
	get := func(path string) (int, string) {
		res, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	if status, body := get("/v1/models"); status != 200 || !strings.Contains(body, `"id":"org/m"`) {
		t.Errorf("models: %d %s", status, body)
	}
	if status, _ := get("/health"); status != 200 {
		t.Errorf("health: %d", status)
	}
	if status, _ := get("/v1/chat/completions"); status != 405 {
		t.Errorf("GET: %d", status)
	}
	if status, _ := get("/v2"); status != 404 {
		t.Errorf("unknown: %d", status)
	}
	for _, tt := range []struct {
		body, want string
		status     int
	}{
		{chatBody("x", "hi", true), "model_not_found", 404},
		{chatBody("org/m@beta", "hi", true), "model_not_found", 404},
		{`{"messages":[]}`, "model is missing", 400},
		{`{"model":"org/m"`, "not valid JSON", 400},
		{chatBody("org/m", strings.Repeat("x", 2000), true), "body_too_large", 413},
		{chatBody("org/m", "hi", true), "[DONE]", 200},
	} {
		if status, body, _ := post(t, srv.URL+"/v1/chat/completions", tt.body); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s", tt.body[:min(len(tt.body), 60)], status, body)
		}
	}
	// Without a length, the limit holds as well.
	res, err := http.Post(srv.URL+"/v1/completions", "application/json", io.MultiReader(strings.NewReader(strings.Repeat("x", 3000))))
	if err != nil || res.StatusCode != 413 {
		t.Errorf("chunked body: %v %v", res, err)
	}
	if status, body := get("/metrics"); status != 200 || !strings.Contains(body, `llmops_router_requests_total{model="org/m",version="v1",outcome="done"} 1`) || !strings.Contains(body, `llmops_router_ttft_seconds_bucket{model="org/m",version="v1",le="+Inf"} 1`) {
		t.Errorf("metrics: %d %s", status, body)
	}
}

func TestPinned(t *testing.T) {
	s := newStore(t)
	old, live := newEngine(t, "v1", "a"), newEngine(t, "v2", "b")
	d := route.New("m", "run", "v2")
	d.Pins = map[string]string{"old": "v1"}
	putRoute(t, s, d)
	deploy(t, s, "m", "v1", old.addr())
	deploy(t, s, "m", "v2", live.addr())
	_, srv := start(t, Options{Store: s}, "m/v1", "m/v2")
	if status, _, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m@old", "hi", false)); status != 200 || h.Get(HeaderVersion) != "v1" {
		t.Errorf("pinned: %d %v", status, h)
	}
	if got := old.got(); len(got) != 1 || got[0] != chatBody("m", "hi", false) {
		t.Errorf("the engine was asked %q", got)
	}
}

func half(t testing.TB, s fleet.Store) {
	d := route.New("m", "run", "v1")
	d.Otherwise.Splits[0].Shares = map[string]uint32{"v1": 500_000, "v2": 500_000}
	putRoute(t, s, d)
}

func TestStickyAndShare(t *testing.T) {
	s := newStore(t)
	a, b := newEngine(t, "v1", "a"), newEngine(t, "v2", "b")
	half(t, s)
	deploy(t, s, "m", "v1", a.addr())
	deploy(t, s, "m", "v2", b.addr())
	r, srv := start(t, Options{Store: s}, "m/v1", "m/v2")
	const n = 200
	for i := range n {
		id := fmt.Sprint("conversation-", i)
		_, _, h1 := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "first", false), HeaderConversation, id)
		_, _, h2 := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "second", false), HeaderConversation, id)
		want := route.Pick(route.Intent{Splits: []route.Split{{Shares: map[string]uint32{"v1": 500_000, "v2": 500_000}}}}, "", "", route.Hash("run", id))
		if h1.Get(HeaderVersion) != want || h2.Get(HeaderVersion) != want {
			t.Fatalf("%s went to %s and %s, want %s", id, h1.Get(HeaderVersion), h2.Get(HeaderVersion), want)
		}
	}
	total(t, r, "m", "v1")
	rep, _ := r.Report("m")
	if share, ok := rep.Share("v2"); !ok || share < 0.35 || share > 0.65 {
		t.Errorf("measured share %v", share)
	}
	for _, v := range []string{"v1", "v2"} {
		if rep.Versions[v].Mismatched != 0 {
			t.Errorf("%s: mismatched answers", v)
		}
	}
	// Without the header the beginning of the talk decides, per tenant.
	versions := map[string]bool{}
	for range 5 {
		_, _, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "the same", false), HeaderTenant, "x")
		versions[h.Get(HeaderVersion)] = true
	}
	if len(versions) != 1 {
		t.Errorf("one conversation went to %v", versions)
	}
}

func TestMismatch(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v0", "a")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s}, "m/v1")
	post(t, srv.URL+"/v1/chat/completions", chatBody("m", "x", true))
	total(t, r, "m", "v1")
	if rep, _ := r.Report("m"); rep.Versions["v1"].Mismatched != 1 {
		t.Errorf("%+v", rep.Versions["v1"].Mismatched)
	}
}

// A client that leaves ends its request at the engine: before the first byte,
// within the stream, and without streaming.
func TestClientGone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stream bool
		handle func(w http.ResponseWriter, began chan<- struct{})
		slow   uint64 // TTFT counted as given up
		seen   uint64
	}{
		{"before the first byte", true, func(w http.ResponseWriter, began chan<- struct{}) { close(began) }, 1, 0},
		{"after the head", true, func(w http.ResponseWriter, began chan<- struct{}) {
			openai.NewWriter(w)
			http.NewResponseController(w).Flush()
			close(began)
		}, 1, 0},
		{"within the stream", true, func(w http.ResponseWriter, began chan<- struct{}) {
			openai.NewWriter(w).Send(chunkOf("a"))
			close(began)
		}, 0, 1},
		{"not streamed", false, func(w http.ResponseWriter, began chan<- struct{}) { close(began) }, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			e := newEngine(t, "v1")
			began, gone := make(chan struct{}), make(chan struct{})
			e.set(func(w http.ResponseWriter, r *http.Request) {
				tt.handle(w, began)
				<-r.Context().Done()
				close(gone)
			})
			putRoute(t, s, route.New("m", "run", "v1"))
			deploy(t, s, "m", "v1", e.addr())
			r, srv := start(t, Options{Store: s}, "m/v1")
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/chat/completions", strings.NewReader(chatBody("m", "hi", tt.stream)))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if res, err := http.DefaultClient.Do(req); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-began
			if tt.seen > 0 {
				until(t, "the first token is counted", func() bool {
					rep, _ := r.Report("m")
					c := rep.Versions["v1"]
					tot := c.Total()
					return tot.TTFT.Seen.N() == 1
				})
			}
			cancel()
			<-gone
			<-ended
			c := total(t, r, "m", "v1")
			if c.Cancelled != 1 || c.Done+c.Errors != 0 || c.TTFT.Gave.N() != tt.slow || c.TTFT.Seen.N() != tt.seen || c.TPOT.N() != tt.seen {
				t.Errorf("counted %+v", c)
			}
		})
	}
}

// Requests that nobody has answered yet are in the report as waiting.
func TestWaitingIsReported(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1")
	asked, answer := make(chan struct{}), make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-answer
		e.say(w, r, "a")
	})
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	var skew atomic.Int64
	began := time.Now()
	r, srv := start(t, Options{Store: s, Now: func() time.Duration { return time.Since(began) + time.Duration(skew.Load()) }}, "m/v1")
	ended := make(chan struct{})
	go func() { defer close(ended); post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)) }()
	<-asked
	over := func() (over, n uint64) {
		rep, _ := r.Report("m")
		c := rep.Versions["v1"]
		tot := c.Total()
		over, n, _ = tot.TTFT.Over(time.Minute)
		return over, n
	}
	if o, n := over(); o != 0 || n != 0 {
		t.Errorf("at first %d of %d are over a minute", o, n)
	}
	skew.Store(int64(2 * time.Minute))
	if o, n := over(); o != 1 || n != 1 {
		t.Errorf("after two minutes %d of %d are over one", o, n)
	}
	close(answer)
	<-ended
	if o, n := over(); o != 1 || n != 1 {
		t.Errorf("in the end %d of %d are over a minute", o, n)
	}
}

func TestRetry(t *testing.T) {
	s := newStore(t)
	a, b := newEngine(t, "v1", "a"), newEngine(t, "v1", "a")
	other := newEngine(t, "v2", "b")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", a.addr(), b.addr())
	deploy(t, s, "m", "v2", other.addr())
	r, srv := start(t, Options{Store: s, Probe: time.Hour}, "m/v1", "m/v2")
	fail := func(h http.HandlerFunc) { a.set(h); b.set(h) }
	ask := func() (int, string) {
		status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true))
		return status, body
	}
	once := func(h http.HandlerFunc) http.HandlerFunc {
		var n atomic.Int32
		return func(w http.ResponseWriter, req *http.Request) {
			if n.Add(1) == 1 {
				h(w, req)
				return
			}
			a.answer(w, req)
		}
	}
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	busy := func(w http.ResponseWriter, _ *http.Request) {
		openai.WriteError(w, 503, &openai.Error{Message: "full"})
	}
	empty := func(w http.ResponseWriter, _ *http.Request) {
		openai.NewWriter(w)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, h := range map[string]http.HandlerFunc{"broken connection": abort, "busy": busy, "head without a body": empty} {
		before := total(t, r, "m", "v1")
		fail(once(h))
		if status, body := ask(); status != 200 || !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if c := total(t, r, "m", "v1"); c.Done != before.Done+1 || c.Retried != before.Retried+1 || c.Errors != 0 {
			t.Errorf("%s: %d done, %d retried, %d errors", name, c.Done, c.Retried, c.Errors)
		}
	}
	// Twice is enough, and nothing goes to another version.
	fail(abort)
	if status, body := ask(); status != 502 || !strings.Contains(body, "upstream_failed") {
		t.Errorf("twice broken: %d %s", status, body)
	}
	fail(busy)
	if status, body := ask(); status != 503 || !strings.Contains(body, "full") {
		t.Errorf("twice busy: %d %s", status, body)
	}
	// A request that was refused for itself is not tried again, nor is one of
	// which the client has a part.
	asked := len(a.got()) + len(b.got())
	fail(func(w http.ResponseWriter, _ *http.Request) { openai.WriteError(w, 400, &openai.Error{Message: "no"}) })
	if status, _ := ask(); status != 400 {
		t.Errorf("refused: %d", status)
	}
	fail(func(w http.ResponseWriter, _ *http.Request) {
		openai.NewWriter(w).Send(chunkOf("half"))
		panic(http.ErrAbortHandler)
	})
	status, body := ask()
	if status != 200 || !strings.Contains(body, "half") || !strings.Contains(body, "\n\ndata: {\"error\":") || strings.Contains(body, "[DONE]") {
		t.Errorf("cut: %d %s", status, body)
	}
	if n := len(a.got()) + len(b.got()) - asked; n != 2 {
		t.Errorf("%d requests for two", n)
	}
	c := total(t, r, "m", "v1")
	if c.Errors != 3 || c.Invalid != 1 || len(other.got()) != 0 {
		t.Errorf("counted %+v", c)
	}
}

// Streams that end wrongly are errors though their status was 200.
func TestBadStreams(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s}, "m/v1")
	for _, tt := range []struct {
		name   string
		handle func(s *openai.Writer)
		want   string
		check  func(route.Stratum) bool
	}{
		{"no [DONE]", func(s *openai.Writer) { s.Send(chunkOf("a")) }, "upstream_failed", func(c route.Stratum) bool { return c.Errors == 1 }},
		{"error event", func(s *openai.Writer) { s.Send(chunkOf("a")); s.Error(&openai.Error{Message: "oom"}) }, "oom", func(c route.Stratum) bool { return c.Errors == 2 }},
		{"error and [DONE]", func(s *openai.Writer) { s.Error(&openai.Error{Message: "oom"}); s.Done() }, "oom", func(c route.Stratum) bool { return c.Errors == 3 }},
		{"refusal", func(s *openai.Writer) {
			s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Refusal: "no"}}}})
			s.Done()
		}, "refusal", func(c route.Stratum) bool { return c.Done == 1 && c.Refusals == 1 }},
		{"filtered", func(s *openai.Writer) {
			f := openai.FinishFilter
			s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{FinishReason: &f}}})
			s.Done()
		}, "content_filter", func(c route.Stratum) bool { return c.Done == 2 && c.Refusals == 2 }},
		{"no usage", func(s *openai.Writer) {
			s.Send(chunkOf("a"))
			s.Send(chunkOf("b"))
			s.Done()
		}, "DONE", func(c route.Stratum) bool { return c.Done == 3 && c.TPOTChunks == 3 && c.Counted == 0 }},
	} {
		e.set(func(w http.ResponseWriter, _ *http.Request) { tt.handle(openai.NewWriter(w)) })
		status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true))
		if c := total(t, r, "m", "v1"); status != 200 || !strings.Contains(body, tt.want) || !tt.check(c) {
			t.Errorf("%s: %d %q, counted %+v", tt.name, status, body, c)
		}
	}
	// Half a JSON body cannot be ended: the connection is broken off.
	e.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `{"choices"`)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	res, err := http.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "hi", false)))
	if err == nil {
		_, err = io.ReadAll(res.Body)
	}
	if err == nil {
		t.Error("half an answer looks whole")
	}
}

func TestPatience(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s, Wait: 50 * time.Millisecond, Stall: 50 * time.Millisecond}, "m/v1")
	e.set(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)); status != 504 || !strings.Contains(body, "upstream_timeout") {
		t.Errorf("never a byte: %d %s", status, body)
	}
	e.set(func(w http.ResponseWriter, r *http.Request) {
		openai.NewWriter(w).Send(chunkOf("a"))
		<-r.Context().Done()
	})
	if status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)); status != 200 || !strings.Contains(body, "upstream_timeout") {
		t.Errorf("stalled: %d %s", status, body)
	}
	if c := total(t, r, "m", "v1"); c.Errors != 2 || c.TTFT.Gave.N() != 1 || c.TTFT.Seen.N() != 1 || c.TPOT.N() != 1 {
		t.Errorf("counted %+v", c)
	}
}

func TestQueue(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a")
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-answer
		e.answer(w, r)
	})
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s, Streams: 1, Queue: 1}, "m/v1")
	var wg sync.WaitGroup
	statuses := make(chan int, 2)
	ask := func() {
		status, _, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true))
		statuses <- status
	}
	wg.Go(ask)
	<-asked
	wg.Go(ask)
	waiting := func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.gate.Waiting() }
	until(t, "one waits", func() bool { return waiting() == 1 })
	status, body, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true))
	if status != 429 || !strings.Contains(body, "queue_full") || h.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, body, h)
	}
	close(answer)
	wg.Wait()
	for range 2 {
		if s := <-statuses; s != 200 {
			t.Errorf("status %d", s)
		}
	}
	if c := total(t, r, "m", "v1"); c.Chosen != 2 || c.Done != 2 {
		t.Errorf("counted %+v", c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.view.Load().routes["m"].replicas["v1"] {
		if m.streams != 0 {
			t.Errorf("%d streams are left", m.streams)
		}
	}
}

func TestQueueTimeoutAndLeave(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a")
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-answer
		e.answer(w, r)
	})
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s, Streams: 1, Queue: 5, QueueTime: 20 * time.Millisecond}, "m/v1")
	var wg sync.WaitGroup
	wg.Go(func() { post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)) })
	<-asked
	status, body, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true))
	if status != 429 || !strings.Contains(body, "queue_timeout") || h.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, body, h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/chat/completions", strings.NewReader(chatBody("m", "hi", true)))
	cancel()
	http.DefaultClient.Do(req)
	until(t, "nobody waits", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.gate.Waiting() == 0 })
	close(answer)
	wg.Wait()
	if c := total(t, r, "m", "v1"); c.Chosen != 1 {
		t.Errorf("counted %+v", c)
	}
}

func shadow(t testing.TB, ppm uint32) route.Doc {
	d := route.New("m", "run", "v1")
	d.Otherwise.Mirror = map[string]uint32{"v2": ppm}
	return d
}

func TestMirror(t *testing.T) {
	s := newStore(t)
	live, copied := newEngine(t, "v1", "a", "b"), newEngine(t, "v2", "ab")
	putRoute(t, s, shadow(t, route.Million))
	deploy(t, s, "m", "v1", live.addr())
	deploy(t, s, "m", "v2", copied.addr())
	r, srv := start(t, Options{Store: s, Mirrors: 2}, "m/v1", "m/v2")
	body := chatBody("m", "hi", true)
	for range 3 {
		if _, _, h := post(t, srv.URL+"/v1/chat/completions", body); h.Get(HeaderVersion) != "v1" {
			t.Fatal("a shadow answered a client")
		}
		until(t, "the copy has ended", func() bool { rep, _ := r.Report("m"); return rep.InFlight["v2"] == 0 })
	}
	rep, _ := r.Report("m")
	m := rep.Mirrored["v2"]
	if c := m.Total(); c.Chosen != 3 || c.Done != 3 || c.TTFT.Seen.N() != 3 || m.Compared != 3 || m.Equal != 3 || m.Mismatched != 0 {
		t.Errorf("mirrored %+v", m)
	}
	if _, ok := rep.Versions["v2"]; ok {
		t.Error("copies were counted as traffic")
	}
	if got := copied.got(); got[0] != body {
		t.Errorf("the copy was %q", got[0])
	}

	// A shadow that hangs costs the client nothing, and no more than the slots.
	block := make(chan struct{})
	copied.set(func(w http.ResponseWriter, r *http.Request) {
		<-block
		copied.say(w, r, "x")
	})
	for range 5 {
		post(t, srv.URL+"/v1/chat/completions", body)
	}
	if rep, _ := r.Report("m"); rep.InFlight["v2"] != 2 || rep.Mirrored["v2"].Dropped != 3 {
		t.Errorf("%d in flight, %d dropped", rep.InFlight["v2"], rep.Mirrored["v2"].Dropped)
	}
	close(block)
	until(t, "all copies have ended", func() bool { rep, _ := r.Report("m"); return rep.InFlight["v2"] == 0 })
	rep, _ = r.Report("m")
	if m := rep.Mirrored["v2"]; m.Compared != 5 || m.Equal != 3 {
		t.Errorf("compared %d, equal %d", m.Compared, m.Equal)
	}
}

// New intents and replicas come in while streams run: none loses a byte.
func TestReloadKeepsStreams(t *testing.T) {
	s := newStore(t)
	words := make([]string, 300)
	for i := range words {
		words[i] = fmt.Sprint("w", i, " ")
	}
	a, b := newEngine(t, "v1", words...), newEngine(t, "v2", words...)
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", a.addr())
	deploy(t, s, "m", "v2", b.addr())
	r, srv := start(t, Options{Store: s, Renew: 10 * time.Millisecond}, "m/v1", "m/v2")
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			d := route.New("m", "run", []string{"v1", "v2"}[i%2])
			putRoute(t, s, d)
			deploy(t, s, "m", fmt.Sprint("x", i%3), "127.0.0.1:1")
		}
	})
	_, want, _ := post(t, a.URL+"/v1/chat/completions", chatBody("m", "hi", true))
	var streams sync.WaitGroup
	for range 8 {
		streams.Go(func() {
			for range 5 {
				if status, got, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)); status != 200 || got != want {
					t.Errorf("status %d, %d of %d bytes", status, len(got), len(want))
				}
			}
		})
	}
	streams.Wait()
	close(stop)
	changes.Wait()
	rep, _ := r.Report("m")
	if c := rep.Versions["v1"]; rep.Versions["v1"].Mismatched+rep.Versions["v2"].Mismatched != 0 || c.Total().Errors != 0 {
		t.Errorf("%+v", rep)
	}
}

// The first byte goes out before the engine has the second.
func TestFlush(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1")
	next := make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) {
		s := openai.NewWriter(w)
		for _, word := range []string{"a", "b", "c"} {
			s.Send(chunkOf(word))
			<-next
		}
		s.Done()
	})
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	_, srv := start(t, Options{Store: s}, "m/v1")
	res, err := http.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "hi", true)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for _, want := range []string{"a", "b", "c"} {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, `"content":"`+want+`"`) {
			t.Fatalf("%q, %v", line, err)
		}
		lines.ReadString('\n')
		next <- struct{}{}
	}
}

func TestHealth(t *testing.T) {
	s := newStore(t)
	putRoute(t, s, route.New("m", "run", "v1"))
	var mode atomic.Int32 // 0: well, 1: hangs, 2: refuses
	block := make(chan struct{})
	srvE := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch mode.Load() {
		case 1:
			select {
			case <-block:
			case <-r.Context().Done():
			}
		case 2:
			w.WriteHeader(503)
		}
	}))
	defer srvE.Close()
	deploy(t, s, "m", "v1", srvE.Listener.Addr().String())
	r, srv := start(t, Options{Store: s, Probe: 5 * time.Millisecond}, "m/v1")
	health := func() Health { return r.view.Load().routes["m"].replicas["v1"][0].Health() }
	mode.Store(1)
	until(t, "the replica that hangs is suspect", func() bool { return health() == Suspect })
	mode.Store(2)
	until(t, "the replica that refuses is down", func() bool { return health() == Down })
	if status, body, h := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", true)); status != 503 || !strings.Contains(body, "no_replica") || h.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, body)
	}
	if c := total(t, r, "m", "v1"); c.Errors != 1 {
		t.Errorf("counted %+v", c)
	}
	mode.Store(0)
	until(t, "it is back", func() bool { return health() == Up })
	close(block)
}

func TestMembership(t *testing.T) {
	s := newStore(t)
	a, b := newEngine(t, "v1", "a"), newEngine(t, "v1", "b")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", a.addr())
	r, _ := start(t, Options{Store: s, Renew: 20 * time.Millisecond}, "m/v1")
	replicas := func() []*Replica { return r.view.Load().routes["m"].replicas["v1"] }
	first := replicas()[0]

	deploy(t, s, "m", "v1", a.addr(), b.addr())
	until(t, "two replicas serve", func() bool { return len(replicas()) == 2 })
	kept := false
	for _, m := range replicas() {
		kept = kept || m == first
	}
	if !kept {
		t.Error("a replica that stayed was made anew")
	}
	rep := fleet.Replica{Addr: a.addr(), Nonce: a.addr(), State: fleet.Draining}
	put(t, s, "replica/m-v1/engine-0", rep)
	until(t, "the draining one is out", func() bool { return len(replicas()) == 1 && replicas()[0].Addr == b.addr() })
	rep.State, rep.Nonce = fleet.Healthy, "again"
	put(t, s, "replica/m-v1/engine-0", rep)
	until(t, "the new process is in", func() bool { return len(replicas()) == 2 })
	doc, err := s.Get(t.Context(), "replica/m-v1/engine-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), doc.Name, doc.Rev); err != nil {
		t.Fatal(err)
	}
	until(t, "the deleted one is out", func() bool { return len(replicas()) == 1 && replicas()[0].Addr == a.addr() })
	put(t, s, "job/m-v1", fleet.Job{Name: "m-v1", Kind: fleet.Router, Meta: map[string]string{"alias": "m", "version": "v1"}})
	until(t, "a job that is no engine serves nothing", func() bool { return len(replicas()) == 0 })
}

// flaky is a store that stops answering.
type flaky struct {
	fleet.Store
	mu   sync.Mutex // guards mode
	mode string     // "", "fail" or "block"
}

func (f *flaky) set(mode string) { f.mu.Lock(); defer f.mu.Unlock(); f.mode = mode }

func (f *flaky) check(ctx context.Context) error {
	f.mu.Lock()
	mode := f.mode
	f.mu.Unlock()
	switch mode {
	case "fail":
		return errors.New("store is unreachable")
	case "block":
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (f *flaky) Get(ctx context.Context, name string) (fleet.Doc, error) {
	if err := f.check(ctx); err != nil {
		return fleet.Doc{}, err
	}
	return f.Store.Get(ctx, name)
}

func (f *flaky) List(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	if err := f.check(ctx); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, prefix)
}

func (f *flaky) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	return f.Store.Watch(ctx, prefix, func(d fleet.Doc) error {
		if err := f.check(ctx); err != nil {
			return err
		}
		return fn(d)
	})
}

// skewed is a clock that the test moves.
type skewed struct {
	start time.Time
	skew  atomic.Int64
}

func (c *skewed) now() time.Duration        { return time.Since(c.start) + time.Duration(c.skew.Load()) }
func (c *skewed) jump(d time.Duration)      { c.skew.Add(int64(d)) }
func (c *skewed) options(o Options) Options { o.Now = c.now; return o }

// Three routers on one store. One loses the store: its candidate's weight goes
// when the lease ends. One stands still: the first request after it wakes is
// chosen without the candidate. The third sees the rollback.
func TestThreeRouters(t *testing.T) {
	for _, mode := range []string{"fail", "block"} {
		t.Run(mode, func(t *testing.T) {
			s := newStore(t)
			stable, candidate := newEngine(t, "v1", "a"), newEngine(t, "v2", "b")
			deploy(t, s, "m", "v1", stable.addr())
			deploy(t, s, "m", "v2", candidate.addr())
			d := route.New("m", "run", "v1")
			putRoute(t, s, d)

			cut, key := &flaky{Store: s}, newKey(t, s)
			var clocks [3]*skewed
			var routers [3]*Router
			var servers [3]*httptest.Server
			for i, store := range []fleet.Store{cut, s, s} {
				clocks[i] = &skewed{start: time.Now()}
				routers[i], servers[i] = start(t, clocks[i].options(Options{Name: fmt.Sprint("r", i), Store: store, Renew: 20 * time.Millisecond}), "m/v1", "m/v2")
			}
			version := func(i int) string {
				_, _, h := post(t, servers[i].URL+"/v1/chat/completions", chatBody("m", "hi", false))
				return h.Get(HeaderVersion)
			}
			d, err := route.Grant(d, d.Epoch, route.Lease{Intent: route.Intent{Splits: route.All("v2")}, TTL: 45 * time.Second, Seen: "0"})
			if err != nil {
				t.Fatal(err)
			}
			putRoute(t, s, d)
			live := func(i int) bool { st, _ := routers[i].State("m"); return st.Leased && st.Shares["v2"] == route.Million }
			for i := range 3 {
				until(t, "the lease is live", func() bool { return live(i) })
				if v := version(i); v != "v2" {
					t.Fatalf("router %d chose %s", i, v)
				}
			}

			cut.set(mode)
			clocks[1].jump(time.Hour) // it stood still; nothing has run in between
			if v := version(1); v != "v1" {
				t.Errorf("the router that stood still chose %s", v)
			}
			// A read that shows no newer renewal does not bring the weight back.
			before, _ := routers[1].State("m")
			until(t, "it has read the store again", func() bool { st, _ := routers[1].State("m"); return st.Read < time.Minute && st.Rev == before.Rev })
			if v := version(1); v != "v1" {
				t.Errorf("after a read it chose %s", v)
			}
			// Renewals do, once one is seen to move after the pause.
			renew := func() {
				if d, err = route.Renew(d, d.Epoch, d.Seq+1, fmt.Sprint(d.Seq)); err != nil {
					t.Fatal(err)
				}
				putRoute(t, s, d)
			}
			renew()
			until(t, "the renewal makes it live", func() bool { return live(1) })
			if !live(2) || !live(0) {
				t.Error("the others lost the lease")
			}
			// The one without a store keeps its weight until the lease ends,
			// and no renewal reaches it.
			clocks[0].jump(44 * time.Second)
			if v := version(0); v != "v2" {
				t.Errorf("within the lease the cut off router chose %s", v)
			}
			renew()
			clocks[0].jump(2 * time.Second)
			if v := version(0); v != "v1" {
				t.Errorf("after the lease the cut off router chose %s", v)
			}
			st, _ := routers[0].State("m")
			if st.Leased || st.Shares["v1"] != route.Million || st.Left != 0 {
				t.Errorf("read back %+v", st)
			}
			if mode == "fail" {
				until(t, "it says why", func() bool { st, _ := routers[0].State("m"); return strings.Contains(st.Reason, "unreachable") })
			}
			// A push renews nothing there.
			admin := httptest.NewServer(routers[0].Admin())
			defer admin.Close()
			doc, err := s.Get(t.Context(), "route/m")
			if err != nil {
				t.Fatal(err)
			}
			if st, err := (&route.Admin{Base: admin.URL, Key: key}).Push(t.Context(), doc.Rev, d); err != nil || st.Rev != doc.Rev || st.Leased {
				t.Errorf("pushed: %+v, %v", st, err)
			}
			if v := version(0); v != "v1" {
				t.Errorf("after a push the cut off router chose %s", v)
			}

			// Rollback: pushed to the one without a store, watched by the rest.
			d = route.Fallback(d)
			rev := putRoute(t, s, d)
			if st, err := (&route.Admin{Base: admin.URL, Key: key}).Push(t.Context(), rev, d); err != nil || st.Rev != rev || st.Epoch != d.Epoch {
				t.Errorf("pushed: %+v, %v", st, err)
			}
			for i := range 3 {
				until(t, "the rollback is in force", func() bool { st, _ := routers[i].State("m"); return st.Rev == rev && !st.Leased })
				if v := version(i); v != "v1" {
					t.Errorf("after the rollback router %d chose %s", i, v)
				}
			}
		})
	}
}

func TestAdminHandler(t *testing.T) {
	s := newStore(t)
	d := route.New("org/m", "run", "v1")
	rev := putRoute(t, s, d)
	r, _ := start(t, Options{Store: s, Name: "r1", Zone: "az1"})
	until(t, "the route is read", func() bool { st, ok := r.State("org/m"); return ok && st.Read >= 0 })
	srv := httptest.NewServer(r.Admin())
	defer srv.Close()
	a := &route.Admin{Base: srv.URL, Key: newKey(t, s)}
	st, err := a.State(t.Context(), "org/m")
	if err != nil || st.Router != "r1" || st.Rev != rev || st.Epoch != 1 || st.Shares["v1"] != route.Million || st.Leased {
		t.Errorf("%+v, %v", st, err)
	}
	rep, err := a.Report(t.Context(), "org/m")
	if err != nil || rep.Router != "r1" || rep.Boot == "" || rep.Rev != rev {
		t.Errorf("%+v, %v", rep, err)
	}
	if _, err := a.State(t.Context(), "none"); err == nil {
		t.Error("an unknown alias has a state")
	}
	if _, err := a.Report(t.Context(), "none"); err == nil {
		t.Error("an unknown alias has a report")
	}
	// A lower epoch is refused, whatever its revision.
	up := route.Claim(d, "run")
	rev = putRoute(t, s, up)
	if st, err := a.Push(t.Context(), rev, up); err != nil || st.Epoch != 2 {
		t.Fatal(st, err)
	}
	if _, err := a.Push(t.Context(), rev+1, d); !errors.Is(err, route.ErrFenced) {
		t.Errorf("error %v", err)
	}
	for _, body := range []string{``, `{}`, `{"rev":1,"doc":{"alias":"other"}}`, `{"rev":1,"doc":null}`} {
		req, _ := http.NewRequest("PUT", srv.URL+"/route/org%2Fm", strings.NewReader(body))
		req.Header.Set(route.HeaderSignature, a.Key.Sign([]byte(body)))
		if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != 400 {
			t.Errorf("%s: %v, %v", body, res, err)
		}
	}
}

func TestServeDrains(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a")
	asked, answer := make(chan struct{}), make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) { close(asked); <-answer; e.answer(w, r) })
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r := New(Options{Store: s})
	traffic, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, traffic, admin) }()
	until(t, "the router serves", func() bool {
		a := r.view.Load().routes["m"]
		return a != nil && len(a.replicas["v1"]) == 1 && a.replicas["v1"][0].Health() == Up
	})
	got := make(chan string, 1)
	go func() {
		_, body, _ := post(t, "http://"+traffic.Addr().String()+"/v1/chat/completions", chatBody("m", "hi", true))
		got <- body
	}()
	<-asked
	cancel()
	until(t, "no more requests are taken", func() bool {
		c, err := net.Dial("tcp", traffic.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if _, err := (&route.Admin{Base: "http://" + admin.Addr().String()}).Report(t.Context(), "m"); err != nil {
		t.Errorf("no report while draining: %v", err)
	}
	close(answer)
	if body := <-got; !strings.HasSuffix(body, "[DONE]\n\n") {
		t.Errorf("the stream was cut: %q", body)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Thousands of clients that leave at every moment: no stream stays booked, no
// goroutine stays behind.
func TestNothingLeaks(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a", "b", "c", "d")
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s, Streams: 4, Queue: 8}, "m/v1")
	n := 2000
	if testing.Short() {
		n = 200
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	before := runtime.NumGoroutine()
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/chat/completions", strings.NewReader(chatBody("m", fmt.Sprint(i), i%3 > 0)))
			if i%4 == 0 {
				time.AfterFunc(time.Duration(i%7)*100*time.Microsecond, cancel)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			defer res.Body.Close()
			if i%4 == 1 {
				io.CopyN(io.Discard, res.Body, int64(i%200))
				return
			}
			io.Copy(io.Discard, res.Body)
		})
	}
	wg.Wait()
	c := total(t, r, "m", "v1")
	if c.Chosen != c.Done+c.Cancelled || c.Errors != 0 {
		t.Errorf("counted %+v", c)
	}
	until(t, "all streams are given back", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.gate.Waiting() == 0 && r.view.Load().routes["m"].replicas["v1"][0].streams == 0
	})
	http.DefaultClient.CloseIdleConnections()
	until(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() < before+40 })
}

// A grant becomes live by the read that follows the watch, not only by the
// next one of the clock.
func TestGrantIsReadAtOnce(t *testing.T) {
	s := newStore(t)
	d := route.New("m", "run", "v1")
	putRoute(t, s, d)
	r, _ := start(t, Options{Store: s, Renew: time.Hour})
	until(t, "the route is read", func() bool { st, ok := r.State("m"); return ok && st.Read >= 0 })
	d, err := route.Grant(d, d.Epoch, route.Lease{Intent: route.Intent{Splits: route.All("v2")}, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	putRoute(t, s, d)
	until(t, "the lease is live", func() bool { st, _ := r.State("m"); return st.Leased && st.Shares["v2"] == route.Million })
}

func TestHeaders(t *testing.T) {
	s := newStore(t)
	e := newEngine(t, "v1", "a")
	got := make(chan http.Header, 1)
	e.set(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		w.Header().Set("X-Request-Id", "7")
		w.Header().Set("Keep-Alive", "timeout=5")
		e.answer(w, r)
	})
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	_, srv := start(t, Options{Store: s}, "m/v1")
	_, _, answered := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", false),
		"Authorization", "Bearer k", "X-Trace", "t", "Connection", "X-Private, keep-alive", "X-Private", "p", "Te", "trailers", "Accept-Encoding", "gzip", "Proxy-Authorization", "Basic x")
	h := <-got
	if h.Get("Authorization") != "Bearer k" || h.Get("X-Trace") != "t" || h.Get("Content-Type") != "application/json" {
		t.Errorf("the engine misses headers: %v", h)
	}
	for _, k := range []string{"X-Private", "Te", "Accept-Encoding", "Proxy-Authorization", "Connection"} {
		if v, ok := h[k]; ok {
			t.Errorf("the engine got %s: %v", k, v)
		}
	}
	if answered.Get("X-Request-Id") != "7" || answered.Get("Keep-Alive") != "" {
		t.Errorf("the client got %v", answered)
	}
}
