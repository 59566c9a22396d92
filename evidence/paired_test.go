package evidence

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// items makes n pairs of which bad flip from right to wrong and good the other
// way; the rest is right under both.
func items(n, bad, good int) []Pair {
	pairs := make([]Pair, n)
	for i := range pairs {
		switch {
		case i < bad:
			pairs[i] = Pair{Base: 1, New: 0}
		case i < bad+good:
			pairs[i] = Pair{Base: 0, New: 1}
		default:
			pairs[i] = Pair{Base: 1, New: 1}
		}
	}
	return pairs
}

// With n = 400, 8 worse and 2 better: m = 402, d = -6/402 = -0.014925,
// SE = √(10 + 1 − 402·0.014925²)/402 = √10.91045/402 = 0.0082166,
// bounds at 95 %: −0.014925 ∓ 1.644854·0.0082166 = −0.028440 and −0.001410.
func TestNonInferiorByHand(t *testing.T) {
	v := NonInferior("x", items(400, 8, 2), 0.03, 0.95)
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"estimate", v.Estimate, -0.014925}, {"lo", v.Lo, -0.028440}, {"hi", v.Hi, -0.001410}} {
		if math.Abs(c.got-c.want) > 1e-6 {
			t.Errorf("%s = %.6f, want %.6f", c.name, c.got, c.want)
		}
	}
	if v.Outcome != Pass {
		t.Errorf("outcome %v at 3 points, want pass", v.Outcome)
	}
	for _, c := range []struct {
		n, bad, good int
		margin       float64
		want         Outcome
	}{
		{400, 8, 2, 0.02, Inconclusive}, // the estimate is inside, the bound is not
		{400, 40, 4, 0.03, Fail},
		{20, 0, 0, 0.03, Inconclusive}, // nothing flipped in 20 items proves little
		{400, 0, 0, 0.03, Pass},
		{0, 0, 0, 0.03, Inconclusive},
	} {
		if got := NonInferior("x", items(c.n, c.bad, c.good), c.margin, 0.95).Outcome; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestNonInferiorNeedsEnoughClusters(t *testing.T) {
	pairs := items(90, 0, 0)
	for i := range pairs {
		pairs[i].Cluster = fmt.Sprint(i % 9)
	}
	if v := NonInferior("x", pairs, 0.05, 0.95); v.Outcome != Inconclusive || len(v.Warnings) == 0 {
		t.Errorf("90 items in 9 clusters: %v, %v", v.Outcome, v.Warnings)
	}
}

// A candidate exactly at the margin, with flips both ways, passes in about 5 %
// of samples. The approximation costs up to 2 points more with two dozen flips.
func TestNonInferiorKeepsItsLevel(t *testing.T) {
	const runs, n, margin, better = 4000, 400, 0.03, 0.015
	for _, clustered := range []bool{false, true} {
		r := rand.New(rand.NewPCG(3, 4))
		passed := 0
		for range runs {
			pairs := make([]Pair, n)
			var fate float64
			for i := range pairs {
				// Of four items of a document each follows the document's fate
				// with probability √ρ, which correlates two of them by ρ.
				if i%4 == 0 {
					fate = r.Float64()
				}
				u := r.Float64()
				pairs[i] = Pair{Base: 1, New: 1}
				if clustered {
					pairs[i].Cluster = fmt.Sprint(i / 4)
					if r.Float64() < math.Sqrt(priorCorrelation) {
						u = fate
					}
				}
				switch {
				case u < margin+better:
					pairs[i].New = 0
				case u > 1-better:
					pairs[i].Base = 0
				}
			}
			if NonInferior("x", pairs, margin, 0.95).Outcome == Pass {
				passed++
			}
		}
		rate := float64(passed) / runs
		if limit := 0.07 + 3*math.Sqrt(.07*.93/runs); rate > limit || rate < 0.03 {
			t.Errorf("clustered %v: a candidate at the margin passed in %.1f %%, want 3 to %.1f %%", clustered, 100*rate, 100*limit)
		}
	}
}

// (1.644854 + 0.841621)² · 0.025 / 0.03² = 171.7: research gates A6.
func TestPairedItems(t *testing.T) {
	if got := PairedItems(0.025, 0.03, 0.95, 0.8); got != 172 {
		t.Errorf("PairedItems = %d, want 172", got)
	}
	if got := SmallestDrop(172, 0.025, 0.95, 0.8); math.Abs(got-0.03) > 1e-4 {
		t.Errorf("SmallestDrop = %v, want 0.03", got)
	}
}

func TestPerplexityRatio(t *testing.T) {
	docs := make([]Loss, 40)
	for i := range docs {
		docs[i] = Loss{Tokens: 100, Base: 200, New: 200 + 0.1 + 0.01*float64(i%5)}
	}
	// ln ratio = 0.12/100 on average: 1.0012.
	v := PerplexityRatio("x", docs, 1.005, 0.95)
	if v.Outcome != Pass || math.Abs(v.Estimate-1.0012) > 1e-5 || v.Lo > v.Estimate || v.Hi < v.Estimate {
		t.Errorf("verdict %+v", v)
	}
	if got := PerplexityRatio("x", docs, 1.001, 0.95).Outcome; got != Fail {
		t.Errorf("limit 1.001: %v, want fail", got)
	}
	if got := PerplexityRatio("x", docs[:9], 1.5, 0.95).Outcome; got != Inconclusive {
		t.Errorf("nine documents: %v", got)
	}
	docs[3].New = math.NaN()
	if got := PerplexityRatio("x", docs, 1.5, 0.95).Outcome; got != Inconclusive {
		t.Errorf("NaN: %v", got)
	}
}
