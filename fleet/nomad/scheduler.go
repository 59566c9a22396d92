package nomad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// Options say how jobs become Nomad's.
type Options struct {
	Namespace string                           // empty: Nomad's default
	Files     fs.FS                            // job files
	File      func(j fleet.Job) string         // which of them a job takes; nil: process.nomad.hcl
	Bin       string                           // where llmops is on every node
	Pools     map[string]string                // node pools by the names that models use; others: default
	Vars      func(j fleet.Job) map[string]any // further variables of that file; nil: none
}

// Scheduler places jobs in a Nomad cluster.
type Scheduler struct {
	client    *api.Client
	namespace string
	o         Options
}

var _ fleet.Scheduler = (*Scheduler)(nil)

// NewScheduler places jobs with the client's address and token.
func NewScheduler(c *api.Client, o Options) *Scheduler {
	return &Scheduler{client: c, namespace: cmp.Or(o.Namespace, api.DefaultNamespace), o: o}
}

func (s *Scheduler) read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: s.namespace}).WithContext(ctx)
}

func (s *Scheduler) write(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: s.namespace}).WithContext(ctx)
}

func (s *Scheduler) needs(what string) string { return what + " in namespace " + s.namespace }

// info is nil for a job that is not registered, or was stopped.
func (s *Scheduler) info(ctx context.Context, name string) (*api.Job, error) {
	job, _, err := s.client.Jobs().Info(name, s.read(ctx))
	if status(err) == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading job %s: %w", name, explain(err, s.needs("read-job")))
	}
	if job.Stop != nil && *job.Stop {
		return nil, nil
	}
	return job, nil
}

func status(err error) int {
	var res api.UnexpectedResponseError
	if errors.As(err, &res) {
		return res.StatusCode()
	}
	return 0
}

// Plan implements fleet.Scheduler.
func (s *Scheduler) Plan(ctx context.Context, j fleet.Job) (fleet.Plan, error) {
	job, err := s.parse(j)
	if err != nil {
		return fleet.Plan{}, err
	}
	now, err := s.info(ctx, j.Name)
	if err != nil {
		return fleet.Plan{}, err
	}
	if now != nil {
		if _, err := fleetJob(now); err != nil {
			return fleet.Plan{}, err
		}
		keepCounts(job, now)
	}
	for _, g := range job.TaskGroups {
		if g.Count != nil && *g.Count == 0 { // of which Nomad would say that it fits anywhere
			*g.Count = 1
		}
	}
	res, _, err := s.client.Jobs().PlanOpts(job, &api.PlanOptions{Diff: true}, s.write(ctx))
	if err != nil {
		return fleet.Plan{}, fmt.Errorf("planning job %s: %w", j.Name, explain(err, s.needs("submit-job")))
	}
	p := fleet.Plan{Fits: len(res.FailedTGAllocs) == 0, Changes: changes(res.Diff)}
	for _, g := range slices.Sorted(maps.Keys(res.FailedTGAllocs)) {
		p.Reasons = append(p.Reasons, reasons(g, res.FailedTGAllocs[g])...)
	}
	return p, nil
}

// keepCounts takes the counts that somebody has set since.
func keepCounts(job, now *api.Job) {
	for _, g := range job.TaskGroups {
		if old := now.LookupTaskGroup(*g.Name); old != nil {
			g.Count = old.Count
		}
	}
}

// Apply implements fleet.Scheduler.
func (s *Scheduler) Apply(ctx context.Context, j fleet.Job, ifRev uint64) (uint64, error) {
	job, err := s.parse(j)
	if err != nil {
		return 0, err
	}
	now, err := s.info(ctx, j.Name)
	if err != nil {
		return 0, err
	}
	index := ifRev
	if now == nil {
		if ifRev != 0 {
			return 0, fmt.Errorf("registering job %s: %w: it is not registered any more", j.Name, fleet.ErrConflict)
		}
		if index, err = s.stopped(ctx, j.Name); err != nil {
			return 0, err
		}
	} else if _, err := fleetJob(now); err != nil {
		return 0, err
	} else if ifRev == 0 {
		return 0, fmt.Errorf("registering job %s: %w: it is registered at revision %d", j.Name, fleet.ErrConflict, *now.JobModifyIndex)
	}
	res, _, err := s.client.Jobs().RegisterOpts(job, &api.RegisterOptions{EnforceIndex: true, ModifyIndex: index, PreserveCounts: now != nil}, s.write(ctx))
	if err != nil {
		return 0, fmt.Errorf("registering job %s: %w", j.Name, s.lost(err, "submit-job"))
	}
	return res.JobModifyIndex, nil
}

