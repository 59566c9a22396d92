package nomad

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/nomad/nomadtest/recorded"
)

// The fleet of the benchmarks: 5,000 replicas of 400 jobs on 1,000 nodes.
const largeNodes, largeJobs, largeReplicas = 1000, 400, 5000

// large are nodes with eight GPUs and as many bytes of attributes as a machine of 192
// cores tells of itself, which is mostly the speed of each.
func large(n int) recorded.Options {
	attributes := map[string]string{}
	for i := range 192 {
		attributes[fmt.Sprintf("cpu.core.%03d.base.speed.and.maximum.speed.in.megahertz.and.the.node.and.socket", i)] = "2445 0 performance enabled 0 0"
	}
	o := recorded.Options{}
	for i := range n {
		o.Nodes = append(o.Nodes, recorded.Node{
			Name: fmt.Sprintf("gpu-%04d", i), Zone: fmt.Sprint("az", i%3), Rack: fmt.Sprint("r", i/8), GPU: "NVIDIA H100 80GB HBM3", GPUs: 8, Attributes: attributes,
		})
	}
	return o
}

// meta is what Apply writes of an engine with twenty arguments.
func meta(replicas int) func(int) (string, map[string]string) {
	return func(i int) (string, map[string]string) {
		j := fleet.Job{Name: fmt.Sprintf("engine/model-%03d/v1", i), Version: "v1", Kind: fleet.Engine, Pool: "default", Meta: map[string]string{"alias": fmt.Sprint("model-", i), "version": "v1", "role": "stable"}}
		g := fleet.Group{Name: "main", Count: replicas, Grace: time.Minute, GPU: fleet.Need{Kind: "H100", Count: 1}, Check: fleet.Check{Path: "/health"}, Env: map[string]string{"HF_HUB_OFFLINE": "1"}}
		for n := range 20 {
			g.Argv = append(g.Argv, fmt.Sprintf("--some-argument-of-the-engine-%d=value", n))
		}
		j.Groups = []fleet.Group{g}
		b, err := json.Marshal(j)
		if err != nil {
			panic(err)
		}
		return j.Name, map[string]string{metaJob: string(b)}
	}
}

