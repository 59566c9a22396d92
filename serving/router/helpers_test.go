package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/serving/openai"
	"llmops/serving/route"
)

func newBufio(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

func itoa(n int) string { return strconv.Itoa(n) }

// newKey is that of the store's fleet, which it makes.
func newKey(t testing.TB, s fleet.Store) route.Key {
	t.Helper()
	k, err := route.MakeKey(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// engine is a server that speaks the API as an engine does.
type engine struct {
	*httptest.Server
	version string
	words   []string
	usage   bool

	mu     sync.Mutex // guards what follows
	handle http.HandlerFunc
	asked  []string // bodies
}

func newEngine(t testing.TB, version string, words ...string) *engine {
	e := &engine{version: version, words: words, usage: true}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		e.mu.Lock()
		h := e.handle
		e.asked = append(e.asked, string(body))
		e.mu.Unlock()
		w.Header().Set(HeaderVersion, version)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if h == nil {
			h = e.answer
		}
		h(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) set(h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handle = h
}

func (e *engine) got() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.asked...)
}

func (e *engine) addr() string { return e.Listener.Addr().String() }

// answer is a chat answer of the engine's words.
func (e *engine) answer(w http.ResponseWriter, r *http.Request) { e.say(w, r, e.words...) }

func (e *engine) say(w http.ResponseWriter, r *http.Request, words ...string) {
	var req openai.ChatRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		openai.WriteError(w, 400, openai.Invalid("", "%v", err))
		return
	}
	usage := &openai.Usage{PromptTokens: 7, CompletionTokens: len(words), TotalTokens: 7 + len(words)}
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(openai.ChatResponse{Choices: []openai.ChatChoice{{Message: openai.Message{Content: openai.Text(strings.Join(words, ""))}, FinishReason: "stop"}}, Usage: usage})
		return
	}
	s := openai.NewWriter(w)
	s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Role: "assistant"}}}})
	for _, word := range words {
		s.Send(chunkOf(word))
	}
	stop := openai.FinishStop
	s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{FinishReason: &stop}}})
	if e.usage {
		s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: usage})
	}
	s.Done()
}

func chunkOf(word string) openai.ChatChunk {
	return openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Content: word}}}}
}

func newStore(t testing.TB) *local.Store {
	s, err := local.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put writes a document whatever its revision.
func put(t testing.TB, s fleet.Store, name string, v any) uint64 {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var rev uint64
	if d, err := s.Get(context.Background(), name); err == nil {
		rev = d.Rev
	}
	rev, err = s.Put(context.Background(), name, b, rev)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func putRoute(t testing.TB, s fleet.Store, d route.Doc) uint64 {
	t.Helper()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	return put(t, s, route.Name(d.Alias), d)
}

// deploy writes the documents of a version's job and replicas.
func deploy(t testing.TB, s fleet.Store, alias, version string, addrs ...string) {
	t.Helper()
	job := alias + "-" + version
	put(t, s, "job/"+job, jobOf(alias, version, ""))
	deployReplica(t, s, alias, version, addrs...)
}

func jobOf(alias, version, adapters string) fleet.Job {
	j := fleet.Job{Name: alias + "-" + version, Version: version, Kind: fleet.Engine, Meta: map[string]string{"alias": alias, "version": version, "role": "stable"}}
	if adapters != "" {
		j.Meta["adapters"] = adapters
	}
	return j
}

func deployReplica(t testing.TB, s fleet.Store, alias, version string, addrs ...string) {
	t.Helper()
	job := alias + "-" + version
	for i, a := range addrs {
		put(t, s, fmt.Sprintf("replica/%s/engine-%d", job, i), fleet.Replica{ID: job, Addr: a, Nonce: a, State: fleet.Running})
	}
}

// start runs a router and waits until it serves the aliases.
func start(t testing.TB, o Options, ready ...string) (*Router, *httptest.Server) {
	t.Helper()
	r := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	srv := httptest.NewServer(r)
	t.Cleanup(func() { srv.Close(); cancel(); <-ended })
	isUp(t, r, ready...)
	return r, srv
}

// isUp waits until the router serves the aliases' versions.
func isUp(t testing.TB, r *Router, ready ...string) {
	t.Helper()
	for _, want := range ready {
		slash := strings.LastIndexByte(want, '/')
		alias, version := want[:slash], want[slash+1:]
		until(t, want+" is up", func() bool {
			a := r.view.Load().routes[alias]
			if a == nil || len(a.replicas[version]) == 0 {
				return false
			}
			for _, m := range a.replicas[version] {
				if m.Health() != Up {
					return false
				}
			}
			return true
		})
	}
}

// until waits for something that another goroutine brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waiting until %s: nothing came", what)
		}
	}
}

func chatBody(model, text string, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"stream":%v}`, model, text, stream)
}

// post sends a body and returns status, body and header.
func post(t testing.TB, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	return res.StatusCode, string(b), res.Header
}

// total waits until the version's requests are all accounted for.
func total(t testing.TB, r *Router, alias, version string) route.Stratum {
	t.Helper()
	var s route.Stratum
	until(t, "nothing is in flight", func() bool {
		rep, _ := r.Report(alias)
		c := rep.Versions[version]
		s = c.Total()
		return rep.InFlight[version] == 0
	})
	return s
}
