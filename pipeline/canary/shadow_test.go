package canary

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
	"llmops/serving/slo"
)

func shadowPolicy() ShadowPolicy {
	return ShadowPolicy{Stable: "v0", Candidate: "v1", Share: 0.8, For: 2 * time.Second, Max: 10, Same: true,
		SLO: slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: 2 * time.Second}}}
}

func (b *bench) mirrored() bool {
	for _, g := range b.gateways {
		if s, _ := g.Load().State(alias); len(s.Mirror) > 0 {
			return true
		}
	}
	return false
}

func TestShadow(t *testing.T) {
	other, reason := "no", "word for word"
	for name, c := range map[string]struct {
		spoil func(*engine)
		want  evidence.Outcome
		why   string
	}{
		"equal answers pass":        {func(*engine) {}, evidence.Pass, ""},
		"failing copies fail":       {func(e *engine) { e.broken.Store(true) }, evidence.Fail, "copies fail"},
		"different answers fail":    {func(e *engine) { e.answer.Store(&other) }, evidence.Fail, reason},
		"copies that are slow fail": {func(e *engine) { e.delay.Store(int64(2500 * time.Millisecond)) }, evidence.Fail, "wait longer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, h := newBench(t, 2), &host{}
			b.traffic(15 * time.Millisecond)
			c.spoil(b.cand)
			began := time.Now()
			res, err := Shadow(t.Context(), b.control, shadowPolicy(), b.claim("run-1"), h.hooks(), func(ShadowResult) {})
			if err != nil || res.Verdict.Outcome != c.want {
				t.Fatalf("ended with %+v, %v", res.Verdict, err)
			}
			if d := res.Verdict.Deciding(); c.why != "" && (len(d) == 0 || !strings.Contains(d[0].Claim, c.why)) {
				t.Errorf("decided by %+v", d)
			}
			if took := time.Since(began); c.want == evidence.Pass && took < shadowPolicy().For {
				t.Errorf("passed after %v", took)
			}
			if fmt.Sprint(h.intents) != "[mirror 80% to v1 end the mirror]" || b.mirrored() {
				t.Errorf("intents %v, mirrored %v", h.intents, b.mirrored())
			}
			if d, _, err := b.control.Read(t.Context()); err != nil || d.Lease != nil {
				t.Errorf("the route is %+v, %v", d, err)
			}
			if n := b.answers(b.gateways[0], 30); n["v0"] != 30 {
				t.Errorf("clients were answered by %v", n)
			}
		})
	}
}

// A shadow without traffic says so when its time is over.
func TestShadowWithoutTraffic(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	p := shadowPolicy()
	p.For, p.Max = time.Second, 2
	res, err := Shadow(t.Context(), b.control, p, b.claim("run-1"), h.hooks(), func(ShadowResult) {})
	if err != nil || res.Verdict.Outcome != evidence.Inconclusive || b.mirrored() {
		t.Errorf("ended with %+v, %v", res.Verdict, err)
	}
}

// A router that is started anew is told again what to copy.
func TestShadowOutlastsItsRouter(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	b.traffic(15 * time.Millisecond)
	p := shadowPolicy()
	p.For = 4 * time.Second
	looks := 0
	res, err := Shadow(t.Context(), b.control, p, b.claim("run-1"), h.hooks(), func(ShadowResult) {
		if looks++; looks == 1 {
			b.gateways[0].restart()
		}
	})
	if err != nil || res.Verdict.Outcome != evidence.Pass || res.Copies.Total().Done < 20 {
		t.Errorf("ended with %+v after %d copies, %v", res.Verdict, res.Copies.Total().Done, err)
	}
	if fmt.Sprint(h.intents) != "[mirror 80% to v1 mirror 80% to v1 end the mirror]" {
		t.Errorf("intents %v", h.intents)
	}
}

// Somebody who takes the route while copies are made is left alone.
func TestShadowGivesWay(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	b.traffic(15 * time.Millisecond)
	p := shadowPolicy()
	p.For = time.Minute
	took := false
	_, err := Shadow(t.Context(), b.control, p, b.claim("run-1"), h.hooks(), func(ShadowResult) {
		if !took {
			took = true
			b.change(func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil })
		}
	})
	if !Fenced(err) {
		t.Errorf("ended with %v", err)
	}
}

// Nothing is mirrored when the intent cannot be put on record.
func TestShadowNeedsItsIntent(t *testing.T) {
	t.Parallel()
	b, h := newBench(t, 1), &host{}
	lost := errors.New("not mine")
	h.set(lost)
	if _, err := Shadow(context.WithoutCancel(t.Context()), b.control, shadowPolicy(), b.claim("run-1"), h.hooks(), func(ShadowResult) {}); !errors.Is(err, lost) || b.mirrored() {
		t.Errorf("ended with %v", err)
	}
}
