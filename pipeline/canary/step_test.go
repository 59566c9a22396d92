package canary

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"llmops/serving/slo"
)

func policy() Policy {
	c := slo.Presets()["interactive"]
	c.ErrorRate, c.RefusalRate = 0.02, 0.02
	return Policy{
		Stable: "v0", Candidate: "v1", Max: 4, Harm: 1.25, Guards: Names[:], SLO: c, Stale: 5 * time.Second,
		Steps: []Stage{{0.1, 10 * time.Second}, {0.5, 15 * time.Second}},
		Slow:  [2]time.Duration{400 * time.Millisecond, 25 * time.Millisecond},
	}
}

// rates are an arm's chances of a bad outcome by guard, for the harm bound; for
// the safe bound they are a fifth of it for latencies.
type rates [guards]float64

// traffic draws outcomes of two versions behind one router.
type traffic struct {
	r       *rand.Rand
	perTick int
	now     time.Time
	counted Counted
	stable  rates
	cand    rates
	quiet   bool // no requests at all
}

func newTraffic(seed uint64) *traffic {
	good := rates{0.05, 0.05, 0.002, 0}
	return &traffic{r: rand.New(rand.NewPCG(seed, 99)), perTick: 20, now: time.Unix(1e9, 0), counted: Counted{Boot: "a"}, stable: good, cand: good}
}

func (tr *traffic) tick(weight float64) Observation {
	tr.now = tr.now.Add(time.Second)
	if !tr.quiet {
		for range tr.perTick {
			arm, rt := &tr.counted.Stable[0], tr.stable
			if tr.r.Float64() < weight {
				arm, rt = &tr.counted.Candidate[0], tr.cand
			}
			arm.Chosen++
			for g := range guards {
				arm.Harm[g].N++
				arm.Safe[g].N++
				u := tr.r.Float64()
				if u < rt[g] {
					arm.Harm[g].Bad++
				}
				if g < errorsGuard && u < rt[g]/5 || g >= errorsGuard && u < rt[g] {
					arm.Safe[g].Bad++
				}
			}
		}
	}
	return Observation{At: tr.now, Routers: map[string]Counted{"r": tr.counted}}
}

// play steps until the canary ends or limit ticks have passed.
func play(tr *traffic, p Policy, limit int, each func(i int, s State, a Action)) (State, Action) {
	s := Begin(p, tr.now)
	s, _ = Step(s, Observation{At: tr.now, Routers: map[string]Counted{"r": tr.counted}}, p)
	for i := range limit {
		var a Action
		s, a = Step(s, tr.tick(p.Steps[s.Step].Weight), p)
		if each != nil {
			each(i, s, a)
		}
		switch a.Kind {
		case Promote, Rollback, GiveUp:
			return s, a
		}
	}
	return s, Action{Kind: Wait}
}

func TestGoodCandidateIsPromotedWhenEveryGuardIsSafe(t *testing.T) {
	tr := newTraffic(1)
	advanced, renewed := 0, 0
	s, a := play(tr, policy(), 200, func(_ int, s State, a Action) {
		switch a.Kind {
		case Advance:
			advanced++
		case Renew:
			renewed++
		}
		if b, err := json.Marshal(s); err != nil || len(b) > 16<<10 {
			t.Fatalf("state has %d bytes, %v", len(b), err)
		}
	})
	if a.Kind != Promote || advanced != 1 || renewed < 3 {
		t.Fatalf("ended with %+v after %d advances and %d renewals", a, advanced, renewed)
	}
	// 217 clean requests show a rate below 2 % at α/4 against one alternative.
	if s.Requests[1] < 217 {
		t.Errorf("promoted after %d requests", s.Requests[1])
	}
}

func TestEachHarmRollsBack(t *testing.T) {
	for g := range guards {
		tr := newTraffic(uint64(g) + 2)
		tr.cand[g] = 0.4
		_, a := play(tr, policy(), 200, nil)
		if a.Kind != Rollback || a.Guard != Names[g] {
			t.Errorf("%s of 40 %%: %+v", Names[g], a)
		}
		p := policy()
		p.Guards = []string{"errors"}
		if g != errorsGuard {
			if _, a := play(newHarm(g), p, 200, nil); a.Kind == Rollback {
				t.Errorf("%s rolled back although it guards nothing: %+v", Names[g], a)
			}
		}
	}
}

func newHarm(g int) *traffic {
	tr := newTraffic(uint64(g) + 20)
	tr.cand[g] = 0.4
	return tr
}

// A bad hour that hits both versions is no reason to roll back, and no reason
// to promote either.
func TestTroubleOfBothIsNoHarm(t *testing.T) {
	tr := newTraffic(7)
	tr.cand[errorsGuard], tr.stable[errorsGuard] = 0.2, 0.2
	_, a := play(tr, policy(), 400, nil)
	if a.Kind != GiveUp || !strings.Contains(a.Reason, "errors") {
		t.Errorf("%+v", a)
	}
}

