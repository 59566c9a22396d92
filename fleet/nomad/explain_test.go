package nomad

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/fleettest"
	"llmops/fleet/nomad/nomadtest/recorded"
	"llmops/jobs"
)

// says fails the test unless the error has all of words.
func says(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

func one(name string, g fleet.Group) fleet.Job {
	g.Count = 1
	return fleet.Job{Name: name, Version: "v1", Kind: fleet.Engine, Groups: []fleet.Group{g}}
}

// Of a request that the token may not make it is said which capability it lacks where.
func TestDenied(t *testing.T) {
	srv, c := server(t, recorded.Options{})
	s, store := scheduler(t, c), NewStore(c, "")
	j := one("denied", group("")("main"))
	rev, err := s.Apply(t.Context(), j, 0)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := store.Put(t.Context(), "x", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "denied", func(st fleet.Status) bool {
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Healthy
	})
	for _, tt := range []struct {
		refused, lacks string
		call           func() error
	}{
		{"GET /v1/var/", `read on variables "llmops/*" in namespace default`, func() error { _, err := store.Get(t.Context(), "x"); return err }},
		{"GET /v1/vars", `list on variables "llmops/*" in namespace default`, func() error { _, err := store.List(t.Context(), ""); return err }},
		{"GET /v1/vars", "list on variables", func() error { return store.Watch(t.Context(), "", func(fleet.Doc) error { return nil }) }},
		{"PUT /v1/var/", `write on variables "llmops/*" in namespace default`, func() error { _, err := store.Put(t.Context(), "y", nil, 0); return err }},
		{"DELETE /v1/var/", `destroy on variables "llmops/*" in namespace default`, func() error { return store.Delete(t.Context(), "x", doc) }},
		{"GET /v1/jobs", "list-jobs in namespace default", func() error { _, err := s.Jobs(t.Context()); return err }},
		{"GET /v1/job/", "read-job in namespace default", func() error { _, err := s.Status(t.Context(), "denied"); return err }},
		{"GET /v1/allocations", "read-job in namespace default", func() error { _, err := s.All(t.Context(), ""); return err }},
		{"GET /v1/allocations", "read-job in namespace default", func() error { return s.Watch(t.Context(), "", func(fleet.Status) error { return nil }) }},
		{"PUT /v1/jobs/parse", "parse-job in namespace default", func() error { _, err := s.Plan(t.Context(), j); return err }},
		{"PUT /v1/job/denied/plan", "submit-job in namespace default", func() error { _, err := s.Plan(t.Context(), j); return err }},
		{"PUT /v1/jobs ", "submit-job in namespace default", func() error { _, err := s.Apply(t.Context(), j, rev); return err }},
		{"PUT /v1/job/denied/scale", "scale-job in namespace default", func() error { _, err := s.Scale(t.Context(), "denied", "main", 2, rev); return err }},
		{"DELETE /v1/job/", "submit-job in namespace default", func() error { return s.Stop(t.Context(), "denied") }},
		{"GET /v1/nodes", "node read", func() error { _, err := s.Nodes(t.Context()); return err }},
		{"PUT /v1/node/", "node write", func() error { return s.Drain(t.Context(), "test", "", time.Minute) }},
		{"PUT /v1/node/", "node write", func() error { return s.Cordon(t.Context(), "test", true) }},
	} {
		// Jobs that are known are not asked for again.
		srv.Refuse(tt.refused, http.StatusForbidden, "Permission denied")
		says(t, tt.refused, tt.call(), "lacks "+tt.lacks, "policy")
		srv.Allow()
	}
	srv.Refuse("GET /v1/jobs", http.StatusForbidden, "ACL token not found")
	_, err = s.Jobs(t.Context())
	says(t, "a token that is not known", err, "NOMAD_TOKEN")
	srv.Allow()
	srv.Refuse("GET /v1/jobs", http.StatusInternalServerError, "No cluster leader")
	_, err = s.Jobs(t.Context())
	says(t, "no leader", err, "nomad server members")
}

func TestNoNamespace(t *testing.T) {
	both(t, func(t *testing.T, c *api.Client) {
		_, err := NewStore(c, "nope").Put(t.Context(), "x", nil, 0)
		says(t, "put", err, `no namespace "nope"`, "nomad namespace apply nope", c.Address())
		s := NewScheduler(c, Options{Namespace: "nope", Files: jobs.Files, Bin: "/bin/true"})
		_, err = s.Apply(t.Context(), one("x", group("")("main")), 0)
		says(t, "apply", err, `no namespace "nope"`)
		err = s.Watch(t.Context(), "", func(fleet.Status) error { return nil })
		says(t, "watch", err, `no namespace "nope"`)
		if vars, _, err := c.Variables().PrefixList(Root, &api.QueryOptions{Namespace: "nope"}); err != nil || len(vars) > 0 {
			t.Errorf("variables were written into a namespace that is not there: %v, %v", vars, err)
		}
	})
	// One that goes meanwhile is told of by the registration.
	c := newCluster(replay(t, recorded.Options{}), "gone")
	says(t, "register", c.explain(answer(t, 500, `job "x" is in nonexistent namespace "gone"`), ""), `no namespace "gone"`)
}

// answer is the error that the API makes of an answer.
func answer(t *testing.T, code int, text string) error {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }))
	defer srv.Close()
	c, err := api.NewClient(&api.Config{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Jobs().List(nil)
	return err
}

func TestTooOld(t *testing.T) {
	for v, old := range map[string]bool{
		"1.8.1": true, "1.8.2": false, "1.8.2-rc.1": false, "1.10.0": false, "2.0.6-dev": false, "0.12.9": true, "v1.7.7+ent": true, "": false, "unknown": false,
	} {
		if older(v, Least) != old {
			t.Errorf("%q older than %s: %v", v, Least, !old)
		}
	}
	_, err := NewScheduler(replay(t, recorded.Options{Version: "1.7.7"}), Options{}).Nodes(t.Context())
	says(t, "an old agent", err, "Nomad 1.7.7", "1.8.2 or later", "upgrade")
	// Who may not ask for the version may do the rest.
	srv, c := server(t, recorded.Options{Version: "1.7.7"})
	srv.Refuse("GET /v1/agent", http.StatusForbidden, "Permission denied")
	if _, err := NewScheduler(c, Options{}).Nodes(t.Context()); err != nil {
		t.Error(err)
	}
	both(t, func(t *testing.T, c *api.Client) {
		if err := Check(t.Context(), c, ""); err != nil {
			t.Error(err)
		}
	})
}

func TestUnreached(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	mutual := httptest.NewUnstartedServer(http.NotFoundHandler())
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	mutual.StartTLS()
	defer mutual.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	for _, tt := range []struct {
		what, address string
		insecure      bool
		final         bool // trying again is no use
		words         []string
	}{
		{"nobody there", nobody, false, false, []string{"no Nomad agent answers at " + nobody, "is it running"}},
		{"no such host", "http://nomad.invalid:4646", false, false, []string{"nomad.address", "no host that is known"}},
		{"TLS to a plain agent", strings.Replace(plain.URL, "http:", "https:", 1), false, true, []string{"speaks no TLS", "http://"}},
		{"plain to a TLS agent", strings.Replace(secure.URL, "https:", "http:", 1), false, true, []string{"speaks TLS", "https://"}},
		{"unknown authority", secure.URL, false, true, []string{"nomad.ca_cert"}},
		{"no client certificate", mutual.URL, true, true, []string{"nomad.client_cert"}},
	} {
		c, err := api.NewClient(&api.Config{Address: tt.address, TLSConfig: &api.TLSConfig{Insecure: tt.insecure}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewStore(c, "").Get(t.Context(), "x")
		says(t, tt.what, err, tt.words...)
		if passes(err) == tt.final {
			t.Errorf("%s: tried again: %v, %v", tt.what, !tt.final, err)
		}
	}
}

func TestConflictsNameRevisions(t *testing.T) {
	both(t, func(t *testing.T, c *api.Client) {
		s, store := scheduler(t, c), NewStore(c, "")
		empty(t, store)
		j := one("conflict", group("")("main"))
		rev, err := s.Apply(t.Context(), j, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t, s, "conflict")
		for what, err := range map[string]error{
			"apply anew":                 second(s.Apply(t.Context(), j, 0)),
			"apply at another revision":  second(s.Apply(t.Context(), j, rev+7)),
			"scale at another revision":  second(s.Scale(t.Context(), "conflict", "main", 2, rev+7)),
			"apply what is gone":         second(s.Apply(t.Context(), one("gone", group("")("main")), 3)),
			"write at another revision":  second(store.Put(t.Context(), "none", nil, 7)),
			"delete at another revision": func() error { _, _ = store.Put(t.Context(), "d", nil, 0); return store.Delete(t.Context(), "d", 7) }(),
		} {
			if !errors.Is(err, fleet.ErrConflict) {
				t.Errorf("%s: %v", what, err)
			}
			if strings.HasPrefix(what, "apply at") || strings.HasPrefix(what, "scale") {
				says(t, what, err, fmt.Sprint(rev), fmt.Sprint(rev+7))
			}
		}
		_, err = store.Put(t.Context(), "large", make([]byte, fleet.MaxBody+1), 0)
		says(t, "too large", err, "large", fmt.Sprint(fleet.MaxBody+1), fmt.Sprint(fleet.MaxBody), "blobs")
	})
}

func second[T any](_ T, err error) error { return err }

func stop(t *testing.T, s *Scheduler, job string) {
	t.Helper()
	ctx := t.Context()
	if err := s.Stop(ctx, job); err != nil {
		t.Error(err)
	}
	fleettest.Await(t, s, job, func(st fleet.Status) bool { return len(st.Replicas) == 0 })
}

// A job that nothing has room for says so in its plan and while it waits.
func TestNoRoom(t *testing.T) {
	both(t, func(t *testing.T, c *api.Client) {
		s := scheduler(t, c)
		g := group("")("main")
		g.GPU = fleet.Need{Kind: "B300", Count: 4}
		const want = `group main: 1 of 1 nodes have no 4 × GPU of the kind "B300"`
		p, err := s.Plan(t.Context(), one("roomless", g))
		if err != nil || p.Fits || len(p.Reasons) != 1 || p.Reasons[0] != want {
			t.Errorf("plan %+v, %v", p, err)
		}
		if _, err := s.Apply(t.Context(), one("roomless", g), 0); err != nil {
			t.Fatal(err)
		}
		defer stop(t, s, "roomless")
		st := fleettest.Await(t, s, "roomless", func(st fleet.Status) bool { return len(st.Replicas) > 0 })
		if r := st.Replicas[0]; len(st.Replicas) != 1 || r.State != fleet.Pending || r.Reason != want || r.Group != "main" || r.NoRoom || st.Pool != "default" {
			t.Errorf("it waits as %+v", st.Replicas)
		}
		all, err := s.All(t.Context(), "room")
		if err != nil || len(all) != 1 || len(all[0].Replicas) != 1 || all[0].Replicas[0].Reason != want {
			t.Errorf("all are %+v, %v", all, err)
		}
		if _, err := s.Logs(t.Context(), st.Replicas[0].ID, false); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("logs of what has not begun: %v", err)
		}
	})
}

// When all GPUs are held a job waits until one is given back.
func TestNoGPUFree(t *testing.T) {
	s := scheduler(t, replay(t, recorded.Options{Nodes: []recorded.Node{{Name: "a", GPU: "NVIDIA H100 80GB HBM3", GPUs: 4}, {Name: "b"}}}))
	g := group("")("main")
	g.GPU = fleet.Need{Kind: "H100", Count: 3}
	if _, err := s.Apply(t.Context(), one("first", g), 0); err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan(t.Context(), one("second", g))
	if err != nil || p.Fits || !strings.Contains(sentence(p.Reasons), `1 of 2 nodes have no 3 × GPU of the kind "H100"`) || !strings.Contains(sentence(p.Reasons), `1 of 2 nodes have not enough free: 3 × GPU of the kind "H100"`) {
		t.Errorf("plan %+v, %v", p, err)
	}
	if _, err := s.Apply(t.Context(), one("second", g), 0); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "second", func(st fleet.Status) bool {
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Pending && st.Replicas[0].NoRoom && strings.Contains(st.Replicas[0].Reason, "not enough free")
	})
	stop(t, s, "first")
	fleettest.Await(t, s, "second", func(st fleet.Status) bool {
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Healthy && st.Replicas[0].Node == "a"
	})
}

func TestDriverFailure(t *testing.T) {
	both(t, func(t *testing.T, c *api.Client) {
		s := scheduler(t, c)
		g := group("")("main")
		g.Argv = []string{"/no/such/engine"}
		if _, err := s.Apply(t.Context(), one("driver", g), 0); err != nil {
			t.Fatal(err)
		}
		defer stop(t, s, "driver")
		fleettest.Await(t, s, "driver", func(st fleet.Status) bool {
			return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Failed && strings.Contains(st.Replicas[0].Reason, `"/no/such/engine" could not be found`)
		})
	})
	pull := `Failed to pull "registry/vllm:none": Error response from daemon: manifest unknown`
	task := &api.TaskState{State: "pending", Restarts: 1, Events: []*api.TaskEvent{
		{Type: api.TaskReceived, DisplayMessage: "Task received by client"}, {Type: api.TaskDriverMessage, DisplayMessage: "Downloading image"},
		{Type: api.TaskDriverFailure, DisplayMessage: pull}, {Type: api.TaskRestarting, DisplayMessage: "Task restarting in 15s"},
	}}
	r := replica(&api.AllocationListStub{ClientStatus: api.AllocClientStatusPending, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{"main": task}}, false)
	if r.State != fleet.Failed || r.Reason != pull {
		t.Errorf("an image that is not there: %+v", r)
	}
}

// A version that never becomes healthy says that its deployment has failed, and why.
func TestFailedDeployment(t *testing.T) {
	text, err := fs.ReadFile(jobs.Files, "process.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	hasty := strings.NewReplacer(`healthy_deadline  = "10m"`, `healthy_deadline  = "2s"`, `progress_deadline = "15m"`, `progress_deadline = "3s"`).Replace(string(text))
	if hasty == string(text) {
		t.Fatal("the job file has no deadlines to shorten")
	}
	try := func(t *testing.T, c *api.Client, fail func()) {
		s := scheduler(t, c)
		s.o.Files = fstest.MapFS{"process.nomad.hcl": {Data: []byte(hasty)}}
		g := group("")("main")
		g.Check.Path = "/nowhere"
		if _, err := s.Apply(t.Context(), one("never", g), 0); err != nil {
			t.Fatal(err)
		}
		defer stop(t, s, "never")
		fleettest.Await(t, s, "never", func(st fleet.Status) bool {
			return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Running && strings.Contains(st.Replicas[0].Reason, "its check is failure")
		})
		fail()
		fleettest.Await(t, s, "never", func(st fleet.Status) bool {
			return len(st.Replicas) == 1 && strings.Contains(st.Replicas[0].Reason, "the deployment failed: Failed due to")
		})
	}
	t.Run("recorded", func(t *testing.T) {
		srv, c := server(t, recorded.Options{})
		try(t, c, func() { srv.FailDeployment("never") })
	})
	t.Run("agent", func(t *testing.T) { try(t, agent(t), func() {}) })
}

// A stream that breaks off costs nothing that happened meanwhile.
func TestStreamLost(t *testing.T) {
	srv, c := server(t, recorded.Options{})
	s := scheduler(t, c)
	j := one("lost", group("")("main"))
	rev, err := s.Apply(t.Context(), j, 0)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan fleet.Status, 100)
	go func() { _ = s.Watch(t.Context(), "lost", func(st fleet.Status) error { told <- st; return nil }) }()
	await := func(what string, ok func(fleet.Status) bool) {
		t.Helper()
		for {
			select {
			case st := <-told:
				if ok(st) {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("never told that %s", what)
			}
		}
	}
	count := func(n int) func(fleet.Status) bool {
		return func(st fleet.Status) bool {
			return st.Job.Groups[0].Count == n && len(st.Replicas) == n && st.Replicas[0].State == fleet.Healthy
		}
	}
	await("it is healthy", count(1))
	srv.Refuse("GET /v1/event", http.StatusInternalServerError, "No cluster leader")
	srv.CutStreams()
	if rev, err = s.Scale(t.Context(), "lost", "main", 2, rev); err != nil {
		t.Fatal(err)
	}
	await("it has two replicas, without a stream", count(2))
	srv.Allow()
	if _, err = s.Scale(t.Context(), "lost", "main", 1, rev); err != nil {
		t.Fatal(err)
	}
	await("it has one again", count(1))
}
