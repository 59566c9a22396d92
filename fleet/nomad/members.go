package nomad

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"llmops/fleet"
)

// The documents of jobs and replicas, which on one machine a supervisor writes.
const (
	jobPrefix     = "job/"
	replicaPrefix = "replica/"
)

// Members is a Store in which jobs and replicas can be read as documents: Nomad knows
// them, so that they are made of what the cluster says and are nowhere written.
type Members struct {
	*Store
	scheduler *Scheduler
}

var _ fleet.Store = (*Members)(nil)

// NewMembers joins documents and cluster.
func NewMembers(store *Store, s *Scheduler) *Members { return &Members{store, s} }

func virtual(name string) bool {
	return strings.HasPrefix(name, jobPrefix) || strings.HasPrefix(name, replicaPrefix)
}

// docs are a job as it stands and its replicas. A job that is gone has no document;
// its last replicas may have.
func docs(st fleet.Status) ([]fleet.Doc, error) {
	var out []fleet.Doc
	add := func(name string, v any) error {
		b, err := json.Marshal(v)
		out = append(out, fleet.Doc{Name: name, Rev: max(st.Rev, 1), Body: b})
		return err
	}
	if st.Rev != 0 {
		if err := add(jobPrefix+st.Job.Name, st.Job); err != nil {
			return nil, err
		}
	}
	for _, r := range st.Replicas {
		if err := add(replicaPrefix+st.Job.Name+"/"+r.ID, r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Get implements fleet.Store.
func (m *Members) Get(ctx context.Context, name string) (fleet.Doc, error) {
	if !virtual(name) {
		return m.Store.Get(ctx, name)
	}
	job := strings.TrimPrefix(name, jobPrefix)
	if rest, ok := strings.CutPrefix(name, replicaPrefix); ok {
		job = rest[:max(strings.LastIndexByte(rest, '/'), 0)]
	}
	st, err := m.scheduler.Status(ctx, job)
	if err != nil {
		return fleet.Doc{}, err
	}
	all, err := docs(st)
	if err != nil {
		return fleet.Doc{}, err
	}
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return fleet.Doc{}, fmt.Errorf("document %s: %w", name, fleet.ErrNotFound)
}

// List implements fleet.Store.
func (m *Members) List(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	var out []fleet.Doc
	if !virtual(prefix) {
		var err error
		if out, err = m.Store.List(ctx, prefix); err != nil {
			return nil, err
		}
	}
	if virtual(prefix) || strings.HasPrefix(jobPrefix, prefix) || strings.HasPrefix(replicaPrefix, prefix) {
		jobs, err := m.scheduler.All(ctx, "")
		if err != nil {
			return nil, err
		}
		for _, st := range jobs {
			all, err := docs(st)
			if err != nil {
				return nil, err
			}
			for _, d := range all {
				if strings.HasPrefix(d.Name, prefix) {
					d.Body = nil
					out = append(out, d)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b fleet.Doc) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func readOnly(name string) error {
	return fmt.Errorf("document %s is what the cluster says of itself: change the job instead", name)
}

// Put implements fleet.Store.
func (m *Members) Put(ctx context.Context, name string, body []byte, ifRev uint64) (uint64, error) {
	if virtual(name) {
		return 0, readOnly(name)
	}
	return m.Store.Put(ctx, name, body, ifRev)
}

// Delete implements fleet.Store.
func (m *Members) Delete(ctx context.Context, name string, ifRev uint64) error {
	if virtual(name) {
		return readOnly(name)
	}
	return m.Store.Delete(ctx, name, ifRev)
}

// Watch implements fleet.Store.
func (m *Members) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	if virtual(prefix) {
		return m.watchJobs(ctx, prefix, fn)
	}
	if prefix != "" {
		return m.Store.Watch(ctx, prefix, fn)
	}
	// Two sources and one listener, who is called from this goroutine.
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	told, failed := make(chan fleet.Doc), make(chan error, 2)
	pass := func(d fleet.Doc) error {
		select {
		case told <- d:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	wg.Go(func() { failed <- m.Store.Watch(ctx, "", pass) })
	wg.Go(func() { failed <- m.watchJobs(ctx, "", pass) })
	for {
		select {
		case d := <-told:
			if err := fn(d); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
}

// watchJobs tells of jobs and replicas that change, come and go.
func (m *Members) watchJobs(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	known := map[string]map[string]string{} // body by name, by job
	var rev uint64
	return m.scheduler.Watch(ctx, "", func(st fleet.Status) error {
		all, err := docs(st)
		if err != nil {
			return err
		}
		was, now := known[st.Job.Name], map[string]string{}
		known[st.Job.Name] = now
		for _, d := range all {
			if !strings.HasPrefix(d.Name, prefix) {
				continue
			}
			now[d.Name] = string(d.Body)
			if was[d.Name] == string(d.Body) {
				continue
			}
			rev++
			d.Rev = rev
			if err := fn(d); err != nil {
				return err
			}
		}
		for name := range was {
			if _, ok := now[name]; ok {
				continue
			}
			rev++
			if err := fn(fleet.Doc{Name: name, Rev: rev}); err != nil {
				return err
			}
		}
		return nil
	})
}
