package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/pipeline"
	"llmops/pipeline/canary"
)

func newDrillCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "drill",
		Short: "Rehearse what must work when it is needed",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDrillRollbackCmd(e))
	return c
}

func newDrillRollbackCmd(e *env) *cobra.Command {
	var p canary.DrillPolicy
	var share string
	var yes bool
	c := &cobra.Command{
		Use:   "rollback ALIAS",
		Short: "Send live traffic to the standby for a while and take it back",
		Long: `Drill rollback sends the alias's traffic, or --share of it, to its standby, looks
how that answers, and takes the traffic back. The traffic is leased: should this
process die, routers return it within ` + canary.LeaseTTL.String() + `. It is refused while a run moves the alias's
traffic, and when the standby has too few replicas.

It passes when requests were answered by the standby within its service level and
every router was back within a second; without enough requests it passes nothing.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if share != "" {
				var pc float64
				if n, err := fmt.Sscanf(share, "%g%%", &pc); err != nil || n != 1 || pc <= 0 || pc > 100 {
					return usage("--share is %q, want a share such as 50%%", share)
				}
				p.Share = pc / 100
			}
			if p.For <= 0 || p.Max < p.For {
				return usage("--for is %v and --max is %v, want more than nothing and no less than --for", p.For, p.Max)
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.drillRollback(cmd.Context(), h, args[0], p, yes)
		},
	}
	c.Flags().StringVar(&share, "share", "", "the share of the traffic, as 50%; default: what the standby has replicas for")
	c.Flags().DurationVar(&p.For, "for", 30*time.Second, "how long at least")
	c.Flags().DurationVar(&p.Max, "max", 5*time.Minute, "how long at most, when too little is seen")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (e *env) drillRollback(ctx context.Context, h *home, alias string, p canary.DrillPolicy, yes bool) error {
	d := h.deps()
	p, err := pipeline.PlanDrill(ctx, d, alias, p)
	if errors.Is(err, pipeline.ErrDrill) {
		return usage("%w", err)
	}
	if err != nil {
		return err
	}
	e.say("%s: %.4g%% of the traffic goes from %s to %s for %v or longer, and back", alias, 100*p.Share, p.Live, p.Standby, p.For)
	if !yes {
		if !isTerminal(e.in) {
			return usage("drill rollback needs --yes without a terminal")
		}
		if ok, err := e.ask(ctx, "Go on?"); err != nil {
			return err
		} else if !ok {
			return usage("nothing was changed")
		}
	}
	last, told := time.Now(), uint64(0)
	out, err := pipeline.Drill(ctx, d, alias, e.who(), p, func(r canary.DrillResult) {
		if s := r.Standby.Total(); s.Done > told && time.Since(last) >= 5*time.Second {
			last, told = time.Now(), s.Done
			e.say("the standby has answered %d requests, %d errors", s.Done, s.Errors)
		}
	})
	if err != nil {
		return err
	}
	if err := e.answer(out, func(w *tabwriter.Writer) { drillTable(w, alias, out) }); err != nil {
		return err
	}
	return outcome(out.Verdict.Outcome)
}

func drillTable(w *tabwriter.Writer, alias string, d pipeline.Drilled) {
	s := d.Standby.Total()
	row(w, "ALIAS", "STANDBY", "OUTCOME", "REQUESTS", "ERRORS", "ALL ROUTERS THERE", "BACK")
	there := "never"
	if d.There > 0 {
		there = d.There.Round(time.Millisecond).String()
	}
	row(w, alias, d.Policy.Standby, d.Verdict.Outcome, s.Done, s.Errors+s.Invalid, there, d.Back.Took.Round(10*time.Microsecond))
	for _, part := range d.Verdict.Parts {
		row(w, "", part.Outcome, part.Claim)
	}
	for _, warning := range d.Verdict.Warnings {
		row(w, "", "note", warning)
	}
}
