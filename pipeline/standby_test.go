package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline/canary"
	"llmops/serving/openai"
	"llmops/serving/route"
)

// standbyFleet is an alias whose v1 is live and whose v0, an engine of one
// token, is kept as standby.
func standbyFleet(t *testing.T, until time.Time) (d Deps, broken *atomic.Bool) {
	t.Helper()
	d, broken = testDeps(t), new(atomic.Bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			openai.WriteError(w, http.StatusInternalServerError, &openai.Error{Message: "out of memory"})
			return
		}
		_ = json.NewEncoder(w).Encode(openai.ChatResponse{Choices: []openai.ChatChoice{{}}, Usage: &openai.Usage{CompletionTokens: 1}})
	}))
	t.Cleanup(s.Close)
	d.Scheduler = local.NewScheduler(d.Store, d.Dir)
	d.Admins = func(context.Context) (map[string]*route.Admin, error) { return nil, nil }
	first := route.New("a.model", "r", "v0")
	doc, err := route.Promote(first, first.Epoch, "v1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := route.Encode(doc)
	if err != nil {
		t.Fatal(err)
	}
	job := JobName("a.model", "v0")
	rep := fleet.Replica{ID: job + "/main-0", Addr: strings.TrimPrefix(s.URL, "http://"), State: fleet.Healthy}
	for name, b := range map[string][]byte{
		route.Name("a.model"):                   body,
		"replica/" + rep.ID:                     mustJSON(rep),
		standbyPrefix + fleet.Escape("a.model"): mustJSON(Standby{Alias: "a.model", Version: "v0", Until: until}),
	} {
		if _, err := d.Store.Put(t.Context(), name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Scheduler.Apply(t.Context(), fleet.Job{Name: job, Groups: []fleet.Group{{Name: "main", Count: 1, Argv: []string{"x"}}}}, 0); err != nil {
		t.Fatal(err)
	}
	return d, broken
}

func TestStandbyMustProduceTokens(t *testing.T) {
	d, broken := standbyFleet(t, time.Now().Add(time.Hour))
	if notes, err := TendStandbys(t.Context(), d); err != nil || len(notes) > 0 {
		t.Fatalf("%v, %v", notes, err)
	}
	b, _, err := Standbys(t.Context(), d.Store)
	if err != nil || len(b) != 1 || b[0].Probed.IsZero() || b[0].Broken != "" {
		t.Fatalf("%+v, %v", b, err)
	}
	broken.Store(true)
	for i, want := range []int{1, 0} { // said once, not every minute
		if notes, err := TendStandbys(t.Context(), d); err != nil || len(notes) != want {
			t.Errorf("look %d: %v, %v", i, notes, err)
		}
	}
	if b, _, _ := Standbys(t.Context(), d.Store); !strings.Contains(b[0].Broken, "out of memory") {
		t.Errorf("%+v", b)
	}
}

func TestStandbyEndsWithItsTime(t *testing.T) {
	d, _ := standbyFleet(t, time.Now().Add(-time.Second))
	supervise(t, d)
	notes, err := TendStandbys(t.Context(), d)
	if err != nil || len(notes) != 1 {
		t.Fatalf("%v, %v", notes, err)
	}
	r, err := d.Store.Get(t.Context(), route.Name("a.model"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := route.Decode(r.Body)
	if err != nil || doc.Standby != "" || doc.Live() != "v1" {
		t.Errorf("route %+v, %v", doc, err)
	}
	if _, err := d.Store.Get(t.Context(), "job/"+JobName("a.model", "v0")); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the job is still there: %v", err)
	}
	if _, err := TendStandbys(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if b, _, _ := Standbys(t.Context(), d.Store); len(b) != 0 {
		t.Errorf("still kept: %+v", b)
	}
}

// Whoever took the standby out of the route, nothing is left running that it does
// not name.
func TestStandbyThatIsNoneAnyMore(t *testing.T) {
	for name, c := range map[string]struct {
		change func(route.Doc) (route.Doc, error)
		gone   string
	}{
		"expired, and its watch died": {func(d route.Doc) (route.Doc, error) { d.Standby = ""; return d, nil }, "v0"},
		"rolled back":                 {func(d route.Doc) (route.Doc, error) { return route.Rollback(d, "") }, "v1"},
	} {
		d, _ := standbyFleet(t, time.Now().Add(time.Hour))
		supervise(t, d)
		rep, err := d.Store.Get(t.Context(), "replica/"+JobName("a.model", "v0")+"/main-0")
		if err != nil {
			t.Fatal(err)
		}
		v1 := JobName("a.model", "v1")
		if _, err := d.Scheduler.Apply(t.Context(), fleet.Job{Name: v1, Groups: []fleet.Group{{Name: "main", Count: 1, Argv: []string{"x"}}}}, 0); err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string][]byte{"replica/" + v1 + "/main-0": rep.Body, versionsName("a.model"): mustJSON([]Version{{Name: "v0"}, {Name: "v1"}})} {
			if _, err := d.Store.Put(t.Context(), name, body, 0); err != nil {
				t.Fatal(err)
			}
		}
		control := &canary.Control{Store: d.Store, Alias: "a.model", Routers: d.Admins}
		if _, _, err := control.Change(t.Context(), c.change); err != nil {
			t.Fatal(err)
		}
		// A run that is under way may be about to route one of them.
		run := begin(t, d, "here")
		if _, err := TendStandbys(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Store.Get(t.Context(), "job/"+JobName("a.model", c.gone)); err != nil {
			t.Errorf("%s: stopped under run %s: %v", name, run, err)
		}
		j, err := Claim(t.Context(), d, run, "test")
		if err != nil {
			t.Fatal(err)
		}
		if err := j.release(t.Context(), Superseded, "over"); err != nil {
			t.Fatal(err)
		}
		if notes, err := TendStandbys(t.Context(), d); err != nil || len(notes) != 1 || !strings.Contains(notes[0], c.gone) {
			t.Errorf("%s: %v, %v", name, notes, err)
		}
		for _, v := range []string{"v0", "v1"} {
			_, err := d.Store.Get(t.Context(), "job/"+JobName("a.model", v))
			if gone := errors.Is(err, fleet.ErrNotFound); gone != (v == c.gone) {
				t.Errorf("%s: job of %s is gone: %v", name, v, gone)
			}
		}
		if b, _, err := Standbys(t.Context(), d.Store); err != nil || len(b) != 0 {
			t.Errorf("%s: still kept: %+v, %v", name, b, err)
		}
	}
}
