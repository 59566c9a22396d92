//go:build faults

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Everything that a canary rests on is killed in turn while it runs. What is
// killed comes back, the run ends with a verdict, and the next one goes on.
func TestFaultsProcessesDie(t *testing.T) {
	t.Parallel()
	file := slowly(t, 20*time.Second)
	m := newMachine(t)
	c := m.clients(quickAlias)
	run := m.start(nil, m.onboard(file)...)
	m.inCanary(run)

	// The background process: nobody notices.
	watch := m.pid(" watch")
	m.kill(" watch", syscall.SIGKILL)
	took := until(t, 20*time.Second, "there is another watch", func() bool { return m.status().Watch && !slices.Contains(m.find(" watch"), watch) })
	if share, all := m.status().share("v1"); share != 0.5 || !all {
		t.Errorf("after the watch died the candidate has %g", share)
	}
	c.mu.Lock()
	if len(c.failed) > 0 {
		t.Errorf("clients noticed that the watch died: %v", c.failed)
	}
	c.failed, c.gap = nil, 0
	c.mu.Unlock()
	t.Logf("another watch after %v", took)

	// One process of each kind that serves. With one replica of each there is
	// nobody to take over, so clients wait; it must not be for long.
	for _, what := range []string{"router serve", "--version-name v0", "--version-name v1"} {
		pid := m.pid(what)
		m.kill(what, syscall.SIGKILL)
		took := until(t, 20*time.Second, what+" is back and healthy", func() bool {
			for _, j := range m.status().Jobs {
				for _, r := range j.Replicas {
					if r.State != "healthy" {
						return false
					}
				}
			}
			again := m.find(what)
			return len(again) == 1 && again[0] != pid
		})
		c.mu.Lock()
		served, failed := len(c.served), len(c.failed)
		c.mu.Unlock()
		until(t, 20*time.Second, "clients are served again", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.served) >= served && len(c.failed) == failed
		})
		c.mu.Lock()
		t.Logf("%s: back after %v, %d requests of clients failed, the longest gap was %v", what, took, len(c.failed), c.gap)
		if c.gap > 5*time.Second {
			t.Errorf("clients waited %v when %s died", c.gap, what)
		}
		c.failed, c.gap = nil, 0
		c.mu.Unlock()
	}

	r := run.wait()
	h := m.last()
	t.Logf("the run ended with %d: %s", r.code, h.Reason)
	switch r.code {
	case 0:
	case 3, 5: // the candidate's death can be held against it
		if !strings.HasPrefix(h.Reason, "canary:") {
			t.Errorf("it was refused by %q: %s", h.Reason, r.err)
		}
		if s := m.status(); s.Aliases[0].Live != "v0" {
			t.Errorf("status is %+v", s)
		}
	default:
		t.Errorf("the run exits %d: %s", r.code, r.err)
	}
	if r := m.llmops(m.onboard(file)...); r.code != 0 {
		t.Errorf("the next run exits %d: %s", r.code, r.err)
	}
	m.live(1)
	c.stop()
}

// Whoever drives the canary dies: the traffic returns by the lease, and the
// next command goes on where the evidence was.
func TestFaultsDriverDies(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		victim func(*testing.T, *machine, *command)
	}{
		"attached command":      {nil, func(_ *testing.T, _ *machine, c *command) { c.signal(syscall.SIGKILL) }},
		"watch of detached run": {[]string{"--detach"}, func(_ *testing.T, m *machine, _ *command) { m.kill(" watch", syscall.SIGKILL) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := slowly(t, 10*time.Second)
			m := newMachine(t)
			clients := m.clients(quickAlias)
			run := m.start(nil, m.onboard(file, c.args...)...)
			if len(c.args) > 0 {
				if r := run.wait(); r.code != 4 {
					t.Fatalf("it exits %d: %s", r.code, r.err)
				}
				m.inCanary(nil)
			} else {
				m.inCanary(run)
			}
			until(t, 20*time.Second, "there is evidence", func() bool { return m.last().Attempt.State.Requests[1] > 10 })
			c.victim(t, m, run)
			before := m.last()
			took := until(t, leaseTTL+5*time.Second, "all traffic is back at stable", func() bool {
				share, all := m.status().share("v1")
				return all && share == 0
			})
			t.Logf("all traffic back after %v", took)
			if took > leaseTTL+time.Second {
				t.Errorf("that is more than the lease's %v", leaseTTL)
			}
			if h := m.last(); h.Stage != "canary" || h.State != "running" || !strings.Contains(h.Reason, "runs attach "+h.Run) {
				t.Errorf("the run is %+v", h)
			}
			r := m.llmops(m.onboard(file)...)
			if r.code != 0 {
				t.Fatalf("the next run exits %d: %s", r.code, r.err)
			}
			after := m.canary(m.finished().Run)
			if b := before.Attempt.State; after.Looks <= b.Looks || after.Requests[1] <= b.Requests[1] {
				t.Errorf("the evidence began anew: %+v, then %+v", b, after)
			}
			m.live(1)
			clients.undisturbed("v0", "v1")
		})
	}
}

