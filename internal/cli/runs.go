package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline"
)

func newRunsCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "List, show, attach to, approve and discard runs",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRunsListCmd(e), newRunsShowCmd(e), newRunsAttachCmd(e), newRunsApproveCmd(e), newRunsDiscardCmd(e), newRunsReportCmd(e))
	return c
}

func newRunsListCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List runs, the latest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			heads, err := h.runs(cmd.Context())
			if err != nil {
				return err
			}
			return e.answer(heads, func(w *tabwriter.Writer) {
				row(w, "RUN", "ALIAS", "STATE", "STAGE", "OUTCOME", "BEGAN", "REASON")
				for _, r := range heads {
					row(w, r.Run, r.Alias, r.State, r.Stage, r.Outcome(), r.Began.Local().Format(time.DateTime), r.Reason)
				}
			})
		},
	}
}

// runs lists the runs, and says of one whose driver died that it waits for
// somebody.
func (h *home) runs(ctx context.Context) ([]pipeline.Head, error) {
	heads, err := pipeline.Runs(ctx, h.store)
	for i, r := range heads {
		if r.State == pipeline.Running && !h.alive(r.Owner) {
			heads[i].Reason = "its driver died; llmops runs attach " + r.Run + " goes on"
		}
	}
	return heads, err
}

// shown is a run as runs show prints it: its head and, for each stage, the
// verdict and output. These names are an interface.
type shown struct {
	pipeline.Head
	Outcome evidence.Outcome  `json:"outcome"`
	Records []pipeline.Record `json:"records"`
	Journal []pipeline.Entry  `json:"journal,omitempty"`
}

func newRunsShowCmd(e *env) *cobra.Command {
	var journal bool
	c := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run's stages, verdicts and evidence",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			s, err := h.show(cmd.Context(), args[0], journal)
			if err != nil {
				return err
			}
			return e.answer(s, func(w *tabwriter.Writer) { showTable(w, s) })
		},
	}
	c.Flags().BoolVar(&journal, "journal", false, "with every entry of the journal")
	return c
}

func (h *home) show(ctx context.Context, run string, journal bool) (s shown, err error) {
	if s.Head, err = h.readRun(ctx, run); err != nil {
		return s, err
	}
	s.Outcome = s.Head.Outcome()
	if s.Records, err = pipeline.Records(ctx, h.blobs, s.Head); err != nil || !journal {
		return s, err
	}
	s.Journal, err = pipeline.Entries(ctx, h.blobs, s.Head)
	return s, err
}

func showTable(w *tabwriter.Writer, s shown) {
	row(w, "run", s.Run, string(s.State), s.Reason)
	for _, r := range s.Records {
		row(w, r.Stage, r.Verdict.Outcome, fmt.Sprintf("%.1fs", r.Ended.Sub(r.Started).Seconds()), r.Verdict.Claim)
		showVerdict(w, r.Verdict, "  ")
		for _, s := range r.Verdict.Warnings {
			row(w, "", "", "", "  note: "+s)
		}
	}
	for _, a := range s.Approved {
		row(w, "approved", a.Gate, a.By, a.Reason)
	}
	for _, j := range s.Journal {
		row(w, fmt.Sprint(j.Seq), j.Kind, j.Stage, j.What)
	}
}

func showVerdict(w *tabwriter.Writer, v evidence.Verdict, indent string) {
	for _, p := range v.Parts {
		row(w, "", "", "", indent+verdictLine(p))
		showVerdict(w, p, indent+"  ")
	}
}

// readRun reads a run and says plainly when there is none of that name.
func (h *home) readRun(ctx context.Context, run string) (pipeline.Head, error) {
	head, err := pipeline.Read(ctx, h.store, run)
	if errors.Is(err, fleet.ErrNotFound) {
		return head, usage("there is no run %s; see llmops runs list", run)
	}
	return head, err
}

func newRunsAttachCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "attach RUN",
		Short: "Drive a run in this terminal that goes on elsewhere",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			head, err := h.readRun(ctx, args[0])
			if err != nil {
				return err
			}
			if head.Over() {
				return usage("run %s is %s: %s", head.Run, head.State, head.Reason)
			}
			return e.goOn(ctx, h, head, head.Until)
		},
	}
}

// goOn drives a run that is there already. It is taken from whoever drives it
// before there is a watch, which would take it first.
func (e *env) goOn(ctx context.Context, h *home, head pipeline.Head, until string) error {
	if err := elsewhere(ctx, h, head); err != nil {
		return err
	}
	owner, release, err := h.own("cli")
	if err != nil {
		return err
	}
	defer release()
	if err := pipeline.TakeBack(ctx, h.store, head.Run); err != nil {
		return err
	}
	if err := e.ensureWatch(ctx, h); err != nil {
		return err
	}
	return e.drive(ctx, h, h.deps(), head.Run, owner, until)
}

func newRunsDiscardCmd(e *env) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "discard RUN --reason WHY",
		Short: "End a run for good and take its candidate off the fleet",
		Long: `Discard ends a run that is not over: its leased traffic returns, its candidate is
stopped, and another run of the alias can begin. Whoever drives it is fenced. It is
for what will not be gone on with, be it that the machine where it was begun is lost.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return usage("discarding a run needs --reason")
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.discard(cmd.Context(), h, args[0], reason)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return c
}

func (e *env) discard(ctx context.Context, h *home, run, reason string) error {
	head, err := h.readRun(ctx, run)
	if err != nil {
		return err
	}
	if head.Over() {
		return usage("run %s is %s: %s", head.Run, head.State, head.Reason)
	}
	owner, release, err := h.own("cli")
	if err != nil {
		return err
	}
	defer release()
	if err := pipeline.TakeBack(ctx, h.store, run); err != nil {
		return err
	}
	if err := e.ensureWatch(ctx, h); err != nil {
		return err
	}
	if err := pipeline.Discard(ctx, h.deps(), run, owner, fmt.Sprintf("discarded by %s: %s", e.who(), reason)); err != nil {
		return err
	}
	e.say("run %s is over, and its candidate is off the fleet", run)
	return nil
}

func newRunsApproveCmd(e *env) *cobra.Command {
	var gate, reason string
	c := &cobra.Command{
		Use:   "approve RUN --gate STAGE --reason WHY",
		Short: "Let a run go on past a gate, on record",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if gate == "" || reason == "" {
				return usage("approve needs --gate and --reason")
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			if _, err := h.readRun(cmd.Context(), args[0]); err != nil {
				return err
			}
			if err := pipeline.Approve(cmd.Context(), h.deps(), args[0], gate, e.who(), reason); err != nil {
				return &exitError{exitUsage, err}
			}
			e.say("recorded; llmops runs attach %s goes on", args[0])
			return nil
		},
	}
	c.Flags().StringVar(&gate, "gate", "", "the stage whose verdict is overridden")
	c.Flags().StringVar(&reason, "reason", "", "why")
	return c
}

// who is the person on record.
func (e *env) who() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	user := e.getenv("USER")
	if user == "" {
		user = fmt.Sprintf("uid %d", os.Getuid())
	}
	return user + " on " + host
}
