// Package watch is what goes on when nobody looks: on one machine it supervises
// the replicas and drives the runs that were handed over to it.
//
// [Run] does both until its context ends, keeps standbys warm and ends them when
// their time is over. It leaves replicas running and runs stopped, so that the
// next watch, or a command, goes on where it was. There is one for each state
// directory.
package watch

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
)

// standbyEvery is how often a standby must show that it still produces tokens.
const standbyEvery = time.Minute

// lookAgain is the pause before a run is tried again that could not be claimed.
const lookAgain = time.Second

// Options are what a watch works on. All fields must be set.
type Options struct {
	Supervisor *local.Supervisor // of this machine
	Store      fleet.Store       // where the runs are
	Owner      string
	Deps       pipeline.Deps
	Log        *slog.Logger
}

// Run watches until ctx ends or the state directory has another watch.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The supervisor has the state directory's lock, by which others tell that this
	// process is at work: it goes last.
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	supervised := make(chan error, 1)
	go func() {
		err := o.Supervisor.Run(last)
		cancel()
		supervised <- err
	}()
	h := &host{o: o, running: map[string]bool{}, leader: newLeader(o.Store, o.Owner, o.Log), pasts: map[string][]past{}}
	parts := []func(context.Context) error{h.watch, h.standbys, h.leader.run, h.scales}
	errs := make(chan error, len(parts))
	for _, part := range parts {
		go func() { errs <- part(ctx) }()
	}
	var out error
	for range parts {
		if err := <-errs; out == nil && !errors.Is(err, context.Canceled) {
			out = err
		}
		cancel()
	}
	h.runs.Wait()
	rctx, stop := context.WithTimeout(last, leadEvery)
	defer stop()
	h.leader.resign(rctx)
	end()
	if err := <-supervised; !errors.Is(err, context.Canceled) {
		return err
	}
	return out
}

// standbys tends them now and then. What goes wrong with one look is said and
// looked at again.
func (h *host) standbys(ctx context.Context) error {
	tick := time.NewTicker(standbyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !h.leader.Leads() {
			continue
		}
		notes, err := pipeline.TendStandbys(ctx, h.o.Deps)
		for _, n := range notes {
			h.o.Log.Warn(n)
		}
		if err != nil && ctx.Err() == nil {
			h.o.Log.Error("tending standbys", "err", err)
		}
	}
}

// host drives the runs that were handed over, each in a goroutine.
type host struct {
	o      Options
	runs   sync.WaitGroup
	leader *leader
	pasts  map[string][]past // of the last window, by alias; scales alone uses it

	mu      sync.Mutex // guards running
	running map[string]bool
}

func (h *host) watch(ctx context.Context) error {
	return h.o.Store.Watch(ctx, "run/", func(d fleet.Doc) error {
		var head pipeline.Head
		if d.Body == nil {
			return nil
		}
		if err := json.Unmarshal(d.Body, &head); err != nil {
			h.o.Log.Error("reading run", "name", d.Name, "err", err)
			return nil
		}
		if !mine(head, h.o.Owner) {
			return nil
		}
		if err := pipeline.Here(ctx, h.o.Deps.Blobs, head); err != nil {
			if !errors.Is(err, pipeline.ErrElsewhere) {
				h.o.Log.Error("looking for the records of a run", "run", head.Run, "err", err)
			}
			return nil // another machine's watch has it
		}
		if h.begin(head.Run) {
			h.runs.Go(func() { h.drive(ctx, head) })
		}
		return nil
	})
}

// mine tells whether a run waits for a watch to drive it: it was handed over
// and is either stopped or was being driven by a watch that is gone.
func mine(h pipeline.Head, owner string) bool {
	return h.Host == pipeline.HostWatch && (h.State == pipeline.Stopped || h.State == pipeline.Running && h.Owner != owner)
}

func (h *host) begin(run string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running[run] {
		return false
	}
	h.running[run] = true
	return true
}

// drive drives a run until it no longer waits for this watch. What could not be
// begun is tried again: its driver may still be ending, or the disk be full.
func (h *host) drive(ctx context.Context, head pipeline.Head) {
	log := h.o.Log.With("run", head.Run)
	for {
		if err := h.once(ctx, head, log); err != nil && ctx.Err() == nil {
			log.Error("beginning run", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(lookAgain):
			}
		}
		var more bool
		if head, more = h.more(ctx, head); !more {
			return
		}
	}
}

// more tells whether a run waits for this watch although it was driven just
// now, as one does that was handed over again meanwhile. Otherwise it is no
// longer running here.
func (h *host) more(ctx context.Context, head pipeline.Head) (pipeline.Head, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, err := pipeline.Read(ctx, h.o.Store, head.Run)
	if err == nil && mine(now, h.o.Owner) && ctx.Err() == nil {
		return now, true
	}
	delete(h.running, head.Run)
	return head, false
}

// once claims the run and drives it. The error is of the claim: how the stages
// ended is on record.
func (h *host) once(ctx context.Context, head pipeline.Head, log *slog.Logger) error {
	j, err := pipeline.Claim(ctx, h.o.Deps, head.Run, h.o.Owner)
	if err != nil {
		return err
	}
	log.Info("driving", "stage", head.Stage)
	outcome, err := pipeline.Drive(ctx, h.o.Deps, j, head.Until)
	log.Info("left", "outcome", outcome, "err", err)
	return nil
}