// canaryState is what is on record of a finished canary.
type canaryState struct {
	Requests [2]uint64
	Looks    int
	names    []string // of the guards
}

func (m *machine) canary(run string) (s canaryState) {
	m.t.Helper()
	var shown struct {
		Records []struct {
			Stage  string
			Output json.RawMessage
		}
	}
	m.ask(&shown, "runs", "show", run)
	for _, r := range shown.Records {
		if r.Stage != "canary" {
			continue
		}
		var out struct {
			State  canaryState
			Policy struct{ Guards []string }
		}
		if err := json.Unmarshal(r.Output, &out); err != nil {
			m.t.Fatal(err)
		}
		s = out.State
		s.names = out.Policy.Guards
	}
	return s
}

// Of three routers one is stopped while the candidate has half of the traffic.
// A rollback is done on the others within a second and on it by the lease: when
// it goes on, whatever it chooses then is stable.
func TestFaultsStoppedRouter(t *testing.T) {
	t.Parallel()
	file := slowly(t, 5*time.Minute)
	m := newMachine(t)
	run := m.start(nil, m.onboard(file, "--routers", "3")...)
	m.inCanary(run)
	addrs := map[string]string{}
	for _, j := range m.status().Jobs {
		if j.Job.Kind == "router" {
			addrs[j.Job.Name] = j.Job.Groups[0].Addr
		}
	}
	if len(addrs) != 3 {
		t.Fatalf("routers are %v", addrs)
	}
	for name, addr := range addrs {
		if n := m.versions(addr, 60); n["v0"] == 0 || n["v1"] == 0 {
			t.Errorf("%s gives %v under a lease of one half", name, n)
		}
	}
	const victim = "router-3"
	pid := m.pid("--name " + victim)
	freeze(t, pid)
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()

	// Some requests wait in the stopped router's queue; when they are chosen the
	// lease is over.
	var mu sync.Mutex // guards late
	late := map[string]int{}
	var waiting sync.WaitGroup
	for i := range 10 {
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*leaseTTL)
			defer cancel()
			v, err := quickChat(ctx, addrs[victim], fmt.Sprint("early-", i))
			if err != nil {
				v = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			late[v]++
		})
	}

	began := time.Now()
	back := m.start(nil, "rollback", quickAlias, "--yes", "--output", "json")
	reached := until(t, 5*time.Second, "the reachable routers have left the candidate", func() bool {
		for name, addr := range addrs {
			if name != victim && m.versions(addr, 8)["v1"] > 0 {
				return false
			}
		}
		return true
	})
	r := back.wait()
	var out struct {
		From, To string
		Delivery struct {
			Acked, Missing []string
			Took           time.Duration
		}
		Missing []string
	}
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
		t.Fatalf("rollback exits %d and prints %s: %v: %s", r.code, r.out, err, r.err)
	}
	t.Logf("acknowledged by %v after %v; seen by clients after %v; the command ended after %v", out.Delivery.Acked, out.Delivery.Took, reached, r.took)
	if out.Delivery.Took > time.Second || !slices.Equal(out.Delivery.Acked, []string{"router", "router-2"}) || !slices.Equal(out.Missing, []string{victim}) {
		t.Errorf("rollback says %+v", out)
	}
	if !strings.Contains(r.err, victim) {
		t.Errorf("rollback does not name the router that it waits for: %s", r.err)
	}
	until(t, leaseTTL+5*time.Second, "the lease is over", func() bool { return time.Since(began) > leaseTTL })
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// On a connection that was idle so long the server may just be hanging up.
	http.DefaultClient.CloseIdleConnections()
	n := m.versions(addrs[victim], 200)
	waiting.Wait()
	if n["v0"] != 200 || late["v0"] != 10 {
		t.Errorf("after it goes on, the stopped router gives %v, and %v to requests that had waited", n, late)
	}

	if r := run.wait(); r.code != 3 || !strings.Contains(r.err, "rolled back") {
		t.Errorf("the run that was rolled back exits %d: %s", r.code, r.err)
	}
	if s := m.status(); s.Aliases[0].Live != "v0" || len(s.Runs) != 0 || len(s.Jobs) != 4 {
		t.Errorf("status is %+v", s)
	}
}

