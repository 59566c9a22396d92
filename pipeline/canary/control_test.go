package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/serving/openai"
	"llmops/serving/route"
	"llmops/serving/router"
)

// engine serves one version. Delay and broken may change while it serves.
type engine struct {
	*httptest.Server
	version string
	delay   atomic.Int64 // before the first token, in ns
	broken  atomic.Bool  // answers every request with 500
	answer  atomic.Pointer[string]
	asked   atomic.Int64
}

func newEngine(t *testing.T, version string) *engine {
	e := &engine{version: version}
	word := "yes"
	e.answer.Store(&word)
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	e.asked.Add(1)
	w.Header().Set(router.HeaderVersion, e.version)
	if e.broken.Load() {
		openai.WriteError(w, http.StatusInternalServerError, &openai.Error{Message: "broken", Type: "server_error"})
		return
	}
	select {
	case <-r.Context().Done():
		return
	case <-time.After(time.Duration(e.delay.Load())):
	}
	s := openai.NewWriter(w)
	_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Role: "assistant"}}}})
	for _, word := range []string{*e.answer.Load(), "."} {
		_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Content: word}}}})
	}
	stop := openai.FinishStop
	_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{FinishReason: &stop}}})
	_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: &openai.Usage{PromptTokens: 5, CompletionTokens: 2, TotalTokens: 7}})
	_ = s.Done()
}

// gate is a store that can be made to fail or to hang. What hangs is answered
// with what was there when it was asked, as a read is that was under way when
// the process was stopped.
type gate struct {
	fleet.Store
	mu   sync.Mutex // guards what follows
	fail error
	hang chan struct{}
	puts func() // before each Put
}

func (g *gate) set(fail error, hang chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail, g.hang = fail, hang
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	fail, hang := g.fail, g.hang
	g.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fail
}

func (g *gate) Get(ctx context.Context, name string) (fleet.Doc, error) {
	d, err := g.Store.Get(ctx, name)
	if e := g.pass(ctx); e != nil {
		return fleet.Doc{}, e
	}
	return d, err
}

func (g *gate) List(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	ds, err := g.Store.List(ctx, prefix)
	if e := g.pass(ctx); e != nil {
		return nil, e
	}
	return ds, err
}

func (g *gate) Put(ctx context.Context, name string, body []byte, ifRev uint64) (uint64, error) {
	if e := g.pass(ctx); e != nil {
		return 0, e
	}
	g.mu.Lock()
	puts := g.puts
	g.mu.Unlock()
	if puts != nil {
		puts()
	}
	return g.Store.Put(ctx, name, body, ifRev)
}

func (g *gate) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	return g.Store.Watch(ctx, prefix, func(d fleet.Doc) error {
		if err := g.pass(ctx); err != nil {
			return err
		}
		return fn(d)
	})
}

// gateway is one router with its own view of the store, its own clock and an
// admin address that can be made to fail or to hang.
type gateway struct {
	atomic.Pointer[router.Router]
	name  string
	store *gate
	api   *httptest.Server
	admin *httptest.Server
	end   func()       // of the router
	ahead atomic.Int64 // of the real clock, in ns
	dead  atomic.Bool  // the admin fails
	hang  atomic.Pointer[chan struct{}]
}

// stop makes the gateway a stopped process as seen by its controller and its
// store; unlike one it goes on choosing, so that the choice can be looked at.
func (g *gateway) stop(until chan struct{}) {
	g.hang.Store(&until)
	g.store.set(nil, until)
}

// bench is an alias of two versions behind real routers over one store.
type bench struct {
	t        *testing.T
	store    *gate
	stable   *engine
	cand     *engine
	gateways []*gateway
	control  *Control
	asked    atomic.Int64
}

const alias = "m.x"

func newBench(t *testing.T, routers int) *bench {
	t.Helper()
	store, err := local.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: &gate{Store: store}, stable: newEngine(t, "v0"), cand: newEngine(t, "v1")}
	for _, e := range []*engine{b.stable, b.cand} {
		job := fleet.Escape(alias) + "-" + e.version
		b.put("job/"+job, fleet.Job{Name: job, Version: e.version, Kind: fleet.Engine, Meta: map[string]string{"alias": alias, "version": e.version}})
		b.put("replica/"+job+"/main-0", fleet.Replica{ID: job, Addr: e.Listener.Addr().String(), Nonce: e.version, State: fleet.Healthy})
	}
	b.put(route.Name(alias), route.New(alias, "run-1", "v0"))
	for i := range routers {
		b.gateways = append(b.gateways, b.gateway(fmt.Sprintf("router-%d", i+1), store))
	}
	key, err := route.MakeKey(b.t.Context(), store)
	if err != nil {
		b.t.Fatal(err)
	}
	b.control = &Control{Store: b.store, Alias: alias, Routers: func(context.Context) (map[string]*route.Admin, error) {
		admins := map[string]*route.Admin{}
		for _, g := range b.gateways {
			admins[g.name] = &route.Admin{Base: g.admin.URL, Key: key}
		}
		return admins, nil
	}}
	b.until("all routers answer from stable and reach the candidate", func() bool {
		for _, g := range b.gateways {
			if b.ask(g) != "v0" {
				return false
			}
		}
		return true
	})
	return b
}

