package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/fleet/terraform"
)

// planFile is where plan leaves a plan and apply looks for it, in the configuration's folder.
const planFile = "fleet.plan"

// fleetPlan is what llmops fleet plan and apply print; its names are an interface.
type fleetPlan struct {
	Dir      string              `json:"dir"`
	Plan     string              `json:"plan"`
	Summary  *terraform.Summary  `json:"summary"`
	Refusals []terraform.Refusal `json:"refusals"`
	Applied  bool                `json:"applied"`
}

func newFleetPlanCmd(e *env) *cobra.Command {
	var out string
	var replace []string
	c := &cobra.Command{
		Use:   "plan DIR",
		Short: "Say what a change of the machines means, and keep it for apply",
		Long: `Plan has Terraform plan the configuration in DIR into a file, and says what the
plan means: nodes by pool, GPUs, and what an hour costs before and after. With
--fleet it also says what apply would refuse as things stand. It changes nothing.

  llmops fleet plan infra/prod --fleet prod.yaml

DIR must be initialised (terraform init), and pass on the outputs of the contract
module. Exit status is 0 also when there is nothing to do.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := e.openTerraform(cmd.Context(), args[0], nil)
			if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join(args[0], planFile)
			}
			s, err := w.Plan(cmd.Context(), out, replace)
			if err != nil {
				return fleetError(err)
			}
			p := fleetPlan{Dir: args[0], Plan: out, Summary: s}
			u, err := e.observe(cmd.Context())
			if err != nil {
				return err
			}
			p.Refusals = terraform.Guard(s, u, terraform.Permit{})
			return e.answerPlan(p)
		},
	}
	c.Flags().StringVar(&out, "out", "", "where to write the plan; default: DIR/"+planFile)
	c.Flags().StringArrayVar(&replace, "replace", nil, "a node to make anew, with its new image or configuration; may be repeated")
	return c
}

func newFleetApplyCmd(e *env) *cobra.Command {
	var path string
	var permit terraform.Permit
	var yes bool
	c := &cobra.Command{
		Use:   "apply DIR",
		Short: "Apply a plan, if no machine that works would go",
		Long: `Apply applies the file that plan wrote, and nothing else: what was changed in DIR
since is not in it. It shows the plan, asks once, and refuses, with exit status 3,

  - to delete or replace a node that takes work, drains or holds a replica: drain it
  - to delete or replace a node that the fleet does not know, unless it is let go
  - to take a live pool's last node
  - to delete what belongs to no one node, unless it is let go
  - to take so many servers that Nomad loses its quorum
  - to undo what was changed outside of Terraform, unless that is accepted

A plan made from an older state is refused with exit status 2, before anything is
begun; a state that somebody else has locked fails with 1 and says who. Stopped in
the middle it exits 4: what was done is in the state, and a new plan has the rest.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if path == "" {
				path = filepath.Join(args[0], planFile)
			}
			return e.fleetApply(cmd.Context(), args[0], path, permit, yes)
		},
	}
	c.Flags().StringVar(&path, "plan", "", "the plan to apply; default: DIR/"+planFile)
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().StringArrayVar(&permit.LetGo, "let-go", nil, "a node that the fleet does not know, or an address, that may be deleted; may be repeated")
	c.Flags().BoolVar(&permit.Drift, "accept-drift", false, "undo what was changed outside of Terraform")
	return c
}

func (e *env) fleetApply(ctx context.Context, dir, path string, permit terraform.Permit, yes bool) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return usage("there is no plan %s: llmops fleet plan %s makes one", path, dir)
	}
	if !yes && !isTerminal(e.in) {
		return usage("fleet apply needs --yes without a terminal")
	}
	w, err := e.openTerraform(ctx, dir, &beforeOutputs{to: e.err})
	if err != nil {
		return err
	}
	o := terraform.ApplyOptions{Permit: permit}
	h, err := e.named()
	if err != nil {
		return err
	}
	if h != nil {
		o.Fleet = h.scheduler
	}
	if !yes {
		o.Confirm = func(s *terraform.Summary) (bool, error) {
			for _, line := range s.Words() {
				e.say("%s", line)
			}
			return e.ask(ctx, "Go on?")
		}
	}
	s, err := w.Apply(ctx, path, o)
	p := fleetPlan{Dir: dir, Plan: path, Summary: s, Refusals: []terraform.Refusal{}, Applied: err == nil}
	var refused *terraform.RefusedError
	if errors.As(err, &refused) {
		p.Refusals = refused.Refusals
		return errors.Join(e.answerPlan(p), &exitError{exitRefused, fmt.Errorf("the plan is refused, nothing was changed: %d reasons", len(p.Refusals))})
	}
	if err != nil {
		return fleetError(err)
	}
	return e.answerPlan(p)
}

func (e *env) answerPlan(p fleetPlan) error {
	for _, warning := range p.Summary.Warnings {
		e.say("mind: %s", warning)
	}
	if p.Summary.Partial {
		e.say("mind: the plan leaves out part of the configuration")
	}
	return e.answer(p, func(w *tabwriter.Writer) {
		for _, line := range p.Summary.Words() {
			row(w, line)
		}
		if len(p.Refusals) > 0 {
			row(w, "refused as things stand:")
		}
		for _, r := range p.Refusals {
			row(w, "  "+r.String())
		}
		switch {
		case p.Applied:
			row(w, "applied")
		case len(p.Refusals) == 0:
			row(w, "plan: "+p.Plan)
		}
	})
}

