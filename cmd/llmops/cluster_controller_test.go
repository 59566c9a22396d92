//go:build faults

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// The command that drives is killed in each stage. The same command again goes on
// and ends the run: no job is left over, and nothing is made twice.
func TestFaultsClusterControllerLoss(t *testing.T) {
	c := newCluster(t)
	file := threefold(t, "controller")
	for i, k := range []struct{ stage, at, says string }{
		{"download", "after:download:1", ""},
		{"quantise", "after:quantise:1", ""},
		{"plan", "", "\nplan"},
		{"deploy", "after:deploy:2", ""},
		{"benchmark", "", "\nbenchmark  load"},
		{"eval", "", "\neval"},
		{"shadow", "after:shadow:3", ""},
		{"canary", "after:canary:3", ""},
		{"promote", "after:promote:1", ""},
	} {
		t.Run(k.stage, func(t *testing.T) {
			c.anew(t)
			crowd := c.crowd(3)
			var env []string
			if k.at != "" {
				env = []string{"LLMOPS_KILL_AT=" + k.at}
			}
			first := c.start(env, c.onboard(file)...)
			if k.says != "" {
				first.hears(k.says)
				first.signal(syscall.SIGKILL)
			}
			dead := first.wait()
			if dead.code != -1 {
				t.Fatalf("it was not killed but exits %d: %s", dead.code, dead.err)
			}
			before := c.artefacts()
			r := c.llmops(c.onboard(file)...)
			if r.code != 0 {
				t.Fatalf("the run after the kill exits %d: %s", r.code, r.err)
			}
			after := c.artefacts()
			for _, path := range sorted(before) {
				if before[path] != after[path] {
					t.Errorf("%s was written again", path)
				}
			}
			j := c.journal(c.finished().Run)
			if n := count(j, "claim", ""); n != 2 {
				t.Errorf("the run was claimed %d times", n)
			}
			for n, stage := range []string{"download", "quantise"} {
				if got := count(j, "intent", stage); i > n && got != 1 {
					t.Errorf("%s was begun %d times", stage, got)
				}
				if got := count(j, "stage", stage); got != 1 {
					t.Errorf("%s was finished %d times", stage, got)
				}
			}
			c.converged("v1", finishedJobs)
			crowd.stop()
			t.Logf("killed after %v, then done after %v; %d requests were answered", dead.took.Round(time.Millisecond), r.took.Round(time.Millisecond),
				len(crowd.requests(func(a asked) bool { return a.err == "" })))
			if f := crowd.failed(crowd.begun(), anyone); len(f) > 0 {
				t.Errorf("clients noticed: %s", some(f))
			}
			c.gone()
		})
	}
}

// anew has the next commands begin from an empty state, as on a cluster that was
// never used, and tell t.
func (c *cluster) anew(t *testing.T) {
	t.Helper()
	outer := c.t
	c.t, c.lan.t = t, t
	t.Cleanup(func() { c.t, c.lan.t = outer, outer })
	var all []struct{ Path string }
	c.ops.get("/v1/vars", &all)
	for _, v := range all {
		if err := c.ops.ask(http.MethodDelete, "/v1/var/"+v.Path, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ops.ask(http.MethodPut, "/v1/system/gc", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.home); err != nil {
		t.Fatal(err)
	}
	c.home = filepath.Join(filepath.Dir(c.home), "home-"+t.Name()[len("TestFaultsClusterControllerLoss/"):])
	t.Cleanup(func() { _ = os.RemoveAll(c.home) })
}
