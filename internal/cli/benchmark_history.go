package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/evidence"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
)

// past is a line of the history.
type past struct {
	ID       string            `json:"id"`
	Run      string            `json:"run,omitempty"` // whose stage it was; empty: the plain tool's
	Began    time.Time         `json:"began"`
	System   benchmark.System  `json:"system"`
	Load     string            `json:"load"`
	Content  string            `json:"content"`
	Rate     float64           `json:"request_rate"`
	Output   float64           `json:"output_rate"`
	TTFT     float64           `json:"ttft_p95_ms"`
	TPOT     float64           `json:"tpot_p95_ms"`
	Good     float64           `json:"good_share"`
	Holds    float64           `json:"holds,omitempty"`
	Knee     float64           `json:"knee,omitempty"`
	Outcome  *evidence.Outcome `json:"outcome,omitempty"`
	Dir      string            `json:"dir,omitempty"`
	Attempts int               `json:"attempted"`
}

// pastOf is a point as the history shows it.
func pastOf(p benchmark.Point) past {
	s := p.Summary
	return past{Load: p.Load.String(), Content: p.Load.Content, Rate: s.RequestRate, Output: s.OutputRate,
		TTFT: s.TTFT.P95 / 1e6, TPOT: s.TPOT.P95 / 1e6, Good: s.GoodShare, Attempts: s.Attempted}
}

func (e *env) historyFile() (string, error) {
	home, err := e.stateDir()
	if err != nil {
		return "", &exitError{exitUsage, err}
	}
	return filepath.Join(home, "benchmarks", "history.jsonl"), nil
}

// remember leaves a line in the history. A line is written in one piece, so that
// runs that end at once do not mix theirs.
func (e *env) remember(rec *benchmark.Record, dir string) error {
	if len(rec.Points) == 0 {
		return nil
	}
	path, err := e.historyFile()
	if err != nil {
		return err
	}
	p := rec.Points[len(rec.Points)-1]
	if f := rec.Found; f != nil {
		for _, q := range rec.Points {
			if q.Rate == f.Holds || f.Holds == 0 && q.Rate == f.Knee {
				p = q
			}
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	h := pastOf(p)
	h.ID, h.Began, h.System, h.Dir = rec.ID, rec.Began, rec.System, dir
	if rec.Found != nil {
		h.Holds, h.Knee = rec.Found.Holds, rec.Found.Knee
	}
	if rec.Verdict != nil {
		h.Outcome = &rec.Verdict.Outcome
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return unwritable(fmt.Errorf("writing the history: %w", err))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return unwritable(fmt.Errorf("writing the history: %w", err))
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// history is what the plain tool left on this machine and the benchmarks of runs, which
// are read from the runs' own records, the oldest first.
func (e *env) history(ctx context.Context) ([]past, error) {
	path, err := e.historyFile()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var out []past
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		var p past
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			return nil, fmt.Errorf("reading %s: line %d: %w; take the line out", path, n, err)
		}
		out = append(out, p)
	}
	h, err := e.openHome()
	if err != nil {
		return nil, err
	}
	runs, err := pipeline.Measurements(ctx, h.deps())
	if err != nil {
		return nil, err
	}
	for _, m := range runs {
		p := pastOf(m.Point)
		p.ID, p.Run, p.Began, p.System, p.Outcome = m.Run, m.Run, m.Began, m.System, &m.Outcome
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b past) int { return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.ID, b.ID)) })
	return out, nil
}

func newBenchmarkHistoryCmd(e *env) *cobra.Command {
	var model, engine, gpu string
	c := &cobra.Command{
		Use:   "history",
		Short: "List benchmarks by model, engine and GPU",
		Long: `History lists the benchmarks of this machine's state directory and those of the
fleet's runs, the oldest first.

  llmops benchmark history --model llama --gpu h100

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := e.history(cmd.Context())
			if err != nil {
				return err
			}
			found := []past{}
			for _, p := range all {
				s := p.System
				if strings.Contains(s.Model, model) && strings.Contains(s.Engine+" "+s.Version, engine) && strings.Contains(s.GPU, gpu) {
					found = append(found, p)
				}
			}
			return e.answer(found, func(w *tabwriter.Writer) { historyTable(w, found) })
		},
	}
	c.Flags().StringVar(&model, "model", "", "only of models with this in their name")
	c.Flags().StringVar(&engine, "engine", "", "only of engines with this in their name or version")
	c.Flags().StringVar(&gpu, "gpu", "", "only of GPUs with this in their name")
	return c
}

func historyTable(w *tabwriter.Writer, all []past) {
	row(w, "ID", "MODEL", "VERSION", "WEIGHTS", "ENGINE", "GPU", "LOAD", "REQUESTS/S", "TOKENS/S", "TTFT p95", "TPOT p95", "VERDICT", "FLAGS")
	for _, p := range all {
		verdict := "-"
		if p.Outcome != nil {
			verdict = p.Outcome.String()
		}
		s := p.System
		gpu := s.GPU
		if s.GPUs > 0 {
			gpu = fmt.Sprintf("%d × %s", s.GPUs, gpu)
		}
		row(w, p.ID, s.Model, dash(s.Release), dash(s.Weights), dash(strings.TrimSpace(s.Engine+" "+s.Version)), dash(gpu), p.Load,
			fmt.Sprintf("%.2f", p.Rate), fmt.Sprintf("%.0f", p.Output), fmt.Sprintf("%.4g", p.TTFT), fmt.Sprintf("%.4g", p.TPOT), verdict, dash(s.Flags))
	}
}
