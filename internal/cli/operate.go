package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/serving/route"
)

func newLogsCmd(e *env) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs REPLICA",
		Short: "Print a replica's output",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			r, err := h.scheduler.Logs(cmd.Context(), args[0], follow)
			if errors.Is(err, fleet.ErrNotFound) {
				return usage("%w; llmops status names the replicas", err)
			}
			if err != nil {
				return err
			}
			_, err = io.Copy(e.out, r)
			return errors.Join(err, r.Close())
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	return c
}

func newDownCmd(e *env) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop every run, replica, router and the background process",
		Long: `Down stops everything that runs from this state directory, or with --fleet all that
llmops runs on the cluster, whoever began it: then it asks first. Records, weights
and verdicts stay; no alias has a live version afterwards.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			if err := e.confirmDown(cmd.Context(), h, yes); err != nil {
				return err
			}
			return e.down(cmd.Context(), h)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// confirmDown asks before everybody's models on a cluster stop.
func (e *env) confirmDown(ctx context.Context, h *home, yes bool) error {
	if h.fleet == "" || yes {
		return nil
	}
	jobs, err := h.scheduler.Jobs(ctx)
	if err != nil || len(jobs) == 0 {
		return err
	}
	var names []string
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	e.say("on the cluster this stops %s", strings.Join(names, ", "))
	if !isTerminal(e.in) {
		return usage("down needs --yes on a cluster without a terminal")
	}
	if ok, err := e.ask(ctx, "Go on?"); err != nil {
		return err
	} else if !ok {
		return usage("nothing was changed")
	}
	return nil
}

func (e *env) down(ctx context.Context, h *home) error {
	runs, err := pipeline.Runs(ctx, h.store)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.Over() {
			continue
		}
		if err := pipeline.TakeBack(ctx, h.store, r.Run); err != nil {
			if now, e := pipeline.Read(ctx, h.store, r.Run); e != nil || !now.Over() {
				return err
			}
		}
	}
	// A driver that was fenced a moment ago may be in the middle of something, and
	// so may the supervisor: what is left once that is gone goes, too.
	for {
		err := errors.Join(e.stopJobs(ctx, h), h.deleteRoutes(ctx), h.stopWatch(ctx))
		if err != nil {
			return err
		}
		if some, err := h.serves(ctx); err != nil || !some {
			return err
		}
	}
}

func (h *home) deleteRoutes(ctx context.Context) error {
	docs, err := h.store.List(ctx, route.Prefix)
	if err != nil {
		return err
	}
	for _, d := range docs {
		if err := h.store.Delete(ctx, d.Name, d.Rev); err != nil && !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
	}
	return nil
}

// serves tells whether there is a job, a replica or a route.
func (h *home) serves(ctx context.Context) (bool, error) {
	for _, prefix := range []string{"job/", route.Prefix} {
		docs, err := h.store.List(ctx, prefix)
		if err != nil || len(docs) > 0 {
			return len(docs) > 0, err
		}
	}
	left, _, err := h.ending(ctx)
	return left > 0, err
}

// ending counts the replicas that there are. Those of which nobody hears, because
// their node is silent, are apart: they end when it is heard of again.
func (h *home) ending(ctx context.Context) (n int, silent []string, err error) {
	docs, err := h.store.List(ctx, "replica/")
	if err != nil {
		return 0, nil, err
	}
	for _, d := range docs {
		d, err := h.store.Get(ctx, d.Name)
		var r fleet.Replica
		if err == nil {
			err = json.Unmarshal(d.Body, &r)
		}
		// One that has gone since is told of once more.
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return 0, nil, err
		}
		if r.State == fleet.Unknown {
			silent = append(silent, d.Name+" on "+r.Node)
			continue
		}
		n++
	}
	return n, silent, nil
}

// stopJobs stops every job, those that come meanwhile, too, and waits for their
// replicas, which needs a watch.
func (e *env) stopJobs(ctx context.Context, h *home) error {
	jobs, err := h.scheduler.Jobs(ctx)
	if err != nil {
		return err
	}
	left, _, err := h.ending(ctx)
	if err != nil || len(jobs)+left == 0 {
		return err
	}
	if err := e.ensureWatch(ctx, h); err != nil {
		return err
	}
	gone := errors.New("gone")
	err = h.store.Watch(ctx, "", func(d fleet.Doc) error {
		if !strings.HasPrefix(d.Name, "job/") && !strings.HasPrefix(d.Name, "replica/") {
			return nil
		}
		jobs, err := h.scheduler.Jobs(ctx)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			if err := h.scheduler.Stop(ctx, j.Name); err != nil {
				return err
			}
			e.say("stopping %s", j.Name)
		}
		left, silent, err := h.ending(ctx)
		if err != nil || left > 0 {
			return err
		}
		for _, s := range silent {
			e.say("%s is not heard of: it ends when its node is back", s)
		}
		return gone
	})
	if !errors.Is(err, gone) {
		return err
	}
	return nil
}

// stopWatch asks the background process to end and waits for it. It asks whoever
// holds the directory by now: one may be just beginning.
func (h *home) stopWatch(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for asked := 0; h.watched(); {
		pid, err := local.SupervisorPID(h.dir)
		if err == nil && pid != asked {
			asked = pid
			err = syscall.Kill(pid, syscall.SIGTERM)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping the background process: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}
