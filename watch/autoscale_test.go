package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/serving/route"
	"llmops/serving/scale"
	"llmops/serving/slo"
)

// scaled is a fleet on which version v1 of alias m is live with two replicas, v0 its
// standby with one. What the replicas say of their load is the test's.
type scaled struct {
	t       *testing.T
	h       *host
	store   *local.Store
	now     time.Time
	running atomic.Int64 // requests of each replica
	silent  atomic.Bool
	addr    string
}

// steady is a scheduler whose replicas, which no supervisor started, stay as they are.
type steady struct{ *local.Scheduler }

func (s steady) Status(ctx context.Context, job string) (fleet.Status, error) {
	st, err := s.Scheduler.Status(ctx, job)
	for i := range st.Replicas {
		st.Replicas[i].State = fleet.Healthy
	}
	return st, err
}

func newScaled(t *testing.T) *scaled {
	t.Helper()
	dir := t.TempDir()
	store, err := local.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &scaled{t: t, store: store, now: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.silent.Load() {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintf(w, "vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.1\n", s.running.Load())
	}))
	t.Cleanup(srv.Close)
	s.addr = strings.TrimPrefix(srv.URL, "http://")
	deps := pipeline.Deps{Store: store, Scheduler: steady{local.NewScheduler(store, dir)}, Now: func() time.Time { return s.now },
		Admins: func(context.Context) (map[string]*route.Admin, error) { return nil, nil }}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s.h = &host{o: Options{Store: store, Owner: "w", Deps: deps, Log: log}, leader: newLeader(store, "w", log), pasts: map[string][]past{}}
	s.h.leader.until.Store(int64(time.Hour))
	d, err := route.Promote(route.New("m", "r", "v0"), 1, "v1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := route.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	s.put(route.Name("m"), body)
	s.deploy("v0", 1)
	s.deploy("v1", 2)
	return s
}

func (s *scaled) put(name string, body []byte) {
	s.t.Helper()
	d, err := s.store.Get(s.t.Context(), name)
	if err != nil {
		d.Rev = 0
	}
	if _, err := s.store.Put(s.t.Context(), name, body, d.Rev); err != nil {
		s.t.Fatal(err)
	}
}

// deploy registers a version and has n replicas of it answer.
func (s *scaled) deploy(version string, n int) {
	s.t.Helper()
	job := pipeline.JobName("m", version)
	if s.count(version) == 0 {
		if _, err := s.h.o.Deps.Scheduler.Apply(s.t.Context(), fleet.Job{Name: job, Kind: fleet.Engine, Groups: []fleet.Group{{Name: "main", Count: n, Argv: []string{"x"}}}}, 0); err != nil {
			s.t.Fatal(err)
		}
	}
	for i := range n {
		id := fmt.Sprintf("%s/main-%d", job, i)
		b, err := json.Marshal(fleet.Replica{ID: id, Group: "main", Addr: s.addr, State: fleet.Healthy})
		if err != nil {
			s.t.Fatal(err)
		}
		s.put("replica/"+id, b)
	}
}

func (s *scaled) count(version string) int {
	s.t.Helper()
	st, err := s.h.o.Deps.Scheduler.Status(s.t.Context(), pipeline.JobName("m", version))
	if err != nil {
		s.t.Fatal(err)
	}
	if st.Rev == 0 {
		return 0
	}
	return st.Job.Groups[0].Count
}

var scaling = pipeline.Scaling{Alias: "m", Engine: "embedded", TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second},
	Policy: scale.Policy{Min: 1, Max: 8, Streams: 10, Up: time.Second, Down: time.Minute}}

func (s *scaled) look() {
	s.t.Helper()
	s.now = s.now.Add(scaleEvery)
	if err := s.h.scaleAlias(s.t.Context(), scaling); err != nil {
		s.t.Fatal(err)
	}
}

func TestScalesWithTheLoad(t *testing.T) {
	s := newScaled(t)
	s.running.Store(20)
	s.look()
	if live, standby := s.count("v1"), s.count("v0"); live != 4 || standby != 5 {
		t.Fatalf("40 requests on two replicas: %d live, %d of the standby, want 4 and 5", live, standby)
	}
	s.running.Store(10)
	s.look()
	if live := s.count("v1"); live != 4 {
		t.Errorf("while two replicas start: %d", live)
	}
	s.deploy("v1", 4)
	s.running.Store(1)
	s.silent.Store(true)
	for range 20 {
		s.look()
	}
	if live := s.count("v1"); live != 4 {
		t.Errorf("while all are silent: %d", live)
	}
	sc, _, err := pipeline.ReadScaled(t.Context(), s.store, "m")
	if err != nil || !strings.Contains(sc.Missing, "503") {
		t.Errorf("what is missing is %q, %v", sc.Missing, err)
	}
	s.silent.Store(false)
	for range 5 {
		s.look()
	}
	if live := s.count("v1"); live != 3 {
		t.Errorf("idle for a window: %d, want one less", live)
	}
}

// While a run of the alias is under way, or a node is closed for a drain, nothing
// shrinks: one writer of counts at a time.
func TestHoldsWhileARunMoves(t *testing.T) {
	s := newScaled(t)
	b, err := json.Marshal(pipeline.Head{Run: "m-1", Alias: "m", State: pipeline.Running})
	if err != nil {
		t.Fatal(err)
	}
	s.put("run/m-1", b)
	s.put("index/run/m", []byte("m-1"))
	s.running.Store(0)
	for range 10 {
		s.look()
	}
	if live := s.count("v1"); live != 2 {
		t.Errorf("%d live", live)
	}
}

func TestWhoDoesNotLeadChangesNothing(t *testing.T) {
	s := newScaled(t)
	s.h.leader.until.Store(0)
	s.running.Store(100)
	s.look()
	if live := s.count("v1"); live != 2 {
		t.Errorf("%d live", live)
	}
}

func TestBurn(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	bound := slo.Bound{Quantile: 0.95, Limit: time.Second}
	report := func(good, bad int) map[string]route.Report {
		var c route.Counters
		for i := range good + bad {
			d := 10 * time.Millisecond
			if i >= good {
				d = 20 * time.Second
			}
			c.Strata[0].Arrival.Seen.Add(d)
		}
		return map[string]route.Report{"r": {Boot: "b", Versions: map[string]route.Counters{"v1": c}}}
	}
	for _, c := range []struct {
		name string
		all  []past
		want float64
	}{
		{"no window has passed", []past{{now, report(0, 1000)}}, 0},
		{"half over in both", []past{{now.Add(-5 * time.Minute), report(0, 0)}, {now.Add(-time.Minute), report(100, 100)}, {now, report(200, 200)}}, 10},
		{"over by now", []past{{now.Add(-5 * time.Minute), report(0, 0)}, {now.Add(-time.Minute), report(100, 100)}, {now, report(300, 100)}}, 0},
		{"only just begun", []past{{now.Add(-5 * time.Minute), report(0, 0)}, {now.Add(-time.Minute), report(900, 0)}, {now, report(900, 100)}}, 2},
		{"too few to tell", []past{{now.Add(-5 * time.Minute), report(0, 0)}, {now.Add(-time.Minute), report(0, 0)}, {now, report(0, 20)}}, 0},
	} {
		if got := burnOf(c.all, now, "v1", bound); got < c.want-0.01 || got > c.want+0.01 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
