// Package deploy turns a version of a model into warm replicas that have each
// produced a real token.
//
// [Up] registers a job, waits for its replicas and asks each for a token; only
// that makes a replica ready, since a process that answers a health check may
// still be unable to serve. [Down] takes a version off the fleet. Both look at
// what is there first and can be repeated after any interruption. [Start] is for
// jobs that produce no tokens.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
)

// stopEvery is how often it is looked whether a job has stopped.
const stopEvery = time.Second

// maxStarts is how often a replica may fail before its job counts as broken.
const maxStarts = 3

// Up registers the job and returns when all replicas of it are ready, o.Loads of
// them at a time. A job that is registered already is brought to its count when o.Grow
// says so, and otherwise keeps the number that it has. A replica that fails repeatedly
// ends the wait with its reason.
func Up(ctx context.Context, s fleet.Scheduler, j fleet.Job, o Options, progress func(string)) ([]Ready, error) {
	began := time.Now()
	st, err := s.Status(ctx, j.Name)
	if err != nil {
		return nil, err
	}
	first := j
	if st.Rev == 0 && o.Loads > 0 {
		first = counted(j, func(g fleet.Group) int { return min(g.Count, o.Loads) })
	}
	if err := fits(ctx, s, j); err != nil {
		return nil, err
	}
	replicas, seen, err := start(ctx, s, first, progress)
	if err != nil {
		return nil, err
	}
	known := map[string]Ready{}
	for {
		if err := ready(ctx, j, replicas, o.Warm, seen, st.Replicas, began, known); err != nil {
			return nil, err
		}
		grown := false
		if st.Rev == 0 || o.Grow {
			if grown, err = grow(ctx, s, j, o.Loads); err != nil {
				return nil, err
			}
		}
		if !grown {
			break
		}
		if replicas, err = answering(ctx, s, j, seen, progress); err != nil {
			return nil, err
		}
	}
	out := make([]Ready, 0, len(replicas))
	for _, r := range replicas {
		out = append(out, known[r.ID])
	}
	return out, nil
}

// grow lets so many more of each group start as may load at once; 0: all. It is false
// when every group has its count.
func grow(ctx context.Context, s fleet.Scheduler, j fleet.Job, loads int) (bool, error) {
	grown := false
	for _, g := range j.Groups {
		for {
			st, err := s.Status(ctx, j.Name)
			if err != nil {
				return false, err
			}
			i := slices.IndexFunc(st.Job.Groups, func(o fleet.Group) bool { return o.Name == g.Name })
			if st.Rev == 0 || i < 0 {
				return false, fmt.Errorf("growing %s: %w", j.Name, fleet.ErrNotFound)
			}
			have := st.Job.Groups[i].Count
			if have >= g.Count {
				break
			}
			to := g.Count
			if loads > 0 {
				to = min(to, have+loads)
			}
			if _, err = s.Scale(ctx, j.Name, g.Name, to, st.Rev); errors.Is(err, fleet.ErrConflict) {
				continue
			}
			if err != nil {
				return false, err
			}
			grown = true
			break
		}
	}
	return grown, nil
}

func counted(j fleet.Job, count func(fleet.Group) int) fleet.Job {
	j.Groups = slices.Clone(j.Groups)
	for i, g := range j.Groups {
		j.Groups[i].Count = count(g)
	}
	return j
}

// fits asks before anything starts whether all of it can.
func fits(ctx context.Context, s fleet.Scheduler, j fleet.Job) error {
	plan, err := s.Plan(ctx, j)
	if err != nil {
		return fmt.Errorf("planning %s: %w", j.Name, err)
	}
	if !plan.Fits {
		return fmt.Errorf("job %s does not fit: %s", j.Name, strings.Join(plan.Reasons, "; "))
	}
	return nil
}

// register applies the job over whatever revision is there.
func register(ctx context.Context, s fleet.Scheduler, j fleet.Job) error {
	st, err := s.Status(ctx, j.Name)
	if err != nil {
		return err
	}
	_, err = s.Apply(ctx, j, st.Rev)
	return err
}

