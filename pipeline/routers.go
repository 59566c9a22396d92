package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"llmops/fleet"
	"llmops/serving/deploy"
	"llmops/serving/route"
)

// MaxRouters is how many routers a run may have: what each has counted is in the
// state of a canary, which must fit the head.
const MaxRouters = 8

// routerName is the job of the first router, and on a cluster of all of them.
const routerName = "router"

// routers brings the fleet's routers up. A router that is there stays as it is.
func routers(ctx context.Context, a *Attempt) error {
	for i := range a.routerJobs() {
		name := routerName
		if i > 0 {
			name = fmt.Sprintf("%s-%d", routerName, i+1)
		}
		st, err := a.Deps.Scheduler.Status(ctx, name)
		if err != nil {
			return err
		}
		j := st.Job
		if st.Rev == 0 {
			if j, err = a.routerJob(i, name); err != nil {
				return err
			}
		}
		if err := a.Intent(ctx, "start "+name, j.Groups[0].Addr); err != nil {
			return err
		}
		less, tell := "", func(s string) { a.Progress(s, 0, 0) }
		if st.Rev == 0 {
			err = deploy.Start(ctx, a.Deps.Scheduler, j, tell)
		} else {
			less, err = deploy.Keep(ctx, a.Deps.Scheduler, name, tell)
		}
		if err != nil {
			return fmt.Errorf("starting router on %s: %w", j.Groups[0].Addr, err)
		}
		if less != "" {
			a.Note("%s", less)
		}
	}
	return nil
}

// routerJobs is how many jobs the routers are. The routers of a cluster are the
// replicas of one job, each on a node of its own.
func (a *Attempt) routerJobs() int {
	if a.Deps.Cluster != "" {
		return 1
	}
	return max(1, a.Opts.Routers)
}

// Recording is what new routers write down of each request, for llmops cost and
// benchmark.
type Recording struct {
	Dir  string // a folder of each router's machine; empty: they write none
	Size int64  // bytes of a router's files; 0: its default
}

// routerJob is the i-th of them. Addresses on this machine are fixed when the job is
// made, so that a restarted router is the same one to everybody; on a cluster the
// port is.
func (a *Attempt) routerJob(i int, name string) (fleet.Job, error) {
	argv := []string{"${LLMOPS_BIN}", "router", "serve", "--listen", "${LLMOPS_ADDR}", "--admin", "${LLMOPS_ADMIN}", "--name", name}
	if r := a.Deps.Records; r.Dir != "" {
		argv = append(argv, "--records", r.Dir)
		if r.Size > 0 {
			argv = append(argv, "--records-size", fmt.Sprintf("%dKiB", r.Size>>10))
		}
	}
	g := fleet.Group{Name: "main", Count: 1, Check: fleet.Check{Path: "/health"}}
	if a.Deps.Cluster != "" {
		g.Count = max(1, a.Opts.Routers)
		g.Addr, g.Admin = a.Opts.Listen, ":0"
		g.Argv = append(argv, "--state", "${LLMOPS_DIR}", "--fleet", a.Deps.Cluster)
	} else {
		free, err := freeAddrs(2)
		if err != nil {
			return fleet.Job{}, err
		}
		g.Addr, g.Admin = free[0], free[1]
		if i == 0 {
			g.Addr = cmp.Or(a.Opts.Listen, g.Addr)
		}
		g.Argv = append(argv, "--state", a.Deps.Dir)
	}
	return fleet.Job{Name: name, Version: "1", Kind: fleet.Router, Groups: []fleet.Group{g}}, nil
}

// freeAddrs holds all of them before it gives any back, so that they differ.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		defer func() { _ = l.Close() }()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// RouterAt is one router of a fleet, by the name that reports have.
type RouterAt struct {
	Name, Replica string
	Addr, Admin   string // for clients, and for controllers
	State         fleet.State
}

// RoutersOf are the routers of a job as it stands. Those that have not started yet
// hold no traffic and are not among them; those whose node is silent are, since they
// may.
func RoutersOf(st fleet.Status) []RouterAt {
	var out []RouterAt
	if st.Job.Kind != fleet.Router {
		return nil
	}
	for _, r := range st.Replicas {
		if r.Admin == "" || r.State == fleet.Pending {
			continue
		}
		name := st.Job.Name
		if _, port, _ := net.SplitHostPort(st.Job.Groups[0].Admin); port == "0" {
			// What counts are kept by must stay what it is while others come and go.
			name += "@" + r.Node + "." + r.ID[:min(8, len(r.ID))]
		}
		out = append(out, RouterAt{name, r.ID, r.Addr, r.Admin, r.State})
	}
	return out
}

// Admins are the routers of jobs to those who control them, by name. key may be nil for
// those who only read.
func Admins(all []fleet.Status, key route.Key) map[string]*route.Admin {
	out := map[string]*route.Admin{}
	for _, st := range all {
		for _, r := range RoutersOf(st) {
			out[r.Name] = &route.Admin{Base: "http://" + r.Admin, Key: key}
		}
	}
	return out
}

// RouterAddr is where clients reach a router of the fleet, "" when none is there yet.
func RouterAddr(ctx context.Context, s fleet.Scheduler) (string, error) {
	st, err := s.Status(ctx, routerName)
	if err != nil {
		return "", fmt.Errorf("looking for a router: %w", err)
	}
	at := ""
	for _, r := range RoutersOf(st) {
		if r.State == fleet.Healthy {
			return r.Addr, nil
		}
		at = cmp.Or(at, r.Addr)
	}
	return at, nil
}

// through asks the fleet's routers for a token of the run's alias. One that answers is
// enough: of those that are out of reach others speak.
func (a *Attempt) through(ctx context.Context, version string) error {
	at, err := routerAddrs(ctx, a.Deps.Scheduler)
	if err != nil {
		return err
	}
	n, err := deploy.Probes(ctx, at, a.Spec.Name, version, a.Spec.Task)
	switch {
	case n > 0:
		return nil
	case err == nil:
		err = errors.New("there is none")
	}
	return fmt.Errorf("asking the routers: %w", err)
}

// routerAddrs are where clients reach the fleet's first router, or all of its job, by
// name.
func routerAddrs(ctx context.Context, s fleet.Scheduler) (map[string]string, error) {
	st, err := s.Status(ctx, routerName)
	if err != nil {
		return nil, fmt.Errorf("looking for routers: %w", err)
	}
	out := map[string]string{}
	for _, r := range RoutersOf(st) {
		if r.Addr != "" {
			out[r.Name] = r.Addr
		}
	}
	return out, nil
}

// routerPatience bounds the wait for a router to see replicas that are up.
const routerPatience = 10 * time.Second

// reachable waits for the router to have seen the first version's replicas:
// until then it refuses what clients send to an alias that is said to be live.
func reachable(ctx context.Context, a *Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, routerPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := a.through(ctx, "")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
