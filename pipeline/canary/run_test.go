package canary

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"llmops/evidence"
	"llmops/fleet/local"
	"llmops/serving/route"
	"llmops/serving/slo"
)

// quick is a policy that real traffic decides within seconds.
func quick() Policy {
	bound := slo.Bound{Quantile: 0.8, Limit: 2 * time.Second}
	return Policy{
		Stable: "v0", Candidate: "v1", Max: 30, Harm: 1.25, Guards: []string{"ttft", "errors", "refusals"}, Stale: 5 * time.Second,
		SLO:   slo.Class{TTFT: bound, ErrorRate: 0.2, RefusalRate: 0.2},
		Steps: []Stage{{0.2, time.Second}, {0.5, time.Second}},
		Slow:  [2]time.Duration{400 * time.Millisecond, time.Second},
	}
}

// host is the host of a canary as the tests see it.
type host struct {
	mu      sync.Mutex // guards what follows
	intents []string
	saved   []State
	told    []string
	fail    error // of Save and Intent
}

func (h *host) hooks() Hooks {
	return Hooks{
		Intent: func(_ context.Context, what string, _ any) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.intents = append(h.intents, what)
			return h.fail
		},
		Save: func(_ context.Context, s State) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.fail == nil {
				h.saved = append(h.saved, s)
			}
			return h.fail
		},
		Tell: func(_ State, a Action) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.told = append(h.told, a.Reason)
		},
	}
}

func (h *host) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = err
}

// last is the state that was saved last; ok is false before there is one.
func (h *host) last() (s State, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.saved) == 0 {
		return s, false
	}
	return h.saved[len(h.saved)-1], true
}

func (h *host) heard(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Contains(strings.Join(h.told, "\n"), text)
}

// leased tells whether any router gives weight to the candidate.
func (b *bench) leased() bool {
	for _, g := range b.gateways {
		if s, _ := g.Load().State(alias); s.Shares["v1"] > 0 {
			return true
		}
	}
	return false
}

// run runs a canary in the background.
func (b *bench) run(p Policy, s State, epoch uint64, h *host) <-chan func() (Result, error) {
	ended := make(chan func() (Result, error), 1)
	go func() {
		res, err := Run(b.t.Context(), b.control, p, s, epoch, h.hooks())
		ended <- func() (Result, error) { return res, err }
	}()
	return ended
}

func TestGoodCandidateIsPromoted(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 2), &host{}
	b.traffic(10 * time.Millisecond)
	res, err := Run(t.Context(), b.control, quick(), Begin(quick(), time.Now()), b.claim("run-1"), h.hooks())
	if err != nil || res.Kind != Promote {
		t.Fatalf("ended with %s, %s, %v", res.Kind, res.Reason, err)
	}
	if v := res.Verdict(); v.Outcome != evidence.Pass || v.N == 0 || len(v.Parts) != 3 {
		t.Errorf("verdict %+v", v)
	}
	if fmt.Sprint(h.intents) != "[lease 20% to v1 lease 50% to v1]" {
		t.Errorf("intents %v", h.intents)
	}
	d, _, err := b.control.Read(t.Context())
	if err != nil || d.Lease == nil || d.Lease.Splits[0].Shares["v1"] != route.Million/2 {
		t.Errorf("promoted from %+v, %v", d, err)
	}
	for _, g := range b.gateways {
		if n := b.answers(g, 40); n["v1"] == 0 || n["v0"] == 0 {
			t.Errorf("%s answers %v", g.name, n)
		}
	}
}

func TestBadCandidateIsRolledBack(t *testing.T) {
	for guard, spoil := range map[string]func(*engine){
		"ttft":   func(e *engine) { e.delay.Store(int64(600 * time.Millisecond)) },
		"errors": func(e *engine) { e.broken.Store(true) },
	} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			b, h := newBench(t, 2), &host{}
			b.traffic(10 * time.Millisecond)
			spoil(b.cand)
			res, err := Run(t.Context(), b.control, quick(), Begin(quick(), time.Now()), b.claim("run-1"), h.hooks())
			if err != nil || res.Kind != Rollback || res.Guard != guard {
				t.Fatalf("ended with %s of %s, %s, %v", res.Kind, res.Guard, res.Reason, err)
			}
			if v := res.Verdict(); v.Outcome != evidence.Fail || len(res.Delivery.Acked) != 2 {
				t.Errorf("verdict %+v, delivery %+v", v, res.Delivery)
			}
			for _, g := range b.gateways {
				if n := b.answers(g, 40); n["v0"] != 40 {
					t.Errorf("%s answers %v after the rollback", g.name, n)
				}
			}
			t.Logf("rolled back after %v and %d requests of the candidate", res.Decided.Sub(res.State.Began).Round(time.Millisecond), res.State.Requests[1])
		})
	}
}

