package nomad

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/fleettest"
)

// A replica is what the task that serves is, and until that starts what brings its weights.
func TestReplicaOfTwoTasks(t *testing.T) {
	event := func(text string) []*api.TaskEvent {
		return []*api.TaskEvent{{Type: api.TaskTerminated, DisplayMessage: text}}
	}
	began := time.Unix(9, 0)
	done := &api.TaskState{State: "dead", StartedAt: began, FinishedAt: began}
	yes := true
	for name, c := range map[string]struct {
		main, weights *api.TaskState
		healthy       bool
		state         fleet.State
		reason        string
		starts        int
	}{
		"brings":       {&api.TaskState{State: "pending"}, &api.TaskState{State: "running", StartedAt: began, Events: event("started")}, false, fleet.Pending, "bringing its weights: started", 1},
		"fails":        {&api.TaskState{State: "pending"}, &api.TaskState{State: "pending", Restarts: 2, Events: event("no such bucket")}, false, fleet.Failed, "bringing its weights: no such bucket", 2},
		"failed":       {&api.TaskState{State: "pending"}, &api.TaskState{State: "dead", Failed: true, Restarts: 3, Events: event("no such bucket")}, false, fleet.Failed, "bringing its weights: no such bucket", 3},
		"loads":        {&api.TaskState{State: "running", StartedAt: began}, done, false, fleet.Running, "", 1},
		"serves":       {&api.TaskState{State: "running", StartedAt: began}, done, true, fleet.Healthy, "", 1},
		"ended":        {&api.TaskState{State: "pending", Restarts: 1, StartedAt: began, Events: event("exit 1")}, done, false, fleet.Failed, "exit 1", 2},
		"without":      {&api.TaskState{State: "running", StartedAt: began}, nil, true, fleet.Healthy, "", 1},
		"another file": {nil, nil, false, fleet.Running, "", 0},
	} {
		a := &api.AllocationListStub{ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{}}
		if c.main != nil {
			a.TaskStates["main"] = c.main
		}
		if c.weights != nil {
			a.TaskStates["weights"] = c.weights
		}
		if c.healthy {
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: &yes}
		}
		for range 20 { // maps have no order
			if r := replica(a, false); r.State != c.state || r.Reason != c.reason || r.Starts != c.starts {
				t.Fatalf("%s: %s, %q, %d starts, want %s, %q, %d", name, r.State, r.Reason, r.Starts, c.state, c.reason, c.starts)
			}
		}
	}
}

// What brings the weights ends before the replica starts; what fails at it is said.
func TestFetch(t *testing.T) {
	s := scheduler(t, agent(t))
	there := filepath.Join(t.TempDir(), "weights")
	g := group("")("main")
	serve := strings.Join(g.Argv, " ")
	g.Argv = []string{"/bin/sh", "-c", "test -e " + there + " && exec " + serve}
	g.Fetch = []string{"/bin/sh", "-c", "echo fetching && touch " + there}
	if _, err := s.Apply(t.Context(), one("fetches", g), 0); err != nil {
		t.Fatal(err)
	}
	defer stop(t, s, "fetches")
	st := fleettest.Await(t, s, "fetches", func(st fleet.Status) bool {
		if len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Failed {
			t.Errorf("on the way: %+v", st.Replicas[0])
		}
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Healthy
	})
	if st.Replicas[0].Starts != 1 {
		t.Errorf("it was started %d times", st.Replicas[0].Starts)
	}
	if _, err := os.Stat(there); err != nil {
		t.Error(err)
	}
	logs, err := s.Logs(t.Context(), st.Replicas[0].ID, false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(logs)
	if err != nil || !strings.HasPrefix(string(text), "fetching") {
		t.Errorf("%q, %v", text, err)
	}

	g.Fetch = []string{"/bin/sh", "-c", "exit 7"}
	if _, err := s.Apply(t.Context(), one("fetches-none", g), 0); err != nil {
		t.Fatal(err)
	}
	defer stop(t, s, "fetches-none")
	fleettest.Await(t, s, "fetches-none", func(st fleet.Status) bool {
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Failed && strings.Contains(st.Replicas[0].Reason, "bringing its weights") && strings.Contains(st.Replicas[0].Reason, "7")
	})
}
