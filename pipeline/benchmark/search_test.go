package benchmark

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/slo"
)

// server is what a search finds: TTFT grows with the rate, and past capacity
// requests pile up.
type server struct {
	slow, capacity float64 // rates
	n              int     // requests a point
}

func (s server) measure(_ context.Context, rate float64) (Point, error) {
	p := Point{Rate: rate, Saturated: rate > s.capacity, Over: Over{TTFTOf: s.n, ErrorsOf: s.n, LateOf: s.n}}
	p.Summary.OutputRate = 10 * min(rate, s.capacity)
	if rate > s.slow {
		p.Over.TTFT = s.n / 3
	}
	return p, nil
}

func TestFind(t *testing.T) {
	c := slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}}
	for _, tt := range []struct {
		name  string
		s     server
		o     Searching
		holds float64 // 0: none
		knee  float64
		want  evidence.Outcome
	}{
		{"limit below the knee", server{37, 90, 200}, Searching{Start: 4, SLO: c}, 37, 90, evidence.Pass},
		{"the knee is the limit", server{500, 90, 200}, Searching{Start: 4, SLO: c}, 90, 90, evidence.Pass},
		{"the first is too much", server{3, 300, 200}, Searching{Start: 50, SLO: c}, 3, 300, evidence.Pass},
		{"no service level", server{3, 77, 200}, Searching{Start: 10}, 0, 77, evidence.Inconclusive},
		{"none holds", server{0, 77, 200}, Searching{Start: 10, SLO: c}, 0, 77, evidence.Fail},
		{"too few requests", server{20, 77, 20}, Searching{Start: 10, SLO: c}, 0, 77, evidence.Inconclusive},
	} {
		tt.o.Points = 40
		points, f, err := Find(t.Context(), tt.s.measure, tt.o)
		if err != nil {
			t.Fatal(err)
		}
		near := func(name string, got, want float64) {
			if want == 0 && got != 0 || want > 0 && (got > want || got < want/1.11) {
				t.Errorf("%s: %s is %v, want within 10 %% below %v, of %d points", tt.name, name, got, want, len(points))
			}
		}
		near("holds", f.Holds, tt.holds)
		near("knee", f.Knee, tt.knee)
		if f.Verdict.Outcome != tt.want || tt.holds > 0 && !(f.Fails > tt.holds && f.Fails < 1.12*tt.holds) {
			t.Errorf("%s: %+v", tt.name, f)
		}
		for i := 1; i < len(points); i++ {
			if points[i].Rate <= points[i-1].Rate {
				t.Errorf("%s: rates %v and %v", tt.name, points[i-1].Rate, points[i].Rate)
			}
		}
		if tt.s.n == 200 && len(points) > 18 {
			t.Errorf("%s took %d points", tt.name, len(points))
		}
	}
	// A rate that is kept up with and a service level that holds is all that a
	// bounded search can say.
	points, f, err := Find(t.Context(), server{100, 200, 200}.measure, Searching{Start: 4, Most: 20, SLO: c})
	if err != nil || f.Holds != 20 || f.Fails != 0 || f.Knee != 20 || f.Beyond != 0 || points[len(points)-1].Rate != 20 {
		t.Errorf("%+v, %v", f, err)
	}
	broken := errors.New("x")
	if _, _, err := Find(t.Context(), func(context.Context, float64) (Point, error) { return Point{}, broken }, Searching{Start: 1}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// A server whose waits grow has no rate that holds, however good the first were.
func TestPilingUpIsNoPass(t *testing.T) {
	c := slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}}
	_, f, _ := Find(t.Context(), server{1000, 0, 200}.measure, Searching{Start: 4, SLO: c})
	if f.Holds != 0 || f.Verdict.Outcome != evidence.Inconclusive {
		t.Errorf("%+v", f)
	}
}

func results(n int, gap, ttft time.Duration, noise func(i int) time.Duration) (out []*load.Result) {
	for i := range n {
		at := time.Duration(i) * gap
		r := answered(ttft+noise(i), 10*time.Millisecond)
		r.ID, r.Scheduled, r.Sent, r.FirstToken, r.LastToken, r.End = i, at, at, at+r.FirstToken, at+r.LastToken, at+r.End
		out = append(out, r)
	}
	return out
}

