package cli

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/nomad"
)

// linter is a fleet that reads job files.
type linter interface {
	LintFile(hcl, vars string, c nomad.Cluster) ([]nomad.Finding, error)
	LintJob(j fleet.Job, c nomad.Cluster) ([]nomad.Finding, error)
}

// finding is a mistake as it is printed.
type finding struct {
	File  string `json:"file"`
	Where string `json:"where"`
	Rule  string `json:"rule"`
	Fatal bool   `json:"fatal"`
	Text  string `json:"text"`
}

func newFleetLintCmd(e *env) *cobra.Command {
	c := nomad.Cluster{SpareGPUs: -1}
	var vars, model string
	cmd := &cobra.Command{
		Use:   "lint [FILE...]",
		Short: "Find the known mistakes of Nomad job files that serve models",
		Long: `Lint reads job files as the cluster does and names what will not work, or may bite:
a kill_timeout that clients cut short, deadlines shorter than the model takes to
load, constraints on what no device plugin reports, a canary without a free GPU.
What will not work is exit 3.

Without a FILE it reads what a run would register: for each engine that the fleet's
file names, or for the one of --model, the job file that is taken with what it is
given.

` + exitHelp,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			l, ok := h.scheduler.(linter)
			if !ok {
				return usage("job files are Nomad's, which parses them: name a cluster with --fleet")
			}
			if len(args) > 0 {
				if model != "" {
					return usage("--model is for what a run would register: name no FILE")
				}
				return e.lint(l, args, vars, c)
			}
			if vars != "" {
				return usage("--var-file is for files: name one")
			}
			jobs, err := h.placing.jobs(model)
			if err != nil {
				return err
			}
			return e.lintJobs(h.placing, l, jobs, c)
		},
	}
	cmd.Flags().StringVar(&vars, "var-file", "", "variables of the files")
	cmd.Flags().StringVar(&model, "model", "", "a model.yaml: what its run would register")
	cmd.Flags().DurationVar(&c.ModelLoad, "model-load", 0, "how long the model takes from its start to the first token")
	cmd.Flags().DurationVar(&c.MaxKillTimeout, "max-kill-timeout", 0, "the clients' max_kill_timeout; default: Nomad's, 30s")
	cmd.Flags().IntVar(&c.SpareGPUs, "spare-gpus", -1, "GPUs that nothing holds; default: not known")
	return cmd
}

func (e *env) lint(l linter, files []string, vars string, c nomad.Cluster) error {
	var values string
	if vars != "" {
		b, err := os.ReadFile(vars)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		values = string(b)
	}
	found := []finding{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		all, err := l.LintFile(string(b), values, c)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, f := range all {
			found = append(found, finding{name, f.Where, f.Rule, f.Fatal, f.Text})
		}
	}
	return e.findings(found)
}

// lintJobs reads what would be registered.
func (e *env) lintJobs(p *placing, l linter, all []fleet.Job, c nomad.Cluster) error {
	found := []finding{}
	for _, j := range all {
		file, err := p.job(j)
		if err != nil {
			return err
		}
		some, err := l.LintJob(j, c)
		if err != nil {
			return err
		}
		for _, f := range some {
			found = append(found, finding{file.Name, f.Where, f.Rule, f.Fatal, f.Text})
		}
	}
	return e.findings(found)
}

// findings prints what was found; what will not work is refused.
func (e *env) findings(found []finding) error {
	fatal := 0
	for _, f := range found {
		if f.Fatal {
			fatal++
		}
	}
	if err := e.answer(found, func(w *tabwriter.Writer) {
		for _, f := range found {
			level := "warning"
			if f.Fatal {
				level = "error"
			}
			fmt.Fprintf(w, "%s: %s: %s: %s (%s)\n", f.File, f.Where, level, f.Text, f.Rule)
		}
	}); err != nil {
		return err
	}
	if fatal > 0 {
		return &exitError{exitRefused, fmt.Errorf("%d of %d findings will not work", fatal, len(found))}
	}
	return nil
}
