package report

import (
	"html/template"

	"llmops/evidence"
)

// Benchmark is what the load showed.
type Benchmark struct {
	Rates    []Rate
	Curves   []template.HTML // over the rates
	Planned  []template.HTML // of the planned rate: distributions, and the run over time
	Roofline template.HTML
	Roofs    []string // what the points of the roofline say
	Against  string   // the version before; empty: there is none to be shown
	Changes  []Change
	Judged   bool   // by how much worse a figure is; else it is shown
	Why      string // why nothing is shown of it, or why it decides nothing
	Missing  string // what is not shown, and why
}

// Rate is what one rate gave. Times are in milliseconds; 0: there are none.
type Rate struct {
	Offered, Answered float64 // requests a second
	Planned           bool
	TTFT50, TTFT95    float64
	TPOT50, TPOT95    float64
	Tokens            float64 // output tokens a second
	Good              float64 // share of the attempted
	Attempted, Failed int
}

// Change is how a figure stands to that of the version before. The verdict is on how many
// times worse it is.
type Change struct {
	Name, Was, Is string
	Verdict       evidence.Verdict
}
