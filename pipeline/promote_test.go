package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/serving/route"
	"llmops/serving/scale"
)

// supervise ends the replicas of jobs that are gone, as a supervisor does. It
// looks again and again: a watch would not tell of a job that went away before
// the watch had begun.
func supervise(t *testing.T, d Deps) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			replicas, _ := d.Store.List(ctx, "replica/")
			for _, r := range replicas {
				job, _, _ := strings.Cut(strings.TrimPrefix(r.Name, "replica/"), "/")
				if _, err := d.Store.Get(ctx, "job/"+job); errors.Is(err, fleet.ErrNotFound) {
					_ = d.Store.Delete(ctx, r.Name, r.Rev)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// finished puts a stage's output on record as if the stage had run and passed.
func finished(t *testing.T, j *Journal, stage string, output any) {
	t.Helper()
	r := Record{Stage: stage, Verdict: evidence.Verdict{Outcome: evidence.Pass}, Output: mustJSON(output)}
	digest, err := putJSON(t.Context(), j.d.Blobs, r)
	if err != nil {
		t.Fatal(err)
	}
	j.head.setStage(StageHead{Name: stage, Outcome: evidence.Pass, Record: digest})
}

// The version that a promotion pushes out of the route, here the standby of the
// release before, is taken off the fleet: nothing would ever stop it later.
func TestPromoteStopsWhatTheRouteNoLongerNames(t *testing.T) {
	d, _ := standbyFleet(t, time.Now().Add(time.Hour)) // v1 is live, v0 its standby
	supervise(t, d)
	rep, err := d.Store.Get(t.Context(), "replica/"+JobName("a.model", "v0")+"/main-0")
	if err != nil {
		t.Fatal(err)
	}
	vs := []Version{{Name: "v0"}}
	for _, v := range []string{"v1", "v2"} {
		vs = append(vs, Version{Name: v})
		job := JobName("a.model", v)
		if _, err := d.Scheduler.Apply(t.Context(), fleet.Job{Name: job, Groups: []fleet.Group{{Name: "main", Count: 1, Argv: []string{"x"}}}}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Store.Put(t.Context(), "replica/"+job+"/main-0", rep.Body, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Store.Put(t.Context(), versionsName("a.model"), mustJSON(vs), 0); err != nil {
		t.Fatal(err)
	}
	st, err := d.Scheduler.Status(t.Context(), JobName("a.model", "v0"))
	if err != nil {
		t.Fatal(err)
	}
	routerAt(t, d, st.Replicas[0].Addr)
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Deps: d, Spec: Spec{Name: "a.model", Standby: time.Hour}, Run: run, Stage: StagePromote, j: j}
	claimed, err := claimRoute(t.Context(), a, Arm{Version: Version{Name: "v2"}})
	if err != nil {
		t.Fatal(err)
	}
	finished(t, j, StageDeploy, DeployOutput{Parent: Arm{Version: Version{Name: "v1"}}, Candidate: Arm{Version: Version{Name: "v2"}}})
	finished(t, j, StageCanary, CanaryOutput{Epoch: claimed.Epoch})
	v, err := runPromote(t.Context(), a)
	if err != nil || v.Outcome != evidence.Pass {
		t.Fatalf("%+v, %v", v, err)
	}
	doc, _, err := a.control().Read(t.Context())
	if err != nil || doc.Live() != "v2" || doc.Standby != "v1" {
		t.Fatalf("route %+v, %v", doc, err)
	}
	for version, want := range map[string]bool{"v0": false, "v1": true, "v2": true} {
		_, err := d.Store.Get(t.Context(), "job/"+JobName("a.model", version))
		if there := !errors.Is(err, fleet.ErrNotFound); there != want {
			t.Errorf("job of %s is there: %v, want %v", version, there, want)
		}
	}
	if b, _, err := Standbys(t.Context(), d.Store); err != nil || len(b) != 1 || b[0].Version != "v1" {
		t.Errorf("standbys %+v, %v", b, err)
	}
}

// Whoever brings a run's deployment back into its state, it is still the run that
// began the alias.
func TestFirstStaysFirst(t *testing.T) {
	d, _ := standbyFleet(t, time.Now())
	st, err := d.Scheduler.Status(t.Context(), JobName("a.model", "v0"))
	if err != nil {
		t.Fatal(err)
	}
	routerAt(t, d, st.Replicas[0].Addr)
	doc, err := d.Store.Get(t.Context(), route.Name("a.model"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Store.Delete(t.Context(), doc.Name, doc.Rev); err != nil {
		t.Fatal(err)
	}
	attempt := func(run string) *Attempt {
		t.Helper()
		j, err := Claim(t.Context(), d, run, "test")
		if err != nil {
			t.Fatal(err)
		}
		return &Attempt{Deps: d, Spec: Spec{Name: "a.model"}, Run: run, Stage: StageDeploy, j: j}
	}
	first := func(a *Attempt) bool {
		t.Helper()
		var out DeployOutput
		if err := firstRoute(t.Context(), a, "v0", route.Caps{}, &out); err != nil {
			t.Fatal(err)
		}
		finished(t, a.j, StageDeploy, out)
		return out.First
	}
	a := attempt(begin(t, d, "here"))
	if !first(a) {
		t.Error("the first run is not the first")
	}
	a.j.head.Stages = nil // its driver died before it recorded the stage
	if !first(a) {
		t.Error("after a restart it is not")
	}
	if _, err := claimRoute(t.Context(), a, Arm{Version: Version{Name: "v0"}}); err != nil {
		t.Fatal(err)
	}
	if !first(a) {
		t.Error("once it has taken the route it is not")
	}
	if err := a.j.release(t.Context(), Refused, "eval"); err != nil {
		t.Fatal(err)
	}
	if first(attempt(begin(t, d, "elsewhere"))) {
		t.Error("the second run is the first, too")
	}
}

// routerAt puts a router on the fleet that answers at addr.
func routerAt(t *testing.T, d Deps, addr string) {
	t.Helper()
	j := fleet.Job{Name: routerName, Kind: fleet.Router, Groups: []fleet.Group{{Name: "main", Count: 1, Argv: []string{"x"}, Addr: addr, Admin: addr}}}
	if _, err := d.Store.Put(t.Context(), "job/"+routerName, mustJSON(j), 0); err != nil {
		t.Fatal(err)
	}
	r := fleet.Replica{ID: routerName + "/main-0", Group: "main", Addr: addr, Admin: addr, State: fleet.Healthy}
	if _, err := d.Store.Put(t.Context(), "replica/"+r.ID, mustJSON(r), 0); err != nil {
		t.Fatal(err)
	}
}

// How an alias scales is what its live version's file says: a candidate that is
// refused changes nothing of it.
func TestScalingComesWithPromotion(t *testing.T) {
	d := testDeps(t)
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Deps: d, Spec: Spec{Name: "a.model", Scale: &scale.Policy{Min: 1, Max: 3, KV: 0.8, Up: time.Minute, Down: time.Minute}}, Run: run, Stage: StagePromote, j: j}
	for range 2 {
		if err := keepScaling(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Scalings(t.Context(), d.Store)
	if err != nil || len(all) != 1 || all[0].Alias != "a.model" || all[0].Policy.Max != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	a.Spec.Scale = nil
	for range 2 {
		if err := keepScaling(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := Scalings(t.Context(), d.Store); err != nil || len(all) != 0 {
		t.Errorf("without scale: %+v, %v", all, err)
	}
}
