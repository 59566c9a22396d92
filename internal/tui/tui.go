// Package tui is what a person sees of work that is under way, at a terminal.
//
// [Bench] is how a benchmark stands and [Bench.Render] a picture of it in so many columns
// and lines, which is a pure function. [Meter] is what comes to stand so: it counts while
// a load runs, and may be used by any number of goroutines. [Screen] shows one picture
// after the other and gives the terminal back as it was. Nothing here decides anything,
// and what is measured is neither kept nor summed up here.
package tui

import (
	"fmt"
	"strings"
	"time"
)

// Bench is how a benchmark stands.
type Bench struct {
	What    string // model and server
	Load    string
	Step    int // which rate of a search; 0: it is none
	Most    int // rates at most
	Elapsed time.Duration
	Length  time.Duration // of what is offered; 0: not known
	Warm    time.Duration // how much of the beginning is in no figure
	Stop    bool          // it was asked to stop

	Sent, Done, Failed, Open int
	Answers, Tokens          float64 // a second, of late
	TTFT, TPOT, Lag          Figure
	Opened                   []float64 // open requests over time
	Notes                    []string  // what was found before, the latest last
	Keeps                    string    // where results are
}

// Figure is a latency so far, and the median of each moment over time.
type Figure struct {
	N        int
	P50, P95 time.Duration
	Over     []float64
}

// least is how narrow a picture may be.
const least = 20

// Render is b in at most width columns and height lines, with a line's end between two
// lines. What there is no room for is left out, the oldest notes first.
func (b Bench) Render(width, height int) string {
	width, height = max(width, least), max(height, 1)
	step := ""
	if b.Step > 0 {
		step = fmt.Sprintf("rate %d, at most %d", b.Step, b.Most)
	}
	lines := []string{ends("benchmark of "+b.What, step, width), b.Load, b.progress(width), ""}
	const labels = 31 // columns before a spark
	lines = append(lines,
		fmt.Sprintf("requests   %s sent, %s answered, %s failed, %s open", whole(b.Sent), whole(b.Done), whole(b.Failed), whole(b.Open)),
		b.late(), "")
	lines = append(lines, fmt.Sprintf("%-10s %9s %9s", "", "p50", "p95"))
	for _, f := range []struct {
		name string
		Figure
	}{{"TTFT", b.TTFT}, {"TPOT", b.TPOT}, {"lag", b.Lag}} {
		lines = append(lines, fmt.Sprintf("%-10s %9s %9s  %s", f.name, short(f.Figure, f.P50), short(f.Figure, f.P95), spark(f.Over, width-labels-1)))
	}
	lines = append(lines, fmt.Sprintf("%-10s %9s %9s  %s", "open", whole(b.Open), "", spark(b.Opened, width-labels-1)))
	last := "Ctrl-C stops; what was measured is kept"
	if b.Stop {
		last = "stopping; what was measured is kept"
	}
	if in := last + " in " + b.Keeps; b.Keeps != "" && len([]rune(in)) <= width {
		last = in
	}
	if room := height - len(lines) - 3; len(b.Notes) > 0 && room > 0 {
		lines = append(lines, "")
		lines = append(lines, b.Notes[max(0, len(b.Notes)-room):]...)
	}
	if height >= len(lines)+2 {
		lines = append(lines, "", last)
	}
	lines = lines[:min(len(lines), height)]
	for i, l := range lines {
		lines[i] = strings.TrimRight(cut(l, width), " ")
	}
	return strings.Join(lines, "\n")
}

// late is what was answered in the last moments that are over.
func (b Bench) late() string {
	if len(b.Opened) == 0 {
		return "of late    -"
	}
	return fmt.Sprintf("of late    %.4g answers/s, %s tokens/s", b.Answers, whole(int(b.Tokens+0.5)))
}

// progress is a bar with how much of the time is over and what is left.
func (b Bench) progress(width int) string {
	if b.Length <= 0 {
		return seconds(b.Elapsed)
	}
	share := min(1, float64(b.Elapsed)/float64(b.Length))
	text := fmt.Sprintf(" %3.0f%%  %s of %s", 100*share, seconds(b.Elapsed), seconds(b.Length))
	switch left := b.Length - b.Elapsed; {
	case left <= 0:
		text = fmt.Sprintf(" 100%%  all are sent, %s are open", whole(b.Open))
	case b.Elapsed < b.Warm:
		text += ", warming up"
	default:
		text += ", " + seconds(left) + " left"
	}
	room := width - len(text) - 2
	if room < 5 {
		return strings.TrimLeft(text, " ")
	}
	full := int(share * float64(room))
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", room-full) + "]" + text
}

// ends puts right at the end of the line where there is room for it.
func ends(left, right string, width int) string {
	room := width - len([]rune(right)) - 2
	if right == "" || room < 10 {
		return left
	}
	return fmt.Sprintf("%-*s  %s", room, cut(left, room), right)
}

func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:width-1]) + "…"
}

func seconds(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.0fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// whole is a number with its thousands apart.
func whole(n int) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// short is a latency in milliseconds.
func short(f Figure, d time.Duration) string {
	ms := float64(d) / 1e6
	switch {
	case f.N == 0:
		return "-"
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.3g ms", ms)
}

var bars = []rune("▁▂▃▄▅▆▇█")

// spark draws values as bars from 0 to the highest, the latest last, at most width of them.
func spark(values []float64, width int) string {
	if width <= 0 {
		return ""
	}
	values = values[max(0, len(values)-width):]
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	out := make([]rune, len(values))
	for i, v := range values {
		out[i] = bars[0]
		if top > 0 && v > 0 {
			out[i] = bars[min(len(bars)-1, int(v/top*float64(len(bars))))]
		}
	}
	return string(out)
}
