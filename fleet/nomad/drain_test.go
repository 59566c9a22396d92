package nomad

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/drain"
	"llmops/fleet/fleettest"
	"llmops/fleet/nomad/nomadtest"
	"llmops/fleet/nomad/nomadtest/recorded"
	"llmops/jobs"
)

// On two clients: the node that goes is replaced before it does, so that at no moment
// fewer replicas answer than before; on the last client the drain is refused.
func TestMakeBeforeBreakDrain(t *testing.T) {
	t.Run("recorded", func(t *testing.T) {
		testMakeBeforeBreak(t, replay(t, recorded.Options{Nodes: []recorded.Node{{Name: "test"}, {Name: "test-2"}}}))
	})
	t.Run("agent", func(t *testing.T) {
		c, stop, err := nomadtest.Cluster(nomadtest.Binary(t), 2)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		testMakeBeforeBreak(t, c)
	})
}

func testMakeBeforeBreak(t *testing.T, c *api.Client) {
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := NewScheduler(c, Options{Files: jobs.Files, Bin: bin})
	j := fleet.Job{Name: "kept", Version: "v1", Kind: fleet.Engine, Groups: []fleet.Group{group("")("main")}}
	j.Groups[0].Count = 2
	if _, err := s.Apply(t.Context(), j, 0); err != nil {
		t.Fatal(err)
	}
	st := fleettest.Await(t, s, "kept", func(st fleet.Status) bool {
		return len(st.Replicas) == 2 && st.Replicas[0].State == fleet.Healthy && st.Replicas[1].State == fleet.Healthy
	})
	node := st.Replicas[0].Node

	answers := func(r fleet.Replica) error {
		res, err := http.Get("http://" + r.Addr + "/health")
		if err == nil {
			err = res.Body.Close()
		}
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	fewest := make(chan int)
	go func() { // counts who answers, all the while
		least := 2
		for ctx.Err() == nil {
			st, err := s.Status(ctx, "kept")
			if err != nil {
				continue
			}
			n := 0
			for _, r := range st.Replicas {
				if r.State == fleet.Healthy && answers(r) == nil {
					n++
				}
			}
			if ctx.Err() == nil {
				least = min(least, n)
			}
		}
		fewest <- least
	}()
	var phases []drain.Phase
	o := drain.Options{
		Reason: "XID 79", Patience: time.Minute, Deadline: time.Minute,
		Probe: func(_ context.Context, _ fleet.Job, r fleet.Replica) error { return answers(r) },
		Tell:  func(s drain.State) { phases = append(phases, s.Phase) },
	}
	state, err := drain.Run(t.Context(), s, node, o)
	cancel()
	if least := <-fewest; least < 2 {
		t.Errorf("at a moment only %d replicas answered", least)
	}
	// A replacement that is there at the first look is not waited for.
	passed := slices.DeleteFunc(slices.Clone(phases), func(p drain.Phase) bool { return p == drain.Waiting })
	if err != nil || state.Phase != drain.Done || fmt.Sprint(passed) != "[growing draining done]" {
		t.Fatalf("%+v, %v, phases %v", state, err, phases)
	}
	st = fleettest.Await(t, s, "kept", func(st fleet.Status) bool { return len(st.Replicas) == 2 && st.Job.Groups[0].Count == 2 })
	for _, r := range st.Replicas {
		if r.Node == node {
			t.Errorf("replica %s is on the node that was drained", r.ID)
		}
	}
	other := st.Replicas[0].Node
	if state, err = drain.Run(t.Context(), s, other, o); err != nil || state.Phase != drain.Refused {
		t.Errorf("the last node: %+v, %v", state, err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.ID == node && (n.Eligible || n.Reason != "XID 79") || n.ID == other && !n.Eligible {
			t.Errorf("node %+v", n)
		}
	}
	if err := s.Drain(t.Context(), node, "", 0); err != nil {
		t.Error(err)
	}
}
