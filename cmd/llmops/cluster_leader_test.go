//go:build faults

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// scribe writes to the cluster's store all the time, to see for how long it cannot.
type scribe struct {
	stop func()

	mu    sync.Mutex // guards what follows
	last  time.Time
	stall time.Duration
}

func (c *cluster) scribe() *scribe {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s := &scribe{stop: func() { cancel(); <-done }, last: time.Now()}
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if c.ops.write("scribe") == nil {
				s.wrote()
			}
		}
	}()
	c.t.Cleanup(s.stop)
	return s
}

func (s *scribe) wrote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall = max(s.stall, time.Since(s.last))
	s.last = time.Now()
}

// stalled is the longest time between two writes since it was last called.
func (s *scribe) stalled() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stall
	s.stall = 0
	return out
}

// electionBound is within what three servers have another leader, and somebody who
// writes has noticed.
const electionBound = 20 * time.Second

// The server that leads is killed in a canary, and the next one that leads while
// the candidate is rolled back. Traffic does not notice, the canary keeps its lease
// and the rollback is made.
func TestFaultsClusterLeaderLoss(t *testing.T) {
	c := newCluster(t)
	file := threefold(t, "leader", "bake: 2s", "bake: 10m")
	crowd := c.crowd(6)
	run := c.start(nil, c.onboard(file)...)
	c.inCanary(run)
	scribe := c.scribe()
	until(t, time.Minute, "there is evidence", func() bool { return c.last().Attempt.State.Looks > 5 })
	before := c.last().Attempt.State

	killed := c.killLeader()
	t.Logf("in the canary %s led and was killed; another leads after %v", killed.name, c.servers.led(t, killed).Round(time.Millisecond))
	until(t, electionBound, "the canary looks on", func() bool { return c.last().Attempt.State.Looks > before.Looks+5 })
	stall := scribe.stalled()
	t.Logf("no document could be written for %v", stall.Round(time.Millisecond))
	if stall > electionBound {
		t.Errorf("that is more than %v", electionBound)
	}
	// Past the time by which the lease would be over that was there at the kill.
	at := time.Now()
	until(t, 2*leaseTTL, "the lease from before is over", func() bool {
		if share, all := c.status().share("v1"); share != 0.5 || !all {
			t.Fatalf("%v after another leads the candidate has %g, of all routers %v", time.Since(at), share, all)
		}
		return time.Since(at) > leaseTTL+5*time.Second
	})
	killed.start()
	c.voters(3)

	scribe.stalled()
	back := c.start(nil, "rollback", quickAlias, "--yes", "--output", "json")
	back.hears("a token just now")
	decided := time.Now()
	killed = c.killLeader()
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
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || len(out.Missing) > 0 || len(out.Delivery.Acked) != 3 {
		t.Fatalf("rollback exits %d and prints %s: %v: %s", r.code, r.out, err, r.err)
	}
	t.Logf("%s led and was killed in the rollback, which %d routers acknowledged %v after it was decided, %v after it was written", killed.name, len(out.Delivery.Acked),
		acked.Sub(decided).Round(time.Millisecond), out.Delivery.Took)
	if out.Delivery.Took > reachBound || acked.Sub(decided) > electionBound+reachBound {
		t.Errorf("that is too long")
	}
	if r := run.wait(); r.code != 3 {
		t.Errorf("the run that was rolled back exits %d: %s", r.code, r.err)
	}
	t.Logf("no document could be written for %v", scribe.stalled().Round(time.Millisecond))
	c.converged("v0", map[string]int{"router": 3, quickAlias + "-v0": 3})
	killed.start()
	c.voters(3)
	crowd.stop()
	if f := crowd.failed(crowd.begun(), anyone); len(f) > 0 {
		t.Errorf("clients noticed: %s", some(f))
	}
	for _, a := range crowd.requests(func(a asked) bool { return a.version == "v1" && a.sent.After(acked) }) {
		t.Errorf("the candidate served %s, who asked %v after the rollback", a.by, a.sent.Sub(acked))
	}
}

// killLeader ends the server that leads as a crash does.
func (c *cluster) killLeader() *agent {
	c.t.Helper()
	l, ok := c.servers.leader()
	if !ok {
		c.t.Fatal("no server leads")
	}
	l.kill()
	return l
}

// voters waits until so many servers are alive and vote.
func (c *cluster) voters(want int) {
	c.t.Helper()
	until(c.t, time.Minute, fmt.Sprint(want, " servers vote"), func() bool {
		var h struct {
			Servers []struct{ Healthy, Voter bool }
		}
		n := 0
		// While any is unhealthy the answer is an error.
		if c.ops.ask(http.MethodGet, "/v1/operator/autopilot/health", nil, &h) == nil {
			for _, s := range h.Servers {
				if s.Healthy && s.Voter {
					n++
				}
			}
		}
		return n == want
	})
}