// Start registers a job that produces no tokens and returns when its replicas
// answer their check.
func Start(ctx context.Context, s fleet.Scheduler, j fleet.Job, progress func(string)) error {
	_, _, err := start(ctx, s, j, progress)
	return err
}

func start(ctx context.Context, s fleet.Scheduler, j fleet.Job, progress func(string)) ([]fleet.Replica, sightings, error) {
	plan, err := s.Plan(ctx, j)
	if err != nil {
		return nil, nil, fmt.Errorf("planning %s: %w", j.Name, err)
	}
	if !plan.Fits {
		return nil, nil, fmt.Errorf("job %s does not fit: %s", j.Name, strings.Join(plan.Reasons, "; "))
	}
	if len(plan.Changes) > 0 {
		if err := register(ctx, s, j); err != nil {
			return nil, nil, fmt.Errorf("registering %s: %w", j.Name, err)
		}
	}
	seen := sightings{}
	replicas, err := answering(ctx, s, j, seen, progress)
	return replicas, seen, err
}

// sightings are when replicas were first seen to answer their check, by ID.
type sightings map[string]time.Time

// answering returns the job's replicas when all of them answer their check.
func answering(ctx context.Context, s fleet.Scheduler, j fleet.Job, seen sightings, progress func(string)) ([]fleet.Replica, error) {
	var replicas []fleet.Replica
	all := errors.New("all healthy")
	err := s.Watch(ctx, j.Name, func(st fleet.Status) error {
		if st.Job.Name != j.Name || st.Rev == 0 {
			return nil
		}
		want := 0
		for _, g := range st.Job.Groups {
			want += g.Count
		}
		var healthy []fleet.Replica
		others := 0 // that count as the job's and do not answer yet
		for _, r := range st.Replicas {
			switch {
			case r.State == fleet.Healthy:
				healthy = append(healthy, r)
				if seen[r.ID].IsZero() {
					seen[r.ID] = time.Now()
				}
			case r.State == fleet.Failed && r.Starts >= maxStarts:
				return fmt.Errorf("replica %s failed %d times: %s", r.ID, r.Starts, r.Reason)
			case r.State != fleet.Unknown: // whose node is silent: another takes its place
				others++
			}
		}
		progress(fmt.Sprintf("%s: %d of %d replicas answer", j.Name, len(healthy), want))
		if len(healthy) == want && others == 0 {
			replicas = healthy
			return all
		}
		return nil
	})
	if !errors.Is(err, all) {
		return nil, fmt.Errorf("waiting for %s: %w", j.Name, err)
	}
	return replicas, nil
}

// Down stops the job and returns when its last replica is gone. A replica whose node
// is silent is stopped when the node is heard of again, which is not waited for.
func Down(ctx context.Context, s fleet.Scheduler, job string) error {
	if err := s.Stop(ctx, job); err != nil {
		return fmt.Errorf("stopping %s: %w", job, err)
	}
	st, err := s.Status(ctx, job)
	if err != nil || len(Heard(st.Replicas)) == 0 {
		return err
	}
	gone := errors.New("gone")
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	// What was gone before the watch began is nothing that a watch tells of.
	wg.Go(func() {
		tick := time.NewTicker(stopEvery)
		defer tick.Stop()
		for {
			select {
			case <-wctx.Done():
				return
			case <-tick.C:
			}
			if st, err := s.Status(wctx, job); err == nil && len(Heard(st.Replicas)) == 0 {
				cancel(gone)
			}
		}
	})
	err = s.Watch(wctx, job, func(st fleet.Status) error {
		if st.Job.Name == job && len(Heard(st.Replicas)) == 0 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) && !errors.Is(context.Cause(wctx), gone) {
		return fmt.Errorf("waiting for %s to stop: %w", job, err)
	}
	return nil
}