// freeze stops a process and waits until all of its threads stand still: the kernel
// tells one of them, which tells the others once it has a processor.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, 10*time.Second, "every thread stands still", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d: %v, %v", pid, threads, err)
		}
		for _, path := range threads {
			b, err := os.ReadFile(path)
			_, state, _ := strings.Cut(string(b), ") ")
			if err == nil && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

// versions counts which versions a router gives to new conversations.
func (m *machine) versions(addr string, n int) map[string]int {
	out := map[string]int{}
	for i := range n {
		v, err := quickChat(m.t.Context(), addr, fmt.Sprint("c", i, "-", time.Now().UnixNano()))
		if err != nil {
			v = err.Error()
		}
		out[v]++
	}
	return out
}

// A router that is stopped when the candidate is promoted holds nothing up: it is
// named, serves what was live before when it goes on, and follows then.
func TestFaultsStoppedRouterAtPromotion(t *testing.T) {
	t.Parallel()
	file := slowly(t, 5*time.Second)
	m := newMachine(t)
	run := m.start(nil, m.onboard(file, "--routers", "2")...)
	m.inCanary(run)
	pid := m.pid("--name router-2")
	freeze(t, pid)
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	if r := run.wait(); r.code != 0 || !strings.Contains(r.err, "routers [router-2] did not acknowledge") {
		t.Fatalf("it exits %d: %s", r.code, r.err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	took := until(t, 10*time.Second, "the router follows", func() bool { share, all := m.status().share("v0"); return all && share == 0 })
	t.Logf("it follows %v after it goes on", took)
	m.finished()
	m.live(2)
}

// Every process dies at once, as when the machine does: the next command brings
// all of it back and goes on with the run.
func TestFaultsEverythingDies(t *testing.T) {
	t.Parallel()
	file := slowly(t, 5*time.Second)
	m := newMachine(t)
	run := m.start(nil, m.onboard(file)...)
	m.inCanary(run)
	until(t, 20*time.Second, "there is evidence", func() bool { return m.last().Attempt.State.Requests[1] > 10 })
	before := m.last().Attempt.State
	for pid := range m.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	run.wait()
	r := m.llmops(m.onboard(file)...)
	if r.code != 0 {
		t.Fatalf("the next run exits %d: %s", r.code, r.err)
	}
	if after := m.canary(m.finished().Run); after.Looks <= before.Looks {
		t.Errorf("the evidence began anew: %+v, then %+v", before, after)
	}
	m.live(1)
}

// A rollback stands although nobody drives the run when it is made: the next
// command does not give the candidate traffic again.
func TestFaultsRollbackOfAnOrphan(t *testing.T) {
	t.Parallel()
	file := slowly(t, 30*time.Second)
	m := newMachine(t)
	clients := m.clients(quickAlias)
	run := m.start(nil, m.onboard(file)...)
	m.inCanary(run)
	run.signal(syscall.SIGKILL)
	run.wait()
	if r := m.llmops("rollback", quickAlias, "--yes"); r.code != 0 {
		t.Fatalf("rollback exits %d: %s", r.code, r.err)
	}
	if share, all := m.status().share("v1"); share != 0 || !all {
		t.Errorf("after the rollback the candidate has %g", share)
	}
	done := time.Now()
	if r := m.llmops(m.onboard(file)...); r.code != 3 {
		t.Errorf("the run exits %d: %s", r.code, r.err)
	}
	if s := m.status(); s.Aliases[0].Live != "v0" || len(s.Jobs) != 2 {
		t.Errorf("status is %+v", s)
	}
	clients.undisturbed("v0", "v1")
	if at := clients.asked["v1"]; at.After(done) {
		t.Errorf("the candidate served a request that came %v after the rollback", at.Sub(done))
	}
}

// Interrupted in any stage, whatever by, the command hands its run over and the
// background process ends it.
func TestFaultsInterruptInEveryStage(t *testing.T) {
	file := variant(t, "interrupted")
	for _, c := range []struct {
		stage, at, says string
		by              os.Signal
	}{
		{"download", "after:download:1", "", nil},
		{"quantise", "after:quantise:1", "", nil},
		{"plan", "", "plan", os.Interrupt},
		{"deploy", "after:deploy:4", "", nil},
		{"benchmark", "", "benchmark  load", syscall.SIGTERM},
		{"eval", "", "eval       freight", syscall.SIGHUP},
		{"shadow", "after:shadow:3", "", nil},
		{"canary", "after:canary:3", "", nil},
		{"promote", "before:promote:1", "", nil},
	} {
		t.Run(c.stage, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			clients := m.clients(quickAlias)
			var env []string
			if c.at != "" {
				env = []string{"LLMOPS_INTERRUPT_AT=" + c.at}
			}
			run := m.start(env, m.onboard(file)...)
			if c.says != "" {
				run.hears("\n" + c.says)
				run.signal(c.by)
			}
			r := run.wait()
			if r.code != 4 || !strings.Contains(r.err, "goes on in the background") {
				t.Fatalf("it exits %d: %s", r.code, r.err)
			}
			until(t, 2*time.Minute, "the run is over", func() bool {
				h := m.last()
				if h.State == "failed" || h.State == "refused" {
					t.Fatalf("the run is %+v", h)
				}
				return h.State == "done"
			})
			m.finished()
			m.live(1)
			clients.undisturbed("v0", "v1")
		})
	}
}

// A run that was detached is taken back, handed over again and taken back once
// more, without losing its evidence or its traffic.
func TestFaultsHandOver(t *testing.T) {
	t.Parallel()
	file := slowly(t, 15*time.Second)
	m := newMachine(t)
	clients := m.clients(quickAlias)
	if r := m.llmops(m.onboard(file, "--detach")...); r.code != 4 {
		t.Fatalf("it exits %d: %s", r.code, r.err)
	}
	m.inCanary(nil)
	looks := 0
	for range 3 {
		h := m.last()
		until(t, 20*time.Second, "there is more evidence", func() bool { h = m.last(); return h.Attempt.State.Looks > looks+1 })
		looks = h.Attempt.State.Looks
		run := m.start(nil, "runs", "attach", h.Run)
		run.hears("\ncanary")
		if share, all := m.status().share("v1"); share != 0.5 || !all {
			t.Errorf("taken back, the candidate has %g", share)
		}
		run.signal(os.Interrupt)
		if r := run.wait(); r.code != 4 {
			t.Fatalf("interrupted, attach exits %d: %s", r.code, r.err)
		}
		if share, all := m.status().share("v1"); share != 0.5 || !all {
			t.Errorf("handed over, the candidate has %g", share)
		}
	}
	r := m.llmops("runs", "attach", m.last().Run)
	if r.code != 0 {
		t.Errorf("attach exits %d: %s", r.code, r.err)
	}
	if s := m.canary(m.finished().Run); s.Looks < looks {
		t.Errorf("the evidence began anew: %d looks, then %d", looks, s.Looks)
	}
	m.live(1)
	clients.undisturbed("v0", "v1")
}

// A second run of an alias is refused and does not disturb the first.
func TestFaultsSecondRunOfAnAlias(t *testing.T) {
	t.Parallel()
	file, other := variant(t, "second"), variant(t, "second-other", "standby: 48h", "standby: 24h")
	m := newMachine(t)
	clients := m.clients(quickAlias)
	run := m.start(nil, m.onboard(file)...)
	run.hears("\nbenchmark")
	id := m.last().Run
	for _, f := range []string{file, other} {
		r := m.llmops(m.onboard(f)...)
		if why := r.complaint(t); r.code != 2 || !strings.Contains(why, id) || !strings.Contains(why, "runs attach") {
			t.Errorf("the second exits %d: %s", r.code, why)
		}
	}
	if r := run.wait(); r.code != 0 {
		t.Errorf("the first exits %d: %s", r.code, r.err)
	}
	m.finished()
	m.live(1)
	clients.undisturbed("v0", "v1")
}

// Everything is taken down while a run is driven; the next command brings it all
// back and ends the run.
func TestFaultsDownDuringARun(t *testing.T) {
	for _, stage := range []string{"benchmark", "canary"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			file := slowly(t, 5*time.Second)
			m := newMachine(t)
			run := m.start(nil, m.onboard(file)...)
			if stage == "canary" {
				m.inCanary(run)
			} else {
				run.hears("\n" + stage)
			}
			if r := m.llmops("down"); r.code != 0 {
				t.Errorf("down exits %d: %s", r.code, r.err)
			}
			if r := run.wait(); r.code != 4 {
				t.Errorf("the command that drove exits %d: %s", r.code, r.err)
			}
			if p := m.processes(); len(p) > 0 {
				t.Errorf("left are %v", p)
			}
			if r := m.llmops(m.onboard(file)...); r.code != 0 {
				t.Errorf("the next run exits %d: %s", r.code, r.err)
			}
			m.finished()
			m.live(1)
		})
	}
}