// A rollback by somebody else ends the canary at its next look, and so does
// another controller.
func TestCanaryGivesWay(t *testing.T) {
	for name, act := range map[string]func(d route.Doc) (route.Doc, error){
		"to a rollback":           func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil },
		"to another controller":   func(d route.Doc) (route.Doc, error) { return route.Claim(d, "run-2"), nil },
		"to a route made anew":    func(route.Doc) (route.Doc, error) { return route.New(alias, "run-2", "v0"), nil },
		"to a lease that is gone": func(d route.Doc) (route.Doc, error) { d.Lease = nil; return d, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, h := newBench(t, 1), &host{}
			b.traffic(10 * time.Millisecond)
			p := quick()
			p.Steps = []Stage{{0.5, time.Minute}}
			ended := b.run(p, Begin(p, time.Now()), b.claim("run-1"), h)
			b.until("the candidate has traffic", b.leased)
			before, _ := b.change(act)
			if _, err := (<-ended)(); !Fenced(err) {
				t.Errorf("the canary ended with %v", err)
			}
			if after, _, err := b.control.Read(t.Context()); err != nil || after.Epoch != before.Epoch || after.Seq != before.Seq {
				t.Errorf("it left the route at %+v, %v", after, err)
			}
		})
	}
}

// A router that is started anew has lost the lease; when it is the only one
// nobody else's traffic would renew it.
func TestCanaryOutlastsItsRouter(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	b.traffic(10 * time.Millisecond)
	p := quick()
	p.Steps = []Stage{{0.5, 3 * time.Second}}
	ended := b.run(p, Begin(p, time.Now()), b.claim("run-1"), h)
	b.until("the candidate has traffic", func() bool { s, ok := h.last(); return ok && s.Requests[1] > 0 })
	b.gateways[0].restart()
	b.until("the candidate has traffic again", b.leased)
	res, err := (<-ended)()
	if err != nil || res.Kind != Promote || !h.heard("router-1 was started anew") {
		t.Errorf("ended with %s, %s, %v", res.Kind, res.Reason, err)
	}
	if fmt.Sprint(h.intents) != "[lease 50% to v1 lease 50% to v1]" {
		t.Errorf("intents %v", h.intents)
	}
}

// A store that is down for a moment moves nothing and ends nothing.
func TestCanaryOutlastsItsStore(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	b.traffic(10 * time.Millisecond)
	p := quick()
	p.Steps = []Stage{{0.5, 2 * time.Second}}
	ended := b.run(p, Begin(p, time.Now()), b.claim("run-1"), h)
	b.until("the candidate has traffic", func() bool { s, ok := h.last(); return ok && s.Requests[1] > 0 })
	b.store.set(errors.New("the store is down"), nil)
	h.set(errors.New("no disk"))
	b.until("the canary says so", func() bool { return h.heard("the store is down") })
	b.store.set(nil, nil)
	b.until("the canary says so", func() bool { return h.heard("no disk") })
	h.set(nil)
	if res, err := (<-ended)(); err != nil || res.Kind != Promote {
		t.Errorf("ended with %s, %s, %v", res.Kind, res.Reason, err)
	}
}

