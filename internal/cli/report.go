package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"llmops/pipeline"
	"llmops/pipeline/canary"
	"llmops/pipeline/report"
)

func newRunsReportCmd(e *env) *cobra.Command {
	var format, out string
	c := &cobra.Command{
		Use:   "report RUN",
		Short: "Write a run's report as HTML, Markdown, JUnit or JSON",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			head, err := h.readRun(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			b, err := h.render(cmd.Context(), head, format)
			if err != nil {
				return err
			}
			if out == "" {
				_, err = e.out.Write(b)
				return err
			}
			return renameio.WriteFile(out, b, 0o644)
		},
	}
	c.Flags().StringVar(&format, "format", "html", "html, md, junit or json")
	c.Flags().StringVarP(&out, "out", "o", "", "the file to write; default: standard output")
	return c
}

// writeReport writes all forms of the run's report and returns the page's path.
func (h *home) writeReport(ctx context.Context, head pipeline.Head) (string, error) {
	dir := filepath.Join(h.dir, "reports", head.Run)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("writing report: %w", err)
	}
	for format, name := range map[string]string{"html": "report.html", "md": "report.md", "junit": "junit.xml", "json": "run.json"} {
		b, err := h.render(ctx, head, format)
		if err != nil {
			return "", err
		}
		if err := renameio.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return "", fmt.Errorf("writing report: %w", err)
		}
	}
	return filepath.Join(dir, "report.html"), nil
}

func (h *home) render(ctx context.Context, head pipeline.Head, format string) ([]byte, error) {
	s, err := h.show(ctx, head.Run, true)
	if err != nil {
		return nil, err
	}
	if format == "json" {
		return json.MarshalIndent(s, "", "  ")
	}
	spec, err := pipeline.ReadSpec(ctx, h.blobs, head)
	if err != nil {
		return nil, err
	}
	r := reportOf(s, spec)
	switch format {
	case "html":
		if r.Load, err = h.loadOf(ctx, s.Records, spec); err != nil {
			return nil, err
		}
		return report.HTML(r)
	case "md":
		return []byte(report.Markdown(r)), nil
	case "junit":
		return report.JUnit(r)
	}
	return nil, usage("--format is %q, want html, md, junit or json", format)
}

// reportOf picks out of a run's record what a reader of the report looks for.
func reportOf(s shown, spec pipeline.Spec) report.Run {
	r := report.Run{ID: s.Run, Alias: s.Alias, State: string(s.State), Reason: s.Reason, Outcome: s.Outcome, Began: s.Began}
	scheme := spec.Quantise.Scheme
	if scheme == "" {
		scheme = "none"
	}
	r.Facts = []report.Fact{
		{Name: "model file", Value: spec.File}, {Name: "source", Value: spec.Source}, {Name: "scheme", Value: scheme},
		{Name: "engine", Value: engineFact(spec)},
		{Name: "traffic planned", Value: fmt.Sprintf("%g/s, %d tokens in, %d out", spec.Traffic.Rate, spec.Traffic.Input, spec.Traffic.Output)},
		{Name: "service level", Value: fmt.Sprintf("TTFT %v, TPOT %v, errors %s, refusals %s", spec.SLO.TTFT, spec.SLO.TPOT, stated(spec.SLO.ErrorRate), stated(spec.SLO.RefusalRate))},
	}
	if on := strings.Join(s.Options.RollbackOn, ", "); s.Options.Only {
		r.Facts = append(r.Facts, report.Fact{Name: "guards", Value: "only " + on + ", as asked on the command line"})
	} else if on != "" {
		r.Facts = append(r.Facts, report.Fact{Name: "guards", Value: strings.Join(spec.Canary.RollbackOn, ", ") + "; and " + on + ", as asked on the command line"})
	}
	for i, rec := range s.Records {
		r.Stages = append(r.Stages, report.Stage{Name: rec.Stage, Took: rec.Ended.Sub(rec.Started), Reused: s.Stages[i].Reused, Verdict: rec.Verdict})
		switch rec.Stage {
		case pipeline.StageDeploy:
			var d pipeline.DeployOutput
			if json.Unmarshal(rec.Output, &d) == nil {
				if d.First {
					r.Facts = append(r.Facts, report.Fact{Name: "first version", Value: fmt.Sprintf("nothing was live before: the unquantised source went live as %s without a gate", d.Parent.Version.Name)})
				}
				r.Facts = append(r.Facts, report.Fact{Name: "versions", Value: fmt.Sprintf("parent %s (%s), candidate %s (%s), stable %s",
					d.Parent.Version.Name, d.Parent.Version.Scheme, d.Candidate.Version.Name, d.Candidate.Version.Scheme, d.Stable.Version.Name)})
			}
		case pipeline.StageCanary:
			var c canary.Result
			if json.Unmarshal(rec.Output, &c) == nil {
				r.Canary = canaryOf(c)
			}
		}
	}
	for _, a := range s.Approved {
		r.Approved = append(r.Approved, report.Approval{Gate: a.Gate, By: a.By, Reason: a.Reason})
	}
	for _, j := range s.Journal {
		what := j.Kind + " " + j.What
		r.Deciders = append(r.Deciders, report.Decider{At: j.At, Owner: j.Owner, Stage: j.Stage, What: what})
	}
	return r
}

// engineFact is the engine, where it runs and what it was asked for, under the names of
// the model file.
func engineFact(spec pipeline.Spec) string {
	fact := spec.Engine.Kind + " on " + spec.Placement.GPU
	if asked := spec.Engine.Asked(); asked != "" {
		fact += ", " + asked
	}
	return fact
}

// stated is a rate that a service level may leave out.
func stated(rate float64) string {
	if rate == 0 {
		return "none"
	}
	return fmt.Sprintf("%.4g%%", 100*rate)
}

func canaryOf(c canary.Result) *report.Canary {
	if len(c.State.Points) == 0 {
		return nil
	}
	out := &report.Canary{Level: math.Log10(1 / c.Policy.Level())}
	var use []int
	for g, name := range canary.Names {
		if contains(c.Policy.Guards, name) {
			out.Guards = append(out.Guards, name)
			use = append(use, g)
		}
	}
	for _, p := range c.State.Points {
		pt := report.Point{At: p.At, Weight: p.Weight, N: p.N}
		for _, g := range use {
			pt.Harm = append(pt.Harm, p.Harm[g])
			pt.Safe = append(pt.Safe, p.Safe[g])
		}
		out.Points = append(out.Points, pt)
	}
	return out
}
