package chart

import (
	"fmt"
	"math"
	"strconv"
)

// scale maps values to places.
type scale struct {
	Axis
	lo, hi   float64 // values
	from, to float64 // places
}

// room is left above the highest value of a linear scale.
const room = 0.04

// scale is that of values from lo to hi; nil where there are none.
func (a Axis) scale(lo, hi float64) *scale {
	switch {
	case !(lo <= hi):
		return nil
	case a.Log:
		if lo == hi {
			lo, hi = lo/2, hi*2
		}
	default:
		if lo = min(lo, 0); hi <= lo {
			return nil
		}
		hi = max(hi+room*(hi-lo), 0)
	}
	return &scale{Axis: a, lo: lo, hi: hi}
}

// shows tells that v has a place.
func (s *scale) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.Log || v > 0)
}

func (s *scale) at(v float64) float64 {
	part := (v - s.lo) / (s.hi - s.lo)
	if s.Log {
		part = math.Log(v/s.lo) / math.Log(s.hi/s.lo)
	}
	return s.from + (s.to-s.from)*part
}

// ticks are round values within the scale.
func (s *scale) ticks() (out []float64) {
	if s.Log {
		return s.decades()
	}
	step := round((s.hi - s.lo) / wantedTicks)
	for i := math.Ceil(s.lo / step); i*step <= s.hi*(1+1e-9); i++ {
		out = append(out, i*step)
	}
	return out
}

// decades are powers of ten within the scale, with 2 and 5 of each where there are few,
// and only every so many where there are many.
func (s *scale) decades() (out []float64) {
	first, last := math.Floor(math.Log10(s.lo)), math.Ceil(math.Log10(s.hi))
	each := []float64{1}
	if math.Log10(s.hi/s.lo) < 2.5 {
		each = []float64{1, 2, 5}
	}
	for e := first; e <= last; e += math.Ceil((last - first) / 8) {
		for _, m := range each {
			if v := m * math.Pow(10, e); v >= s.lo*(1-1e-9) && v <= s.hi*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}

// round is the next of 1, 2 and 5 times a power of ten.
func round(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= v*(1-1e-9) {
			return m * base
		}
	}
	return 10 * base
}

var prefixes = []struct {
	name string
	of   float64
}{{"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}}

// text is v as the axis shows it.
func (s *scale) text(v float64) string {
	if s.SI {
		return SI(v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// SI is a number with a prefix of the SI, such as 2.5 T.
func SI(v float64) string {
	for _, p := range prefixes {
		if math.Abs(v) >= p.of {
			return fmt.Sprintf("%.4g %s", v/p.of, p.name)
		}
	}
	return fmt.Sprintf("%.4g", v)
}
