package load

import (
	"math"
	"time"
)

// trendBins is into how many parts a run is cut to look for a trend.
const trendBins = 20

// Growing tells whether requests pile up: whether in the window both the open
// requests and the time to the first token rise. Either alone rises in a run
// that is well: the one with a longer answer, the other with a longer prompt. Each
// is fitted by a line over the parts of the window; it rises when it gains more
// than a quarter of its mean over the window, by more than three standard errors.
func Growing(results []*Result, w Window) bool {
	step := (w.To - w.From) / trendBins
	if step <= 0 {
		return false
	}
	var open, wait, n [trendBins]float64
	for _, r := range results {
		for i := range trendBins {
			if at := w.From + step*time.Duration(i) + step/2; r.Scheduled <= at && at < r.End {
				open[i]++
			}
		}
		if !w.holds(r.Scheduled) {
			continue
		}
		d, ok := r.TTFT()
		if !ok {
			d = r.End - r.Scheduled // it waited at least so long
		}
		i := min(int((r.Scheduled-w.From)/step), trendBins-1)
		wait[i] += float64(d)
		n[i]++
	}
	var at, mean []float64
	for i, v := range wait {
		if n[i] > 0 {
			at, mean = append(at, float64(i)), append(mean, v/n[i])
		}
	}
	var all [trendBins]float64
	for i := range all {
		all[i] = float64(i)
	}
	return rises(all[:], open[:]) && rises(at, mean)
}

func rises(x, y []float64) bool {
	n := float64(len(x))
	if n < 5 {
		return false
	}
	var mx, my, sxx, sxy float64
	for i := range x {
		mx, my = mx+x[i]/n, my+y[i]/n
	}
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
	}
	slope, rest := sxy/sxx, 0.0
	for i := range x {
		e := y[i] - my - slope*(x[i]-mx)
		rest += e * e
	}
	err := math.Sqrt(rest / (n - 2) / sxx)
	return slope*trendBins > my/4 && slope > 3*err
}
