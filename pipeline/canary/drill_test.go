package canary

import (
	"context"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
)

// drill rehearses a rollback from v0 to v1 on the bench.
func (b *bench) drill(ctx context.Context, p DrillPolicy, tell func(DrillResult)) (DrillResult, error) {
	b.t.Helper()
	epoch := b.claim("drill")
	p.Live, p.Standby = "v0", "v1"
	return Drill(ctx, b.control, p, "run-1", epoch, tell)
}

// home fails the test unless all traffic is where it was, without a lease.
func (b *bench) home() {
	b.t.Helper()
	d, _, err := b.control.Read(b.t.Context())
	if err != nil || d.Lease != nil || d.Live() != "v0" || d.Run != "run-1" {
		b.t.Errorf("route %+v, %v", d, err)
	}
	b.until("every router is back", func() bool {
		for _, g := range b.gateways {
			if s, ok := g.Load().State(alias); !ok || s.Shares["v0"] != route.Million {
				return false
			}
		}
		return true
	})
}

func quiet(DrillResult) {}

func TestDrill(t *testing.T) {
	b := newBench(t, 2)
	b.traffic(10 * time.Millisecond)
	res, err := b.drill(t.Context(), DrillPolicy{Share: 1, For: 2 * time.Second, Max: 20 * time.Second}, quiet)
	if err != nil || res.Verdict.Outcome != evidence.Pass {
		t.Fatalf("%+v, %v", res.Verdict, err)
	}
	if res.There == 0 || len(res.Back.Acked) != 2 || b.cand.asked.Load() == 0 {
		t.Errorf("there after %v, back %+v, the standby was asked %d times", res.There, res.Back, b.cand.asked.Load())
	}
	b.home()
}

// A standby that fails what it is sent gives it back at once.
func TestDrillEndsWhenTheStandbyFails(t *testing.T) {
	b := newBench(t, 2)
	b.cand.broken.Store(true)
	b.traffic(10 * time.Millisecond)
	res, err := b.drill(t.Context(), DrillPolicy{Share: 0.5, For: time.Minute, Max: time.Minute}, quiet)
	if err != nil || res.Verdict.Outcome != evidence.Fail {
		t.Fatalf("%+v, %v", res.Verdict, err)
	}
	b.home()
}

// Without requests nothing is shown: that is not a pass.
func TestDrillWithoutTraffic(t *testing.T) {
	b := newBench(t, 1)
	res, err := b.drill(t.Context(), DrillPolicy{Share: 1, For: time.Second, Max: 2 * time.Second}, quiet)
	if err != nil || res.Verdict.Outcome != evidence.Inconclusive {
		t.Fatalf("%+v, %v", res.Verdict, err)
	}
	b.home()
}

// Interrupted, or overtaken by somebody who rolls back: the one returns the traffic,
// the other has it.
func TestDrillInterrupted(t *testing.T) {
	b := newBench(t, 1)
	b.traffic(10 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.drill(ctx, DrillPolicy{Share: 1, For: time.Minute, Max: time.Minute}, func(DrillResult) { cancel() })
	if err == nil {
		t.Error("no error")
	}
	b.home()

	_, err = b.drill(t.Context(), DrillPolicy{Share: 1, For: time.Minute, Max: time.Minute}, func(DrillResult) {
		b.change(func(d route.Doc) (route.Doc, error) { return route.Rollback(d, "v1") })
	})
	if !Fenced(err) || !strings.Contains(err.Error(), "taken over") {
		t.Errorf("after a rollback: %v", err)
	}
	if d, _, _ := b.control.Read(t.Context()); d.Live() != "v1" {
		t.Errorf("the rollback was undone: %+v", d)
	}
}