// stopped is the index of a job that was stopped and not yet forgotten, which the
// next registration must name; 0: there is none.
func (s *Scheduler) stopped(ctx context.Context, name string) (uint64, error) {
	job, _, err := s.client.Jobs().Info(name, s.read(ctx))
	if status(err) == http.StatusNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading job %s: %w", name, explain(err, s.needs("read-job")))
	}
	return *job.JobModifyIndex, nil
}

// lost tells a compare-and-set that lost, which Nomad says in words alone.
func (s *Scheduler) lost(err error, needs string) error {
	if err != nil && strings.Contains(err.Error(), "Enforcing job modify index") || strings.Contains(err.Error(), "job modify index") {
		return fmt.Errorf("%w: %w", fleet.ErrConflict, err)
	}
	return explain(err, s.needs(needs))
}

// Scale implements fleet.Scheduler.
func (s *Scheduler) Scale(ctx context.Context, job, group string, n int, ifRev uint64) (uint64, error) {
	now, err := s.info(ctx, job)
	if err != nil {
		return 0, err
	}
	switch {
	case now == nil:
		return 0, fmt.Errorf("scaling job %s: %w", job, fleet.ErrNotFound)
	case *now.JobModifyIndex != ifRev:
		return 0, fmt.Errorf("scaling job %s: %w: at revision %d, wanted %d", job, fleet.ErrConflict, *now.JobModifyIndex, ifRev)
	case now.LookupTaskGroup(group) == nil:
		return 0, fmt.Errorf("scaling job %s: group %s: %w", job, group, fleet.ErrNotFound)
	}
	count := int64(n)
	for {
		res, _, err := s.client.Jobs().ScaleWithRequest(job, &api.ScalingRequest{
			Count: &count, Target: map[string]string{"Group": group}, Message: "llmops", JobModifyIndex: ifRev,
			WriteRequest: api.WriteRequest{Namespace: s.namespace},
		}, s.write(ctx))
		if err == nil {
			return res.JobModifyIndex, nil
		}
		// Nomad scales no job that it is just deploying, which it goes on to call so
		// for a moment after the last replica is healthy.
		if !strings.Contains(err.Error(), "active deployment") {
			return 0, fmt.Errorf("scaling job %s: %w", job, s.lost(err, "scale-job"))
		}
		if werr := sleep(ctx, pause); werr != nil {
			return 0, fmt.Errorf("scaling job %s: %w: %w", job, err, werr)
		}
	}
}

// Stop implements fleet.Scheduler. The job is left to Nomad's garbage collection: with
// a job that is purged its allocations are forgotten while they still drain.
func (s *Scheduler) Stop(ctx context.Context, job string) error {
	now, err := s.info(ctx, job)
	if err != nil || now == nil {
		return err
	}
	if _, err := fleetJob(now); err != nil {
		return err
	}
	if _, _, err := s.client.Jobs().Deregister(job, false, s.write(ctx)); err != nil && status(err) != http.StatusNotFound {
		return fmt.Errorf("stopping job %s: %w", job, explain(err, s.needs("submit-job")))
	}
	return nil
}

// Status implements fleet.Scheduler.
func (s *Scheduler) Status(ctx context.Context, job string) (fleet.Status, error) {
	st := fleet.Status{Job: fleet.Job{Name: job}}
	now, err := s.info(ctx, job)
	if err != nil {
		return st, err
	}
	if now != nil {
		if st.Job, err = fleetJob(now); err != nil {
			return st, err
		}
		st.Rev = *now.JobModifyIndex
	}
	q := s.read(ctx)
	q.Params = map[string]string{"resources": "true"}
	q.Filter = fmt.Sprintf("JobID == %q", job)
	allocs, _, err := s.client.Allocations().List(q)
	if err != nil {
		return st, fmt.Errorf("listing allocations of job %s: %w", job, explain(err, s.needs("read-job")))
	}
	st.Replicas = replicas(allocs, now == nil)
	s.recheck(ctx, st.Replicas)
	return st, nil
}

