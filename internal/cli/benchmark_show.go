package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"llmops/evidence"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

func newBenchmarkShowCmd(e *env) *cobra.Command {
	var html string
	c := &cobra.Command{
		Use:   "show DIR",
		Short: "Sum up a benchmark's results again",
		Long: `Show reads the results in a benchmark's folder and sums them up, also those of a
run that was killed.

  llmops benchmark show $LLMOPS_HOME/benchmarks/20261130-101500.000 --report page.html

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			rec, _, err := readBenchmark(args[0])
			if err != nil {
				return err
			}
			if html != "" {
				if err := e.writePage(html, args[0], rec); err != nil {
					return err
				}
			}
			if err := e.answer(rec, func(w *tabwriter.Writer) { benchTable(w, rec) }); err != nil {
				return err
			}
			if rec.Verdict != nil {
				return outcome(rec.Verdict.Outcome)
			}
			return nil
		},
	}
	c.Flags().StringVar(&html, "report", "", "write a page of HTML")
	return c
}

// readBenchmark reads a record and its results. Points of a run that was killed
// are summed up from what it wrote; a last line that is cut costs one request.
func readBenchmark(dir string) (*benchmark.Record, [][]*load.Result, error) {
	f, err := os.Open(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, nil, &exitError{exitUsage, fmt.Errorf("%s is no benchmark's folder: %w", dir, err)}
	}
	defer f.Close()
	rec, err := benchmark.ReadRecord(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "results-*.jsonl"))
	if err != nil {
		return nil, nil, err
	}
	files := map[string][]*load.Result{}
	for _, path := range names {
		rs, err := readResults(path)
		if err != nil {
			if rec.State != benchmark.Running {
				return nil, nil, fmt.Errorf("%s: %w", path, err)
			}
			rec.Warnings = append(rec.Warnings, fmt.Sprintf("%s: %v; all lines before are here", filepath.Base(path), err))
		}
		files[filepath.Base(path)] = rs
	}
	var all [][]*load.Result
	for _, p := range rec.Points {
		all = append(all, files[p.File])
		delete(files, p.File)
	}
	if rec.State == benchmark.Running {
		rec.Warnings = append(rec.Warnings, "the run was killed, or is still going on: nothing is judged")
		for _, path := range names { // in their order
			name := filepath.Base(path)
			rs, left := files[name]
			if !left {
				continue
			}
			l := benchmark.Load{}
			if rec.Asked != nil {
				l = *rec.Asked
			}
			p := benchmark.Sum(l, rs, load.Stats{Sent: len(rs), Stopped: true}, rec.SLO)
			p.File = name
			rec.Points, all = append(rec.Points, p), append(all, rs)
		}
		rec.Verdict = &evidence.Verdict{Claim: "the run came to its end", Warnings: []string{"it did not"}}
	}
	return rec, all, nil
}

func readResults(path string) (out []*load.Result, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	err = load.Read(f, func(r *load.Result) error {
		out = append(out, r)
		return nil
	})
	return out, err
}

func (e *env) writePage(path, dir string, rec *benchmark.Record) error {
	var all [][]*load.Result
	for _, p := range rec.Points {
		rs, err := readResults(filepath.Join(dir, p.File))
		if err != nil && len(rs) == 0 {
			return err
		}
		all = append(all, rs)
	}
	b, err := benchmark.Page(rec, all)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, b, 0o644)
}

func benchTable(w *tabwriter.Writer, rec *benchmark.Record) {
	s := rec.System
	row(w, strings.Join(strings.Fields(fmt.Sprint(s.Model, " on ", rec.URL, " ", s.Engine, " ", s.Version, " ", s.GPU)), " "))
	for _, p := range rec.Points {
		row(w)
		pointTable(w, p)
	}
	if f := rec.Found; f != nil {
		row(w)
		if f.Verdict.Claim != "" {
			row(w, "service level", "holds "+between(f.Holds, f.Fails))
		}
		row(w, "knee", between(f.Knee, f.Beyond))
		row(w, "capacity", fmt.Sprintf("%.0f tokens/s out", f.Capacity))
	}
	if b := rec.Batch; b != nil {
		row(w, "batch", fmt.Sprintf("%.0f such requests in %v", b.Fits, b.Window))
		if b.TokensPerGPU > 0 {
			row(w, "", fmt.Sprintf("%.0f tokens/s a GPU", b.TokensPerGPU))
		}
		if b.Requests > 0 {
			row(w, "", fmt.Sprintf("%d take %v", b.Requests, b.Takes.Round(time.Second)))
		}
	}
	if r := rec.Roofline; r != nil {
		for _, p := range r.Points {
			row(w, "roofline", fmt.Sprintf("%s: %.3g%% of %s; %s", p.Name, 100*p.Share, p.Binds, p.Note))
		}
	}
	row(w)
	for _, c := range rec.Checks {
		row(w, checked(c), c.Name, c.Note)
	}
	if c := rec.Client; c.Events > 0 {
		row(w, "generator", fmt.Sprintf("%.2f s of CPU, %.1f µs an event, %d MB", c.CPU, c.Micros, c.Memory>>20))
	}
	for _, warning := range rec.Warnings {
		row(w, "note", warning)
	}
	if v := rec.Verdict; v != nil {
		row(w, strings.ToUpper(v.Outcome.String()), v.Claim)
		for _, p := range v.Parts {
			row(w, "", verdictLine(p))
		}
		for _, warning := range v.Warnings {
			row(w, "", warning)
		}
	}
}

// between says where a limit lies; 0 is a side that was not found.
func between(good, bad float64) string {
	switch {
	case good == 0 && bad == 0:
		return "at no rate: none was offered"
	case good == 0:
		return fmt.Sprintf("at no rate, and not at %.4g/s", bad)
	case bad == 0:
		return fmt.Sprintf("up to %.4g/s, the highest that was offered", good)
	}
	return fmt.Sprintf("up to %.4g/s, and not at %.4g/s", good, bad)
}

func checked(c load.Check) string {
	if c.OK {
		return "ok"
	}
	return "CHECK"
}

func pointTable(w *tabwriter.Writer, p benchmark.Point) {
	s := p.Summary
	row(w, p.Load.String()+saturated(p), p.Load.Content)
	row(w, "requests", fmt.Sprintf("%d attempted, %d answered, %s; %.2f/s over %v", s.Attempted, s.Done, failures(s), s.RequestRate, s.Window.Round(time.Millisecond)))
	tokens := fmt.Sprintf("%d in (%d cached), %d out; %.1f/s out", s.InputTokens, s.CachedTokens, s.OutputTokens, s.OutputRate)
	if sec := s.Window.Seconds(); s.OutputTokens == 0 && sec > 0 { // an encoder's
		tokens = fmt.Sprintf("%d in, %.1f/s", s.InputTokens, float64(s.InputTokens)/sec)
	}
	if s.PeakRate > 0 {
		tokens += fmt.Sprintf(", peak %.0f", s.PeakRate)
	}
	row(w, "tokens", tokens)
	if s.SLO != (load.SLO{}) {
		row(w, "good", fmt.Sprintf("%.1f%% of the attempted, %.2f/s", 100*s.GoodShare, s.Goodput))
	}
	row(w, "ms", "mean", "p50", "p95", "p99", "p99.9", "p99 at most", "n")
	for _, d := range []struct {
		name string
		d    load.Dist
	}{{"TTFT", s.TTFT}, {"TTFT since sent", s.TTFTSent}, {"TTFO", s.TTFO}, {"TPOT", s.TPOT}, {"E2E", s.E2E}, {"ICL", s.ICL}, {"ITL", s.ITL}, {"lag", s.Lag}} {
		if d.d.N == 0 || d.name == "TTFO" && d.d == s.TTFT {
			continue
		}
		most := "too few"
		if d.d.Upper99 > 0 {
			most = milli(d.d.Upper99)
		}
		row(w, d.name, milli(d.d.Mean), milli(d.d.P50), milli(d.d.P95), milli(d.d.P99), milli(d.d.P999), most, d.d.N)
	}
	for _, c := range p.Classes {
		row(w, "  "+dash(c.Name), fmt.Sprintf("%d attempted, %d answered; TTFT p50 %s p95 %s, TPOT p50 %s p95 %s", c.Summary.Attempted, c.Summary.Done,
			milli(c.Summary.TTFT.P50), milli(c.Summary.TTFT.P95), milli(c.Summary.TPOT.P50), milli(c.Summary.TPOT.P95)))
	}
	bad := 0
	for _, c := range s.Checks {
		if !c.OK {
			row(w, "CHECK", c.Name+": "+c.Note)
			bad++
		}
	}
	if bad == 0 {
		row(w, "checks", fmt.Sprintf("all %d hold", len(s.Checks)))
	}
	if p.Failure != "" {
		row(w, "failed", "the first with "+p.Failure)
	}
}

func milli(ns float64) string { return fmt.Sprintf("%.4g", ns/1e6) }

func failures(s load.Summary) string {
	if len(s.Failed) == 0 {
		return "none failed"
	}
	var parts []string
	for _, k := range []load.Kind{load.KindConnect, load.KindStatus, load.KindStream, load.KindTimeout, load.KindLimit, load.KindCancelled} {
		if n := s.Failed[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, k))
		}
	}
	return "failed: " + strings.Join(parts, ", ")
}
