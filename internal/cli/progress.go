package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"llmops/evidence"
	"llmops/pipeline"
)

// quiet is the pause between lines of progress where lines cannot be
// overwritten.
const quiet = 2 * time.Second

// progress prints what a run does: on a terminal one line that changes, without
// one a line now and then. It belongs to the goroutine that drives.
type progress struct {
	e        *env
	terminal bool
	last     time.Time
	open     bool      // the cursor stands in a line that may be overwritten
	began    time.Time // of the stage
	width    int       // of the terminal
}

func newProgress(e *env) *progress {
	p := &progress{e: e, width: 80}
	width, _, terminal := terminalSize(e.err)
	if p.terminal = terminal; width > 20 {
		p.width = width
	}
	return p
}

func (p *progress) event(ev pipeline.Event) {
	switch ev.Kind {
	case pipeline.Started:
		p.began, p.last = ev.At, time.Time{}
		if p.terminal {
			p.show(ev)
		} else {
			p.line("%s", ev.Stage)
		}
	case pipeline.Skipped:
		p.line("%-10s %s", ev.Stage, ev.Text)
	case pipeline.Note:
		p.line("%-10s note: %s", ev.Stage, ev.Text)
	case pipeline.Progress:
		p.show(ev)
	case pipeline.Finished:
		p.line("%-10s %s in %.1fs: %s", ev.Stage, ev.Verdict.Outcome, ev.At.Sub(p.began).Seconds(), ev.Verdict.Claim)
		for _, v := range ev.Verdict.Deciding() {
			p.line("%-10s   %s", "", verdictLine(v))
		}
		for _, w := range ev.Verdict.Warnings {
			p.line("%-10s   %s", "", w)
		}
	}
}

func (p *progress) show(ev pipeline.Event) {
	pause := quiet
	if p.terminal {
		pause = 100 * time.Millisecond
	}
	if time.Since(p.last) < pause {
		return
	}
	p.last = time.Now()
	text := fmt.Sprintf("%-10s %s", ev.Stage, ev.Text)
	if ev.Total > 0 {
		text += fmt.Sprintf(" %3.0f%%", 100*min(1, float64(ev.Done)/float64(ev.Total)))
	}
	p.status(text)
}

// status shows a line that the next one may take the place of.
func (p *progress) status(text string) {
	if !p.terminal {
		p.line("%s", text)
		return
	}
	if len(text) > p.width-1 {
		text = text[:p.width-1]
	}
	_, _ = fmt.Fprintf(p.e.err, "\r\x1b[K%s", text)
	p.open = true
}

func (p *progress) line(format string, args ...any) {
	p.end()
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	if p.terminal {
		text = wrap(text, p.width)
	}
	_, _ = fmt.Fprintln(p.e.err, text)
}

// hanging is the indent of what follows the name of a stage.
const hanging = 11

// wrap breaks a line between words so that it fits width columns.
func wrap(text string, width int) string {
	var b strings.Builder
	for len(text) > width {
		at := strings.LastIndexByte(text[:width+1], ' ')
		if at <= hanging {
			break
		}
		b.WriteString(text[:at] + "\n")
		text = strings.Repeat(" ", hanging) + text[at+1:]
	}
	return b.String() + text
}

// end closes a line that was left open.
func (p *progress) end() {
	if p.open {
		_, _ = fmt.Fprint(p.e.err, "\r\x1b[K")
		p.open = false
	}
}

// verdictLine is a verdict on one line.
func verdictLine(v evidence.Verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.Outcome, v.Claim)
	if v.Unit != "" && v.N > 0 {
		fmt.Fprintf(&b, "; %.4g in [%.4g, %.4g] %s, n %d", v.Estimate, v.Lo, v.Hi, v.Unit, v.N)
	}
	if v.Outcome == evidence.Inconclusive && v.Need > v.N {
		fmt.Fprintf(&b, ", about %d needed", v.Need)
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(&b, "; %s", w)
	}
	return b.String()
}

// summary tells how a run ended and what to do next.
func (e *env) summary(ctx context.Context, h *home, head pipeline.Head, out evidence.Outcome, report string) {
	w := tabwriter.NewWriter(e.err, 0, 4, 2, ' ', 0)
	for _, s := range head.Stages {
		took := s.Ended.Sub(s.Began).Round(100 * time.Millisecond).String()
		if s.Reused {
			took = "reused"
		}
		row(w, s.Name, s.Outcome, took)
	}
	_ = w.Flush()
	e.say("run %s: %s (%s)", head.Run, out, head.Reason)
	e.say("report: %s", report)
	at, err := pipeline.RouterAddr(ctx, h.scheduler)
	if err != nil || at == "" {
		return
	}
	if head.State == pipeline.Done && out == evidence.Pass {
		s, err := pipeline.ReadSpec(ctx, h.blobs, head)
		if err != nil {
			return
		}
		e.say("%s answers on http://%s%s; llmops status shows it, llmops down stops everything", head.Alias, at, s.Task.Path())
	}
}
