package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/trace"
)

func newBenchmarkCompareCmd(e *env) *cobra.Command {
	var o benchmark.Comparing
	var point int
	c := &cobra.Command{
		Use:   "compare A B",
		Short: "Say whether one benchmark is worse than another",
		Long: `Compare holds benchmark B against A, figure by figure, with intervals. It says no,
exit 3, when a figure is shown to be worse by more than the margin, and exits 5 when
that cannot be told: too few requests, or not the same load.

  llmops benchmark compare before/ after/ --margin 0.05

` + exitHelp,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if !(o.Margin > 0 && o.Margin < 10) {
				return usage("--margin %v: want a share such as 0.05", o.Margin)
			}
			var samples [2]benchmark.Sample
			for i, path := range args {
				var err error
				if samples[i], err = sampleOf(path, point); err != nil {
					return err
				}
			}
			cmp := benchmark.Compare(samples[0], samples[1], o)
			if err := e.answer(cmp, func(w *tabwriter.Writer) { compareTable(w, cmp) }); err != nil {
				return err
			}
			return outcome(cmp.Verdict.Outcome)
		},
	}
	c.Flags().Float64Var(&o.Margin, "margin", 0.05, "how much worse still passes, as a share")
	c.Flags().Uint64Var(&o.Seed, "seed", 1, "of the bootstrap")
	c.Flags().IntVar(&point, "point", 0, "of a sweep, which point: 1 is the first; default: the only one")
	return c
}

// sampleOf is a point of a benchmark's folder.
func sampleOf(path string, point int) (benchmark.Sample, error) {
	rec, all, err := readBenchmark(path)
	if err != nil {
		return benchmark.Sample{}, err
	}
	switch {
	case point == 0 && len(rec.Points) == 1:
		point = 1
	case point == 0:
		return benchmark.Sample{}, usage("%s has %d points: choose one with --point", path, len(rec.Points))
	case point < 1 || point > len(rec.Points):
		return benchmark.Sample{}, usage("--point %d: %s has %d", point, path, len(rec.Points))
	}
	p := rec.Points[point-1]
	return benchmark.Sample{Name: path, Load: &p.Load, Results: p.Window(all[point-1])}, nil
}

func compareTable(w *tabwriter.Writer, c benchmark.Comparison) {
	row(w, "FIGURE", "A", "B", "TIMES WORSE", "INTERVAL", "VERDICT")
	for _, f := range c.Changes {
		show := func(v float64) string {
			if f.Unit == "ns" {
				return milli(v) + " ms"
			}
			return fmt.Sprintf("%.2f%%", 100*v)
		}
		v := f.Verdict
		row(w, f.Name, show(f.A), show(f.B), fmt.Sprintf("%.3f", v.Estimate), fmt.Sprintf("%.3f to %.3f", v.Lo, v.Hi), v.Outcome)
	}
	row(w)
	row(w, c.Verdict.Outcome, c.Verdict.Claim)
	for _, warning := range c.Verdict.Warnings {
		row(w, "", warning)
	}
}

func traceNames() (out []string) {
	for _, f := range trace.Formats() {
		out = append(out, f.Name)
	}
	return append(out, "messages")
}
