package benchmark

import (
	"context"
	"fmt"
	"math"
	"slices"

	"llmops/evidence"
	"llmops/serving/slo"
)

// Searching is how [Find] looks for limits.
type Searching struct {
	Start      float64 // the first rate, requests a second
	Most       float64 // never offer more; 0: no limit
	Resolution float64 // how close the rates on both sides of a limit shall be; default 0.1
	Points     int     // at most; default MostPoints
	SLO        slo.Class
}

// MostPoints is how many rates a search offers at most, unless it is told.
const MostPoints = 16

// Found is what a search came to. A rate of 0 was not found.
type Found struct {
	Holds    float64          `json:"holds"`    // the highest rate that is shown to hold the service level
	Fails    float64          `json:"fails"`    // the lowest above it that is shown not to, or saturates
	Knee     float64          `json:"knee"`     // the highest rate that was kept up with
	Beyond   float64          `json:"beyond"`   // the lowest that was not
	Capacity float64          `json:"capacity"` // output tokens a second, the most of any rate
	Verdict  evidence.Verdict `json:"verdict"`
}

func (s Searching) withDefaults() Searching {
	if s.Resolution <= 0 {
		s.Resolution = 0.1
	}
	if s.Points <= 0 {
		s.Points = MostPoints
	}
	return s
}

// Find doubles the rate until the server does not keep up, and then halves what
// lies between the last rate that held and the first that did not, first for the
// service level, then for the knee. measure gives the point of a rate. A context
// that ends stops the search; the points until then are returned, by rate.
func Find(ctx context.Context, measure func(context.Context, float64) (Point, error), s Searching) ([]Point, Found, error) {
	s = s.withDefaults()
	var points []Point
	for len(points) < s.Points {
		rate, more := s.next(points)
		if !more {
			break
		}
		p, err := measure(ctx, rate)
		if err != nil {
			return points, s.found(points), err
		}
		at, _ := slices.BinarySearchFunc(points, p.Rate, func(p Point, r float64) int { return int(math.Copysign(1, p.Rate-r)) })
		points = slices.Insert(points, at, p)
		if ctx.Err() != nil {
			break
		}
	}
	return points, s.found(points), nil
}

// bracket is the highest rate that is good and the lowest above it that is not;
// 0 where there is none. Rates are taken to be worse the higher they are: a good
// one above a bad one was luck.
func bracket(points []Point, good func(Point) bool) (lo, hi float64) {
	for _, p := range points {
		if !good(p) {
			return lo, p.Rate
		}
		lo = p.Rate
	}
	return lo, 0
}

func (s Searching) keepsUp(p Point) bool { return !p.Saturated }

func (s Searching) holds(p Point) bool {
	return !p.Saturated && Holds(p, s.SLO, "").Outcome == evidence.Pass
}

// stated tells that there is a service level to look for.
func (s Searching) stated() bool { return s.SLO.TTFT.Set() || s.SLO.TPOT.Set() || s.SLO.ErrorRate > 0 }

// finest is the closest resolution: rates are rounded to three digits.
const finest = 0.02

// lowest is the part of the first rate at which a search for one that holds gives
// up.
const lowest = 1.0 / 64

// next is the rate to try after points.
func (s Searching) next(points []Point) (rate float64, more bool) {
	if len(points) == 0 {
		return s.Start, true
	}
	top := points[len(points)-1].Rate
	knee, beyond := bracket(points, s.keepsUp)
	if beyond == 0 {
		if s.Most > 0 && top >= s.Most {
			return s.between(points)
		}
		if s.Most > 0 {
			return min(2*top, s.Most), true
		}
		return 2 * top, true
	}
	if rate, more = s.between(points); more {
		return rate, true
	}
	return s.halve(points, knee, beyond)
}

// between looks for the service level's limit.
func (s Searching) between(points []Point) (float64, bool) {
	if !s.stated() {
		return 0, false
	}
	lo, hi := bracket(points, s.holds)
	if hi == 0 {
		return 0, false
	}
	return s.halve(points, lo, hi)
}

func (s Searching) halve(points []Point, lo, hi float64) (float64, bool) {
	if lo == 0 {
		first := points[0].Rate
		return first / 2, first/2 >= s.Start*lowest
	}
	if hi <= lo*(1+max(s.Resolution, finest)) {
		return 0, false
	}
	return rounded(math.Sqrt(lo * hi)), true
}

// rounded is f to three digits, which is closer than any resolution.
func rounded(f float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(f))-2)
	return math.Round(f/unit) * unit
}

func (s Searching) found(points []Point) Found {
	var f Found
	f.Knee, f.Beyond = bracket(points, s.keepsUp)
	for _, p := range points {
		f.Capacity = max(f.Capacity, p.Summary.OutputRate)
	}
	if !s.stated() {
		return f
	}
	f.Holds, f.Fails = bracket(points, s.holds)
	claim := "some rate is shown to hold the service level"
	switch {
	case f.Holds > 0:
		for _, p := range points {
			if p.Rate == f.Holds {
				f.Verdict = Holds(p, s.SLO, fmt.Sprintf("the service level holds at %.4g requests a second", f.Holds))
			}
		}
	case len(points) > 0:
		f.Verdict = Holds(points[0], s.SLO, claim)
		if f.Verdict.Outcome == evidence.Pass { // and yet requests piled up
			f.Verdict.Outcome = evidence.Inconclusive
			f.Verdict.Warnings = append(f.Verdict.Warnings, fmt.Sprintf("%.4g requests a second were not kept up with, so that waits grow with time", points[0].Rate))
		}
	default:
		f.Verdict = evidence.Verdict{Claim: claim, Warnings: []string{"nothing was measured"}}
	}
	return f
}
