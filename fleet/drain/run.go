package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"llmops/fleet"
)

// Fleet is what a drain needs of one: its scheduler, and that a node can be closed to
// new replicas while it keeps those it has.
type Fleet interface {
	fleet.Scheduler
	Cordon(ctx context.Context, node string, closed bool) error
}

// Options of a drain.
type Options struct {
	Reason   string
	Patience time.Duration // for replicas elsewhere; then everything is put back
	Deadline time.Duration // for the node to be empty; then what it holds is killed
	// Probe asks a replica for a token.
	Probe func(ctx context.Context, j fleet.Job, r fleet.Replica) error
	Tell  func(State)
}

// lookEvery is how often the fleet is looked at.
const lookEvery = 500 * time.Millisecond

// Run drains the node and returns when it is empty and all counts are what they were.
// A drain that was refused is no error: the state says why.
func Run(ctx context.Context, f Fleet, node string, o Options) (State, error) {
	s := State{Node: node, Phase: Checking}
	ready := map[string]bool{}
	deadline := time.Now().Add(o.Patience)
	for {
		seen, err := look(ctx, f, ready, o.Probe)
		if err != nil {
			return s, err
		}
		if (s.Phase == Growing || s.Phase == Waiting) && time.Now().After(deadline) {
			s = GiveUp(s, fmt.Sprintf("after %v there is not as much capacity elsewhere as the node takes away", o.Patience))
		}
		was := s.Phase
		next, a := Step(s, seen)
		if err := act(ctx, f, next, a, o); err != nil {
			return s, err
		}
		if s = next; s.Phase != was {
			o.Tell(s)
		}
		if s.Phase == Done || s.Phase == Refused {
			return s, nil
		}
		if a.Kind != Wait {
			continue
		}
		t := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return s, ctx.Err()
		case <-t.C:
		}
	}
}

func look(ctx context.Context, f Fleet, ready map[string]bool, probe func(context.Context, fleet.Job, fleet.Replica) error) (Seen, error) {
	seen := Seen{Ready: ready}
	var err error
	if seen.Nodes, err = f.Nodes(ctx); err != nil {
		return seen, err
	}
	all, err := f.All(ctx, "")
	if err != nil {
		return seen, err
	}
	for _, st := range all {
		j := st.Job
		if st.Rev == 0 {
			continue // nothing of it is kept up
		}
		seen.Jobs = append(seen.Jobs, st)
		for _, r := range st.Replicas {
			if r.State == fleet.Healthy && !ready[r.ID] && (j.Kind != fleet.Engine || probe(ctx, j, r) == nil) {
				ready[r.ID] = true
			}
		}
	}
	return seen, nil
}

func act(ctx context.Context, f Fleet, s State, a Action, o Options) error {
	switch a.Kind {
	case Cordon, Allow:
		return f.Cordon(ctx, s.Node, a.Kind == Cordon)
	case Drain:
		return f.Drain(ctx, s.Node, o.Reason, o.Deadline)
	case Scale:
		for {
			st, err := f.Status(ctx, a.Job)
			if err != nil {
				return err
			}
			if st.Rev == 0 {
				return nil // stopped meanwhile: nothing is to be kept up
			}
			_, err = f.Scale(ctx, a.Job, a.Group, a.Count, st.Rev)
			if errors.Is(err, fleet.ErrConflict) {
				continue
			}
			return err
		}
	}
	return nil
}
