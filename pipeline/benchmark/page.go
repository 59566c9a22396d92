package benchmark

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"llmops/pipeline/benchmark/load"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ms":       func(ns float64) string { return fmt.Sprintf("%.4g", ns/1e6) },
	"percent":  func(share float64) string { return fmt.Sprintf("%.2f", 100*share) },
	"short":    func(f float64) string { return fmt.Sprintf("%.4g", f) },
	"stamp":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"describe": func(l Load) string { return l.String() },
}).Parse(pageSource))

// Page is a record as one page of HTML that loads nothing: the load curve of
// several points, distributions and timeline of each. results are those of the
// points, in their order; nil where they are not at hand.
func Page(r *Record, results [][]*load.Result) ([]byte, error) {
	type section struct {
		Point    Point
		CDF      template.HTML
		Timeline template.HTML
	}
	data := struct {
		*Record
		Curves   []template.HTML
		Sections []section
	}{Record: r}
	if len(r.Points) > 1 {
		data.Curves = curves(r)
	}
	for i, p := range r.Points {
		s := section{Point: p}
		if i < len(results) {
			s.CDF, s.Timeline = cdf(p.Window(results[i])), timeline(results[i])
		}
		data.Sections = append(data.Sections, s)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("writing the benchmark's page: %w", err)
	}
	return b.Bytes(), nil
}

type series struct {
	name string
	x, y []float64
}

// curves are what each rate gave.
func curves(r *Record) []template.HTML {
	points := slices.SortedStableFunc(slices.Values(r.Points), func(a, b Point) int {
		switch {
		case a.Rate < b.Rate:
			return -1
		case a.Rate > b.Rate:
			return 1
		}
		return 0
	})
	of := func(name string, value func(p Point) float64) series {
		s := series{name: name}
		for _, p := range points {
			if v := value(p); v > 0 {
				s.x, s.y = append(s.x, p.Rate), append(s.y, v)
			}
		}
		return s
	}
	marks := map[string]float64{}
	if f := r.Found; f != nil {
		if f.Holds > 0 {
			marks["holds"] = f.Holds
		}
		if f.Knee > 0 && f.Beyond > 0 {
			marks["knee"] = f.Knee
		}
	}
	return []template.HTML{
		plot("time to first token by rate", "requests/s", "ms", marks,
			of("TTFT p50", func(p Point) float64 { return p.Summary.TTFT.P50 / 1e6 }), of("TTFT p95", func(p Point) float64 { return p.Summary.TTFT.P95 / 1e6 })),
		plot("time per output token by rate", "requests/s", "ms", marks,
			of("TPOT p50", func(p Point) float64 { return p.Summary.TPOT.P50 / 1e6 }), of("TPOT p95", func(p Point) float64 { return p.Summary.TPOT.P95 / 1e6 })),
		plot("answered and good by rate", "requests/s", "requests/s", marks,
			of("answered", func(p Point) float64 { return p.Summary.RequestRate }), of("good", func(p Point) float64 { return p.Summary.Goodput })),
	}
}

// cdfPoints is how many steps of a distribution are drawn.
const cdfPoints = 200

func cdf(results []*load.Result) template.HTML {
	of := func(name string, value func(r *load.Result) (time.Duration, bool)) series {
		var ds []time.Duration
		for _, r := range results {
			if d, ok := value(r); ok && r.OK() {
				ds = append(ds, d)
			}
		}
		slices.Sort(ds)
		s := series{name: name}
		for i := range min(cdfPoints, len(ds)) {
			q := float64(i) / float64(max(1, min(cdfPoints, len(ds))-1))
			s.x, s.y = append(s.x, load.Quantile(ds, q)/1e6), append(s.y, 100*q)
		}
		return s
	}
	return plot("shares of requests by latency", "ms", "%", nil, of("TTFT", (*load.Result).TTFT), of("TPOT", tpot), of("E2E", (*load.Result).E2E))
}

// maxBins is how many moments of a run are drawn at most; fewer where each would
// have few requests.
const maxBins, fewestInBin = 120, 5