func TestNoTrafficNeverPromotes(t *testing.T) {
	tr := newTraffic(8)
	tr.quiet = true
	s, a := play(tr, policy(), 400, func(_ int, s State, a Action) {
		if a.Kind == Renew {
			t.Error("a lease was renewed without evidence")
		}
	})
	if a.Kind != GiveUp || s.Healthy > 6*time.Second {
		t.Errorf("%+v after %v healthy", a, s.Healthy)
	}
	// It stops in the middle: the bake stands still.
	tr = newTraffic(9)
	s, a = play(tr, policy(), 400, func(i int, _ State, _ Action) { tr.quiet = i > 12 })
	if a.Kind != GiveUp || s.Healthy >= policy().Steps[1].Bake {
		t.Errorf("%+v after %v healthy", a, s.Healthy)
	}
}

func TestRoutersThatAnswerNothing(t *testing.T) {
	p := policy()
	s := Begin(p, time.Unix(0, 0))
	s, a := Step(s, Observation{At: time.Unix(1, 0), Missing: []string{"r"}}, p)
	if a.Kind != Wait || s.Healthy != 0 || s.Note == "" {
		t.Errorf("%+v, healthy %v", a, s.Healthy)
	}
}

// A weight that routers do not follow holds the bake.
func TestMeasuredShareMustFollow(t *testing.T) {
	tr, p := newTraffic(10), policy()
	s := Begin(p, tr.now)
	for range 20 {
		s, _ = Step(s, tr.tick(0.6), p)
	}
	if s.Note == "" || !strings.Contains(s.Note, "share") || s.Step != 0 {
		t.Errorf("note %q at step %d", s.Note, s.Step)
	}
}

// What a router counted before the canary is no evidence, what it counts after
// a restart is.
func TestCursor(t *testing.T) {
	tr, p := newTraffic(11), policy()
	tr.cand[errorsGuard] = 1
	for range 50 {
		tr.tick(0.5)
	}
	s := Begin(p, tr.now)
	s, a := Step(s, Observation{At: tr.now, Routers: map[string]Counted{"r": tr.counted}}, p)
	if a.Kind == Rollback || s.Requests[1] != 0 {
		t.Fatalf("old counts are evidence: %+v", a)
	}
	tr.counted = Counted{Boot: "b"}
	s, a = Step(s, tr.tick(0.5), p)
	if s.Requests[0]+s.Requests[1] != uint64(tr.perTick) {
		t.Errorf("after a restart %v requests", s.Requests)
	}
	if a.Kind != Rollback {
		s, a = Step(s, tr.tick(0.5), p)
	}
	if a.Kind != Rollback {
		t.Errorf("every request failed: %+v, %v", a, s.Guards[errorsGuard].Harm)
	}
}

// A judge that was away has not seen the time be healthy.
func TestAbsenceIsNotBaked(t *testing.T) {
	tr, p := newTraffic(12), policy()
	s := Begin(p, tr.now)
	s, _ = Step(s, tr.tick(0.1), p)
	tr.now = tr.now.Add(8 * time.Second)
	s, _ = Step(s, tr.tick(0.1), p)
	if s.Healthy > maxTick+time.Second {
		t.Errorf("%v healthy", s.Healthy)
	}
}

func TestStepLeavesEarlierStatesAlone(t *testing.T) {
	tr, p := newTraffic(13), policy()
	s := Begin(p, tr.now)
	s, _ = Step(s, tr.tick(0.1), p)
	before, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	Step(s, tr.tick(0.1), p)
	after, _ := json.Marshal(s)
	if string(before) != string(after) {
		t.Error("a step changed the state it came from")
	}
	var back State
	if err := json.Unmarshal(before, &back); err != nil {
		t.Fatal(err)
	}
	o := tr.tick(0.1)
	x, ax := Step(s, o, p)
	y, ay := Step(back, o, p)
	bx, _ := json.Marshal(x)
	by, _ := json.Marshal(y)
	if string(bx) != string(by) || ax != ay {
		t.Error("a state that was stored and read back steps differently")
	}
}

// Of 2,000 canaries of a candidate that is exactly as good as stable at most α
// plus three standard errors roll back, although both have bad moments.
func TestFalseRollbacks(t *testing.T) {
	const runs = 2000
	back, promoted := 0, 0
	for i := range runs {
		tr := newTraffic(1000 + uint64(i))
		p := policy()
		_, a := play(tr, p, 200, func(k int, _ State, _ Action) {
			bad := rates{0.05, 0.05, 0.002, 0}
			if k%17 < 3 {
				bad = rates{0.3, 0.2, 0.004, 0}
			}
			tr.stable, tr.cand = bad, bad
		})
		switch a.Kind {
		case Rollback:
			back++
		case Promote:
			promoted++
		}
	}
	if limit := alpha + 3*math.Sqrt(alpha*(1-alpha)/runs); float64(back)/runs > limit {
		t.Errorf("%d of %d good candidates were rolled back", back, runs)
	}
	if promoted < runs/2 {
		t.Errorf("%d of %d good candidates were promoted: a judge that never decides is never wrong", promoted, runs)
	}
}