func TestCompare(t *testing.T) {
	noise := func(i int) time.Duration { return time.Duration(i*7919%31) * time.Millisecond }
	l := &Load{Shape: Poisson, Rate: 10}
	base := Sample{Name: "a", Load: l, Results: results(400, 100*time.Millisecond, 100*time.Millisecond, noise)}
	for _, c := range []struct {
		name string
		b    Sample
		want evidence.Outcome
	}{
		{"the same", Sample{Name: "b", Load: l, Results: base.Results}, evidence.Pass},
		{"a fifth slower", Sample{Name: "b", Load: l, Results: results(400, 100*time.Millisecond, 125*time.Millisecond, noise)}, evidence.Fail},
		{"a fifth faster", Sample{Name: "b", Load: l, Results: results(400, 100*time.Millisecond, 80*time.Millisecond, noise)}, evidence.Pass},
		{"too few", Sample{Name: "b", Load: l, Results: base.Results[:20]}, evidence.Inconclusive},
		{"another rate", Sample{Name: "b", Load: &Load{Shape: Poisson, Rate: 20}, Results: base.Results}, evidence.Inconclusive},
		{"an unknown load", Sample{Name: "b", Load: nil, Results: base.Results}, evidence.Inconclusive},
	} {
		got := Compare(base, c.b, Comparing{Seed: 1, Draws: 300})
		if got.Verdict.Outcome != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	failed := results(400, 100*time.Millisecond, 100*time.Millisecond, noise)
	for i := range 100 {
		failed[4*i].Kind = load.KindStream
	}
	got := Compare(base, Sample{Name: "b", Load: l, Results: failed}, Comparing{Seed: 1, Draws: 300})
	if last := got.Changes[len(got.Changes)-1]; got.Verdict.Outcome != evidence.Fail || last.Name != "answered" || math.Abs(last.Verdict.Estimate-4.0/3) > 1e-9 {
		t.Errorf("a quarter of the requests fails: %+v", got)
	}
	// Encoders have no TPOT: what both lack is not compared.
	var flat []*load.Result
	for i := range 100 {
		flat = append(flat, &load.Result{Scheduled: time.Duration(i), FirstToken: time.Duration(i) + 5, LastToken: time.Duration(i) + 5, End: time.Duration(i) + 5, Count: load.CountUnknown})
	}
	if got := Compare(Sample{Name: "a", Load: l, Results: flat}, Sample{Name: "b", Load: l, Results: flat}, Comparing{Draws: 100}); got.Verdict.Outcome != evidence.Pass || len(got.Changes) != 4 {
		t.Errorf("%+v", got)
	}
}

// Of pairs of runs of the same thing the share that is called worse is small: an
// interval that takes neighbours in a queue for independent would call many so.
func TestCompareKnowsThatNeighboursAreAlike(t *testing.T) {
	run := func(seed uint64) Sample {
		level, out := 0.0, results(300, 100*time.Millisecond, 100*time.Millisecond, func(int) time.Duration { return 0 })
		rnd := load.Poisson(1, seed)
		last := time.Duration(0)
		for _, r := range out { // an AR(1) walk of exponential steps around its mean
			at, _ := rnd.Next()
			level = 0.9*level + (at - last).Seconds() - 1
			last = at
			d := time.Duration(level * 5e6)
			r.FirstToken += d
			r.LastToken += d
			r.End += d
		}
		return Sample{Name: "x", Load: &Load{Shape: Constant, Rate: 10}, Results: out}
	}
	worse := 0
	for i := range uint64(40) {
		if Compare(run(2*i), run(2*i+1), Comparing{Seed: i, Margin: 0.001, Draws: 100}).Verdict.Outcome == evidence.Fail {
			worse++
		}
	}
	// Six figures at 5 % each, of which four are of one kind; measured 3 of 40, and
	// 12 with blocks of one request.
	if worse > 8 {
		t.Errorf("%d of 40 pairs of the same are called worse", worse)
	}
}

func TestCounter(t *testing.T) {
	for _, c := range []struct {
		client int
		server float64
		ok     bool
	}{{1000, 1000, true}, {1000, 1019, true}, {1000, 1031, false}, {1000, 0, false}, {0, 0, false}, {1000, 2500, false}} {
		if got := Counter("output", c.client, c.server, 0); got.OK != c.ok || got.Note == "" {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestBatch(t *testing.T) {
	p := Point{Summary: load.Summary{Done: 400, RequestRate: 4, OutputRate: 800}}
	b := NewBatch(p, 2, 4*time.Hour, 50_000)
	if b.TokensPerGPU != 400 || b.Fits != 57_600 || b.Takes != 12_500*time.Second {
		t.Errorf("%+v", b)
	}
	for n, want := range map[int]evidence.Outcome{50_000: evidence.Pass, 57_600: evidence.Inconclusive, 70_000: evidence.Fail} {
		if v := NewBatch(p, 2, 4*time.Hour, n).Verdict(p); v.Outcome != want {
			t.Errorf("%d: %+v", n, v)
		}
	}
	if v := NewBatch(Point{}, 0, time.Hour, 5).Verdict(Point{}); v.Outcome != evidence.Inconclusive {
		t.Errorf("nothing was measured: %+v", v)
	}
	p.Stats.Stopped = true
	if v := NewBatch(p, 2, 4*time.Hour, 50_000).Verdict(p); v.Outcome != evidence.Inconclusive {
		t.Errorf("a run that was stopped: %+v", v)
	}
}