// A stage command acts on the run that waits, and asks which when several do.
func TestFaultsCanaryOfTheWaitingRun(t *testing.T) {
	t.Parallel()
	file := variant(t, "waiting")
	m := newMachine(t)
	if r := m.llmops("canary", "--rollback-on", "ttft"); r.code != 2 || !strings.Contains(r.complaint(t), "no run waits") {
		t.Errorf("without a run it exits %d: %s", r.code, r.err)
	}
	if r := m.llmops(m.onboard(file, "--until", "shadow")...); r.code != 0 {
		t.Fatalf("until shadow it exits %d: %s", r.code, r.err)
	}
	if r := m.llmops("canary", "--rollback-on", "warmth"); r.code != 2 || !strings.Contains(r.complaint(t), "ttft") {
		t.Errorf("of an unknown guard it exits %d: %s", r.code, r.err)
	}
	if r := m.llmops("canary", "--rollback-on", "ttft"); r.code != 0 {
		t.Fatalf("canary exits %d: %s", r.code, r.err)
	}
	h := m.last()
	if got := m.canary(h.Run).names; h.State != "waiting" || !slices.Equal(got, []string{"errors", "refusals", "ttft"}) {
		t.Errorf("the run is %+v with guards %v", h, got)
	}

	// With a second run that waits, both are named.
	second := variant(t, "waiting-too", "name: "+quickAlias, "name: another")
	if r := m.llmops(m.onboard(second, "--until", "plan")...); r.code != 0 {
		t.Fatalf("the second exits %d: %s", r.code, r.err)
	}
	third := variant(t, "waiting-too", "name: "+quickAlias, "name: yet-another")
	if r := m.llmops(m.onboard(third, "--until", "plan")...); r.code != 0 {
		t.Fatalf("the third exits %d: %s", r.code, r.err)
	}
	r := m.llmops("canary", "--rollback-on", "ttft")
	if why := r.complaint(t); r.code != 2 || !strings.Contains(why, "another-") || !strings.Contains(why, "yet-another-") {
		t.Errorf("with two it exits %d: %s", r.code, why)
	}
}
