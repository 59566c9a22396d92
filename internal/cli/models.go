package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/pipeline"
)

func newModelsCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "models",
		Short: "List versions and their weights, share them, remove what nothing needs",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newModelsListCmd(e), newModelsShowCmd(e), newModelsPushCmd(e), newModelsPullCmd(e), newModelsGCCmd(e))
	return c
}

func newModelsListCmd(e *env) *cobra.Command {
	var at string
	c := &cobra.Command{
		Use:   "list [ALIAS]",
		Short: "List the versions of every alias, or of one",
		Long: `List shows each version of an alias: whether it is live, standby or deployed, how its
weights were made, by which run, from what source, and how large they are here; with
--registry, what a registry has.

  llmops models list freight
  llmops models list --registry s3://acme/models`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			alias := ""
			if len(args) == 1 {
				alias = args[0]
			}
			if at != "" {
				return e.registered(cmd.Context(), at, alias)
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			all, err := pipeline.Models(cmd.Context(), h.deps(), alias)
			if err != nil {
				return err
			}
			if alias != "" && len(all) == 0 {
				return usage("no version of %s is known; llmops models list names all", alias)
			}
			if all == nil {
				all = []pipeline.Registered{}
			}
			return e.answer(all, func(w *tabwriter.Writer) { modelsTable(w, all) })
		},
	}
	c.Flags().StringVar(&at, "registry", "", "list this registry, as s3://bucket/prefix")
	return c
}

func modelsTable(w *tabwriter.Writer, all []pipeline.Registered) {
	row(w, "ALIAS", "VERSION", "STATE", "SCHEME", "SIZE", "RUN", "SOURCE", "LICENCE")
	for _, r := range all {
		size := mib(r.Size)
		if r.Missing {
			size = "not here"
		}
		row(w, r.Alias, r.Name, dash(r.State), r.Scheme, size, r.Run, dash(r.Source), dash(r.License))
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func newModelsGCCmd(e *env) *cobra.Command {
	var keep int
	var yes bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove weights that nothing needs",
		Long: `Gc removes folders of weights from the state directory that no version which is live,
standby or deployed needs, none of the newest --keep of each alias, and no run that
is not over. It shows them and asks first. Records and verdicts stay, and what is
needed again is fetched or made again.

  llmops models gc --keep 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep < 0 {
				return usage("--keep is %d, want 0 or more", keep)
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.gc(cmd.Context(), h, keep, yes)
		},
	}
	c.Flags().IntVar(&keep, "keep", 2, "how many of the newest versions of each alias stay")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (e *env) gc(ctx context.Context, h *home, keep int, yes bool) error {
	old, err := pipeline.Garbage(ctx, h.deps(), keep)
	if err != nil {
		return err
	}
	if old == nil {
		old = []pipeline.Folder{}
	}
	var freed int64
	for _, f := range old {
		freed += f.Freed
		e.say("%s, %s", f.Dir, mib(f.Size))
	}
	if len(old) > 0 && !yes {
		if !isTerminal(e.in) {
			return usage("models gc needs --yes without a terminal")
		}
		if ok, err := e.ask(ctx, "Remove %d folders, which frees %s?", len(old), mib(freed)); err != nil {
			return err
		} else if !ok {
			return usage("nothing was removed")
		}
	}
	for _, f := range old {
		if err := f.Remove(); err != nil {
			return err
		}
	}
	return e.answer(old, func(w *tabwriter.Writer) {
		row(w, "REMOVED", "FREED")
		row(w, len(old), mib(freed))
	})
}
