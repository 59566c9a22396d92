package pipeline

import (
	"context"
	"testing"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/route"
	"llmops/serving/slo"
)

// point is a rate at which over of n answers were too late, and so many under way.
func point(rate float64, over, n, open int) benchmark.Point {
	return benchmark.Point{Rate: rate, Stats: load.Stats{PeakOpen: open}, Over: benchmark.Over{TTFT: over, TTFTOf: n}}
}

func TestHeld(t *testing.T) {
	s := Spec{SLO: slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}}}
	for _, c := range []struct {
		name   string
		points []benchmark.Point
		want   heldAt
	}{
		{"nothing measured", nil, heldAt{}},
		{"all hold", []benchmark.Point{point(10, 0, 100, 7), point(20, 1, 200, 15)}, heldAt{20, 8, false}},
		{"the last does not", []benchmark.Point{point(10, 0, 100, 7), point(20, 1, 200, 15), point(30, 50, 200, 60)}, heldAt{20, 8, true}},
		{"the last has too few", []benchmark.Point{point(10, 0, 100, 7), point(20, 0, 10, 15)}, heldAt{10, 4, false}},
		{"none holds", []benchmark.Point{point(10, 50, 100, 7), point(20, 90, 100, 15)}, heldAt{}},
		{"a higher one does again", []benchmark.Point{point(10, 50, 100, 7), point(20, 0, 100, 15)}, heldAt{20, 8, false}},
	} {
		if got := held(c.points, s, 2); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestCapsOf(t *testing.T) {
	traffic := Traffic{Input: 1500, Output: 500}
	said := func(streams, tokens int) Spec { return Spec{Traffic: traffic, Caps: Caps{streams, tokens}} }
	plan := &Roof{KVTokens: 1_000_000, Sequences: 192}
	for _, c := range []struct {
		name string
		s    Spec
		roof *Roof
		h    heldAt
		want route.Caps
	}{
		{"nothing known", said(0, 0), nil, heldAt{}, route.Caps{}},
		{"a lower bound is no bound", said(0, 0), nil, heldAt{20, 8, false}, route.Caps{}},
		{"an end was found", said(0, 0), nil, heldAt{20, 8, true}, route.Caps{Streams: 8, From: "streams: benchmark at 20/s"}},
		// 192 streams of 2,000 tokens fit, and each may still make 500.
		{"the plan", said(0, 0), plan, heldAt{}, route.Caps{Streams: 192, KVTokens: 904_000, From: "streams: plan; tokens: plan"}},
		{"the plan, of which less was tried", said(0, 0), plan, heldAt{20, 8, false}, route.Caps{Streams: 192, KVTokens: 904_000, From: "streams: plan; tokens: plan"}},
		{"more than the plan was shown", said(0, 0), plan, heldAt{90, 220, false},
			route.Caps{Streams: 220, KVTokens: 890_000, From: "streams: benchmark at 90/s, above the plan's 192; tokens: plan"}},
		{"measured before planned", said(0, 0), plan, heldAt{20, 100, true}, route.Caps{Streams: 100, KVTokens: 950_000, From: "streams: benchmark at 20/s; tokens: plan"}},
		{"said before all", said(64, 0), plan, heldAt{20, 100, true}, route.Caps{Streams: 64, KVTokens: 968_000, From: "streams: the model file; tokens: plan"}},
		{"both said", said(64, 5000), plan, heldAt{20, 100, true}, route.Caps{Streams: 64, KVTokens: 5000, From: "streams: the model file; tokens: the model file"}},
		{"tokens said", said(0, 5000), nil, heldAt{}, route.Caps{KVTokens: 5000, From: "tokens: the model file"}},
		// Of a plan without a service level for tokens the cache alone says how many fit: 500.
		{"no service level", said(0, 0), &Roof{KVTokens: 1_000_000}, heldAt{}, route.Caps{KVTokens: 750_000, From: "tokens: plan"}},
		{"a cache below one sequence", said(0, 0), &Roof{KVTokens: 1000}, heldAt{}, route.Caps{KVTokens: 1000, From: "tokens: plan"}},
	} {
		if got := capsOf(c.s, c.roof, c.h); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// The candidate's caps are in the route before it has a share, under the epoch that
// leases it; somebody else's route is left alone.
func TestCapsReachTheRoute(t *testing.T) {
	d := testDeps(t)
	d.Admins = func(context.Context) (map[string]*route.Admin, error) { return nil, nil }
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Deps: d, Spec: Spec{Name: "m", Traffic: Traffic{Input: 1500, Output: 500}, Caps: Caps{Streams: 9}}, Run: run, Stage: StageShadow, j: j}
	caps := func() map[string]route.Caps {
		doc, _, err := a.control().Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return doc.Caps
	}
	doc, err := route.Cap(route.New("m", run, "v0"), 1, "v0", route.Caps{KVTokens: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Store.Put(t.Context(), route.Name("m"), mustJSON(doc), 0); err != nil {
		t.Fatal(err)
	}
	finished(t, j, StagePlan, PlanOutput{Roof: &Roof{KVTokens: 1_000_000, Sequences: 192}})
	if _, err := claimRoute(t.Context(), a, Arm{Version: Version{Name: "v1"}}); err != nil {
		t.Fatal(err)
	}
	if got := caps(); got["v0"].KVTokens != 7 || got["v1"] != (route.Caps{Streams: 9, KVTokens: 995_500, From: "streams: the model file; tokens: plan"}) {
		t.Errorf("%+v", got)
	}
	// A first version gets what was found since.
	a.Spec.Caps.Streams = 10
	if err := capCandidate(t.Context(), a, Arm{Version: Version{Name: "v0"}}); err != nil {
		t.Fatal(err)
	}
	if got := caps(); got["v0"].Streams != 10 {
		t.Errorf("%+v", got)
	}
	a.Run, a.Spec.Caps.Streams = "another", 11
	if err := capCandidate(t.Context(), a, Arm{Version: Version{Name: "v0"}}); err != nil {
		t.Fatal(err)
	}
	if got := caps(); got["v0"].Streams != 10 {
		t.Errorf("somebody else's route: %+v", got)
	}
}