// A rollback that cannot be written is written when it can be, and is not
// thought over meanwhile.
func TestRollbackIsWrittenInTheEnd(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	stop := b.traffic(10 * time.Millisecond)
	b.cand.broken.Store(true)
	down := errors.New("the disk is full")
	var refused atomic.Int32
	hooks := h.hooks()
	intent := hooks.Intent
	hooks.Intent = func(ctx context.Context, what string, detail any) error {
		if what == string(Rollback) && refused.Add(1) <= 2 {
			stop()
			b.cand.broken.Store(false)
			return down
		}
		return intent(ctx, what, detail)
	}
	res, err := Run(t.Context(), b.control, quick(), Begin(quick(), time.Now()), b.claim("run-1"), hooks)
	if err != nil || res.Kind != Rollback || refused.Load() != 3 || !h.heard(down.Error()) {
		t.Errorf("ended with %s, %v after %d goes", res.Kind, err, refused.Load())
	}
	if b.leased() {
		t.Error("the candidate has traffic")
	}
}

// Whoever goes on from a state that had decided to roll back does that, and
// gives the candidate nothing before.
func TestDecisionSurvivesItsDriver(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	b.traffic(10 * time.Millisecond)
	b.cand.broken.Store(true)
	dead := errors.New("killed")
	hooks := h.hooks()
	intent := hooks.Intent
	hooks.Intent = func(ctx context.Context, what string, detail any) error {
		if what == string(Rollback) {
			return fmt.Errorf("%w: %w", dead, route.ErrFenced)
		}
		return intent(ctx, what, detail)
	}
	if _, err := Run(t.Context(), b.control, quick(), Begin(quick(), time.Now()), b.claim("run-1"), hooks); !errors.Is(err, dead) {
		t.Fatalf("the first ended with %v", err)
	}
	// While nobody drove, the lease has run out.
	b.change(func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil })
	b.until("the traffic is back", func() bool { return !b.leased() })
	b.cand.broken.Store(false)
	asked := b.cand.asked.Load()
	s, _ := h.last()
	second := &host{}
	res, err := Run(t.Context(), b.control, quick(), s, b.claim("run-1"), second.hooks())
	if err != nil || res.Kind != Rollback || res.Guard != "errors" || fmt.Sprint(second.intents) != "[rollback]" {
		t.Errorf("the second ended with %s of %s, %v and %v", res.Kind, res.Guard, err, second.intents)
	}
	if n := b.cand.asked.Load(); n != asked {
		t.Errorf("the candidate got %d requests", n-asked)
	}
}

// A canary whose store never comes back ends with the lease, by when the
// traffic has returned by itself.
func TestCanaryEndsWithItsLease(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		inner, err := local.OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		store := &gate{Store: inner}
		c := &Control{Store: store, Alias: alias, Routers: func(context.Context) (map[string]*route.Admin, error) { return nil, nil }}
		if _, _, err := c.Change(t.Context(), func(route.Doc) (route.Doc, error) { return route.New(alias, "run-1", "v0"), nil }); err != nil {
			t.Fatal(err)
		}
		p := quick()
		p.Steps[0].Bake = time.Hour
		h := &host{}
		hooks := h.hooks()
		tell := hooks.Tell
		down := errors.New("the store is down")
		hooks.Tell = func(s State, a Action) { store.set(down, nil); tell(s, a) }
		began := time.Now()
		_, err = Run(t.Context(), c, p, Begin(p, began), 1, hooks)
		if took := time.Since(began); !errors.Is(err, down) || took < LeaseTTL || took > LeaseTTL+3*tickEvery {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
}

// Without any evidence the canary gives up when the lease has run out, and
// leaves nothing leased.
func TestBlindCanaryGivesUp(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store, err := local.OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		c := &Control{Store: store, Alias: alias, Routers: func(context.Context) (map[string]*route.Admin, error) { return nil, nil }}
		if _, _, err := c.Change(t.Context(), func(route.Doc) (route.Doc, error) { return route.New(alias, "run-1", "v0"), nil }); err != nil {
			t.Fatal(err)
		}
		p := quick()
		p.Steps[0].Bake = time.Hour
		res, err := Run(t.Context(), c, p, Begin(p, time.Now()), 1, (&host{}).hooks())
		if v := res.Verdict(); err != nil || res.Kind != GiveUp || v.Outcome != evidence.Inconclusive {
			t.Errorf("ended with %s, %s, %v", res.Kind, res.Reason, err)
		}
		if d, _, err := c.Read(t.Context()); err != nil || d.Lease != nil {
			t.Errorf("the route is %+v, %v", d, err)
		}
	})
}
