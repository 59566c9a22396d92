package evidence

import (
	"fmt"
	"math"
)

// The sequential tests here are e-processes: products of likelihood ratios
// whose expectation under the null hypothesis never exceeds 1, so that by
// Ville's inequality the chance of ever reaching 1/α is at most α, however
// often one looks (Ramdas et al., "Game-theoretic statistics and safe anytime-
// valid inference", 2023). A mixture over alternatives keeps the property.

// ratios are the alternatives of the harm test, as multiples of the ratio that
// is still tolerated.
var ratios = [...]float64{1.2, 1.5, 2, 3, 5, 10, 30, 100}

// shares are the alternatives of the Rate test as parts of the limit, and
// weights the mixture's. The first decides fastest when nothing bad is seen.
var (
	shares  = [...]float64{0, 1. / 8, 1. / 4, 1. / 2, 3. / 4}
	weights = [...]float64{.5, .125, .125, .125, .125}
)

// below are the alternatives of the Within test, as parts of its ratio.
var below = [...]float64{.5, .6, .75, .9}

// Excess tests whether bad events come from one arm more often than a
// tolerated ratio of rates explains. Of the bad events in a window each is the
// arm's with probability θ = ρs/(ρs + 1 − s) when its rate is ρ times the
// other's and s is its share of the requests; what the rate is does not
// matter, so a bad hour that hits both arms is no evidence.
//
// It is the null "ratio ≤ Tolerated"; reaching 1/α rejects it, which means
// harm. The zero value is not ready: set Tolerated. Its fields may be stored and
// read back.
type Excess struct {
	Tolerated float64              `json:"tolerated"`
	Logs      [len(ratios)]float64 `json:"logs"`
	Bad       uint64               `json:"bad"`      // of both arms
	ArmBad    uint64               `json:"arm_bad"`  // of the arm under test
	Requests  uint64               `json:"requests"` // of both arms
	ArmReqs   uint64               `json:"arm_reqs"` // of the arm under test
}

// Add counts one window of one stratum: requests with a known outcome and how
// many were bad, of the arm under test and of the other. A window in which one
// arm had no requests says nothing about the ratio and is left out; added
// reports whether it counted.
func (e *Excess) Add(armBad, armN, otherBad, otherN uint64) (added bool) {
	if armN == 0 || otherN == 0 {
		return false
	}
	e.Requests += armN + otherN
	e.ArmReqs += armN
	e.Bad += armBad + otherBad
	e.ArmBad += armBad
	s := float64(armN) / float64(armN+otherN)
	null := theta(s, e.Tolerated)
	for i, r := range ratios {
		alt := theta(s, r*e.Tolerated)
		e.Logs[i] += float64(armBad)*math.Log(alt/null) + float64(otherBad)*math.Log((1-alt)/(1-null))
	}
	return true
}

func theta(share, ratio float64) float64 { return ratio * share / (ratio*share + 1 - share) }

// LogE is the logarithm of the e-value against "ratio ≤ Tolerated".
func (e *Excess) LogE() float64 { return logMean(e.Logs[:], nil) }

// Harm reports whether the ratio is above the tolerated one at level alpha.
func (e *Excess) Harm(alpha float64) bool { return e.LogE() >= -math.Log(alpha) }

// Ratio is the observed ratio of rates; NaN when the other arm had nothing bad.
func (e *Excess) Ratio() float64 {
	other, n := e.Bad-e.ArmBad, e.Requests-e.ArmReqs
	if other == 0 || e.ArmReqs == 0 {
		return math.NaN()
	}
	return float64(e.ArmBad) / float64(e.ArmReqs) / (float64(other) / float64(n))
}

// Within tests the opposite of Excess: its null is "ratio ≥ Limit", and
// reaching 1/α rejects it, which shows that the arm is not that much worse.
type Within struct {
	Limit float64             `json:"limit"`
	Logs  [len(below)]float64 `json:"logs"`
	Bad   uint64              `json:"bad"`
}

// Add counts one window as Excess.Add does.
func (w *Within) Add(armBad, armN, otherBad, otherN uint64) {
	if armN == 0 || otherN == 0 {
		return
	}
	w.Bad += armBad + otherBad
	s := float64(armN) / float64(armN+otherN)
	null := theta(s, w.Limit)
	for i, r := range below {
		alt := theta(s, r*w.Limit)
		w.Logs[i] += float64(armBad)*math.Log(alt/null) + float64(otherBad)*math.Log((1-alt)/(1-null))
	}
}

// LogE is the logarithm of the e-value against "ratio ≥ Limit".
func (w *Within) LogE() float64 { return logMean(w.Logs[:], nil) }

// Shown reports whether the ratio is below the limit at level alpha.
func (w *Within) Shown(alpha float64) bool { return w.LogE() >= -math.Log(alpha) }

// Rate tests whether the share of bad requests is below a stated limit. Its
// null is "rate ≥ Limit"; reaching 1/α rejects it. With nothing bad seen at a
// limit of 5 % and α of 1.25 % that takes 99 requests.
type Rate struct {
	Limit float64              `json:"limit"`
	Logs  [len(shares)]float64 `json:"logs"`
	Zero  bool                 `json:"zero,omitempty"` // the alternative "never" is refuted
	N     uint64               `json:"n"`
	Bad   uint64               `json:"bad"`
}

// Add counts requests with a known outcome and how many of them were bad. A limit
// that is no rate between 0 and 1 is never shown to hold.
func (r *Rate) Add(bad, n uint64) {
	n = max(n, bad)
	r.N += n
	r.Bad += bad
	if bad > 0 {
		r.Zero = true
	}
	if !(r.Limit > 0 && r.Limit < 1) {
		return
	}
	good := float64(n - bad)
	for i, s := range shares {
		p := s * r.Limit
		r.Logs[i] += good * math.Log((1-p)/(1-r.Limit))
		if s > 0 {
			r.Logs[i] += float64(bad) * math.Log(s)
		}
	}
}

// LogE is the logarithm of the e-value against "rate ≥ Limit".
func (r *Rate) LogE() float64 {
	logs, w := r.Logs, weights
	if r.Zero {
		w[0] = 0
	}
	return logMean(logs[:], w[:])
}

// Shown reports whether the rate is below the limit at level alpha.
func (r *Rate) Shown(alpha float64) bool { return r.LogE() >= -math.Log(alpha) }

// CleanRequests is how many requests without a bad one show a rate below the
// limit at level alpha.
func CleanRequests(limit, alpha float64) int {
	if !(limit > 0 && limit < 1 && alpha > 0) {
		return math.MaxInt32
	}
	lo, hi := 0, 1
	clean := func(n int) bool {
		r := Rate{Limit: limit}
		r.Add(0, uint64(n))
		return r.Shown(alpha)
	}
	for !clean(hi) {
		lo, hi = hi, 2*hi
	}
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; clean(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// logMean is the logarithm of the weighted mean of exp(logs); equal weights
// when w is nil.
func logMean(logs, w []float64) float64 {
	top := math.Inf(-1)
	for i, l := range logs {
		if w == nil || w[i] > 0 {
			top = max(top, l)
		}
	}
	var sum float64
	for i, l := range logs {
		weight := 1 / float64(len(logs))
		if w != nil {
			weight = w[i]
		}
		if weight > 0 {
			sum += weight * math.Exp(l-top)
		}
	}
	return top + math.Log(sum)
}

func (e *Excess) String() string {
	return fmt.Sprintf("%d bad of %d against %d of %d", e.ArmBad, e.ArmReqs, e.Bad-e.ArmBad, e.Requests-e.ArmReqs)
}