// serveLarge is the cluster of the benchmarks, in a process of its own, until its
// standard input ends.
func serveLarge() int {
	s := recorded.Start(large(largeNodes))
	defer s.Close()
	s.Fill(largeJobs, largeReplicas/largeJobs, meta(largeReplicas/largeJobs))
	fmt.Println(s.Address())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func largeCluster(b *testing.B) *api.Client {
	b.Helper()
	bin, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), "LLMOPS_TEST_LARGE=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	c, err := Dial(Config{Address: strings.TrimSpace(address)})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// show is what it takes to show the fleet.
func show(b *testing.B, s *Scheduler) {
	b.Helper()
	nodes, err := s.Nodes(b.Context())
	if err != nil || len(nodes) != largeNodes || len(nodes[0].GPUs) != 8 || nodes[999].Rack != "r124" {
		b.Fatalf("%d nodes, %v", len(nodes), err)
	}
	jobs, err := s.All(b.Context(), "")
	replicas := 0
	for _, st := range jobs {
		replicas += len(st.Replicas)
	}
	if err != nil || len(jobs) != largeJobs || replicas < largeReplicas-largeJobs {
		b.Fatalf("%d jobs, %d replicas, %v", len(jobs), replicas, err)
	}
}

// The first look at a fleet: what llmops fleet status asks of Nomad.
func BenchmarkFleetFirst(b *testing.B) {
	c := largeCluster(b)
	before := cpu(b)
	for b.Loop() {
		show(b, NewScheduler(c, Options{}))
	}
	b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// Each further look by the same process.
func BenchmarkFleetAgain(b *testing.B) {
	s := NewScheduler(largeCluster(b), Options{})
	show(b, s)
	before := cpu(b)
	for b.Loop() {
		show(b, s)
	}
	b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// The documents of jobs and replicas, which routers and the controller read.
func BenchmarkFleetMembers(b *testing.B) {
	c := largeCluster(b)
	m := NewMembers(NewStore(c, ""), NewScheduler(c, Options{}))
	before := cpu(b)
	for b.Loop() {
		if docs, err := m.List(b.Context(), "replica/"); err != nil || len(docs) < largeReplicas-largeJobs {
			b.Fatalf("%d documents, %v", len(docs), err)
		}
	}
	b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// What is asked does not grow with the fleet, but for what has changed.
func TestFewCalls(t *testing.T) {
	srv, c := server(t, large(20))
	srv.Fill(largeJobs, 2, meta(2))
	s := NewScheduler(c, Options{})
	total := func() (n int, all map[string]int) {
		all = srv.Asked()
		for _, k := range all {
			n += k
		}
		return n, all
	}
	look := func() (int, map[string]int) {
		t.Helper()
		srv.Asked()
		if jobs, err := s.All(t.Context(), ""); err != nil || len(jobs) != largeJobs || len(jobs[0].Replicas) != 2 || jobs[0].Job.Groups[0].Count != 2 {
			t.Fatalf("%d jobs, %v", len(jobs), err)
		}
		if nodes, err := s.Nodes(t.Context()); err != nil || len(nodes) != 20 || nodes[0].Zone != "az0" {
			t.Fatalf("%d nodes, %v", len(nodes), err)
		}
		return total()
	}
	if n, all := look(); n != 2+2+largeJobs+1+20 {
		t.Errorf("the first look asks %d times: %v", n, all)
	}
	if n, all := look(); n != 3 {
		t.Errorf("a further look asks %d times: %v", n, all)
	}
	if _, err := c.Nodes().ToggleEligibility(node(t, c), false, nil); err != nil {
		t.Fatal(err)
	}
	if n, all := look(); n != 3+1 {
		t.Errorf("after a change of a node a look asks %d times: %v", n, all)
	}

	// What has changed is asked for by itself.
	changes, _ := meta(2)(8)
	if _, err := s.Scale(t.Context(), changes, "main", 1, revision(t, s, changes)); err != nil {
		t.Fatal(err)
	}
	srv.Asked()
	if all, err := s.All(t.Context(), changes); err != nil || len(all) != 1 || all[0].Job.Groups[0].Count != 1 {
		t.Errorf("after it was scaled it is %+v, %v", all, err)
	}
	if n, all := total(); n != 2+1 {
		t.Errorf("it was asked for %d times: %v", n, all)
	}
	if err := s.Stop(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	srv.Asked()
	if all, err := s.Jobs(t.Context()); err != nil || len(all) != largeJobs-1 {
		t.Errorf("without the one that was stopped there are %d, %v", len(all), err)
	}
	if n, all := total(); n != 1 {
		t.Errorf("they were asked for %d times: %v", n, all)
	}

	// A watcher asks for the one job that changes.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told, ended := make(chan fleet.Status, 2*largeJobs), make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, "", func(st fleet.Status) error { told <- st; return nil })
	}()
	for range largeJobs - 1 {
		<-told
	}
	name, _ := meta(2)(7)
	rev := revision(t, s, name)
	count := int64(1)
	srv.Asked()
	if _, _, err := c.Jobs().ScaleWithRequest(name, &api.ScalingRequest{Count: &count, Target: map[string]string{"Group": "main"}, JobModifyIndex: rev}, nil); err != nil {
		t.Fatal(err)
	}
	for st := range told {
		if st.Job.Name != name {
			t.Errorf("told of %s, which has not changed", st.Job.Name)
		}
		if st.Job.Groups[0].Count == 1 {
			break
		}
	}
	if n, all := total(); n > 16 {
		t.Errorf("one change of one job of %d makes a watcher ask %d times: %v", largeJobs, n, all)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func revision(t *testing.T, s *Scheduler, name string) uint64 {
	t.Helper()
	st, err := s.Status(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return st.Rev
}

func node(t *testing.T, c *api.Client) string {
	t.Helper()
	nodes, _, err := c.Nodes().List(nil)
	if err != nil {
		t.Fatal(err)
	}
	return nodes[0].ID
}
