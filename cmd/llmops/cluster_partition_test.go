//go:build faults

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// reachBound is within what a rollback is in force on the routers that can be
// reached, and anyBound on any.
const (
	reachBound = time.Second
	anyBound   = time.Minute
)

// In a canary one node is cut off from everything and another from servers and
// controllers alone: its router still reaches engines and clients. A rollback is
// in force on the third at once, and on these when their lease is over. What is
// under way ends well wherever its replica can be reached.
func TestFaultsClusterPartition(t *testing.T) {
	c := newCluster(t)
	file := threefold(t, "partition", "bake: 2s", "bake: 10m")
	crowd := c.crowd(5)
	run := c.start(nil, c.onboard(file)...)
	c.inCanary(run)
	near, deaf, alone := c.nodes[0], c.nodes[1], c.nodes[2]
	crowd.local(deaf.host, 3)
	crowd.local(alone.host, 3)
	for _, by := range []string{"in-" + deaf.name, "in-" + alone.name} {
		until(t, 20*time.Second, by+" is served by both versions", func() bool {
			seen := map[string]bool{}
			for _, a := range crowd.requests(func(a asked) bool { return a.by == by && a.err == "" }) {
				seen[a.version] = true
			}
			return seen["v0"] && seen["v1"]
		})
	}
	before := crowd.waiting(func(a asked) bool { return a.by != "out-"+alone.name })

	cut := time.Now()
	c.lan.cut(alone.host)
	c.lan.deafen(deaf.host, c.ops.host, c.servers[0].host, c.servers[1].host, c.servers[2].host)
	back := c.start(nil, "rollback", quickAlias, "--yes", "--output", "json")
	back.hears(" follow after ")
	acked := time.Now()
	r := back.wait()
	var out struct {
		Delivery struct {
			Acked []string
			Took  time.Duration
		}
		Missing []string
	}
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
		t.Fatalf("rollback exits %d and prints %s: %v: %s", r.code, r.out, err, r.err)
	}
	t.Logf("cut off; %v later the rollback was acknowledged, of which writing and pushing took %v: %v; after %v: missing %v", acked.Sub(cut).Round(time.Millisecond),
		out.Delivery.Took, out.Delivery.Acked, r.took.Round(time.Millisecond), out.Missing)
	if out.Delivery.Took > reachBound || len(out.Delivery.Acked) != 1 || !strings.HasPrefix(out.Delivery.Acked[0], "router@"+near.name) || len(out.Missing) != 2 {
		t.Errorf("rollback says %+v", out)
	}
	if r := run.wait(); r.code != 3 || !strings.Contains(r.err, "rolled back") {
		t.Errorf("the run that was rolled back exits %d: %s", r.code, r.err)
	}
	until(t, 2*anyBound, "the bound for all routers is over", func() bool { return time.Since(cut) > anyBound+10*time.Second })

	last := func(ok func(asked) bool) time.Time {
		all := crowd.requests(func(a asked) bool { return a.version == "v1" && ok(a) })
		if len(all) == 0 {
			return time.Time{}
		}
		return all[len(all)-1].sent
	}
	at := last(func(a asked) bool { return a.router == near.name })
	t.Logf("last request to the candidate through the router in reach: %v after the rollback was acknowledged", at.Sub(acked).Round(time.Millisecond))
	if at.After(acked) {
		t.Errorf("that is too late")
	}
	for _, by := range []string{"out-" + deaf.name, "in-" + deaf.name, "in-" + alone.name} {
		at := last(func(a asked) bool { return a.by == by })
		t.Logf("last request to the candidate of %s: %v after the cut, %v after the rollback was acknowledged", by, at.Sub(cut).Round(time.Millisecond), at.Sub(acked).Round(time.Millisecond))
		if at.Sub(cut) > leaseTTL || at.Sub(acked) > anyBound {
			t.Errorf("that is after the lease")
		}
		if n := len(crowd.requests(func(a asked) bool { return a.by == by && a.err == "" && a.sent.After(cut.Add(leaseTTL)) })); n == 0 {
			t.Errorf("%s was not served after the lease", by)
		}
	}

	// Lost may be only what the node that is cut off had to answer to others.
	served := func(a asked) bool { return a.by != "out-"+alone.name }
	lost := crowd.failed(crowd.begun(), served)
	t.Logf("of %d under way at the cut, and of all since, %d were lost", before, len(lost))
	for _, a := range lost {
		if a.sent.After(cut.Add(detected)) || a.by == "in-"+deaf.name && strings.Contains(a.err, "dial") {
			t.Errorf("a request of %s, sent %v after the cut, failed after %v: %s", a.by, a.sent.Sub(cut), a.end.Sub(a.sent), a.err)
		}
	}

	healed := time.Now()
	c.lan.join(alone.host)
	c.lan.hear(deaf.host, c.ops.host, c.servers[0].host, c.servers[1].host, c.servers[2].host)
	c.ready(4)
	t.Logf("converged %v after the network is whole", c.converged("v0", map[string]int{"router": 3, quickAlias + "-v0": 3}).Round(time.Millisecond))
	until(t, time.Minute, "clients are served by all routers", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *agent) bool {
			return len(crowd.requests(func(a asked) bool {
				return a.by == "out-"+n.name && a.err == "" && a.sent.After(healed.Add(detected))
			})) < 20
		})
	})
	crowd.stop()
	if f := crowd.failed(healed.Add(detected), anyone); len(f) > 0 {
		t.Errorf("clients noticed that the network is whole again: %s", some(f))
	}
	for _, a := range crowd.requests(func(a asked) bool { return a.sent.After(healed) && a.version == "v1" }) {
		t.Errorf("the candidate served %s %v after the network is whole", a.by, a.sent.Sub(healed))
	}
}
