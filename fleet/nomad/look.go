package nomad

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// atOnce is how many requests are under way together when many things of one kind
// are asked for one by one.
const atOnce = 16

// facts are what Nomad tells of one thing at a time only, by the index at which that
// thing last changed: of a job its counts, of a node its labels and devices.
type facts struct {
	mu    sync.Mutex // guards the maps; what is in them does not change
	jobs  map[string]registration
	nodes map[string]machine
}

// registration is a job as it was registered, or scaled, last.
type registration struct {
	JobModifyIndex uint64
	Stop           bool
	NodePool       string
	Meta           map[string]string
	TaskGroups     []struct {
		Name  string
		Count int
	}
}

// job is what was registered, with the counts that hold now.
func (r registration) job(id string) (fleet.Job, error) {
	return fleetJob(id, r.Meta, func(group string) (int, bool) {
		for _, g := range r.TaskGroups {
			if g.Name == group {
				return g.Count, true
			}
		}
		return 0, false
	})
}

// pass is one look at everything: a list of jobs, one of allocations, and what has to
// be asked of those that are new.
type pass struct {
	jobs    []fleet.Status
	foreign map[string]bool // jobs that llmops has not registered
	index   uint64          // of the older of the lists
}

// All reads every job whose name begins with prefix, and its replicas, ordered by
// name; of jobs that are gone, those of which replicas still drain. It takes two calls
// to Nomad and one more for each job that changed since this Scheduler last looked.
func (s *Scheduler) All(ctx context.Context, prefix string) ([]fleet.Status, error) {
	p, err := s.pass(ctx, prefix)
	return p.jobs, err
}

// Jobs lists what llmops has registered.
func (s *Scheduler) Jobs(ctx context.Context) ([]fleet.Job, error) {
	p, err := s.registered(ctx, "")
	if err != nil {
		return nil, err
	}
	var out []fleet.Job
	for _, st := range p.jobs {
		out = append(out, st.Job)
	}
	return out, nil
}

// registered are the jobs alone, without replicas.
func (s *Scheduler) registered(ctx context.Context, prefix string) (pass, error) {
	p := pass{foreign: map[string]bool{}}
	if err := s.check(ctx); err != nil {
		return p, err
	}
	q := s.read(ctx)
	q.Prefix = prefix
	stubs, meta, err := s.client.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
	if err != nil {
		return p, fmt.Errorf("listing jobs: %w", s.explain(err, s.needs("list-jobs")))
	}
	p.index = meta.LastIndex
	stubs = slices.DeleteFunc(stubs, func(j *api.JobListStub) bool {
		p.foreign[j.ID] = j.Meta[metaJob] == ""
		return p.foreign[j.ID] || j.Stop
	})
	all := make([]registration, len(stubs))
	if err := each(ctx, len(stubs), func(ctx context.Context, i int) (err error) {
		all[i], err = s.registration(ctx, stubs[i])
		return err
	}); err != nil {
		return p, err
	}
	for i, r := range all {
		if r.Stop || r.JobModifyIndex == 0 {
			continue
		}
		job, err := r.job(stubs[i].ID)
		if err != nil {
			return p, err
		}
		p.jobs = append(p.jobs, fleet.Status{Job: job, Rev: r.JobModifyIndex, Pool: r.NodePool})
	}
	if prefix == "" {
		s.known.keepJobs(stubs)
	}
	return p, nil
}

// registration asks for a job unless it is known at the index of the list. One that
// was removed since has none.
func (s *Scheduler) registration(ctx context.Context, stub *api.JobListStub) (registration, error) {
	s.known.mu.Lock()
	r, ok := s.known.jobs[stub.ID]
	s.known.mu.Unlock()
	if ok && r.JobModifyIndex == stub.JobModifyIndex {
		return r, nil
	}
	r = registration{}
	_, err := s.client.Raw().Query("/v1/job/"+url.PathEscape(stub.ID), &r, s.read(ctx))
	if status(err) == http.StatusNotFound {
		return registration{}, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading job %s: %w", stub.ID, s.explain(err, s.needs("read-job")))
	}
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	if s.known.jobs == nil {
		s.known.jobs = map[string]registration{}
	}
	s.known.jobs[stub.ID] = r
	return r, nil
}

// keepJobs forgets all others.
func (k *facts) keepJobs(stubs []*api.JobListStub) {
	k.mu.Lock()
	defer k.mu.Unlock()
	there := make(map[string]bool, len(stubs))
	for _, j := range stubs {
		there[j.ID] = true
	}
	maps.DeleteFunc(k.jobs, func(id string, _ registration) bool { return !there[id] })
}

