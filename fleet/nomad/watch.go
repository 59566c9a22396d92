package nomad

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

const (
	// atLeast is how often a replica is asked that runs and is not known to answer,
	// for a check's outcome is no event; and how long a stream that broke off rests.
	atLeast = 2 * time.Second
	// anew is how often everything is looked at although no event said so.
	anew = time.Minute
	// many is how many jobs are looked at one by one; of more, all are.
	many = 32
)

// Watch implements fleet.Scheduler. The event stream says which jobs to look at; what
// is told is what was looked at, so that events that come twice do no harm. Everything
// is looked at when the stream begins, and again whenever it broke off: it goes on
// where that look was, so that nothing falls in between.
func (s *Scheduler) Watch(ctx context.Context, prefix string, fn func(fleet.Status) error) error {
	w := &watcher{s: s, prefix: prefix, fn: fn, told: map[string]fleet.Status{}}
	for {
		index, err := w.all(ctx)
		if err == nil {
			err = w.follow(ctx, index)
		}
		var told toldError
		switch {
		case errors.As(err, &told):
			return told.error
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passes(err):
			return err
		case err != nil:
			if err := sleep(ctx, atLeast); err != nil {
				return err
			}
		}
	}
}

type watcher struct {
	s       *Scheduler
	prefix  string
	fn      func(fleet.Status) error
	told    map[string]fleet.Status
	foreign map[string]bool
	begun   bool
}

func (w *watcher) tell(st fleet.Status) error {
	was, ok := w.told[st.Job.Name]
	gone := st.Rev == 0 && len(st.Replicas) == 0
	if ok && reflect.DeepEqual(was, st) || !ok && gone {
		return nil
	}
	w.told[st.Job.Name] = st
	if gone {
		delete(w.told, st.Job.Name)
	}
	if err := w.fn(st); err != nil {
		return toldError{err}
	}
	return nil
}

// all looks at everything and returns the index from which events are news.
func (w *watcher) all(ctx context.Context) (uint64, error) {
	p, err := w.s.pass(ctx, w.prefix)
	if err != nil {
		return 0, err
	}
	w.foreign = p.foreign
	there := map[string]bool{}
	for _, st := range p.jobs {
		there[st.Job.Name] = true
		if err := w.tell(st); err != nil {
			return 0, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.told)) {
		if !there[name] {
			if err := w.tell(fleet.Status{Job: fleet.Job{Name: name}}); err != nil {
				return 0, err
			}
		}
	}
	// Who watches one job wants to know that it is not there.
	if !w.begun && w.prefix != "" && !there[w.prefix] && !w.foreign[w.prefix] {
		if err := w.fn(fleet.Status{Job: fleet.Job{Name: w.prefix}}); err != nil {
			return 0, toldError{err}
		}
	}
	w.begun = true
	return p.index, nil
}

func (w *watcher) look(ctx context.Context, names []string) error {
	if len(names) > many {
		_, err := w.all(ctx)
		return err
	}
	for _, name := range names {
		st, err := w.s.Status(ctx, name)
		if isForeign(err) {
			w.foreign[name] = true
			continue
		}
		if err != nil {
			return err
		}
		if err := w.tell(st); err != nil {
			return err
		}
	}
	return nil
}

// unsure are the jobs with replicas of which a check may have become true.
func (w *watcher) unsure() []string {
	var out []string
	for name, st := range w.told {
		if slices.ContainsFunc(st.Replicas, func(r fleet.Replica) bool { return r.State == fleet.Running }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// follow looks at what the event stream names. It returns an error of looking or of
// the stream, and nil when everything is to be looked at again.
func (w *watcher) follow(ctx context.Context, index uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	changed := &news{wake: make(chan struct{}, 1)}
	lost := make(chan error, 1)
	wg.Go(func() { lost <- w.s.stream(ctx, index, changed) })
	tick, again := time.NewTicker(atLeast), time.NewTimer(anew)
	defer tick.Stop()
	defer again.Stop()
	for {
		var names []string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-lost:
			return err
		case <-again.C:
			return nil
		case <-tick.C:
			names = w.unsure()
		case <-changed.wake:
			names = slices.DeleteFunc(changed.take(), func(name string) bool {
				return !strings.HasPrefix(name, w.prefix) || w.foreign[name]
			})
		}
		if err := w.look(ctx, names); err != nil {
			return err
		}
	}
}

// news are the jobs of which events came.
type news struct {
	wake chan struct{} // holds one when there are some

	mu   sync.Mutex // guards jobs
	jobs map[string]bool
}

func (c *news) add(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = map[string]bool{}
	}
	c.jobs[job] = true
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *news) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Sorted(maps.Keys(c.jobs))
	c.jobs = nil
	return out
}

var errStreamEnded = errors.New("the event stream ended")

// stream notes the jobs that events after index are about, until it breaks off.
func (s *Scheduler) stream(ctx context.Context, index uint64, changed *news) error {
	topics := map[api.Topic][]string{api.TopicJob: {"*"}, api.TopicAllocation: {"*"}, api.TopicEvaluation: {"*"}}
	stream, err := s.client.EventStream().Stream(ctx, topics, index, s.read(ctx))
	if err != nil {
		return s.explain(err, s.needs("read-job"))
	}
	for batch := range stream {
		if batch.Err != nil {
			return batch.Err
		}
		for _, e := range batch.Events {
			switch {
			case e.Topic == api.TopicJob:
				changed.add(e.Key)
			case len(e.FilterKeys) > 0:
				changed.add(e.FilterKeys[0]) // of allocations and evaluations it is their job
			}
		}
	}
	return errStreamEnded
}
