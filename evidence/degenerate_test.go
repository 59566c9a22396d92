package evidence

import (
	"encoding/json"
	"math"
	"testing"
)

// Whatever is asked, what cannot be known is inconclusive and can be recorded.
func TestDegenerateQuestionsDecideNothing(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	same := make([]Pair, 400)
	docs := make([]Loss, 20)
	for i := range docs {
		docs[i] = Loss{Tokens: 10, Base: 20, New: 20}
	}
	broken := append([]Pair{{New: nan}}, same...)
	for name, v := range map[string]Verdict{
		"no confidence":                NonInferior("", same, 0.03, 0),
		"half a confidence":            NonInferior("", same, 0.03, 0.5),
		"certainty":                    NonInferior("", same, 0.03, 1),
		"more than certainty":          NonInferior("", same, 0.03, 1.5),
		"confidence that is no number": NonInferior("", same, 0.03, nan),
		"margin that is no number":     NonInferior("", same, nan, 0.95),
		"infinite margin":              NonInferior("", same, inf, 0.95),
		"score that is no number":      NonInferior("", broken, 0.03, 0.95),
		"infinite score":               NonInferior("", append([]Pair{{Base: inf}}, same...), 0.03, 0.95),
		"ratio, no confidence":         PerplexityRatio("", docs, 1.01, 0),
		"ratio, no limit":              PerplexityRatio("", docs, nan, 0.95),
		"ratio, infinite limit":        PerplexityRatio("", docs, inf, 0.95),
		"ratio out of range":           PerplexityRatio("", append([]Loss{{Tokens: 1, New: 1e300}}, docs...), 1.01, 0.95),
		"share, no confidence":         AtMost("", 0, 100, 0.05, 0),
		"share, certainty":             AtMost("", 0, 100, 0.05, 1),
		"share, no limit":              AtMost("", 0, 100, nan, 0.95),
		"more than all":                AtMost("", 101, 100, 0.05, 0.95),
		"less than none":               AtMost("", -1, 100, 0.05, 0.95),
		"none of none":                 AtMost("", 0, 0, 0.05, 0.95),
		"at least, no confidence":      AtLeast("", 100, 100, 0.7, 0),
		"at least, more than all":      AtLeast("", 101, 100, 0.7, 0.95),
	} {
		if v.Outcome != Inconclusive {
			t.Errorf("%s: %v, %+v", name, v.Outcome, v)
		}
		if len(v.Warnings) == 0 {
			t.Errorf("%s: does not say why", name)
		}
		if _, err := json.Marshal(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRateOfMoreThanAll(t *testing.T) {
	r := Rate{Limit: 0.05}
	r.Add(3, 2)
	if e := r.LogE(); !(e < 0) {
		t.Errorf("three bad of two are evidence for safety: %v", e)
	}
	for _, limit := range []float64{0, 1, 2} {
		r := Rate{Limit: limit}
		r.Add(0, 1000)
		if r.Shown(0.05) {
			t.Errorf("a limit of %v was shown to hold", limit)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	}
	if n := CleanRequests(0.05, 0); n != math.MaxInt32 {
		t.Errorf("certainty takes %d requests", n)
	}
}
