package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/exchange"
	"llmops/pipeline/benchmark/load"
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

Either may be the file of vllm bench serve, guidellm or aiperf.

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

// foreign tells that path is a file, as other tools leave, and no folder of ours.
func foreign(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func readForeign(path string, run int) (*exchange.Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := exchange.Read(f, run)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// sampleOf is a point of a benchmark's folder, or the file of another tool.
func sampleOf(path string, point int) (benchmark.Sample, error) {
	if foreign(path) {
		r, err := readForeign(path, max(0, point-1))
		if err != nil {
			return benchmark.Sample{}, err
		}
		return benchmark.Sample{Name: path, Load: r.Load, Results: r.Results, Notes: r.Notes}, nil
	}
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

func newBenchmarkConvertCmd(e *env) *cobra.Command {
	var to, out string
	var point int
	c := &cobra.Command{
		Use:   "convert PATH --to FORMAT",
		Short: "Turn a benchmark into another tool's file, or sum one up",
		Long: `Convert writes a benchmark, a folder of ours or the file of another tool, as the
file of vllm bench serve, guidellm or aiperf (its profile_export.jsonl, and with
aiperf-summary its profile_export_aiperf.json). With --to summary it sums it up by our
definitions. Figures are mapped by what they are and not
by their names.

  llmops benchmark convert results/ --to vllm --out result.json
  llmops benchmark convert guidellm.json --to summary

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			r, err := runOf(args[0], point)
			if err != nil {
				return err
			}
			sum := load.Summarise(r.Results, load.Stats{}, load.SLO{})
			if to == "summary" {
				for _, n := range r.Notes {
					e.say("note: %s", n)
				}
				p := benchmark.Point{Summary: sum}
				if r.Load != nil {
					p.Load = *r.Load
				}
				return e.answer(sum, func(w *tabwriter.Writer) { pointTable(w, p) })
			}
			if !slices.Contains([]string{exchange.VLLM, exchange.GuideLLM, exchange.AIPerf, exchange.AIPerfSummary}, to) {
				return usage("--to is %q, want vllm, guidellm, aiperf, aiperf-summary or summary", to)
			}
			if out == "" {
				return exchange.Write(e.out, to, r, sum)
			}
			f, err := renameio.NewPendingFile(out, renameio.WithStaticPermissions(0o644))
			if err != nil {
				return fmt.Errorf("writing %s: %w", out, err)
			}
			defer func() { err = errors.Join(err, f.Cleanup()) }()
			if err := exchange.Write(f, to, r, sum); err != nil {
				return fmt.Errorf("writing %s: %w", out, err)
			}
			return f.CloseAtomicallyReplace()
		},
	}
	c.Flags().StringVar(&to, "to", "", "vllm, guidellm, aiperf, aiperf-summary or summary")
	c.Flags().StringVar(&out, "out", "", "the file to write; default: standard output")
	c.Flags().IntVar(&point, "point", 0, "of a sweep, which point: 1 is the first; default: the only one")
	return c
}

// runOf reads what other tools' files are made of.
func runOf(path string, point int) (*exchange.Run, error) {
	if foreign(path) {
		return readForeign(path, max(0, point-1))
	}
	rec, _, err := readBenchmark(path)
	if err != nil {
		return nil, err
	}
	s, err := sampleOf(path, point)
	if err != nil {
		return nil, err
	}
	return &exchange.Run{Tool: "llmops", Model: rec.System.Model, Load: s.Load, Results: s.Results}, nil
}

func traceNames() (out []string) {
	for _, f := range trace.Formats() {
		out = append(out, f.Name)
	}
	return append(out, "messages")
}
