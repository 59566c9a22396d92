package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/fleettest"
	"llmops/jobs"
)

// serve is what the groups of the suite run: this test binary.
func serve(addr, how string) int {
	if how == "ends" {
		fmt.Fprintln(os.Stderr, "nothing to do here")
		return 7
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { <-ctx.Done(); _ = srv.Close() }()
	fmt.Println("serving")
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func group(how string) fleettest.Serve {
	return func(name string) fleet.Group {
		g := fleet.Group{
			Name: name, Argv: []string{"${LLMOPS_BIN}"}, Grace: 3 * time.Second,
			Env:   map[string]string{"LLMOPS_TEST_SERVE": "${LLMOPS_ADDR}", "LLMOPS_TEST_HOW": how},
			Check: fleet.Check{Path: "/health", Interval: time.Second, Timeout: time.Second},
		}
		if how == "ends" {
			g.Check = fleet.Check{}
		}
		return g
	}
}

func scheduler(t *testing.T, c *api.Client) *Scheduler {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return NewScheduler(c, Options{Files: jobs.Files, Bin: bin})
}

func TestScheduler(t *testing.T) { both(t, testScheduler) }

func testScheduler(t *testing.T, c *api.Client) {
	s := scheduler(t, c)
	fleettest.Scheduler(t, s, group(""), group("ends"))
}

func TestDrain(t *testing.T) { both(t, testDrain) }

func testDrain(t *testing.T, c *api.Client) {
	s := scheduler(t, c)
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || !nodes[0].Ready || !nodes[0].Eligible {
		t.Fatalf("nodes %+v, %v", nodes, err)
	}
	if err := s.Drain(t.Context(), nodes[0].ID, "XID 79 on GPU-1", time.Minute); err != nil {
		t.Fatal(err)
	}
	if nodes, err = s.Nodes(t.Context()); err != nil || nodes[0].Eligible || nodes[0].Reason != "XID 79 on GPU-1" {
		t.Errorf("drained %+v, %v", nodes, err)
	}
	if err := s.Drain(t.Context(), nodes[0].ID, "", 0); err != nil {
		t.Fatal(err)
	}
	if nodes, err = s.Nodes(t.Context()); err != nil || !nodes[0].Eligible || nodes[0].Draining {
		t.Errorf("after the drain %+v, %v", nodes, err)
	}
	if err := s.Drain(t.Context(), "nowhere", "", 0); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a node that is not there: %v", err)
	}
}

// What others registered is neither taken over nor stopped.
func TestForeignJobs(t *testing.T) { both(t, testForeignJobs) }

func testForeignJobs(t *testing.T, c *api.Client) {
	s := scheduler(t, c)
	job, err := s.parse(fleet.Job{Name: "theirs", Groups: []fleet.Group{group("")("main")}})
	if err != nil {
		t.Fatal(err)
	}
	delete(job.Meta, metaJob)
	if _, _, err := c.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _, _ = c.Jobs().Deregister("theirs", true, nil) }()
	j := fleet.Job{Name: "theirs", Groups: []fleet.Group{group("")("main")}}
	if all, err := s.All(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("all are %+v, %v", all, err)
	}
	if own, err := s.Jobs(t.Context()); err != nil || len(own) > 0 {
		t.Errorf("jobs are %+v, %v", own, err)
	}
	_, apply := s.Apply(t.Context(), j, 0)
	_, plan := s.Plan(t.Context(), j)
	for what, err := range map[string]error{"apply": apply, "plan": plan, "stop": s.Stop(t.Context(), "theirs")} {
		if !errors.Is(err, errForeign) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPlanSaysWhatChanges(t *testing.T) { both(t, testPlanSaysWhatChanges) }

func testPlanSaysWhatChanges(t *testing.T, c *api.Client) {
	s := scheduler(t, c)
	j := fleet.Job{Name: "diff", Version: "v1", Groups: []fleet.Group{group("")("main")}}
	j.Groups[0].Count = 1
	rev, err := s.Apply(t.Context(), j, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop(context.WithoutCancel(t.Context()), "diff") }()
	if p, err := s.Plan(t.Context(), j); err != nil || len(p.Changes) != 0 || !p.Fits {
		t.Errorf("no change: %+v, %v", p, err)
	}
	if _, err := s.Scale(t.Context(), "diff", "main", 2, rev+1000); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("scaled at another revision: %v", err)
	}
	j.Groups[0].Env["NEW"] = "1"
	p, err := s.Plan(t.Context(), j)
	if err != nil || !strings.Contains(strings.Join(p.Changes, "; "), "NEW") {
		t.Errorf("changed: %+v, %v", p, err)
	}
}

func TestVariablesFile(t *testing.T) {
	o := &Options{Bin: "/opt/llmops", Pools: map[string]string{"interactive": "gpu-h100"}}
	text, err := o.file(fleet.Job{Name: "a/b", Pool: "interactive", Zone: "az1", Groups: []fleet.Group{{
		Name: "main", Count: 2, Argv: []string{"${LLMOPS_BIN}", "--listen", "${LLMOPS_ADDR}", "${HOME} \"quoted\""}, Addr: "0.0.0.0:8400", GPU: fleet.Need{Kind: "H100", Count: 4},
	}}}, File{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`name = "a/b"`, `pool = "gpu-h100"`, `zone = "az1"`, `"/opt/llmops","--listen","$${NOMAD_ADDR_http}","$${HOME} \"quoted\""`, `"port":8400`, `"gpu":"H100","gpus":4`, `"grace":"5s"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	for _, j := range []fleet.Job{{Name: "x"}, {Name: "x", Groups: []fleet.Group{{Name: "g"}}}, {Name: "x", Groups: []fleet.Group{{Name: "g", Argv: []string{"a"}, Addr: "host"}}}} {
		if _, err := o.file(j, File{}); err == nil {
			t.Errorf("accepted %+v", j)
		}
	}
}

func TestVariablesOfAFile(t *testing.T) {
	o := &Options{Bin: "/opt/llmops"}
	job := func(zone string) fleet.Job {
		return fleet.Job{Name: "q", Zone: zone, Groups: []fleet.Group{{Name: "main", Near: "r7", Image: "own", Argv: []string{"vllm", "--host", "${LLMOPS_HOST}", "--port", "${LLMOPS_PORT}"}}}}
	}
	own := `variable "name" {}
  variable "pool" {}
variable "groups" {}
# variable "zone" {}
`
	for _, c := range []struct {
		name string
		j    fleet.Job
		f    File
		want []string // in the text, or in the error
		fail bool
	}{
		{"on a node", job(""), File{}, []string{`["vllm","--host","$${NOMAD_IP_http}","--port","$${NOMAD_PORT_http}"]`, `"near":"r7"`, `"image":"own"`}, false},
		{"in a container", job(""), File{Host: "0.0.0.0"}, []string{`["vllm","--host","0.0.0.0","--port","$${NOMAD_PORT_http}"]`}, false},
		{"in a container on the host's network", job(""), File{Port: "${NOMAD_HOST_PORT_http}"}, []string{`"$${NOMAD_IP_http}","--port","$${NOMAD_HOST_PORT_http}"]`}, false},
		{"by its path", job(""), File{Program: "/opt/vllm/bin/vllm"}, []string{`["/opt/vllm/bin/vllm","--host"`}, false},
		{"more variables", job(""), File{Vars: map[string]any{"cpu": 4000, "compliance": []any{"hipaa"}}}, []string{"cpu = 4000\n", `compliance = ["hipaa"]`}, false},
		{"a file without zones, of a job without one", job(""), File{Name: "own", Text: own}, []string{`name = "q"`}, false},
		{"a file without zones", job("az1"), File{Name: "own", Text: own}, []string{"own declares no variable zone", "it has name, pool, groups"}, true},
		{"a variable that there is not", job(""), File{Name: "own", Text: own, Vars: map[string]any{"spot": "only"}}, []string{"own declares no variable spot"}, true},
	} {
		text, err := o.file(c.j, c.f)
		if (err != nil) != c.fail {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			text = err.Error()
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s lacks %s", c.name, text, want)
			}
		}
		if strings.Contains(text, "zone = ") && strings.Contains(c.f.Text, "# variable") {
			t.Errorf("%s: a variable that is not declared is given", c.name)
		}
	}
}
