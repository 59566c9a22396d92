package deploy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmops/fleet"
)

// told is a scheduler that tells one status after the other.
type told struct {
	fleet.Scheduler
	all     []fleet.Status
	stopped string
}

func (s *told) Status(context.Context, string) (fleet.Status, error) { return s.all[0], nil }

func (s *told) Stop(_ context.Context, job string) error { s.stopped = job; return nil }

var errNoMore = errors.New("there is no more")

func (s *told) Watch(_ context.Context, _ string, fn func(fleet.Status) error) error {
	for _, st := range s.all {
		if err := fn(st); err != nil {
			return err
		}
	}
	return errNoMore
}

// standing is a job that wants three replicas and has those of these states; homeless
// is one without a place.
func standing(states ...fleet.State) fleet.Status {
	st := fleet.Status{Job: job("router", "", 3), Rev: 1}
	for i, s := range states {
		r := fleet.Replica{ID: string(rune('a' + i)), Addr: "127.0.0.1:1", State: s}
		if s == homeless {
			r.State, r.Addr = fleet.Pending, ""
		}
		st.Replicas = append(st.Replicas, r)
	}
	return st
}

const homeless fleet.State = "homeless"

func TestKeep(t *testing.T) {
	const up, away = fleet.Healthy, fleet.Unknown
	for _, c := range []struct {
		states []fleet.State
		done   bool
		less   string
	}{
		{[]fleet.State{up, up, up}, true, ""},
		{[]fleet.State{up, up, up, away}, true, ""},
		{[]fleet.State{up, up, away}, true, "2 of 3"},
		{[]fleet.State{up, homeless, away, away}, true, "1 of 3"},
		{[]fleet.State{away, away, away}, false, ""},
		{[]fleet.State{homeless, homeless, homeless}, false, ""},
		{[]fleet.State{up, up}, false, ""},                                 // the third is on its way
		{[]fleet.State{up, up, fleet.Running}, false, ""},                  // and here, too
		{[]fleet.State{up, up, away, fleet.Pending}, false, ""},            // and here in the place of another
		{[]fleet.State{up, up, away, homeless, fleet.Running}, false, ""},  // one is being started anew
		{[]fleet.State{up, up, fleet.Draining, homeless, away}, false, ""}, // one has to go yet
	} {
		less, err := Keep(t.Context(), &told{all: []fleet.Status{standing(c.states...)}}, "router", func(string) {})
		if done := err == nil; done != c.done || !done && !errors.Is(err, errNoMore) {
			t.Errorf("%v: %v", c.states, err)
		}
		if !strings.HasPrefix(less, c.less) || c.less == "" && less != "" {
			t.Errorf("%v: less is %q", c.states, less)
		}
	}
}

// What cannot be stopped because nobody reaches it is not waited for.
func TestDownOfASilentNode(t *testing.T) {
	s := &told{all: []fleet.Status{standing(fleet.Draining, fleet.Unknown), standing(fleet.Unknown)}}
	if err := Down(t.Context(), s, "router"); err != nil || s.stopped != "router" {
		t.Errorf("stopped %q, %v", s.stopped, err)
	}
	s = &told{all: []fleet.Status{standing(fleet.Draining, fleet.Unknown)}}
	if err := Down(t.Context(), s, "router"); !errors.Is(err, errNoMore) {
		t.Errorf("with one that drains: %v", err)
	}
}

// One replica that works is enough, and one that does not answer holds nobody up.
func TestAnswering(t *testing.T) {
	m := machine(t)
	if _, err := Up(t.Context(), m, job("version", "", 1), Options{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	mutes := job("other", mute, 1)
	if err := Start(t.Context(), m, mutes, func(string) {}); err != nil {
		t.Fatal(err)
	}
	st, err := m.Status(t.Context(), "version")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Answering(t.Context(), st); n != 1 || err != nil {
		t.Errorf("%d answer, %v", n, err)
	}
	hangs, err := m.Status(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	st.Replicas = append(st.Replicas, hangs.Replicas...)
	st.Replicas = append(st.Replicas, fleet.Replica{ID: "waiting", State: fleet.Pending}, fleet.Replica{ID: "silent", State: fleet.Unknown})
	began := time.Now()
	n, err := Answering(t.Context(), st)
	if n != 1 || err == nil || !strings.Contains(err.Error(), hangs.Replicas[0].ID) || !strings.Contains(err.Error(), "waiting: it is pending") || strings.Contains(err.Error(), "silent") {
		t.Errorf("%d answer, %v", n, err)
	}
	if took := time.Since(began); took > tokenWait/2 {
		t.Errorf("that took %v", took)
	}
	if n, err := Answering(t.Context(), fleet.Status{Job: st.Job}); n != 0 || err != nil {
		t.Errorf("of none %d answer, %v", n, err)
	}
}

// quiet is a scheduler whose watch tells nothing: its job was gone before.
type quiet struct {
	fleet.Scheduler
	asked int
}

func (s *quiet) Stop(context.Context, string) error { return nil }

func (s *quiet) Status(context.Context, string) (fleet.Status, error) {
	if s.asked++; s.asked == 1 {
		return standing(fleet.Draining), nil
	}
	return standing(), nil
}

func (s *quiet) Watch(ctx context.Context, _ string, _ func(fleet.Status) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestDownOfWhatIsGoneBeforeItIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := Down(t.Context(), &quiet{}, "router"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Down(ctx, &quiet{}, "router"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}