func (b *bench) gateway(name string, store fleet.Store) *gateway {
	g := &gateway{name: name, store: &gate{Store: store}}
	g.start()
	g.api = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.Load().ServeHTTP(w, r) }))
	g.admin = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hang := g.hang.Load(); hang != nil {
			select {
			case <-*hang:
			case <-r.Context().Done():
			}
		}
		if g.dead.Load() {
			panic(http.ErrAbortHandler)
		}
		g.Load().Admin().ServeHTTP(w, r)
	}))
	b.t.Cleanup(func() { g.api.Close(); g.admin.Close(); g.end() })
	return g
}

// start makes the gateway a router that knows nothing yet.
func (g *gateway) start() {
	began := time.Now()
	r := router.New(router.Options{Name: g.name, Store: g.store, Renew: 50 * time.Millisecond, Probe: 20 * time.Millisecond,
		Now: func() time.Duration { return time.Since(began) + time.Duration(g.ahead.Load()) }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	g.end = func() { cancel(); <-ended }
	g.Store(r)
}

// restart puts a new router in the place of one that dies.
func (g *gateway) restart() {
	end := g.end
	g.start()
	end()
}

func (b *bench) put(name string, v any) {
	b.t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.store.Put(b.t.Context(), name, body, 0); err != nil {
		b.t.Fatal(err)
	}
}

// ask sends one request of a new conversation and tells which version answered,
// "" when none did.
func (b *bench) ask(g *gateway) string {
	body := `{"model":"` + alias + `","stream":true,"messages":[{"role":"user","content":"which?"}]}`
	req, err := http.NewRequest(http.MethodPost, g.api.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		b.t.Error(err)
		return ""
	}
	req.Header.Set(router.HeaderConversation, fmt.Sprint("c", b.asked.Add(1)))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return res.Header.Get(router.HeaderVersion)
}

// traffic sends a request every period to the routers in turn until stop is
// called.
func (b *bench) traffic(period time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				wg.Go(func() { b.ask(b.gateways[i%len(b.gateways)]) })
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	b.t.Cleanup(stop)
	return stop
}

// until waits for something that another goroutine brings about.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			b.t.Fatalf("waiting until %s: nothing came", what)
		}
	}
}

// change writes a transition and fails the test when it cannot be written.
func (b *bench) change(fn func(route.Doc) (route.Doc, error)) (route.Doc, Delivery) {
	b.t.Helper()
	d, del, err := b.control.Change(b.t.Context(), fn)
	if err != nil {
		b.t.Fatal(err)
	}
	return d, del
}

func (b *bench) claim(run string) uint64 {
	b.t.Helper()
	d, _ := b.change(func(d route.Doc) (route.Doc, error) { return route.Claim(d, run), nil })
	return d.Epoch
}

// half leases half of the traffic to the candidate and waits until all routers
// give it.
func (b *bench) half() {
	b.t.Helper()
	epoch := b.claim("run-1")
	b.change(func(d route.Doc) (route.Doc, error) {
		return route.Grant(d, epoch, route.Lease{TTL: LeaseTTL,
			Intent: route.Intent{Splits: []route.Split{{Shares: map[string]uint32{"v0": route.Million / 2, "v1": route.Million / 2}}}}})
	})
	n := 0
	b.until("the lease is live everywhere", func() bool {
		n++
		b.change(func(d route.Doc) (route.Doc, error) { return route.Renew(d, epoch, d.Seq+1, fmt.Sprint("look ", n)) })
		for _, g := range b.gateways {
			if s, ok := g.Load().State(alias); !ok || !s.Leased {
				return false
			}
		}
		return true
	})
}

// answers asks a router n times and counts the versions that answered.
func (b *bench) answers(g *gateway, n int) map[string]int {
	out := map[string]int{}
	for range n {
		out[b.ask(g)]++
	}
	return out
}

