package nomad

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// Options say how jobs become Nomad's.
type Options struct {
	Namespace string                          // empty: Nomad's default
	Files     fs.FS                           // job files
	File      func(j fleet.Job) (File, error) // the one that a job takes; nil: process.nomad.hcl
	Bin       string                          // where llmops is on every node
	Pools     map[string]string               // node pools by the names that models use; others: default
}

// Scheduler places jobs in a Nomad cluster.
type Scheduler struct {
	*cluster
	o     Options
	known facts
}

var _ fleet.Scheduler = (*Scheduler)(nil)

// NewScheduler places jobs with the client's address and token.
func NewScheduler(c *api.Client, o Options) *Scheduler {
	return &Scheduler{cluster: newCluster(c, o.Namespace), o: o}
}

// info is nil for a job that is not registered, or was stopped.
func (s *Scheduler) info(ctx context.Context, name string) (*api.Job, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	job, _, err := s.client.Jobs().Info(name, s.read(ctx))
	if status(err) == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading job %s: %w", name, s.explain(err, s.needs("read-job")))
	}
	if job.Stop != nil && *job.Stop {
		return nil, nil
	}
	return job, nil
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
		if _, err := registeredJob(now); err != nil {
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
		return fleet.Plan{}, fmt.Errorf("planning job %s: %w", j.Name, s.explain(err, s.needs("submit-job")))
	}
	p := fleet.Plan{Fits: len(res.FailedTGAllocs) == 0, Changes: changes(res.Diff)}
	for _, g := range j.Groups {
		if m := res.FailedTGAllocs[g.Name]; m != nil {
			p.Reasons = append(p.Reasons, reasons(g, m)...)
		}
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
	} else if _, err := registeredJob(now); err != nil {
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
		return 0, fmt.Errorf("reading job %s: %w", name, s.explain(err, s.needs("read-job")))
	}
	return *job.JobModifyIndex, nil
}

// lost tells a compare-and-set that lost, which Nomad says in words alone.
func (s *Scheduler) lost(err error, needs string) error {
	if err != nil && strings.Contains(err.Error(), "Enforcing job modify index") || strings.Contains(err.Error(), "job modify index") {
		return fmt.Errorf("%w: %w", fleet.ErrConflict, err)
	}
	return s.explain(err, s.needs(needs))
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
	if _, err := registeredJob(now); err != nil {
		return err
	}
	if _, _, err := s.client.Jobs().Deregister(job, false, s.write(ctx)); err != nil && status(err) != http.StatusNotFound {
		return fmt.Errorf("stopping job %s: %w", job, s.explain(err, s.needs("submit-job")))
	}
	return nil
}