// fleetStatus is what llmops fleet status prints; its names are an interface.
type fleetStatus struct {
	Dir string `json:"dir"`
	// Asked tells whether a fleet was asked. Without, every node is unknown.
	Asked bool `json:"asked"`
	*terraform.Comparison
}

func newFleetStatusCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "status DIR",
		Short: "Show the machines there should be beside those that the fleet has",
		Long: `Status shows the inventory that the last apply left in DIR's state, with its GPUs
and price, beside what the fleet that --fleet names says of each node: ready,
draining, drained, down, short of GPUs, misplaced, unknown, or stray, which is in
the fleet and in no inventory.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := e.openTerraform(cmd.Context(), args[0], nil)
			if err != nil {
				return err
			}
			inv, err := w.Inventory(cmd.Context())
			if err != nil {
				return fleetError(err)
			}
			u, err := e.observe(cmd.Context())
			if err != nil {
				return err
			}
			s := fleetStatus{Dir: args[0], Asked: u != nil, Comparison: terraform.Compare(inv, u)}
			return e.answer(s, func(w *tabwriter.Writer) { fleetTable(w, s) })
		},
	}
}

func fleetTable(w *tabwriter.Writer, s fleetStatus) {
	row(w, "POOL", "NEEDED", "SPARE", "NODES", "READY", "GPUS", "AN HOUR")
	for _, p := range s.Pools {
		ready := "not asked"
		if s.Asked {
			ready = fmt.Sprint(p.Ready)
			if !p.Enough {
				ready += " (too few)"
			}
		}
		row(w, p.Name, p.Pool.Needed, p.Pool.Spare, p.Pool.Nodes, ready, p.Pool.GPUs, dollars(p.Pool.Hourly))
	}
	row(w, "in all", "", "", s.Totals.Nodes, "", s.Totals.GPUs, dollars(s.Totals.Hourly))
	row(w)
	row(w, "NODE", "POOL", "ZONE", "RACK", "GPUS", "STATE", "REPLICAS", "")
	for _, n := range s.Nodes {
		gpus := fmt.Sprint(n.Node.GPUs)
		if n.Node.GPU != "" && n.Node.GPUs > 0 {
			gpus += " " + n.Node.GPU
		}
		row(w, n.Node.Name, dash(n.Node.Pool), dash(n.Node.Zone), dash(n.Node.Rack), gpus, n.State, n.Replicas, n.Found)
	}
}

func dollars(p *float64) string {
	if p == nil {
		return "unknown"
	}
	return fmt.Sprintf("$%.2f", *p)
}

// openTerraform opens a configuration. Variables by which Terraform would do something
// else than what is asked of it are refused.
func (e *env) openTerraform(ctx context.Context, dir string, progress io.Writer) (*terraform.Workspace, error) {
	for _, name := range []string{"TF_CLI_ARGS", "TF_CLI_ARGS_plan", "TF_CLI_ARGS_apply", "TF_CLI_ARGS_show", "TF_CLI_ARGS_output"} {
		if e.getenv(name) != "" {
			return nil, usage("%s is set and would change what is planned or applied: unset it", name)
		}
	}
	if ws := e.getenv("TF_WORKSPACE"); ws != "" {
		return nil, usage("TF_WORKSPACE is set and would be ignored: unset it, and run terraform workspace select %s in %s", ws, dir)
	}
	w, err := terraform.Open(ctx, dir, terraform.Options{Progress: progress})
	return w, fleetError(err)
}

// named opens the fleet that the command line or LLMOPS_FLEET names, and is nil when
// neither does: this machine is not the fleet whose machines Terraform makes.
func (e *env) named() (*home, error) {
	if e.fleet == "" && e.getenv("LLMOPS_FLEET") == "" {
		return nil, nil
	}
	return e.openHome()
}

func (e *env) observe(ctx context.Context) (*terraform.Use, error) {
	h, err := e.named()
	if err != nil || h == nil {
		return nil, err
	}
	return terraform.Observe(ctx, h.scheduler)
}

// fleetError gives an error of Terraform's its exit code.
func fleetError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, terraform.ErrStopped):
		return &exitError{exitGoesOn, err}
	case errors.Is(err, terraform.ErrMissing), errors.Is(err, terraform.ErrVersion), errors.Is(err, terraform.ErrNotInitialised),
		errors.Is(err, terraform.ErrStale), errors.Is(err, terraform.ErrDeclined), errors.Is(err, terraform.ErrNoNode), errors.Is(err, os.ErrNotExist):
		return &exitError{exitUsage, err}
	}
	return err
}

// beforeOutputs passes on what Terraform says until it begins to list outputs, which
// are for status to show.
type beforeOutputs struct {
	to   io.Writer
	done bool
}

func (b *beforeOutputs) Write(line []byte) (int, error) {
	if string(line) == "Outputs:\n" {
		b.done = true
	}
	if b.done {
		return len(line), nil
	}
	return b.to.Write(line)
}
