package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
)

// supervise ends the replicas of jobs that go away, as a supervisor does.
func supervise(t *testing.T, d Deps) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		_ = d.Store.Watch(ctx, "job/", func(doc fleet.Doc) error {
			if doc.Body != nil {
				return nil
			}
			r, err := d.Store.Get(ctx, "replica/"+strings.TrimPrefix(doc.Name, "job/")+"/main-0")
			if err == nil {
				err = d.Store.Delete(ctx, r.Name, r.Rev)
			}
			return err
		})
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
	st, err := d.Scheduler.(interface {
		Status(context.Context, string) (fleet.Status, error)
	}).Status(t.Context(), JobName("a.model", "v0"))
	if err != nil {
		t.Fatal(err)
	}
	d.Listen = st.Replicas[0].Addr
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Deps: d, Spec: Spec{Name: "a.model", Standby: time.Hour}, Run: run, Stage: StagePromote, j: j}
	epoch, err := claimRoute(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	finished(t, j, StageDeploy, DeployOutput{Parent: Arm{Version: Version{Name: "v1"}}, Candidate: Arm{Version: Version{Name: "v2"}}})
	finished(t, j, StageCanary, CanaryOutput{Epoch: epoch})
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
