package ceiling

import (
	"fmt"
	"slices"
)

const (
	// got is the share of the processor time that the threads of a repetition have to
	// have had.
	got = 0.9
	// fewest undisturbed repetitions make a reading, and at wanted measuring ends.
	fewest, wanted = 5, 40
	// wide is a spread that a reader should know of.
	wide = 0.25
)

// sample is one repetition.
type sample struct {
	work    float64 // bytes or operations
	seconds float64 // of the clock
	cpu     float64 // seconds of processor time, over all threads
}

// undisturbed reports whether so many threads had the cores to themselves.
func (s sample) undisturbed(threads int) bool {
	return s.cpu >= got*s.seconds*float64(threads)
}

// judge makes a reading of what was repeated on so many threads. Too few repetitions
// that had the cores to themselves are an error: the best of a busy machine is the
// speed of what was left of it.
func judge(what string, threads int, samples []sample) (Reading, error) {
	var r Reading
	var rates []float64
	for _, s := range samples {
		switch {
		case !(s.seconds > 0 && s.work > 0):
			return Reading{}, fmt.Errorf("measuring %s: a repetition took %v seconds for %v: the clock is too coarse", what, s.seconds, s.work)
		case s.undisturbed(threads):
			rates = append(rates, s.work/s.seconds)
		default:
			r.Disturbed++
		}
	}
	if len(rates) < fewest {
		return r, fmt.Errorf("measuring %s on %d threads: other processes had the cores in %d of %d repetitions, and %d undisturbed ones are wanted; measure when the machine has nothing else to do",
			what, threads, r.Disturbed, len(samples), fewest)
	}
	slices.Sort(rates)
	r.N, r.Best, r.Median = len(rates), rates[len(rates)-1], rates[len(rates)/2]
	r.Spread = (r.Best - r.Median) / r.Best
	return r, nil
}

func (r Rates) warnings() (out []string) {
	for _, x := range []struct {
		what string
		Reading
	}{{"reading memory", r.Read}, {"a product with one row", r.Row}, {"products in f32", r.F32}, {"products in bf16", r.BF16}} {
		if x.Spread > wide {
			out = append(out, fmt.Sprintf("%s on %d threads: the median is %.0f%% below the best; memory, caches or clock were shared with something else", x.what, r.Threads, 100*x.Spread))
		}
	}
	return out
}
