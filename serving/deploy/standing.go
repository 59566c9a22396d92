package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"llmops/fleet"
)

// Heard are the replicas but for those whose node is silent.
func Heard(all []fleet.Replica) []fleet.Replica {
	return slices.DeleteFunc(slices.Clone(all), func(r fleet.Replica) bool { return r.State == fleet.Unknown })
}

// Keep waits for a job that is registered already and stays as it is. It returns when
// its replicas answer but for those that the scheduler finds no room for, or does not
// hear of: as long as one answers they are no reason to wait. less says what is missing.
func Keep(ctx context.Context, s fleet.Scheduler, job string, progress func(string)) (less string, err error) {
	settled := errors.New("settled")
	err = s.Watch(ctx, job, func(st fleet.Status) error {
		if st.Job.Name != job || st.Rev == 0 {
			return nil
		}
		want, healthy, homeless := 0, 0, 0
		for _, g := range st.Job.Groups {
			want += g.Count
		}
		for _, r := range st.Replicas {
			switch {
			case r.State == fleet.Healthy:
				healthy++
			case r.State == fleet.Unknown, r.State == fleet.Pending && r.Addr == "":
				homeless++
			case r.State == fleet.Failed && r.Starts >= maxStarts:
				return fmt.Errorf("replica %s failed %d times: %s", r.ID, r.Starts, r.Reason)
			}
		}
		progress(fmt.Sprintf("%s: %d of %d replicas answer", job, healthy, want))
		if healthy == 0 || healthy+homeless < want || healthy+homeless < len(st.Replicas) {
			return nil
		}
		if healthy < want {
			less = fmt.Sprintf("%d of %d replicas of %s answer; the scheduler has no room for the others, or does not hear of them", healthy, want, job)
		}
		return settled
	})
	if !errors.Is(err, settled) {
		return "", fmt.Errorf("waiting for %s: %w", job, err)
	}
	return less, nil
}

// Answering asks every replica of a version for a token, as Probes does.
func Answering(ctx context.Context, st fleet.Status) (n int, err error) {
	at := map[string]string{}
	var errs []error
	for _, r := range Heard(st.Replicas) {
		if r.Addr == "" {
			errs = append(errs, fmt.Errorf("%s: it is %s", r.ID, r.State))
			continue
		}
		at[r.ID] = r.Addr
	}
	n, err = Probes(ctx, at, st.Job.Meta["alias"], st.Job.Meta["version"], Task(st.Job.Meta["task"]))
	return n, errors.Join(append(errs, err)...)
}

// Probes is Probe of several servers at once, which are given by name. It tells how
// many gave a token; err says why the others did not. When one has, the others have
// another second: a node that was cut off a moment ago must not hold up whoever can do
// without it.
func Probes(ctx context.Context, at map[string]string, alias, version string, task Task) (n int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := make(chan error, len(at))
	for name, addr := range at {
		go func() {
			err := Probe(ctx, addr, alias, version, task)
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			answers <- err
		}()
	}
	var errs []error
	for range at {
		e := <-answers
		if errs = append(errs, e); e == nil {
			if n++; n == 1 {
				defer time.AfterFunc(time.Second, func() { cancel(errLate) }).Stop()
			}
		}
	}
	return n, errors.Join(errs...)
}

var errLate = errors.New("it gives no token within a second of another's")
