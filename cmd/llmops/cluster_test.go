//go:build faults

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// clusterPort is where each router of the cluster takes requests.
const clusterPort = "8400"

// cluster is three Nomad servers and three clients, each in a network of its own,
// and an operator's machine, on which llmops is run. It reaches the cluster by an
// agent of its own that gets no jobs, as one should: that finds the servers that
// are left.
type cluster struct {
	*machine
	lan     *lan
	servers servers
	nodes   []*agent
	ops     *agent
}

// newCluster starts all of it and waits until jobs can be placed.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	example(t)
	l := newLAN(t)
	// A task reaches its agent by a socket below this folder, whose path is at most
	// 107 bytes long.
	dir, err := os.MkdirTemp("", "lmo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &cluster{lan: l, machine: &machine{t: t, home: filepath.Join(dir, "home"), listen: ":" + clusterPort}}
	var hosts []host
	for i := range 3 {
		hosts = append(hosts, l.add(fmt.Sprint("s", i+1), 11+i))
	}
	for _, h := range hosts {
		c.servers = append(c.servers, newAgent(t, h, filepath.Join(dir, h.name), serverConfig(hosts)))
	}
	for i := range 3 {
		h := l.add(fmt.Sprint("n", i+1), 21+i)
		c.nodes = append(c.nodes, newAgent(t, h, filepath.Join(dir, h.name), clientConfig(hosts, "default", fmt.Sprint("r", i+1))))
	}
	ops := l.add("ops", 31)
	c.ops = newAgent(t, ops, filepath.Join(dir, ops.name), clientConfig(hosts, "operators", ""))
	t.Cleanup(l.clear)
	t.Cleanup(func() {
		if t.Failed() {
			c.explain()
		}
	})
	began := time.Now()
	for _, a := range slices.Concat(c.servers, c.nodes, servers{c.ops}) {
		a.start()
	}
	c.servers.led(t, nil)
	c.ready(4)
	t.Logf("three servers, three clients and the operator's agent are up after %v", time.Since(began).Round(time.Millisecond))

	file := filepath.Join(dir, "fleet.yaml")
	text := "apiVersion: llmops/v1\nkind: Fleet\nscheduler: nomad\nnomad: {address: \"http://" + ops.ip + ":4646\", driver: raw_exec}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.env = []string{"LLMOPS_FLEET=" + file}
	c.within = []string{"ip", "netns", "exec", ops.space()}
	t.Cleanup(c.gone)
	return c
}

// ready waits until so many nodes are.
func (c *cluster) ready(want int) time.Duration {
	c.t.Helper()
	return until(c.t, 2*time.Minute, fmt.Sprint(want, " nodes are ready"), func() bool {
		var nodes []struct{ Status string }
		err := c.ops.ask(http.MethodGet, "/v1/nodes", nil, &nodes)
		n := 0
		for _, s := range nodes {
			if s.Status == "ready" {
				n++
			}
		}
		return err == nil && n == want
	})
}

// gone takes everything down and looks for what is left of it: neither an
// allocation, nor a process but the agents'.
func (c *cluster) gone() {
	c.t.Helper()
	began := time.Now()
	c.down()
	c.t.Logf("down took %v", time.Since(began).Round(time.Millisecond))
	var allocs []allocation
	c.ops.get("/v1/allocations", &allocs)
	for _, a := range allocs {
		if slices.Contains([]string{"running", "pending", "unknown"}, a.ClientStatus) {
			c.t.Errorf("after down allocation %s of %s on %s is %s", a.ID[:8], a.JobID, a.NodeName, a.ClientStatus)
		}
	}
	for _, n := range append(slices.Clone(c.nodes), c.ops) {
		for _, pid := range c.lan.inside(n.space()) {
			if argv := commandLine(pid); pid != n.cmd.Process.Pid && argv != "" {
				c.t.Errorf("after down process %d is left on %s: %s", pid, n.name, argv)
			}
		}
	}
}

// allocation is one of Nomad's.
type allocation struct{ ID, JobID, NodeName, ClientStatus, DesiredStatus string }

func commandLine(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(b), "\x00", " ")
}

