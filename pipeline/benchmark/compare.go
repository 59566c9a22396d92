package benchmark

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"llmops/evidence"
	"llmops/pipeline/benchmark/load"
)

// Sample is what one run is compared by.
type Sample struct {
	Name    string
	System  System
	Load    *Load // nil: not known, as of another tool's file
	Results []*load.Result
	Notes   []string // what its figures are not
}

// Change is how one figure of B stands to that of A.
type Change struct {
	Name    string           `json:"name"`
	Unit    string           `json:"unit"`
	A       float64          `json:"a"`
	B       float64          `json:"b"`
	Verdict evidence.Verdict `json:"verdict"` // on the ratio of the worse to the better side, 1 being the same
}

// Comparison is of two runs.
type Comparison struct {
	Changes []Change         `json:"changes"`
	Paired  bool             `json:"paired,omitempty"` // the same requests came at the same moments
	Verdict evidence.Verdict `json:"verdict"`
}

// Comparing is how two runs are compared.
type Comparing struct {
	Margin float64 // how much worse still passes; default 0.05
	Draws  int     // bootstrap samples; default 2000, of long runs down to 200, whose quantiles vary less
	Seed   uint64
}

// most bounds how many requests are said to be needed.
const most = 1e7

// fewest is how many requests of each run a comparison needs: below, blocks of
// the bootstrap are single requests, and its intervals too narrow.
const fewest = 50

type figure struct {
	name, unit string
	higher     bool // is better
	of         func(rs []*load.Result) float64
}

func quantileOf(q float64, of func(r *load.Result) (time.Duration, bool)) func([]*load.Result) float64 {
	return func(rs []*load.Result) float64 {
		var ds []time.Duration
		for _, r := range rs {
			if d, ok := of(r); ok && r.OK() {
				ds = append(ds, d)
			}
		}
		slices.Sort(ds)
		return load.Quantile(ds, q)
	}
}

func tpot(r *load.Result) (time.Duration, bool) {
	d, _, ok := r.TPOT()
	return d, ok
}

var figures = []figure{
	{"TTFT p50", "ns", false, quantileOf(0.5, (*load.Result).TTFT)},
	{"TTFT p95", "ns", false, quantileOf(0.95, (*load.Result).TTFT)},
	{"TPOT p50", "ns", false, quantileOf(0.5, tpot)},
	{"TPOT p95", "ns", false, quantileOf(0.95, tpot)},
	{"E2E p50", "ns", false, quantileOf(0.5, (*load.Result).E2E)},
	{"answered", "share", true, func(rs []*load.Result) float64 {
		ok := 0
		for _, r := range rs {
			if r.OK() {
				ok++
			}
		}
		return float64(ok) / float64(len(rs))
	}},
}

