package router

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/serving/embedded"
	"llmops/serving/openai"
	"llmops/serving/route"
	"llmops/serving/trace"
)

// recording is a router with records, and gives them when it is stopped.
type recording struct {
	*Router
	url  string
	dir  string
	key  trace.Key
	stop func()
}

func startRecording(t testing.TB, o Options, ready ...string) *recording {
	t.Helper()
	rec := &recording{dir: t.TempDir(), key: trace.NewKey()}
	var err error
	if o.Records, err = trace.NewRecorder(trace.Options{Dir: rec.dir, Name: "r", Key: rec.key}); err != nil {
		t.Fatal(err)
	}
	rec.Router = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rec.Run(ctx) }()
	srv := httptest.NewServer(rec.Router)
	rec.url = srv.URL
	stopped := false
	rec.stop = func() {
		if stopped {
			return
		}
		stopped = true
		srv.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(rec.stop)
	isUp(t, rec.Router, ready...)
	return rec
}

// all stops the router and reads what it wrote.
func (rec *recording) all(t testing.TB) (out []trace.Record) {
	t.Helper()
	rec.stop()
	files, err := trace.Files(rec.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := trace.Read(f, func(_ int, r trace.Record) error { out = append(out, r); return nil })
		if cut || err != nil {
			t.Error(cut, err)
		}
		f.Close()
	}
	return out
}

// own is the embedded engine with a tiny checkpoint.
func own(t testing.TB, o embedded.Options) string {
	t.Helper()
	o.ModelDir, o.Name = filepath.Join("..", "embedded", "llama", "testdata", "llama"), "m"
	s, err := embedded.New(o)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return h.Listener.Addr().String()
}

// varying is what differs between two answers to the same request.
var varying = regexp.MustCompile(`"(id|created|request_id)":("[^"]*"|[0-9]+)`)

// Whatever a client asks of our engine, it gets what it would have got without records,
// byte for byte, and the records know the tokens all the same.
func TestRecordsChangeNoAnswer(t *testing.T) {
	engine := own(t, embedded.Options{Version: "v1"})
	s := newStore(t)
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", engine)
	rec := startRecording(t, Options{Store: s}, "m/v1")
	const tail = `,"temperature":0,"max_tokens":6,"ignore_eos":true`
	n := 0
	var asked []string
	for _, ep := range []struct{ path, prompt string }{
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"the weight"}]`}, {"/v1/completions", `"prompt":"the weight"`},
	} {
		for _, options := range []string{
			``, `,"stream":false`, `,"stream":true`, `,"stream":true,"stream_options":null`, `,"stream":true,"stream_options":{}`,
			`,"stream":true,"stream_options":{"include_usage":false}`, `,"stream":true,"stream_options":{"include_usage":true}`,
			`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			`,"stream":true,"stream_options":{"continuous_usage_stats":true}`,
		} {
			body := `{"model":"m",` + ep.prompt + tail + options + `}`
			post(t, "http://"+engine+ep.path, body) // so that both find it in the cache
			status, want, _ := post(t, "http://"+engine+ep.path, body)
			code, got, h := post(t, rec.url+ep.path, body)
			if status != 200 || code != 200 {
				t.Fatalf("%s: %d, %d: %s", body, status, code, want)
			}
			want, got = varying.ReplaceAllString(want, ""), varying.ReplaceAllString(got, "")
			if got != want {
				t.Errorf("%s %s, %v:\n%s\nwant\n%s", ep.path, body, h, got, want)
			}
			n++
			asked = append(asked, options)
		}
	}
	got := rec.all(t)
	if len(got) != n {
		t.Fatalf("%d records of %d requests", len(got), n)
	}
	for i, r := range got {
		if r.Input < 3 || r.Input != got[i/9*9].Input || r.Output != 6 || r.Cached == trace.Unknown || r.Version != "v1" || r.Model != "m" || r.Status != 200 || r.Adapter != "" {
			t.Errorf("%s: %+v", asked[i], r)
		}
		if r.Stream != strings.Contains(asked[i], `"stream":true`) || r.Stream != (r.TTFT > 0) || r.TTFT > r.Took || r.Took <= 0 || r.Time.Sub(r.Arrived)-r.Took > time.Millisecond {
			t.Errorf("%s: times %+v", asked[i], r)
		}
	}
}