// recheck asks the client of a replica that runs and has not been found healthy: a
// change of its job's count begins a deployment in which it is judged anew, although
// nothing has happened to it.
func (s *Scheduler) recheck(ctx context.Context, replicas []fleet.Replica) {
	for i, r := range replicas {
		if r.State != fleet.Running {
			continue
		}
		checks, err := s.client.Allocations().Checks(r.ID, s.read(ctx))
		if err != nil || len(checks) == 0 {
			continue // it stays what it was: running, and not known to answer
		}
		ok := true
		for _, c := range checks {
			ok = ok && c.Status == "success"
		}
		if ok {
			replicas[i].State = fleet.Healthy
		}
	}
}

// Watch implements fleet.Scheduler. The event stream says when to look; what is told
// is what was looked at, so that a stream that broke off, or missed events, costs
// nothing but time.
func (s *Scheduler) Watch(ctx context.Context, prefix string, fn func(fleet.Status) error) error {
	told := map[string]string{}
	look := func() error {
		names, err := s.names(ctx, prefix, told)
		if err != nil {
			return err
		}
		for _, name := range names {
			st, err := s.Status(ctx, name)
			if isForeign(err) {
				continue
			}
			if err != nil {
				return err
			}
			if now := fmt.Sprintf("%+v", st); told[name] != now {
				told[name] = now
				if err := fn(st); err != nil {
					return toldError{err}
				}
			}
			if st.Rev == 0 && len(st.Replicas) == 0 {
				delete(told, name)
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wake := make(chan struct{}, 1)
	go s.events(ctx, wake)
	tick := time.NewTicker(atLeast)
	defer tick.Stop()
	for {
		err := look()
		var told toldError
		switch {
		case errors.As(err, &told):
			return told.error
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passes(err):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-wake:
		}
	}
}

func isForeign(err error) bool { return errors.Is(err, errForeign) }

// Jobs lists what llmops has registered.
func (s *Scheduler) Jobs(ctx context.Context) ([]fleet.Job, error) {
	names, err := s.names(ctx, "", map[string]string{"": ""})
	if err != nil {
		return nil, err
	}
	var out []fleet.Job
	for _, name := range names {
		if name == "" {
			continue
		}
		now, err := s.info(ctx, name)
		if err != nil {
			return nil, err
		}
		if now == nil {
			continue
		}
		j, err := fleetJob(now)
		if isForeign(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}

// names are the jobs to look at: those that are there, those that were told of, and at
// first those that are gone while replicas of theirs still drain, with the one that
// the prefix names.
func (s *Scheduler) names(ctx context.Context, prefix string, told map[string]string) ([]string, error) {
	q := s.read(ctx)
	q.Prefix = prefix
	jobs, _, err := s.client.Jobs().List(q)
	if err != nil {
		return nil, fmt.Errorf("listing jobs: %w", explain(err, s.needs("list-jobs")))
	}
	set := map[string]bool{}
	for _, j := range jobs {
		set[j.ID] = true
	}
	if len(told) == 0 {
		allocs, _, err := s.client.Allocations().List(s.read(ctx))
		if err != nil {
			return nil, fmt.Errorf("listing allocations: %w", explain(err, s.needs("read-job")))
		}
		for _, a := range allocs {
			if strings.HasPrefix(a.JobID, prefix) && len(replicas([]*api.AllocationListStub{a}, true)) > 0 {
				set[a.JobID] = true
			}
		}
		if prefix != "" {
			set[prefix] = true
		}
	}
	for name := range told {
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set)), nil
}

// atLeast is how often is looked without an event: the stream's buffer is finite, and
// a check's outcome is no event.
const atLeast = 2 * time.Second

// events wakes whenever the cluster changes jobs or allocations. A stream that ends,
// or cannot be had, is begun anew: the ticker looks meanwhile. Opening one takes until
// its first event comes.
func (s *Scheduler) events(ctx context.Context, wake chan<- struct{}) {
	topics := map[api.Topic][]string{api.TopicJob: {"*"}, api.TopicAllocation: {"*"}}
	for ctx.Err() == nil {
		stream, err := s.client.EventStream().Stream(ctx, topics, 0, s.read(ctx))
		if err == nil {
			for e := range stream {
				if e.Err != nil {
					break
				}
				select {
				case wake <- struct{}{}:
				default:
				}
			}
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}
