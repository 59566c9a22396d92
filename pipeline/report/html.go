package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"llmops/evidence"
	"llmops/pipeline/chart"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"interval": interval,
	"bar":      bar,
	"took":     func(d time.Duration) string { return d.Round(100 * time.Millisecond).String() },
	"stamp":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"chart":    evidenceChart,
	"charts":   func() template.CSS { return chart.Style },
	"percent":  func(share float64) string { return fmt.Sprintf("%.4g", 100*share) },
	"short":    func(v float64) string { return fmt.Sprintf("%.4g", v) },
	"ms":       milli,
}).Parse(pageSource))

// milli is a time in milliseconds, where there is one.
func milli(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.4g", v)
}

// HTML is the whole report as one page that loads nothing.
func HTML(r Run) ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, r); err != nil {
		return nil, fmt.Errorf("writing report: %w", err)
	}
	return b.Bytes(), nil
}

// bar draws an interval of a difference of scores against zero. The scale is
// the interval's own with zero in it.
func bar(v evidence.Verdict) template.HTML {
	if v.N == 0 || v.Unit == "" || v.Lo == v.Hi {
		return ""
	}
	lo, hi := v.Lo, v.Hi
	ref := 0.0
	if v.Unit == "ratio" {
		ref = 1
	}
	lo, hi = math.Min(lo, ref), math.Max(hi, ref)
	pad := (hi - lo) * 0.1
	lo, hi = lo-pad, hi+pad
	x := func(f float64) float64 { return 4 + 152*(f-lo)/(hi-lo) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bar" width="160" height="16" role="img" aria-label="interval">`)
	fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="1" y2="15" class="zero"/>`, x(ref), x(ref))
	fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="8" y2="8" class="%s w"/>`, x(v.Lo), x(v.Hi), v.Outcome)
	fmt.Fprintf(&b, `<circle cx="%.1f" cy="8" r="3" class="%s f"/></svg>`, x(v.Estimate), v.Outcome)
	return template.HTML(b.String())
}

const (
	chartW, chartH           = 640.0, 180.0
	chartLeft, chartBottom   = 44.0, 24.0
	chartTop, chartRight     = 10.0, 10.0
	chartFloor, chartCeiling = -6.0, 6.0
)

// evidenceChart draws one kind of e-value of a canary over time, a line a guard, with
// the level at which it decides.
func evidenceChart(c *Canary, kind string) template.HTML {
	if c == nil || len(c.Points) == 0 {
		return ""
	}
	end := max(c.Points[len(c.Points)-1].At.Seconds(), 1)
	x := func(d time.Duration) float64 { return chartLeft + (chartW-chartLeft-chartRight)*d.Seconds()/end }
	y := func(e float64) float64 {
		e = min(max(e, chartFloor), chartCeiling)
		return chartTop + (chartH-chartTop-chartBottom)*(chartCeiling-e)/(chartCeiling-chartFloor)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="evidence" viewBox="0 0 %g %g" role="img" aria-label="%s evidence over time">`, chartW, chartH, kind)
	for e := chartFloor; e <= chartCeiling; e += 2 {
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="grid"/><text x="%g" y="%.1f" class="tick" text-anchor="end">%s</text>`,
			chartLeft, chartW-chartRight, y(e), y(e), chartLeft-6, y(e)+4, power(e))
	}
	for i, p := range c.Points {
		if i > 0 && p.Weight != c.Points[i-1].Weight {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%g" y2="%g" class="step"/>`, x(p.At), x(p.At), chartTop, chartH-chartBottom)
		}
	}
	fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="level"/>`, chartLeft, chartW-chartRight, y(c.Level), y(c.Level))
	for g := range c.Guards {
		var path strings.Builder
		for i, p := range c.Points {
			values := p.Harm
			if kind == "safe" {
				values = p.Safe
			}
			verb := "L"
			if i == 0 {
				verb = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, x(p.At), y(values[g]))
		}
		fmt.Fprintf(&b, `<path d="%s" class="g%d"/>`, path.String(), g)
	}
	for s := 0.0; s <= end; s += stepOf(end) {
		at := x(time.Duration(s * float64(time.Second)))
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" class="tick" text-anchor="middle">%gs</text>`, at, chartH-6, s)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func power(e float64) string {
	if e == 0 {
		return "1"
	}
	return fmt.Sprintf("10^%g", e)
}

// stepOf is a round distance between marks so that there are five to ten.
func stepOf(end float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(end)))
	switch {
	case end/step >= 5:
		return step
	case end/step >= 2:
		return step / 2
	}
	return step / 5
}