// page gets one.
func page(t testing.TB, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What is written of each way for a request to end, and what is not.
func TestRecords(t *testing.T) {
	e := newEngine(t, "v1", "four", " words", " of", " text")
	s := newStore(t)
	putRoute(t, s, route.New("m", "run", "v1"))
	put(t, s, "job/m-v1", jobOf("m", "v1", "french,latin"))
	deployReplica(t, s, "m", "v1", e.addr())
	rec := startRecording(t, Options{Store: s, Streams: 1, Queue: 1, QueueTime: time.Minute}, "m/v1")
	chat := rec.url + "/v1/chat/completions"
	long := strings.Repeat("a secret of the house ", 100)
	ask := func(model, text string, stream bool, header ...string) int {
		status, _, _ := post(t, chat, chatBody(model, text, stream), header...)
		return status
	}

	ask("m", long+"one", true, "X-Tenant", "ops", "X-Workload", "chat", "Authorization", "Bearer hunter2")
	ask("m", long+"two", false, "Authorization", "Bearer hunter2")
	ask("french", long+"three", true, "Authorization", "Bearer hunter3")
	if status := ask("nobody", "x", false); status != 404 {
		t.Fatal(status)
	}
	e.set(func(w http.ResponseWriter, r *http.Request) { openai.WriteError(w, 400, openai.Invalid("x", "no")) })
	ask("m", "bad", false, "X-Tenant", strings.Repeat("t", 200))
	e.set(func(w http.ResponseWriter, r *http.Request) { // an end without [DONE]
		sw := openai.NewWriter(w)
		sw.Send(chunkOf("a"))
	})
	ask("m", "broken", true)
	e.set(func(w http.ResponseWriter, r *http.Request) {
		openai.NewWriter(w).Send(openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: &openai.Usage{PromptTokens: 5}})
		fmt.Fprint(w, "data: {\"error\":{\"message\":\"x\"}}\n\n")
	})
	ask("m", "failed inside", true)
	e.usage = false
	e.set(nil)
	ask("m", "no usage", true)

	// One that leaves, one that is refused because a third waits.
	begun, release := make(chan struct{}), make(chan struct{})
	e.set(func(w http.ResponseWriter, r *http.Request) {
		openai.NewWriter(w).Send(chunkOf("a"))
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", chat, strings.NewReader(chatBody("m", "leaves", true)))
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		left <- err
	}()
	<-begun
	waits := make(chan int, 1)
	go func() { waits <- ask("m", "waits", true) }()
	until(t, "one waits", func() bool { rec.mu.Lock(); defer rec.mu.Unlock(); return rec.gate.Waiting() == 1 })
	if status := ask("m", "refused", true); status != 429 {
		t.Fatal(status)
	}
	leave()
	<-left
	<-begun
	close(release)
	<-waits

	state, ok := rec.State("m")
	if !ok || state.Records == nil || state.Records.Dropped != 0 {
		t.Errorf("%+v", state.Records)
	}
	text := page(t, rec.url+"/metrics")
	if !strings.Contains(text, `llmops_router_records_total{outcome="dropped"} 0`) || !strings.Contains(text, "llmops_router_records_failing 0") {
		t.Errorf("metrics: %s", text)
	}

	got := rec.all(t)
	slices.SortStableFunc(got, func(a, b trace.Record) int { return a.Arrived.Compare(b.Arrived) })
	key := rec.key
	type row struct {
		tenant, workload, adapter, version string
		status, in, out, chunks            int
	}
	want := []row{
		{"ops", "chat", "", "v1", 200, 7, 4, 4},
		{key.Tenant("Bearer hunter2"), "", "", "v1", 200, 7, 4, 1},
		{key.Tenant("Bearer hunter3"), "", "french", "v1", 200, 7, 4, 4},
		{strings.Repeat("t", trace.MaxName), "", "", "v1", 400, -1, -1, 0},
		{"", "", "", "v1", 502, -1, -1, 1},
		{"", "", "", "v1", 502, 5, 0, 0},
		{"", "", "", "v1", 200, -1, -1, 4},
		{"", "", "", "v1", trace.Gone, -1, -1, 1},
		{"", "", "", "v1", 502, -1, -1, 1},
		{"", "", "", "", 429, -1, -1, 0},
	}
	if len(got) != len(want) {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	for i, w := range want {
		r := got[i]
		if g := (row{r.Tenant, r.Workload, r.Adapter, r.Version, r.Status, r.Input, r.Output, r.Chunks}); g != w {
			t.Errorf("record %d: %+v, want %+v", i, g, w)
		}
	}
	// The first two begin alike and go to one model; the third to another.
	a, b, c := got[0].Blocks, got[1].Blocks, got[2].Blocks
	if len(a) != 4 || !slices.Equal(a, b) || len(c) != len(a) || a[0] == c[0] || got[0].Session == got[2].Session {
		t.Errorf("blocks %v, %v, %v", a, b, c)
	}
	files, _ := trace.Files(rec.dir)
	for _, p := range files {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"hunter", "Bearer", "secret", "words", "leaves", "user"} {
			if bytes.Contains(raw, []byte(secret)) {
				t.Errorf("the file holds %q", secret)
			}
		}
	}
}

// Adapters are models to clients.
func TestAdaptersAreModels(t *testing.T) {
	e := newEngine(t, "v1", "ok")
	s := newStore(t)
	putRoute(t, s, route.New("m", "run", "v1"))
	put(t, s, "job/m-v1", jobOf("m", "v1", "french"))
	deployReplica(t, s, "m", "v1", e.addr())
	r, srv := start(t, Options{Store: s}, "m/v1")
	text := page(t, srv.URL+"/v1/models")
	var m openai.Models
	if err := json.Unmarshal([]byte(text), &m); err != nil || len(m.Data) != 2 || m.Data[0].ID != "french" || m.Data[1].ID != "m" {
		t.Errorf("%s, %v", text, err)
	}
	if status, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("french", "x", false)); status != 200 {
		t.Fatal(status, body)
	}
	if got := e.got(); len(got) != 1 || !strings.Contains(got[0], `"french"`) {
		t.Errorf("the engine was asked %q", got)
	}
	if n := total(t, r, "m", "v1").Done; n != 1 {
		t.Errorf("%d requests counted", n)
	}
	// Without it the name is unknown again.
	put(t, s, "job/m-v1", jobOf("m", "v1", ""))
	until(t, "the adapter is gone", func() bool {
		status, _, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("french", "x", false))
		return status == 404
	})
}

// Without records nothing is asked of the engine that the client did not ask.
func TestNoRecordsNoQuestion(t *testing.T) {
	e := newEngine(t, "v1", "ok")
	s := newStore(t)
	putRoute(t, s, route.New("m", "run", "v1"))
	deploy(t, s, "m", "v1", e.addr())
	_, srv := start(t, Options{Store: s}, "m/v1")
	body := chatBody("m", "x", true)
	post(t, srv.URL+"/v1/chat/completions", body)
	if got := e.got(); len(got) != 1 || got[0] != body {
		t.Errorf("the engine was asked %q", got)
	}
}
