//go:build faults

package main

import (
	"testing"
	"time"
)

// On three nodes with a router each the run ends as on one machine, and clients of
// every router are served all the while. Down leaves nothing, which the end of
// every test of a cluster looks at.
func TestFaultsClusterGoesLive(t *testing.T) {
	c := newCluster(t)
	file := threefold(t, "live")
	crowd := c.crowd(6)
	run := c.start(nil, c.onboard(file)...)
	r := run.wait()
	if r.code != 0 {
		t.Fatalf("onboard exits %d: %s", r.code, r.err)
	}
	t.Logf("took %v\n%s", r.took.Round(time.Millisecond), r.err)
	c.finished()
	t.Logf("converged after %v; v0 is on %v, v1 on %v, routers on %v", c.converged("v1", finishedJobs), c.on(quickAlias+"-v0"), c.on(quickAlias+"-v1"), c.on("router"))
	crowd.stop()
	begun := crowd.begun()
	all := crowd.requests(func(a asked) bool { return !a.sent.Before(begun) })
	served := map[string]map[string]int{}
	for _, a := range all {
		if served[a.router] == nil {
			served[a.router] = map[string]int{}
		}
		served[a.router][a.version]++
	}
	t.Logf("%d requests by router and version: %v", len(all), served)
	for _, n := range c.nodes {
		if served[n.name]["v0"] == 0 || served[n.name]["v1"] == 0 {
			t.Errorf("the router of %s gave %v", n.name, served[n.name])
		}
	}
	if f := crowd.failed(begun, anyone); len(f) > 0 {
		t.Errorf("requests that failed: %s", some(f))
	}
	if r := c.llmops(c.onboard(file)...); r.code != 0 {
		t.Errorf("once more it exits %d: %s", r.code, r.err)
	}
}
