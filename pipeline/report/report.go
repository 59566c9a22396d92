// Package report turns the record of a run into something to read: one page of
// HTML that needs nothing else, Markdown for a pull request, JUnit for a CI
// server. All are pure functions of a [Run]; the JSON form of a run is the run
// itself. Nothing is computed here that is not on record.
package report

import (
	"fmt"
	"strings"
	"time"

	"llmops/evidence"
)

// Run is the record of a run.
type Run struct {
	ID       string
	Alias    string
	State    string
	Reason   string
	Outcome  evidence.Outcome
	Began    time.Time
	Facts    []Fact
	Stages   []Stage
	Approved []Approval
	Load     *Benchmark // nil: the run had no benchmark
	Canary   *Canary
	Deciders []Decider
}

// Fact is one line of what the run was about.
type Fact struct{ Name, Value string }

// Stage is a finished stage.
type Stage struct {
	Name    string
	Took    time.Duration
	Reused  bool
	Verdict evidence.Verdict
}

// Approval is a person's decision to go on past a gate.
type Approval struct{ Gate, By, Reason string }

// Decider is an entry of the journal: who did what, when.
type Decider struct {
	At    time.Time
	Owner string
	Stage string
	What  string
}

// Canary is the evidence of a canary over time.
type Canary struct {
	Guards []string
	Level  float64 // log10 of what an e-value must reach
	Points []Point
}

// Point is one look: log10 e-values of harm and of safety by guard.
type Point struct {
	At     time.Duration
	Weight float64
	N      uint64
	Harm   []float64
	Safe   []float64
}

// number prints a measured value with its unit.
func number(v float64, unit string) string {
	switch unit {
	case "score":
		return fmt.Sprintf("%+.2f pt", 100*v)
	case "share":
		return fmt.Sprintf("%.2f %%", 100*v)
	case "ratio":
		return fmt.Sprintf("%.4f", v)
	case "":
		return ""
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}

// interval prints estimate and bounds.
func interval(v evidence.Verdict) string {
	if v.Unit == "" || v.N == 0 {
		return ""
	}
	return fmt.Sprintf("%s [%s, %s]", number(v.Estimate, v.Unit), number(v.Lo, v.Unit), number(v.Hi, v.Unit))
}

// Markdown is a summary with one line a verdict.
func Markdown(r Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s: %s\n\nRun `%s`, %s.\n\n", cell(r.Alias), r.Outcome, r.ID, cell(r.Reason))
	b.WriteString("| stage | verdict | evidence | n | took |\n|---|---|---|---|---|\n")
	for _, s := range r.Stages {
		took := s.Took.Round(100 * time.Millisecond).String()
		if s.Reused {
			took = "reused"
		}
		fmt.Fprintf(&b, "| **%s** | %s | %s | %d | %s |\n", s.Name, s.Verdict.Outcome, cell(s.Verdict.Claim), s.Verdict.N, took)
		markdownParts(&b, s.Verdict)
	}
	for _, a := range r.Approved {
		fmt.Fprintf(&b, "\n%s let the run go on past **%s**: %s\n", cell(a.By), a.Gate, cell(a.Reason))
	}
	return b.String()
}

func markdownParts(b *strings.Builder, v evidence.Verdict) {
	for _, p := range v.Parts {
		fmt.Fprintf(b, "| | %s | %s %s | %d | |\n", p.Outcome, cell(p.Claim), cell(interval(p)), p.N)
		markdownParts(b, p)
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(b, "| | | _%s_ | | |\n", cell(w))
	}
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}
