package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/drain"
	"llmops/serving/deploy"
)

// onCluster opens the state directory on a fleet whose nodes can be closed.
func (e *env) onCluster() (*home, drain.Fleet, error) {
	h, err := e.openHome()
	if err != nil {
		return nil, nil, err
	}
	f, ok := h.scheduler.(drain.Fleet)
	if !ok {
		return nil, nil, usage("a fleet of one machine has no other node to move to; name a cluster with --fleet")
	}
	return h, f, nil
}

func newFleetDrainCmd(e *env) *cobra.Command {
	var o drain.Options
	c := &cobra.Command{
		Use:   "drain NODE --reason TEXT",
		Short: "Take a node out of service without a gap",
		Long: `Drain closes the node to new replicas, starts elsewhere what it holds, waits until
those have produced a token, and only then empties it. Counts are afterwards what
they were. It is refused, and everything put back, when another node is drained,
when no other node is ready, or when the new replicas do not come up. The reason
stays with the node.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Reason == "" {
				return usage("fleet drain needs --reason, which whoever finds the node drained will read")
			}
			_, f, err := e.onCluster()
			if err != nil {
				return err
			}
			return e.drain(cmd.Context(), f, args[0], o)
		},
	}
	c.Flags().StringVar(&o.Reason, "reason", "", "why, as in \"XID 79 on GPU 3\"")
	c.Flags().DurationVar(&o.Patience, "patience", 30*time.Minute, "how long replicas elsewhere may take before everything is put back")
	c.Flags().DurationVar(&o.Deadline, "deadline", 30*time.Minute, "how long what the node serves may take to end")
	return c
}

func (e *env) drain(ctx context.Context, f drain.Fleet, node string, o drain.Options) error {
	o.Probe = func(ctx context.Context, j fleet.Job, r fleet.Replica) error {
		return deploy.Probe(ctx, r.Addr, j.Meta["alias"], j.Meta["version"], deploy.Task(j.Meta["task"]))
	}
	o.Tell = func(s drain.State) {
		text := string(s.Phase)
		for _, g := range s.Groups {
			text += fmt.Sprintf("; %s: %d of %d on the node", g.Job, g.Lost, g.Count)
		}
		e.say("%s: %s", node, text)
	}
	s, err := drain.Run(ctx, f, node, o)
	if err != nil {
		return fmt.Errorf("draining %s, which is %s: %w", node, s.Phase, err)
	}
	if s.Phase == drain.Refused {
		return &exitError{exitRefused, fmt.Errorf("draining %s is refused, and all is as it was: %s", node, s.Why)}
	}
	e.say("%s is empty; llmops fleet undrain %s takes it back", node, node)
	return nil
}

func newFleetUndrainCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NODE",
		Short: "Let a node take replicas again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, f, err := e.onCluster()
			if err != nil {
				return err
			}
			return f.Drain(cmd.Context(), args[0], "", 0)
		},
	}
}
