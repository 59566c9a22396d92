package benchmark

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"time"

	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/chart"
)

// Curves are what each rate gave, from the lowest up: the times to the first token and
// between tokens, and how much was answered of what was offered. marks are rates with a
// name.
func Curves(points []Point, marks ...chart.Mark) (out []template.HTML) {
	points = slices.SortedStableFunc(slices.Values(points), func(a, b Point) int {
		switch {
		case a.Rate < b.Rate:
			return -1
		case a.Rate > b.Rate:
			return 1
		}
		return 0
	})
	of := func(name string, value func(p Point) float64) chart.Series {
		s := chart.Series{Name: name}
		for _, p := range points {
			if v := value(p); v > 0 {
				s.X, s.Y = append(s.X, p.Rate), append(s.Y, v)
			}
		}
		return s
	}
	add := func(title, unit string, all ...chart.Series) {
		p := chart.Plot{Title: title, X: chart.Axis{Unit: "requests/s offered"}, Y: chart.Axis{Unit: unit}, Series: all, Marks: marks}
		if svg := p.SVG(); svg != "" {
			out = append(out, svg)
		}
	}
	add("Time to first token by rate", "ms",
		of("TTFT p50", func(p Point) float64 { return p.Summary.TTFT.P50 / 1e6 }), of("TTFT p95", func(p Point) float64 { return p.Summary.TTFT.P95 / 1e6 }))
	add("Time per output token by rate", "ms",
		of("TPOT p50", func(p Point) float64 { return p.Summary.TPOT.P50 / 1e6 }), of("TPOT p95", func(p Point) float64 { return p.Summary.TPOT.P95 / 1e6 }))
	arrived := of("arrived", Point.arrived)
	arrived.Guide = true
	add("Answered and good, of what arrived", "requests/s",
		of("answered", func(p Point) float64 { return p.Summary.RequestRate }), of("good", func(p Point) float64 { return p.Summary.Goodput }), arrived)
	return out
}

// arrived is how many requests a second came until the last did. A short run of a Poisson
// load brings more or less than its rate; the drain behind it is no time of arrivals.
func (p Point) arrived() float64 {
	during := (p.Stats.LastDue - p.Summary.From).Seconds()
	if during <= 0 {
		return 0
	}
	return float64(p.Summary.Attempted) / during
}

// steps is how many steps of a distribution are drawn.
const steps = 200

// CDF is which share of the requests took at most how long, those that p sums up.
func CDF(p Point, results []*load.Result) template.HTML {
	of := func(name string, value func(r *load.Result) (time.Duration, bool)) chart.Series {
		var ds []time.Duration
		for _, r := range p.Window(results) {
			if d, ok := value(r); ok && r.OK() && d > 0 {
				ds = append(ds, d)
			}
		}
		slices.Sort(ds)
		s := chart.Series{Name: name}
		for i := range min(steps, len(ds)) {
			q := float64(i) / float64(max(1, min(steps, len(ds))-1))
			s.X, s.Y = append(s.X, load.Quantile(ds, q)/1e6), append(s.Y, 100*q)
		}
		return s
	}
	// Logarithmic, since a token takes a hundredth of what the whole answer does.
	return chart.Plot{Title: "Shares of the requests by latency, at " + p.Load.String(), X: chart.Axis{Unit: "ms, logarithmic", Log: true}, Y: chart.Axis{Unit: "% take at most"},
		Series: []chart.Series{of("TTFT", (*load.Result).TTFT), of("TPOT", tpot), of("E2E", (*load.Result).E2E)}}.SVG()
}

// mostOpen is how many requests were open at a time, at most, in each of so many moments.
func mostOpen(results []*load.Result, step time.Duration, bins int) []float64 {
	type change struct {
		at time.Duration
		by float64
	}
	var all []change
	for _, r := range results {
		if r.Sent > 0 || r.Scheduled == 0 {
			all = append(all, change{r.Sent, 1}, change{r.End, -1})
		}
	}
	// At the same time an end comes first.
	slices.SortFunc(all, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	out := make([]float64, bins)
	under, bin := 0.0, 0
	for _, c := range all {
		for at := min(int(c.at/step), bins-1); bin < at; bin++ {
			out[bin+1] = under
		}
		under += c.by
		out[bin] = max(out[bin], under)
	}
	for bin++; bin < bins; bin++ {
		out[bin] = under
	}
	return out
}

// maxBins is how many moments of a run are drawn at most; fewer where each would
// have few requests.
const maxBins, fewestInBin = 120, 5

// Timeline is the run over time: what was due and answered, and how many were open.
func Timeline(p Point, results []*load.Result) (out []template.HTML) {
	var end time.Duration
	for _, r := range results {
		end = max(end, r.End)
	}
	if end <= 0 {
		return nil
	}
	bins := min(maxBins, max(8, len(results)/fewestInBin))
	step := end/time.Duration(bins) + 1
	over := func(name string, at func(r *load.Result) (time.Duration, bool)) chart.Series {
		n := make([]float64, bins)
		any := false
		for _, r := range results {
			if t, ok := at(r); ok && t >= 0 {
				n[min(int(t/step), bins-1)]++
				any = true
			}
		}
		s := chart.Series{Name: name}
		if !any {
			return s
		}
		for i, k := range n {
			s.X, s.Y = append(s.X, (step*time.Duration(i)+step/2).Seconds()), append(s.Y, k/step.Seconds())
		}
		return s
	}
	due := over("due", func(r *load.Result) (time.Duration, bool) { return r.Scheduled, true })
	answered := over("answered", func(r *load.Result) (time.Duration, bool) { return r.End, r.OK() })
	failed := over("failed", func(r *load.Result) (time.Duration, bool) { return r.End, !r.OK() })
	open := chart.Series{Name: "at most", X: due.X, Y: mostOpen(results, step, bins)}
	for _, p := range []chart.Plot{
		{Title: fmt.Sprintf("The run over time, at %s", p.Load), Y: chart.Axis{Unit: "requests/s"}, Series: []chart.Series{due, answered, failed}},
		{Title: "Open requests over time", Y: chart.Axis{Unit: "requests"}, Series: []chart.Series{open}},
	} {
		p.X = chart.Axis{Unit: "s"}
		if svg := p.SVG(); svg != "" {
			out = append(out, svg)
		}
	}
	return out
}
