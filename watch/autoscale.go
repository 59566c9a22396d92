package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/pipeline/canary"
	"llmops/serving/scale"
)

// scaleEvery is how often loads are looked at.
const scaleEvery = 15 * time.Second

// scales sees to it that replicas follow the load of every alias that asks for it.
func (h *host) scales(ctx context.Context) error {
	tick := time.NewTicker(scaleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !h.leader.Leads() {
			clear(h.pasts)
			continue
		}
		all, err := pipeline.Scalings(ctx, h.o.Store)
		for _, sc := range all {
			err = errors.Join(err, h.scaleAlias(ctx, sc))
		}
		if err != nil && ctx.Err() == nil {
			h.o.Log.Error("scaling", "err", err)
		}
	}
}

func (h *host) control(alias string) *canary.Control {
	return &canary.Control{Store: h.o.Store, Alias: alias, Routers: h.o.Deps.Admins}
}

func (h *host) scaleAlias(ctx context.Context, sc pipeline.Scaling) error {
	doc, _, err := h.control(sc.Alias).Read(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil // taken down
	}
	if err != nil {
		return err
	}
	arms, revs, missing, err := h.arms(ctx, sc, doc)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", sc.Alias, err)
	}
	moving, err := h.moves(ctx, sc.Alias)
	if err != nil {
		return err
	}
	moving = moving || doc.Lease != nil // a drill's, say
	was, rev, err := pipeline.ReadScaled(ctx, h.o.Store, sc.Alias)
	if err != nil {
		return err
	}
	zone, err := time.LoadLocation(sc.Policy.Zone)
	if err != nil {
		return err
	}
	state, actions := scale.Step(sc.Policy, h.o.Deps.Now().In(zone), arms, moving, was.State)
	now := pipeline.Scaled{State: state, Last: was.Last, Missing: strings.Join(missing, "; ")}
	if now.Missing != was.Missing && now.Missing != "" {
		h.o.Log.Warn("scaling with less than is to be seen", "alias", sc.Alias, "missing", now.Missing)
	}
	for _, a := range actions {
		if now.Last, err = &a, h.change(ctx, a, revs[a.Job]); err != nil {
			return err
		}
	}
	// Kept after the act: an act that is not on record is seen by its count.
	if err := pipeline.WriteScaled(ctx, h.o.Store, sc.Alias, now, rev); err != nil && !errors.Is(err, fleet.ErrConflict) {
		return err
	}
	return nil
}

// change sets a count, unless somebody has changed the job since it was looked at.
func (h *host) change(ctx context.Context, a scale.Action, rev uint64) error {
	if a.To == a.From {
		h.o.Log.Warn("scaling", "job", a.Job, "count", a.From, "why", a.Reason)
		return nil
	}
	if !h.leader.Leads() {
		return nil
	}
	if _, err := h.o.Deps.Scheduler.Scale(ctx, a.Job, a.Group, a.To, rev); err != nil && !errors.Is(err, fleet.ErrConflict) {
		return fmt.Errorf("scaling %s from %d to %d: %w", a.Job, a.From, a.To, err)
	}
	h.o.Log.Info("scaled", "job", a.Job, "from", a.From, "to", a.To, "why", a.Reason)
	return nil
}

// moves tells whether a run moves the alias's traffic or a drain moves replicas.
func (h *host) moves(ctx context.Context, alias string) (bool, error) {
	last, err := pipeline.Last(ctx, h.o.Store, alias)
	if err == nil && !last.Over() {
		return true, nil
	}
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return false, err
	}
	nodes, err := h.o.Deps.Scheduler.Nodes(ctx)
	if err != nil {
		return false, err
	}
	for _, n := range nodes {
		if n.Draining || n.Ready && !n.Eligible {
			return true, nil
		}
	}
	return false, nil
}