// Compare says of each figure whether B is no worse than A by more than the
// margin. The interval of a ratio is a percentile bootstrap over blocks of
// requests that were due one after the other, √n long, since neighbours in a queue
// share their luck; where the same requests were due at the same moments in both, the
// same blocks are drawn of both, since they share it there too. It knows what varied
// within each run, and not what varies from run to run, which the verdict says. Runs of
// different loads are shown and not judged; in what the systems differ is said.
func Compare(a, b Sample, o Comparing) Comparison {
	if o.Margin <= 0 {
		o.Margin = 0.05
	}
	if o.Draws <= 0 {
		o.Draws = min(2000, max(200, 2_000_000/max(1, len(a.Results)+len(b.Results))))
	}
	claim := fmt.Sprintf("%s is no more than %.3g%% worse than %s", b.Name, 100*o.Margin, a.Name)
	byDue := func(x, y *load.Result) int { return int(x.Scheduled - y.Scheduled) }
	ra, rb := slices.SortedStableFunc(slices.Values(a.Results), byDue), slices.SortedStableFunc(slices.Values(b.Results), byDue)
	if len(ra) < fewest || len(rb) < fewest {
		return Comparison{Verdict: evidence.Verdict{Claim: claim, N: min(len(ra), len(rb)), Need: fewest, Warnings: []string{
			fmt.Sprintf("%d and %d requests with their times, and %d of each are needed", len(ra), len(rb), fewest)}}}
	}
	c := Comparison{Paired: paired(ra, rb, a.Load, b.Load)}
	rnd := rand.New(rand.NewPCG(o.Seed, 0x636f6d70617265))
	ratios := make([][]float64, len(figures))
	for range o.Draws {
		at := blocks(len(ra), rnd)
		da, db := drawn(ra, at), []*load.Result(nil)
		if !c.Paired {
			at = blocks(len(rb), rnd)
		}
		db = drawn(rb, at)
		for i, f := range figures {
			if r := f.worse(da, db); !math.IsNaN(r) {
				ratios[i] = append(ratios[i], r)
			}
		}
	}
	var parts []evidence.Verdict
	for i, f := range figures {
		va, vb := f.of(ra), f.of(rb)
		if math.IsNaN(va) && math.IsNaN(vb) {
			continue
		}
		v := evidence.Verdict{Claim: f.name, Unit: "ratio", Confidence: level, N: min(len(ra), len(rb)), Estimate: 1, Lo: 1, Hi: 1}
		if math.IsNaN(va) || math.IsNaN(vb) || va == 0 && vb != 0 {
			v.Warnings = append(v.Warnings, "only one of the two has it")
			v.Estimate, v.Lo, v.Hi = 0, 0, 0
			va, vb = finite(va), finite(vb)
		} else {
			v.Estimate = f.worse(ra, rb)
			slices.Sort(ratios[i])
			if n := len(ratios[i]); n > 0 {
				v.Lo, v.Hi = ratios[i][int(0.05*float64(n-1))], ratios[i][int(math.Ceil(0.95*float64(n-1)))]
			}
			switch {
			case v.Hi <= 1+o.Margin:
				v.Outcome = evidence.Pass
			case v.Lo > 1+o.Margin:
				v.Outcome = evidence.Fail
			case v.Estimate < 1+o.Margin: // an interval shrinks with the root of what it is of
				v.Need = int(min(math.Ceil(float64(v.N)*math.Pow((v.Hi-v.Estimate)/(1+o.Margin-v.Estimate), 2)), most))
			}
		}
		c.Changes = append(c.Changes, Change{f.name, f.unit, va, vb, v})
		parts = append(parts, v)
	}
	c.Verdict = evidence.All(claim, parts...)
	c.Verdict.N = min(len(ra), len(rb))
	c.Verdict.Warnings = append(c.Verdict.Warnings, a.Notes...)
	c.Verdict.Warnings = append(c.Verdict.Warnings, b.Notes...)
	c.Verdict.Warnings = append(c.Verdict.Warnings, "one run of each: what varies from run to run is in no interval")
	if d := slices.Concat(a.System.apart(b.System), a.System.beside(b.System)); len(d) > 0 {
		c.Verdict.Warnings = append(c.Verdict.Warnings, "not the same system: "+strings.Join(d, "; "))
	}
	if d := different(a.Load, b.Load); d != "" {
		c.Verdict.Outcome = evidence.Inconclusive
		c.Verdict.Warnings = append(c.Verdict.Warnings, "not the same load: "+d)
	}
	return c
}

func finite(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return f
}

// boundless stands for a ratio to nothing, which JSON cannot say.
const boundless = 1e9

// worse is how many times worse b is than a; 1 where both are 0.
func (f figure) worse(a, b []*load.Result) float64 {
	va, vb := f.of(a), f.of(b)
	if f.higher {
		va, vb = vb, va
	}
	if va == vb {
		return 1
	}
	if va == 0 {
		return boundless
	}
	return min(vb/va, boundless)
}

// blocks draws the positions of n results in blocks of neighbours, with replacement.
func blocks(n int, rnd *rand.Rand) []int {
	size := int(math.Sqrt(float64(n)))
	out := make([]int, 0, n+size)
	for len(out) < n {
		at := rnd.IntN(n - size + 1)
		for i := range size {
			out = append(out, at+i)
		}
	}
	return out[:n]
}

func drawn(rs []*load.Result, at []int) []*load.Result {
	out := make([]*load.Result, len(at))
	for i, k := range at {
		out[i] = rs[k]
	}
	return out
}

// paired tells that both runs asked the same at the same moments: results are in the
// order that they were due in.
func paired(a, b []*load.Result, la, lb *Load) bool {
	if len(a) != len(b) || la == nil || lb == nil || la.Shape == Closed || la.Seed != lb.Seed || different(la, lb) != "" {
		return false
	}
	for i := range a {
		if a[i].Scheduled != b[i].Scheduled {
			return false
		}
	}
	return true
}

// different says in what two loads differ; empty if in nothing that is known.
func different(a, b *Load) string {
	switch {
	case a == nil || b == nil:
		return "one of the two says not what it was"
	case a.Shape != b.Shape:
		return fmt.Sprintf("%s against %s", a, b)
	case a.Shape == Closed && a.Concurrency != b.Concurrency:
		return fmt.Sprintf("%d clients against %d", a.Concurrency, b.Concurrency)
	case a.Shape != Closed && math.Abs(a.Rate-b.Rate) > 0.01*a.Rate:
		return fmt.Sprintf("%g requests a second against %g", a.Rate, b.Rate)
	case a.Burstiness != b.Burstiness:
		return fmt.Sprintf("a burstiness of %g against %g", a.Burstiness, b.Burstiness)
	case a.Speed != b.Speed:
		return fmt.Sprintf("replayed at %g times its speed against %g", a.Speed, b.Speed)
	case a.Ramp != b.Ramp || a.From != b.From:
		return "another ramp"
	case a.Content != b.Content:
		return fmt.Sprintf("%q against %q", a.Content, b.Content)
	}
	return ""
}
