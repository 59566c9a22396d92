package benchmark

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"llmops/evidence"
)

// DefaultMargin is how much worse than the version before a new one may be where nobody
// says.
const DefaultMargin = 0.1

// spread is that of a comparison: the half width of its interval is about spread/√n of
// the figure. In pairs of runs of the embedded engine it was 0.9 to 2 for TTFT p50.
const spread = 2

// Comparable is how many requests of a version are needed so that another can be held
// against it with a margin.
func Comparable(margin float64) int {
	if margin <= 0 {
		return 0
	}
	return max(fewest, int(math.Ceil(math.Pow(spread/math.Log1p(margin), 2))))
}

// Regression is how a version was held against the one before it.
type Regression struct {
	Against string            `json:"against,omitempty"` // empty: there is none
	Margin  float64           `json:"margin,omitempty"`  // 0: shown and not judged
	Paired  bool              `json:"paired,omitempty"`
	Changes []Change          `json:"changes,omitempty"`
	Verdict *evidence.Verdict `json:"verdict,omitempty"` // nil: the two were not held against each other
	Why     string            `json:"why,omitempty"`     // why not, or why it decides nothing
}

// Regress says whether the version that is measured now is no worse than the one that
// was, by the margin; without one the figures are shown and nothing is judged. It is
// inconclusive where that cannot be told, and there is no verdict where the two are not
// the same kind of thing: another engine, GPU, machine, number of either or of replicas,
// or another load. What else is another, which is mostly what the change is about, the
// verdict names.
func Regress(was *Sample, is Sample, margin float64) Regression {
	r := Regression{Margin: margin}
	if was == nil {
		r.Why = "the first of its kind: no version of this model that went live was benchmarked, and there is nothing to hold this one against"
		return r
	}
	r.Against = was.Name
	apart := was.System.apart(is.System)
	if d := different(was.Load, is.Load); d != "" {
		apart = append(apart, "load: "+d)
	}
	if len(was.Results) == 0 && was.Load != nil {
		apart = append(apart, "of its single requests nothing is on record")
	}
	if len(apart) > 0 {
		r.Why = fmt.Sprintf("not held against %s, which cannot be compared (%s): whether this version is slower is not known", was.Name, strings.Join(apart, "; "))
		return r
	}
	c := Compare(*was, is, Comparing{Margin: margin, Seed: 1})
	r.Paired, r.Changes, r.Verdict = c.Paired, c.Changes, &c.Verdict
	for i, ch := range c.Changes {
		c.Verdict.Parts[i].Claim = fmt.Sprintf("%s: %s, and %s of %s", ch.Name, ch.Show(ch.B), ch.Show(ch.A), was.Name)
	}
	if margin <= 0 {
		r.Verdict, r.Why = nil, fmt.Sprintf("held against %s and not judged, since benchmark.regression is off: %s", was.Name, worst(c.Changes))
	}
	return r
}

// worst is the figure that is worst, in words.
func worst(all []Change) string {
	if len(all) == 0 {
		return "too few requests to say more"
	}
	c := slices.MaxFunc(all, func(a, b Change) int { return cmp.Compare(a.Verdict.Estimate, b.Verdict.Estimate) })
	return fmt.Sprintf("%s is %s, and was %s, which is furthest to the worse", c.Name, c.Show(c.B), c.Show(c.A))
}

// Show is a value of the figure, with its unit.
func (c Change) Show(v float64) string {
	if c.Unit == "ns" {
		return fmt.Sprintf("%.4g ms", v/1e6)
	}
	return fmt.Sprintf("%.4g %%", 100*v)
}
