package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"llmops/serving/embedded/core"
)

// moments gives mean and coefficient of variation.
func moments(v []float64) (mean, cv float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		cv += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(cv) / mean
}

func TestArrivals(t *testing.T) {
	for _, tt := range []struct {
		a  Arrivals
		cv float64
	}{
		{Arrivals{Process: Constant, Rate: 40}, 0},
		{Arrivals{Process: Poisson, Rate: 40}, 1},
		{Arrivals{Process: Gamma, Rate: 40, CV: 3}, 3},
		{Arrivals{Process: Gamma, Rate: 40, CV: 0.3}, 0.3},
	} {
		c := newClock(tt.a, rand.New(rand.NewPCG(1, 1)))
		gaps := make([]float64, 100_000)
		var last time.Duration
		for i := range gaps {
			at := c.next()
			gaps[i], last = (at - last).Seconds(), at
		}
		mean, cv := moments(gaps)
		near(t, string(tt.a.Process)+": mean gap", mean, 1/40.0, 0.05)
		if math.Abs(cv-tt.cv) > 0.05*tt.cv+1e-6 {
			t.Errorf("%s: variation %v, want %v", tt.a.Process, cv, tt.cv)
		}
	}
}

func TestBursts(t *testing.T) {
	for _, p := range []Process{Constant, Poisson} {
		c := newClock(Arrivals{Process: p, Rate: 10, Bursts: Bursts{Every: 10 * time.Second, For: 2 * time.Second, Times: 5}}, rand.New(rand.NewPCG(1, 1)))
		var on, off float64
		for {
			at := c.next()
			if at >= 1000*time.Second {
				break
			}
			if at%(10*time.Second) < 2*time.Second {
				on++
			} else {
				off++
			}
		}
		near(t, string(p)+": in bursts", on, 100*2*50, 0.03)
		near(t, string(p)+": between", off, 100*8*10, 0.03)
	}
}

func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	draw := func(l Lengths) []float64 {
		v := make([]float64, 50_000)
		for i := range v {
			v[i] = float64(l.draw(rng))
		}
		return v
	}
	mean, cv := moments(draw(Lengths{Mean: 1500, CV: 0.8}))
	near(t, "mean", mean, 1500, 0.03)
	near(t, "variation", cv, 0.8, 0.05)
	if _, cv := moments(draw(Lengths{Mean: 250})); cv > 1e-6 {
		t.Errorf("a constant varies by %v", cv)
	}
	bound := draw(Lengths{Mean: 100, CV: 3, Min: 50, Max: 200})
	if slices.Min(bound) != 50 || slices.Max(bound) != 200 {
		t.Errorf("between %v and %v, want 50 and 200", slices.Min(bound), slices.Max(bound))
	}
	mean, _ = moments(draw(Lengths{Values: []int{1, 2, 2, 7}}))
	near(t, "mean of a list", mean, 3, 0.03)
}

func TestZipf(t *testing.T) {
	c := newCumulative(1000, func(i int) float64 { return 1 / float64(i+1) })
	rng := rand.New(rand.NewPCG(1, 1))
	n := make([]float64, 1000)
	for range 200_000 {
		n[c.draw(rng)]++
	}
	// The sum of 1/n to 1000 is 7.485.
	near(t, "the first", n[0]/200_000, 1/7.485, 0.03)
	near(t, "the tenth", n[9]/200_000, 0.1/7.485, 0.1)
	if n[999] == 0 {
		t.Error("the last never comes")
	}
}

// Prompts of one group begin with the same blocks, all else differs; other lengths
// leave the arrivals and the groups as they are.
func TestPrompts(t *testing.T) {
	s := fleet(1, time.Minute).withDefaults()
	s.Tenants[0].Prefix = Prefix{Groups: 2, Tokens: 300}
	s.Tenants = append(s.Tenants, s.Tenants[0])
	tr := newTraffic(s)
	h := blockHash{}
	keys := func(q *request) (all []core.Key) {
		k := h.Root(q.seq.Salt, "")
		for at := 0; at+128 <= len(q.prompt); at += 128 {
			k = h.Next(k, q.prompt[at:at+128])
			all = append(all, k)
		}
		return all
	}
	begin, rest := map[core.Key]int{}, map[core.Key]int{}
	for i := range 200 {
		q := &request{}
		tr.fill(q, uint64(i))
		k := keys(q)
		begin[k[1]]++
		rest[k[2]]++
		if k[0] == k[1] {
			t.Fatal("a block is the same whatever is before it")
		}
		if again := keys(q); !slices.Equal(again, k) {
			t.Fatal("the same prompt has other keys")
		}
		if q.route.Prefix == 0 || q.seq.Max != 250 || len(k) != 1500/128 {
			t.Fatalf("prefix %d, %d tokens to generate, %d blocks", q.route.Prefix, q.seq.Max, len(k))
		}
	}
	if len(begin) != 4 || len(rest) != 200 { // two tenants of two groups
		t.Errorf("%d beginnings and %d ends", len(begin), len(rest))
	}
	// A request that is used again keeps nothing of the last.
	q := &request{}
	tr.fill(q, 1)
	first := keys(q)
	q.prompt, q.room = q.prompt[:100], q.room[:100]
	tr.fill(q, 2)
	if slices.Equal(first, keys(q)) {
		t.Error("the second prompt is the first")
	}
}

// Events come in the order of time, and of pushing among equals.
func TestQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var q queue
	var last event
	pushed, popped := 0, 0
	for popped < 5000 {
		if pushed < 5000 && (pushed == popped || rng.IntN(2) == 0) {
			q.push(event{at: last.at + time.Duration(rng.IntN(10)), of: pushed})
			pushed++
			continue
		}
		e := q.pop()
		if e.before(&last) {
			t.Fatalf("%+v after %+v", e, last)
		}
		last = e
		popped++
	}
}