func (s *Scheduler) pass(ctx context.Context, prefix string) (pass, error) {
	p, err := s.registered(ctx, prefix)
	if err != nil {
		return p, err
	}
	allocs, index, err := s.allocations(ctx, "JobID", "matches", "^"+regexp.QuoteMeta(prefix))
	if err != nil {
		return p, err
	}
	p.index = min(p.index, index)
	of := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if !p.foreign[a.JobID] {
			of[a.JobID] = append(of[a.JobID], a)
		}
	}
	for i := range p.jobs {
		st := &p.jobs[i]
		st.Replicas = replicas(of[st.Job.Name], false)
		delete(of, st.Job.Name)
	}
	for job, allocs := range of {
		if left := replicas(allocs, true); len(left) > 0 {
			p.jobs = append(p.jobs, fleet.Status{Job: fleet.Job{Name: job}, Replicas: left})
		}
	}
	slices.SortFunc(p.jobs, func(a, b fleet.Status) int { return strings.Compare(a.Job.Name, b.Job.Name) })
	return p, s.complete(ctx, p.jobs, "JobID", "matches", "^"+regexp.QuoteMeta(prefix))
}

// Status implements fleet.Scheduler.
func (s *Scheduler) Status(ctx context.Context, job string) (fleet.Status, error) {
	st := fleet.Status{Job: fleet.Job{Name: job}}
	now, err := s.info(ctx, job)
	if err != nil {
		return st, err
	}
	if now != nil {
		if st.Job, err = registeredJob(now); err != nil {
			return st, err
		}
		st.Rev = *now.JobModifyIndex
		if now.NodePool != nil {
			st.Pool = *now.NodePool
		}
	}
	allocs, _, err := s.allocations(ctx, "JobID", "==", job)
	if err != nil {
		return st, err
	}
	st.Replicas = replicas(allocs, now == nil)
	one := []fleet.Status{st}
	err = s.complete(ctx, one, "JobID", "==", job)
	return one[0], err
}

// allocations lists those of jobs that a filter chooses. "^" chooses all.
func (s *Scheduler) allocations(ctx context.Context, field, operator, value string) ([]*api.AllocationListStub, uint64, error) {
	q := s.read(ctx)
	q.Params = map[string]string{"resources": "true"}
	q.Filter = filter(field, operator, value)
	allocs, meta, err := s.client.Allocations().List(q)
	if err != nil {
		return nil, 0, fmt.Errorf("listing allocations: %w", s.explain(err, s.needs("read-job")))
	}
	return allocs, meta.LastIndex, nil
}

func filter(field, operator, value string) string {
	if value == "^" {
		return ""
	}
	return fmt.Sprintf("%s %s %q", field, operator, value)
}

// complete adds what is no part of an allocation: the outcome of checks, and why
// replicas wait that nothing has been found for.
func (s *Scheduler) complete(ctx context.Context, all []fleet.Status, field, operator, value string) error {
	var unsure []*fleet.Replica
	waits, ends := false, false
	for i := range all {
		st := &all[i]
		want := 0
		for _, g := range st.Job.Groups {
			want += g.Count
		}
		waits = waits || st.Rev != 0 && len(st.Replicas) < want
		for n := range st.Replicas {
			switch st.Replicas[n].State {
			case fleet.Running:
				unsure = append(unsure, &st.Replicas[n])
				waits = true
			case fleet.Pending:
				waits = true
			case fleet.Draining:
				ends = true
			}
		}
	}
	if err := each(ctx, len(unsure), func(ctx context.Context, i int) error {
		s.recheck(ctx, unsure[i])
		return nil
	}); err != nil {
		return err
	}
	if ends {
		s.silent(ctx, all)
	}
	if !waits {
		return nil
	}
	return s.waiting(ctx, all, filter(field, operator, value))
}

// silent tells replicas that end from those that nobody can end: Nomad leaves what was
// to stop as it was when its node fell silent.
func (s *Scheduler) silent(ctx context.Context, all []fleet.Status) {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return // a token that may not read nodes sees them drain for longer
	}
	heard := map[string]bool{}
	for _, n := range nodes {
		heard[n.Name] = heard[n.Name] || n.Status == api.NodeStatusReady
	}
	for i := range all {
		for n := range all[i].Replicas {
			if r := &all[i].Replicas[n]; r.State == fleet.Draining && !heard[r.Node] {
				r.State, r.Reason = fleet.Unknown, "node "+r.Node+" is silent"
			}
		}
	}
}

// recheck asks the client of a replica that runs and has not been found healthy: a
// change of its job's count begins a deployment in which it is judged anew, although
// nothing has happened to it.
func (s *Scheduler) recheck(ctx context.Context, r *fleet.Replica) {
	checks, err := s.client.Allocations().Checks(r.ID, s.read(ctx))
	if err != nil || len(checks) == 0 {
		return // it stays what it was: running, and not known to answer
	}
	for _, c := range checks {
		if c.Status != "success" {
			r.Reason = strings.TrimSuffix("its check is "+c.Status+": "+c.Output, ": ")
			return
		}
	}
	r.State = fleet.Healthy
}

// each calls fn with 0 to n-1, some at once, until one fails, and returns that error.
func each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := range next {
				if err := fn(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

func isForeign(err error) bool { return errors.Is(err, errForeign) }
