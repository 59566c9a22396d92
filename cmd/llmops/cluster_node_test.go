//go:build faults

package main

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// detected is when routers have found out by themselves that a replica is gone,
// however silently: two probes that nobody answers.
const detected = 3 * time.Second

// deadAfter bounds how long an answer is waited for from a machine that is gone.
const deadAfter = 20 * time.Second

// A node loses its power in a canary. Clients of the other routers go on, what was
// on the node is brought up on the others, the run ends with a verdict, and when
// the node is back everything is as if nothing had been.
func TestFaultsClusterNodeLoss(t *testing.T) {
	c := newCluster(t)
	file := threefold(t, "node-loss", "bake: 2s", "bake: 60s")
	crowd := c.crowd(6)
	run := c.start(nil, c.onboard(file)...)
	c.inCanary(run)
	victim := c.nodes[1]
	others := func(a asked) bool { return a.router != victim.name }
	t.Logf("v0 is on %v, v1 on %v, the replay on %v; %s loses its power", c.on(quickAlias+"-v0"), c.on(quickAlias+"-v1"), c.on(quickAlias+"-traffic"), victim.name)

	before := crowd.waiting(others)
	lost := time.Now()
	c.lan.cut(victim.host)
	c.lan.kill(victim.space())
	<-victim.ended
	replaced := until(t, 2*time.Minute, "three replicas of each version run without the node", func() bool {
		all := 0
		for _, job := range []string{quickAlias + "-v0", quickAlias + "-v1"} {
			for _, r := range c.replicas(job) {
				if r.State == "healthy" && r.Node != victim.name {
					all++
				}
			}
		}
		return all == 6
	})
	t.Logf("replaced after %v", replaced.Round(time.Millisecond))

	r := run.wait()
	h := c.last()
	t.Logf("the run ended with %d %v after the loss: %s", r.code, time.Since(lost).Round(time.Second), h.Reason)
	live, jobs := "v1", maps.Clone(finishedJobs)
	switch r.code {
	case 0:
		c.finished()
	case 3, 5:
		live, jobs = "v0", map[string]int{"router": 3, quickAlias + "-v0": 3}
		if !strings.HasPrefix(h.Reason, "canary:") {
			t.Errorf("it was refused by %q: %s", h.Reason, r.err)
		}
	default:
		t.Errorf("the run exits %d: %s", r.code, r.err)
	}

	// Whoever begins something now does so with what there is.
	again := threefold(t, "node-loss-again", "replicas: 3", "replicas: 2", "scheme: fp8-dynamic", "scheme: int4")
	if r := c.llmops(c.onboard(again, "--until", "deploy")...); r.code != 0 || !strings.Contains(r.err, "2 of 3 replicas of router answer") {
		t.Errorf("another run exits %d: %s", r.code, r.err)
	}
	jobs[quickAlias+"-v2"] = 2

	failed := crowd.failed(crowd.begun(), others)
	longest := time.Duration(0)
	for _, a := range failed {
		longest = max(longest, a.end.Sub(a.sent))
		if a.sent.After(lost.Add(detected)) {
			t.Errorf("a request that was sent %v after the loss failed after %v: %s", a.sent.Sub(lost), a.end.Sub(a.sent), a.err)
		}
		if a.end.After(lost.Add(deadAfter)) {
			t.Errorf("a request was held up until %v after the loss: %s", a.end.Sub(lost), a.err)
		}
	}
	slow := crowd.requests(func(a asked) bool {
		return others(a) && a.err == "" && a.sent.After(lost) && a.end.Sub(a.sent) > time.Second
	})
	t.Logf("through the other routers %d of the %d under way and of those sent within %v failed, the longest after %v; %d more took over a second", len(failed), before, detected, longest.Round(time.Millisecond), len(slow))

	back := time.Now()
	c.lan.join(victim.host)
	victim.start()
	t.Logf("the node is ready again after %v", c.ready(4).Round(time.Millisecond))
	c.converged(live, jobs)
	t.Logf("converged %v after it is back", time.Since(back).Round(time.Millisecond))
	until(t, time.Minute, "clients of its router are served again", func() bool {
		return len(crowd.requests(func(a asked) bool { return !others(a) && a.sent.After(back) && a.err == "" })) > 20
	})
	if f := crowd.failed(back, others); len(f) > 0 {
		t.Errorf("clients noticed that it came back: %s", some(f))
	}
}
