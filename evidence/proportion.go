package evidence

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"
)

// AtMost says whether the share of k in n is shown to be at most limit, at the
// given one-sided confidence, by the exact (Clopper-Pearson) bounds.
func AtMost(claim string, k, n int, limit, confidence float64) Verdict {
	v := share(claim, k, n, limit, confidence)
	v.Need = clean(limit, confidence)
	if v.Warnings == nil {
		v.Outcome = against(-v.Hi, -v.Lo, -limit)
	}
	return v
}

// AtLeast says whether the share of k in n is shown to be at least limit.
func AtLeast(claim string, k, n int, limit, confidence float64) Verdict {
	v := share(claim, k, n, limit, confidence)
	v.Need = clean(1-limit, confidence)
	if v.Warnings == nil {
		v.Outcome = against(v.Lo, v.Hi, limit)
	}
	return v
}

// share is what is known of a share before it is held against a limit. Warnings
// say why that cannot be done.
func share(claim string, k, n int, limit, confidence float64) Verdict {
	v := Verdict{Claim: claim, Unit: "share", N: n, Confidence: confidence, Hi: 1}
	switch {
	case n <= 0:
		v.Warnings = append(v.Warnings, "no observations")
	case k < 0 || k > n:
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d of %d is no share", k, n))
	case askable(&v, limit):
		v.Estimate = float64(k) / float64(n)
		v.Lo, v.Hi = bounds(k, n, confidence)
	}
	return v
}

// bounds are the one-sided Clopper-Pearson bounds.
func bounds(k, n int, confidence float64) (lo, hi float64) {
	hi = 1
	if k > 0 {
		lo = mathext.InvRegIncBeta(float64(k), float64(n-k+1), 1-confidence)
	}
	if k < n {
		hi = mathext.InvRegIncBeta(float64(k+1), float64(n-k), confidence)
	}
	return lo, hi
}

// clean is how many observations without an event show a share of at most
// limit: (1 − limit)ⁿ ≤ 1 − confidence.
func clean(limit, confidence float64) int {
	if !(limit > 0 && limit < 1 && confidence > 0 && confidence < 1) {
		return math.MaxInt32
	}
	return int(min(math.MaxInt32, math.Ceil(math.Log(1-confidence)/math.Log1p(-limit))))
}