// Of three routers one is stopped, and one has neither its store nor an admin
// address: a rollback is done on the third at once and named as missing on the
// others, and these leave the candidate when their lease ends, whatever they
// read or are told late.
func TestRollbackReachesEveryRouterByTheLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	here, stopped, cut := b.gateways[0], b.gateways[1], b.gateways[2]
	b.half()
	for _, g := range b.gateways {
		if n := b.answers(g, 60); n["v0"] == 0 || n["v1"] == 0 || n["v0"]+n["v1"] != 60 {
			t.Fatalf("%s answers %v under a lease of one half", g.name, n)
		}
	}

	wake := make(chan struct{})
	stopped.stop(wake)
	cut.dead.Store(true)
	cut.store.set(errors.New("the store is down"), nil)

	_, d := b.change(func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil })
	if fmt.Sprint(d.Acked) != "[router-1]" || fmt.Sprint(d.Missing) != "[router-2 router-3]" || d.Took > time.Second {
		t.Errorf("delivery is %+v", d)
	}
	if s, _ := here.Load().State(alias); s.Leased || s.Shares["v0"] != route.Million {
		t.Errorf("the reachable router has %+v", s)
	}
	if n := b.answers(here, 50); n["v0"] != 50 {
		t.Errorf("the reachable router answers %v", n)
	}
	t.Logf("done on the reachable router after %v", d.Took)

	for _, g := range []*gateway{stopped, cut} {
		s, _ := g.Load().State(alias)
		if !s.Leased || s.Left > LeaseTTL {
			t.Fatalf("%s has %+v", g.name, s)
		}
		// Up to the lease's end it may still choose the candidate, after it never.
		g.ahead.Add(int64(s.Left - 10*time.Second))
		if n := b.answers(g, 20); n["v1"] == 0 {
			t.Errorf("%s answers %v within its lease: the test shows nothing", g.name, n)
		}
		g.ahead.Add(int64(10 * time.Second))
		if n := b.answers(g, 100); n["v0"] != 100 {
			t.Errorf("%s answers %v after its lease", g.name, n)
		}
	}

	// The stopped one goes on: a read that was under way comes back with a
	// document that was good when it was asked for.
	close(wake)
	if n := b.answers(stopped, 50); n["v0"] != 50 {
		t.Errorf("the router that was stopped answers %v", n)
	}
	b.until("it has the rollback", func() bool {
		s, _ := stopped.Load().State(alias)
		if s.Leased {
			t.Fatal("the lease came back to life")
		}
		return s.Rev >= d.Rev
	})

	// The other is out of reach for good; its lease bounds the wait for it.
	missing, err := b.control.Settle(t.Context(), d.Rev, time.Now().Add(-LeaseTTL))
	if err != nil || fmt.Sprint(missing) != "[router-3]" {
		t.Errorf("settled without %v, %v", missing, err)
	}
}

// A write that loses the race is made again on what the winner wrote.
func TestChangeIsMadeOnTheNewestRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	other := &Control{Store: b.store.Store, Alias: alias, Routers: b.control.Routers}
	races := 3
	b.store.mu.Lock()
	b.store.puts = func() {
		if races--; races >= 0 {
			if _, _, err := other.Change(t.Context(), func(d route.Doc) (route.Doc, error) { d.Standby = fmt.Sprint("v", 5+races); return d, nil }); err != nil {
				t.Error(err)
			}
		}
	}
	b.store.mu.Unlock()
	seen := 0
	d, del := b.change(func(d route.Doc) (route.Doc, error) { seen++; return route.Claim(d, "run-2"), nil })
	if seen != 4 || d.Run != "run-2" || d.Standby != "v5" || len(del.Missing) > 0 {
		t.Errorf("after %d goes %+v, %+v", seen, d, del)
	}
	broken := errors.New("disk full")
	b.store.set(broken, nil)
	if _, _, err := b.control.Change(t.Context(), func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil }); !errors.Is(err, broken) {
		t.Errorf("a write that cannot be made: %v", err)
	}
	b.store.set(nil, nil)
	refused := errors.New("no")
	if _, _, err := b.control.Change(t.Context(), func(d route.Doc) (route.Doc, error) { return d, refused }); !errors.Is(err, refused) {
		t.Errorf("a transition that is refused: %v", err)
	}
}

// What is written stands although nobody can say which routers there are.
func TestWriteStandsWithoutAListOfRouters(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	c := &Control{Store: b.store, Alias: alias, Routers: func(context.Context) (map[string]*route.Admin, error) { return nil, errors.New("no list") }}
	d, del, err := c.Change(t.Context(), func(d route.Doc) (route.Doc, error) { return route.Claim(d, "run-9"), nil })
	if err != nil || d.Run != "run-9" || len(del.Acked) > 0 || len(del.Missing) != 1 {
		t.Errorf("%+v, %+v, %v", d, del, err)
	}
	if got, rev, err := b.control.Read(t.Context()); err != nil || got.Run != "run-9" || rev != del.Rev {
		t.Errorf("the route is %+v at %d, %v", got, rev, err)
	}
}
