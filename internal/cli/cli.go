// Package cli is the command line: cobra constructors, one file a noun, and
// the only place that reads the environment, opens the stores and wires the
// packages together.
//
// A command parses its arguments, calls one library function and renders what
// it returned. Answers go to standard output, progress and warnings to
// standard error. Errors are printed once, in [Main], which also turns them
// into exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"llmops/evidence"
)

// The exit codes. They are an interface: a release gate reads them.
const (
	exitDone         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitRefused      = 3
	exitGoesOn       = 4
	exitInconclusive = 5
	exitInterrupted  = 130
)

const exitHelp = `Exit status:
  0    reached the point asked for, all gates passed
  1    failed
  2    usage: a wrong flag, file or state, nothing was begun
  3    a gate said no
  4    goes on without you, or stopped and can be resumed
  5    not enough evidence
  130  interrupted before anything began`

// env is what commands need of the world outside.
type env struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	output   string // table or json
	fleet    string // the file that names it; empty: see onFleet
}

// exitError carries an exit code through cobra. A nil err prints nothing more.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// outcome turns what a run's gates said into an exit.
func outcome(o evidence.Outcome) error {
	switch o {
	case evidence.Pass:
		return nil
	case evidence.Fail:
		return &exitError{code: exitRefused}
	}
	return &exitError{code: exitInconclusive}
}

// Main runs the command line and returns its exit code.
func Main(ctx context.Context, args []string, in io.Reader, out, errw io.Writer, getenv func(string) string) int {
	e := &env{in: in, out: out, err: errw, getenv: getenv}
	root := newRootCmd(e)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var ee *exitError
	if errors.As(err, &ee) {
		if ee.err != nil {
			_, _ = fmt.Fprintf(errw, "llmops: %v\n", ee.err)
		}
		return ee.code
	}
	_, _ = fmt.Fprintf(errw, "llmops: %v\n", err)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitInterrupted
	}
	return exitFailed
}

// Command groups, in the order of the help.
const (
	groupOnboard = "onboard"
	groupOperate = "operate"
	groupPlan    = "plan"
	groupDaemon  = "daemon"
)

func newRootCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "llmops",
		Short: "Bring open-weight models into live traffic, and back",
		Long: `llmops takes an open-weight model from its source to live traffic
(download, quantise, plan, deploy, benchmark, eval, shadow, canary, promote),
proves every step with evidence, and takes it back when live signals say so.

  llmops onboard examples/freight/model.yaml

` + exitHelp,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              cobra.NoArgs,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w; see %s --help", err, c.CommandPath())
	})
	c.PersistentFlags().StringVar(&e.fleet, "fleet", "", "the fleet.yaml of a cluster; default: $LLMOPS_FLEET, else this machine")
	c.PersistentFlags().StringVar(&e.output, "output", "table", "how to print answers: table or json")
	c.PersistentPreRunE = func(*cobra.Command, []string) error {
		if e.output != "table" && e.output != "json" {
			return usage("--output is %q, want table or json", e.output)
		}
		return nil
	}
	c.AddGroup(
		&cobra.Group{ID: groupOnboard, Title: "Onboard:"},
		&cobra.Group{ID: groupOperate, Title: "Operate:"},
		&cobra.Group{ID: groupPlan, Title: "Plan:"},
		&cobra.Group{ID: groupDaemon, Title: "Daemons:"},
	)
	c.SetHelpCommand(&cobra.Command{Hidden: true, Use: "no-help"})
	c.SetHelpCommandGroupID(groupPlan)
	c.AddCommand(commands(e)...)
	wrapArgs(c)
	return c
}

// wrapArgs makes a wrong number of arguments a usage error, at any depth.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usage("%w; see %s --help", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

func in(group string, c *cobra.Command) *cobra.Command {
	c.GroupID = group
	return c
}