func timeline(results []*load.Result) template.HTML {
	var end time.Duration
	for _, r := range results {
		end = max(end, r.End)
	}
	if end <= 0 {
		return ""
	}
	due, open, failed := series{name: "due/s"}, series{name: "open"}, series{name: "failed/s"}
	bins := min(maxBins, max(8, len(results)/fewestInBin))
	step := end/time.Duration(bins) + 1
	count := func(at func(r *load.Result) (time.Duration, bool)) []float64 {
		n := make([]float64, bins)
		for _, r := range results {
			if t, ok := at(r); ok && t >= 0 {
				n[min(int(t/step), bins-1)]++
			}
		}
		return n
	}
	arrivals := count(func(r *load.Result) (time.Duration, bool) { return r.Scheduled, true })
	ends := count(func(r *load.Result) (time.Duration, bool) { return r.End, true })
	lost := count(func(r *load.Result) (time.Duration, bool) { return r.End, !r.OK() })
	under := 0.0
	for i := range bins {
		at := (step * time.Duration(i)).Seconds()
		under += arrivals[i] - ends[i]
		due.x, due.y = append(due.x, at), append(due.y, arrivals[i]/step.Seconds())
		open.x, open.y = append(open.x, at), append(open.y, under)
		failed.x, failed.y = append(failed.x, at), append(failed.y, lost[i]/step.Seconds())
	}
	return plot("the run over time", "s", "", nil, due, open, failed)
}

const (
	plotW, plotH          = 640.0, 220.0
	plotLeft, plotBottom  = 56.0, 34.0
	plotTop, plotRight    = 12.0, 12.0
	plotTicks             = 5
	legendAt, legendWidth = 70.0, 110.0
)

// plot draws lines over one x axis from 0.
func plot(title, xUnit, yUnit string, marks map[string]float64, all ...series) template.HTML {
	var right, top float64
	for _, s := range all {
		for i := range s.x {
			right, top = max(right, s.x[i]), max(top, s.y[i])
		}
	}
	if !(right > 0 && top > 0) || math.IsInf(right+top, 0) {
		return ""
	}
	x := func(v float64) float64 { return plotLeft + (plotW-plotLeft-plotRight)*v/right }
	y := func(v float64) float64 { return plotH - plotBottom - (plotH-plotTop-plotBottom)*v/top }
	if yUnit != "" {
		title += ", " + yUnit
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<figure><figcaption>%s</figcaption><svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, template.HTMLEscapeString(title), plotW, plotH, template.HTMLEscapeString(title))
	for i := range plotTicks + 1 {
		v, h := top*float64(i)/plotTicks, right*float64(i)/plotTicks
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="grid"/><text x="%g" y="%.1f" class="tick end">%.4g</text><text x="%.1f" y="%g" class="tick mid">%.4g</text>`,
			plotLeft, plotW-plotRight, y(v), y(v), plotLeft-6, y(v)+4, v, x(h), plotH-plotBottom+14, h)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" class="tick end">%s</text>`, plotW-plotRight, plotH-4, xUnit)
	for i, name := range slices.Sorted(maps.Keys(marks)) {
		at := marks[name]
		// Before the line, where there is room, and each on a line of its own.
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%g" y2="%g" class="mark"/><text x="%.1f" y="%g" class="tick end">%s %.3g</text>`, x(at), x(at), plotTop, plotH-plotBottom, x(at)-3, plotTop+8+float64(12*i), name, at)
	}
	for i, s := range all {
		if len(s.x) == 0 {
			continue
		}
		var path strings.Builder
		for k := range s.x {
			verb := "L"
			if k == 0 {
				verb = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, x(s.x[k]), y(s.y[k]))
		}
		fmt.Fprintf(&b, `<path d="%s" class="s%d"/><text x="%g" y="%g" class="tick f%d">%s</text>`, path.String(), i, legendAt+legendWidth*float64(i), plotH-4, i, template.HTMLEscapeString(s.name))
	}
	b.WriteString(`</svg></figure>`)
	return template.HTML(b.String())
}
