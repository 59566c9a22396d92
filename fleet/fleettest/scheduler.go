package fleettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"llmops/fleet"
)

// Serve is a group whose replicas answer GET /health with 200 and write
// "serving" to their output. ends is a group whose process ends at once.
type Serve func(name string) fleet.Group

// Scheduler runs the suite of fleet.Scheduler. serve and ends make groups of a
// program of the caller's.
func Scheduler(t *testing.T, s fleet.Scheduler, serve, ends Serve) {
	t.Run("a job lives and dies", func(t *testing.T) {
		j := fleet.Job{Name: "life", Version: "v1", Kind: fleet.Engine, Groups: []fleet.Group{serve("main")}, Meta: map[string]string{"alias": "a"}}
		j.Groups[0].Count = 2
		plan, err := s.Plan(t.Context(), j)
		if err != nil || !plan.Fits || len(plan.Changes) == 0 {
			t.Fatalf("Plan = %+v, %v", plan, err)
		}
		rev, err := s.Apply(t.Context(), j, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Apply(t.Context(), j, 0); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("Apply at an old revision: %v", err)
		}
		st := Await(t, s, "life", healthy(2))
		if st.Rev != rev || st.Job.Meta["alias"] != "a" {
			t.Errorf("status %+v, want revision %d", st, rev)
		}
		if now, err := s.Status(t.Context(), "life"); err != nil || now.Rev != rev || len(now.Replicas) != 2 {
			t.Errorf("Status = %+v, %v; the watch saw %+v", now, err, st)
		}
		nonces := map[string]bool{}
		for _, r := range st.Replicas {
			nonces[r.Nonce] = true
			res, err := http.Get("http://" + r.Addr + "/health")
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			logs, err := s.Logs(t.Context(), r.ID, false)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(logs)
			if err := errors.Join(err, logs.Close()); err != nil || !strings.Contains(string(b), "serving") {
				t.Errorf("logs of %s are %q, %v", r.ID, b, err)
			}
		}
		if len(nonces) != 2 {
			t.Errorf("nonces %v are not two", nonces)
		}

		all, err := s.All(t.Context(), "li")
		if err != nil || len(all) != 1 || all[0].Rev != st.Rev || len(all[0].Replicas) != 2 || all[0].Job.Version != "v1" {
			t.Errorf("All = %+v, %v", all, err)
		}
		if all, err = s.All(t.Context(), "lif-"); err != nil || len(all) != 0 {
			t.Errorf("All of another name = %+v, %v", all, err)
		}

		if rev, err = s.Scale(t.Context(), "life", "main", 1, rev); err != nil {
			t.Fatal(err)
		}
		Await(t, s, "life", func(st fleet.Status) bool { return len(st.Replicas) == 1 })
		// Counts are kept, so that another one is no change.
		other := j
		other.Groups = slices.Clone(j.Groups)
		other.Groups[0].Count++
		for _, same := range []fleet.Job{j, other} {
			if p, err := s.Plan(t.Context(), same); err != nil || len(p.Changes) > 0 {
				t.Errorf("Plan of what is registered, with another count: %+v, %v", p, err)
			}
		}
		j.Version = "v2"
		if _, err = s.Apply(t.Context(), j, rev); err != nil {
			t.Fatal(err)
		}
		st = Await(t, s, "life", func(st fleet.Status) bool { return st.Job.Version == "v2" })
		if st.Job.Groups[0].Count != 1 {
			t.Errorf("Apply changed the count of a known group to %d", st.Job.Groups[0].Count)
		}
		for range 2 {
			if err := s.Stop(t.Context(), "life"); err != nil {
				t.Fatal(err)
			}
		}
		Await(t, s, "life", func(st fleet.Status) bool { return len(st.Replicas) == 0 })
		if _, err := s.Scale(t.Context(), "life", "main", 1, rev); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Scale of a job that is gone: %v", err)
		}
	})

	t.Run("a process that ends is started again and says why", func(t *testing.T) {
		j := fleet.Job{Name: "ends", Version: "v1", Kind: fleet.Engine, Groups: []fleet.Group{ends("main")}}
		j.Groups[0].Count = 1
		if _, err := s.Apply(t.Context(), j, 0); err != nil {
			t.Fatal(err)
		}
		Await(t, s, "ends", func(st fleet.Status) bool {
			return len(st.Replicas) == 1 && st.Replicas[0].Starts > 1 && st.Replicas[0].State == fleet.Failed && st.Replicas[0].Reason != ""
		})
		if err := s.Stop(t.Context(), "ends"); err != nil {
			t.Fatal(err)
		}
		Await(t, s, "ends", func(st fleet.Status) bool { return len(st.Replicas) == 0 })
	})

	t.Run("what cannot be", func(t *testing.T) {
		if _, err := s.Logs(t.Context(), "no/such-0", false); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Logs of nothing: %v", err)
		}
		if st, err := s.Status(t.Context(), "no-such"); err != nil || st.Rev != 0 || len(st.Replicas) > 0 {
			t.Errorf("Status of nothing = %+v, %v", st, err)
		}
		if _, err := s.Apply(t.Context(), fleet.Job{Name: "empty"}, 0); err == nil {
			t.Error("a job without groups was taken")
		}
		g := serve("main")
		g.GPU = fleet.Need{Kind: "no-such-gpu", Count: 1}
		if p, err := s.Plan(t.Context(), fleet.Job{Name: "gpu", Groups: []fleet.Group{g}}); err != nil || p.Fits || len(p.Reasons) == 0 {
			t.Errorf("a GPU that is nowhere: %+v, %v", p, err)
		}
		if n, err := s.Nodes(t.Context()); err != nil || len(n) == 0 {
			t.Errorf("Nodes = %v, %v", n, err)
		}
	})
}

func healthy(n int) func(fleet.Status) bool {
	return func(st fleet.Status) bool {
		for _, r := range st.Replicas {
			if r.State != fleet.Healthy {
				return false
			}
		}
		return len(st.Replicas) == n
	}
}

// Await watches the job until ok says so, and returns the status then.
func Await(t *testing.T, s fleet.Scheduler, job string, ok func(fleet.Status) bool) fleet.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	enough := errors.New("enough")
	var last fleet.Status
	err := s.Watch(ctx, job, func(st fleet.Status) error {
		if st.Job.Name != job {
			return nil
		}
		if last = st; ok(st) {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(fmt.Errorf("job %s ended up as %+v: %w", job, last, err))
	}
	return last
}
