package nomad

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// waiting tells of replicas that Nomad finds no room for, which have no allocation:
// each gets a place in its job's list, so that somebody sees why it does not come. It
// also says of those that run and are not healthy that their deployment has failed.
func (s *Scheduler) waiting(ctx context.Context, all []fleet.Status, only string) error {
	and := func(expression string) *api.QueryOptions {
		q := s.read(ctx)
		if q.Filter = expression; only != "" {
			q.Filter += " and " + only
		}
		return q
	}
	evals, _, err := s.client.Evaluations().List(and(`Status == "blocked"`))
	if err != nil {
		return fmt.Errorf("listing evaluations: %w", s.explain(err, s.needs("read-job")))
	}
	deployments, _, err := s.client.Deployments().List(and(`Status == "failed"`))
	if err != nil {
		return fmt.Errorf("listing deployments: %w", s.explain(err, s.needs("read-job")))
	}
	blocked, failed := map[string]*api.Evaluation{}, map[string]*api.Deployment{}
	for _, e := range evals {
		if was := blocked[e.JobID]; was == nil || was.CreateIndex < e.CreateIndex {
			blocked[e.JobID] = e
		}
	}
	for _, d := range deployments {
		if was := failed[d.JobID]; was == nil || was.CreateIndex < d.CreateIndex {
			failed[d.JobID] = d
		}
	}
	for i := range all {
		st := &all[i]
		if st.Rev == 0 {
			continue
		}
		if d := failed[st.Job.Name]; d != nil && d.JobSpecModifyIndex == st.Rev {
			for n := range st.Replicas {
				if r := &st.Replicas[n]; r.State == fleet.Running {
					r.Reason = sentence(append([]string{"the deployment failed: " + d.StatusDescription}, r.Reason))
				}
			}
		}
		if e := blocked[st.Job.Name]; e != nil {
			st.Replicas = append(st.Replicas, unplaced(st.Job, e)...)
		}
	}
	return nil
}

// unplaced are replicas that have no allocation. Their names stay the same however
// often Nomad tries.
func unplaced(j fleet.Job, e *api.Evaluation) []fleet.Replica {
	var out []fleet.Replica
	for _, g := range j.Groups {
		m := e.FailedTGAllocs[g.Name]
		if m == nil {
			continue
		}
		for n := range m.CoalescedFailures + 1 {
			out = append(out, fleet.Replica{
				ID: fmt.Sprintf("waiting-%s-%d", g.Name, n), Group: g.Name, State: fleet.Pending, Reason: sentence(reasons(g, m)),
				NoRoom: len(m.DimensionExhausted) > 0 || m.NodesEvaluated == 0,
			})
		}
	}
	return out
}
