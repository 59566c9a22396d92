package evidence

import (
	"math"
	"math/rand/v2"
	"testing"
)

// ln(1/0.0125) = 4.382. Against "never" alone ⌈4.382/−ln(0.95)⌉ = 86 clean
// requests; half the mixture's weight on it costs ln 2 = 0.693 more, less what
// the other alternatives give: at most ⌈5.075/0.05129⌉ = 99.
func TestCleanRequests(t *testing.T) {
	if got := CleanRequests(0.05, 0.0125); got < 86 || got > 99 {
		t.Errorf("CleanRequests(5 %%, 1.25 %%) = %d, want 86 to 99", got)
	}
	if got := CleanRequests(0.02, 0.0125); got < 217 || got > 252 {
		t.Errorf("CleanRequests(2 %%, 1.25 %%) = %d, want 217 to 252", got)
	}
}

func TestRateOneBadRefutesNever(t *testing.T) {
	r := Rate{Limit: 0.05}
	r.Add(0, 98)
	r.Add(1, 1)
	if r.Shown(0.0125) {
		t.Error("98 good and one bad show 5 %")
	}
	r.Add(0, 200)
	if !r.Shown(0.0125) {
		t.Error("298 good and one bad do not show 5 %")
	}
	if new(Rate).Shown(0.05) {
		t.Error("no data shows a rate")
	}
}

// binomial draws by counting: small n, no library needed.
func binomial(r *rand.Rand, n uint64, p float64) (k uint64) {
	for range n {
		if r.Float64() < p {
			k++
		}
	}
	return k
}

func TestExcessOfNothingIsNoHarm(t *testing.T) {
	var e Excess
	e.Tolerated = 1.25
	if e.Add(5, 5, 0, 0) || e.Harm(0.05) {
		t.Error("a window without the other arm counted")
	}
	e.Add(0, 100, 0, 100)
	if e.Harm(0.05) || !math.IsNaN(e.Ratio()) {
		t.Error("no bad events are harm, or have a ratio")
	}
}

// At the tolerated ratio the test may cry harm at most α of the time, although
// it looks after every window and the common rate moves.
func TestExcessKeepsItsLevelUnderPeeking(t *testing.T) {
	const runs, alpha = 2000, 0.05
	for _, share := range []uint64{1, 10} { // of 20 requests a window
		r := rand.New(rand.NewPCG(5, share))
		alarms := 0
		for range runs {
			e := Excess{Tolerated: 1.25}
			for w := range 100 {
				rate := 0.04
				if w%7 == 0 {
					rate = 0.3 // a bad moment for both arms
				}
				e.Add(binomial(r, share, 1.25*rate), share, binomial(r, 20-share, rate), 20-share)
				if e.Harm(alpha) {
					alarms++
					break
				}
			}
		}
		if limit := alpha + 3*math.Sqrt(alpha*(1-alpha)/runs); float64(alarms)/runs > limit {
			t.Errorf("share %d/20: %d alarms in %d runs", share, alarms, runs)
		}
	}
}

func TestExcessFindsHarm(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	found := 0
	for range 200 {
		e := Excess{Tolerated: 1.25}
		for range 60 {
			e.Add(binomial(r, 10, 0.25), 10, binomial(r, 10, 0.02), 10)
			if e.Harm(0.0125) {
				found++
				break
			}
		}
	}
	if found < 198 {
		t.Errorf("a twelvefold rate was found in %d of 200 runs", found)
	}
}

func TestWithinAndRateKeepTheirLevel(t *testing.T) {
	const runs, alpha = 2000, 0.05
	r := rand.New(rand.NewPCG(9, 10))
	within, rate := 0, 0
	for range runs {
		w, q := Within{Limit: 2}, Rate{Limit: 0.05}
		var shownW, shownQ bool
		for range 100 {
			w.Add(binomial(r, 10, 0.10), 10, binomial(r, 10, 0.05), 10)
			q.Add(binomial(r, 10, 0.05), 10)
			shownW = shownW || w.Shown(alpha)
			shownQ = shownQ || q.Shown(alpha)
		}
		if shownW {
			within++
		}
		if shownQ {
			rate++
		}
	}
	limit := alpha + 3*math.Sqrt(alpha*(1-alpha)/runs)
	if float64(within)/runs > limit || float64(rate)/runs > limit {
		t.Errorf("at the limit itself shown in %d and %d of %d runs", within, rate, runs)
	}
}

func TestWithinShowsEqualArms(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	shown := 0
	for range 200 {
		w := Within{Limit: 2}
		for range 300 {
			w.Add(binomial(r, 10, 0.05), 10, binomial(r, 10, 0.05), 10)
		}
		if w.Shown(0.0125) {
			shown++
		}
	}
	if shown < 180 {
		t.Errorf("equal arms were shown to be within 2x in %d of 200 runs", shown)
	}
}
