package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/pipeline/canary"
	"llmops/serving/deploy"
	"llmops/serving/route"
)

// rolledBack is what llmops rollback prints; its names are an interface.
type rolledBack struct {
	Alias    string          `json:"alias"`
	From     string          `json:"from"`
	To       string          `json:"to"`
	Delivery canary.Delivery `json:"delivery"`
	Missing  []string        `json:"missing,omitempty"` // after the lease's time
}

func newRollbackCmd(e *env) *cobra.Command {
	var to string
	var yes bool
	c := &cobra.Command{
		Use:   "rollback ALIAS",
		Short: "Send an alias's traffic back to the version before",
		Long: `Rollback shows what will happen, asks once, and sends all traffic of the alias
to its standby, or to --to. It refuses a target that does not produce a token.
Any run that moves the alias's traffic is fenced.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.rollback(cmd.Context(), h, args[0], to, yes)
		},
	}
	c.Flags().StringVar(&to, "to", "", "the version to go to; default: the standby, or stable while a canary runs")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (e *env) rollback(ctx context.Context, h *home, alias, to string, yes bool) error {
	c := &canary.Control{Store: h.store, Alias: alias, Routers: h.admins}
	d, _, err := c.Read(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return usage("nothing is live under %s; llmops status shows what is", alias)
	}
	if err != nil {
		return err
	}
	from, target := d.Live(), to
	leased := to == "" && d.Lease != nil
	switch {
	case leased:
		from, target = "a leased candidate", d.Live()
	case to == "":
		target = d.Standby
	}
	if target == "" {
		return usage("%s has no standby to go back to; name a version with --to", alias)
	}
	if target == from {
		return usage("%s is live already", target)
	}
	st, err := h.scheduler.Status(ctx, pipeline.JobName(alias, target))
	if err != nil {
		return err
	}
	if len(st.Replicas) == 0 {
		return usage("version %s has no replicas: there is nothing to go back to", target)
	}
	good, err := deploy.Answering(ctx, st)
	switch {
	case good == 0:
		return fmt.Errorf("refusing to go back to %s: none of its %d replicas produces a token: %w", target, len(st.Replicas), err)
	case err != nil:
		e.say("warning: %s will have less than it should: %v", target, err)
	}
	e.say("%s: from %s to %s, a token just now from %d of %d replicas; routers that can be reached within 1 s, leased weights anywhere within %v", alias, from, target, good, len(st.Replicas), canary.LeaseTTL)
	if !yes {
		if !isTerminal(e.in) {
			return usage("rollback needs --yes without a terminal")
		}
		if ok, err := e.ask(ctx, "Go on?"); err != nil {
			return err
		} else if !ok {
			return usage("nothing was changed")
		}
	}
	out := rolledBack{Alias: alias, From: from, To: target}
	began := time.Now()
	if _, out.Delivery, err = c.Change(ctx, func(d route.Doc) (route.Doc, error) {
		if leased {
			return route.Fallback(d), nil
		}
		return route.Rollback(d, target)
	}); err != nil {
		return err
	}
	e.say("routers %v follow after %v", out.Delivery.Acked, out.Delivery.Took.Round(time.Microsecond))
	if len(out.Delivery.Missing) > 0 {
		e.say("routers %v do not answer: waiting up to %v, by when no leased weight is left", out.Delivery.Missing, canary.LeaseTTL)
	}
	if out.Missing, err = c.Settle(ctx, out.Delivery.Rev, began); err != nil {
		return err
	}
	return e.answer(out, func(w *tabwriter.Writer) {
		row(w, "ALIAS", "FROM", "TO", "REVISION", "MISSING")
		row(w, out.Alias, out.From, out.To, out.Delivery.Rev, strings.Join(out.Missing, " "))
	})
}
