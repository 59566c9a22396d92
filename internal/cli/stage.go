package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"llmops/pipeline"
)

// newStageCmd drives the waiting run up to one stage.
func newStageCmd(e *env, stage, short string) *cobra.Command {
	var g guardFlags
	var name string
	c := &cobra.Command{
		Use:   stage + " [--run RUN]",
		Short: short,
		Long: short + `.

It acts on the run that waits for it; when several do, it names them and asks
for --run.

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.check(); err != nil {
				return err
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			head, err := h.waiting(ctx, stage, name)
			if err != nil {
				return err
			}
			if len(g.on) > 0 {
				o := head.Options
				o.RollbackOn, o.Only = g.on, g.only
				if err := pipeline.Amend(ctx, h.store, head.Run, o); err != nil {
					return err
				}
			}
			return e.goOn(ctx, h, head, stage)
		},
	}
	c.Flags().StringVar(&name, "run", "", "the run, when several wait")
	if stage == pipeline.StageCanary {
		g.add(c)
	}
	return c
}

// waiting finds the one run that has not passed the stage and that nobody
// drives.
func (h *home) waiting(ctx context.Context, stage, name string) (pipeline.Head, error) {
	if name != "" {
		head, err := h.readRun(ctx, name)
		switch {
		case err != nil:
		case head.Over():
			err = usage("run %s is %s: %s", head.Run, head.State, head.Reason)
		case head.State == pipeline.Running && h.alive(head.Owner):
			err = busy(head)
		}
		return head, err
	}
	heads, err := pipeline.Runs(ctx, h.store)
	if err != nil {
		return pipeline.Head{}, err
	}
	var found []pipeline.Head
	var names []string
	for _, r := range heads {
		if r.Over() || r.State == pipeline.Running && h.alive(r.Owner) || passed(r, stage) {
			continue
		}
		found = append(found, r)
		names = append(names, r.Run)
	}
	switch len(found) {
	case 0:
		return pipeline.Head{}, usage("no run waits for %s; llmops onboard begins one, llmops runs list shows all", stage)
	case 1:
		return found[0], nil
	}
	return pipeline.Head{}, usage("several runs wait for %s: %s; choose one with --run", stage, strings.Join(names, ", "))
}

func passed(h pipeline.Head, stage string) bool {
	for _, s := range h.Stages {
		if s.Name == stage {
			return true
		}
	}
	return false
}
