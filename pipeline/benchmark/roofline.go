package benchmark

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"llmops/pipeline/chart"
)

// Roofline is where what was measured stands under the two roofs of one GPU, or of the
// machine where there is none: what its memory can bring and what its arithmetic can do.
type Roofline struct {
	Device         string          `json:"device"`
	BytesPerSecond float64         `json:"bytes_per_second"` // that can be reached; 0: memory binds nothing
	FLOPS          float64         `json:"flops"`            // a second, that can be reached
	Points         []RooflinePoint `json:"points"`
}

// RooflinePoint is a piece of work: how many operations it does for each byte that it
// reads, how many a second it did, and which part that is of the lower roof there.
type RooflinePoint struct {
	Name      string  `json:"name"`
	Intensity float64 `json:"flops_per_byte"`
	FLOPS     float64 `json:"flops"` // a second
	Share     float64 `json:"share"`
	Binds     string  `json:"binds"` // memory or arithmetic
	Note      string  `json:"note,omitempty"`
}

// Add places work of so many operations a byte that took seconds, where memory and
// arithmetic each by themselves would have taken theirs.
func (r *Roofline) Add(name string, intensity, memorySeconds, computeSeconds, seconds float64, note string) {
	if !(seconds > 0 && intensity > 0 && !math.IsInf(intensity, 0)) {
		return
	}
	p := RooflinePoint{Name: name, Intensity: intensity, FLOPS: r.FLOPS * computeSeconds / seconds, Share: max(memorySeconds, computeSeconds) / seconds, Binds: "memory", Note: note}
	if computeSeconds > memorySeconds {
		p.Binds = "arithmetic"
	}
	r.Points = append(r.Points, p)
}

// SVG is the plot, both axes logarithmic.
func (r *Roofline) SVG() template.HTML {
	if r == nil || len(r.Points) == 0 || r.FLOPS <= 0 {
		return ""
	}
	lo, hi := math.Inf(1), 0.0
	measured := chart.Series{Name: "measured", Points: true}
	for _, p := range r.Points {
		lo, hi = min(lo, p.Intensity), max(hi, p.Intensity)
		measured.X, measured.Y = append(measured.X, p.Intensity), append(measured.Y, p.FLOPS)
		measured.Labels = append(measured.Labels, fmt.Sprintf("%s: %.3g %% of %s", p.Name, 100*p.Share, p.Binds))
	}
	roofs := []chart.Series{measured}
	title := fmt.Sprintf("Roofline of %s: arithmetic up to %sFLOP/s", r.Device, chart.SI(r.FLOPS))
	if r.BytesPerSecond > 0 {
		knee := r.FLOPS / r.BytesPerSecond
		lo, hi = min(lo, knee)/4, max(hi, knee)*8
		roofs = append(roofs,
			chart.Series{Name: "roof: memory rises, arithmetic is flat", Guide: true, X: []float64{lo, knee, hi}, Y: []float64{lo * r.BytesPerSecond, r.FLOPS, r.FLOPS}})
		title += fmt.Sprintf(", memory up to %sB/s, alike at %.3g FLOP a byte", chart.SI(r.BytesPerSecond), knee)
	} else {
		lo, hi = lo/4, hi*8
		roofs = append(roofs, chart.Series{Name: "roof: arithmetic", Guide: true, X: []float64{lo, hi}, Y: []float64{r.FLOPS, r.FLOPS}})
		title += "; memory binds nothing"
	}
	// Room above the roof and below the lowest point: nothing is drawn there.
	roofs = append(roofs, chart.Series{Guide: true, Points: true, X: []float64{hi, hi}, Y: []float64{2 * r.FLOPS, slices.Min(measured.Y) / 2}})
	return chart.Plot{Title: title, X: chart.Axis{Unit: "FLOP a byte", Log: true, SI: true}, Y: chart.Axis{Unit: "FLOP/s", Log: true, SI: true}, Series: roofs}.SVG()
}