// explain logs what somebody wants to know when a test fails.
func (c *cluster) explain() {
	for _, a := range slices.Concat(c.servers, c.nodes) {
		if a.cmd != nil {
			c.t.Logf("%s: %s", a.name, tail(filepath.Join(a.dir, "log"), 1500))
		}
	}
	logs, _ := filepath.Glob(filepath.Join(filepath.Dir(c.home), "n*", "data", "alloc", "*", "alloc", "logs", "main.stderr.*"))
	for _, l := range logs {
		c.t.Logf("%s: %s", l, tail(l, 1500))
	}
}

// on are the live allocations of a job by node.
func (c *cluster) on(job string) map[string]int {
	c.t.Helper()
	out := map[string]int{}
	var allocs []allocation
	c.ops.get("/v1/job/"+job+"/allocations", &allocs)
	for _, a := range allocs {
		if a.ClientStatus == "running" && a.DesiredStatus == "run" {
			out[a.NodeName]++
		}
	}
	return out
}

// routers brings three of them up with a run.
func (c *cluster) onboard(file string, args ...string) []string {
	return c.machine.onboard(file, append([]string{"--routers", "3"}, args...)...)
}

// threefold is quick.yaml with a replica of each version for each node.
func threefold(t *testing.T, name string, oldnew ...string) string {
	t.Helper()
	return variant(t, "three-"+name, append([]string{"replicas: 1", "replicas: 3"}, oldnew...)...)
}

// converged waits until everything is as a finished run leaves it: every router
// gives all traffic to live, and each job has want replicas that answer, each of
// a job on a node of its own.
func (c *cluster) converged(live string, jobs map[string]int) time.Duration {
	c.t.Helper()
	var why string
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		if why = c.diverges(live, jobs); why == "" {
			return time.Since(began)
		}
		if time.Since(began) > 3*time.Minute {
			c.t.Errorf("after %v: %s", time.Since(began), why)
			return time.Since(began)
		}
		<-tick.C
	}
}

// diverges says what is not as it should be.
func (c *cluster) diverges(live string, jobs map[string]int) string {
	r := c.llmops("status", "--output", "json")
	var s state
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 {
		return fmt.Sprintf("status exits %d: %s", r.code, r.err)
	}
	if len(s.Aliases) != 1 || s.Aliases[0].Live != live {
		return fmt.Sprintf("aliases are %+v", s.Aliases)
	}
	a := s.Aliases[0]
	if len(a.Routers) != jobs["router"] || len(a.Missing) > 0 {
		return fmt.Sprintf("routers are %v, missing are %v", sorted(a.Routers), a.Missing)
	}
	for name, st := range a.Routers {
		if st.Leased || st.Shares[live] != 1e6 {
			return fmt.Sprintf("%s has %+v", name, st)
		}
	}
	seen := map[string]bool{}
	for _, j := range s.Jobs {
		want, ok := jobs[j.Job.Name]
		if !ok {
			return fmt.Sprintf("job %s is there", j.Job.Name)
		}
		seen[j.Job.Name] = true
		if len(j.Replicas) != want {
			return fmt.Sprintf("job %s has %d replicas, want %d: %+v", j.Job.Name, len(j.Replicas), want, j.Replicas)
		}
		nodes := map[string]bool{}
		for _, r := range j.Replicas {
			if r.State != "healthy" {
				return fmt.Sprintf("replica %s of %s is %s", r.ID, j.Job.Name, r.State)
			}
			nodes[r.Node] = true
		}
		if len(nodes) != min(want, len(c.nodes)) {
			return fmt.Sprintf("the replicas of job %s are on %v", j.Job.Name, sorted(nodes))
		}
	}
	for name := range jobs {
		if !seen[name] {
			return "job " + name + " is not there"
		}
	}
	return ""
}

// finishedJobs are what a finished run of threefold leaves.
var finishedJobs = map[string]int{"router": 3, quickAlias + "-v0": 3, quickAlias + "-v1": 3}

// replica is one of status.
type replica struct{ ID, Node, State string }

// replicas are those of a job as llmops sees them.
func (c *cluster) replicas(job string) (out []replica) {
	c.t.Helper()
	for _, j := range c.status().Jobs {
		if j.Job.Name == job {
			for _, r := range j.Replicas {
				out = append(out, replica{r.ID, r.Node, r.State})
			}
		}
	}
	return out
}
