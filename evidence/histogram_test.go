package evidence

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"
)

// The bounds of the SLO presets are edges, so counting above them is exact.
func TestHistogramOverIsExactAtEdges(t *testing.T) {
	for _, bound := range []time.Duration{30 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 2500 * time.Millisecond} {
		var h Histogram
		h.Add(bound - 1)
		h.Add(bound)
		h.Add(bound + 1)
		over, edge := h.Over(bound)
		if over != 1 || edge != bound {
			t.Errorf("Over(%v) = %d at %v, want 1 at the bound", bound, over, edge)
		}
	}
}

func TestHistogramOverErrsOnTheSafeSide(t *testing.T) {
	var h Histogram
	h.Add(411 * time.Millisecond)
	// 412 ms lies within the bucket (400, 450]: its whole count is above.
	if over, edge := h.Over(412 * time.Millisecond); over != 1 || edge != 400*time.Millisecond {
		t.Errorf("Over = %d at %v, want 1 at 400ms", over, edge)
	}
	var wide Histogram
	wide.Add(0)
	wide.Add(time.Hour)
	if over, _ := wide.Over(lastEdge); over != 1 {
		t.Errorf("an hour is not above the last edge: %d", over)
	}
	if _, hi, ok := wide.Quantile(1); !ok || hi >= 0 {
		t.Errorf("Quantile(1) = %v, %v, want open above", hi, ok)
	}
}

func TestHistogramQuantileBracketsTheSample(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h Histogram
	var all []time.Duration
	for range 5000 {
		d := time.Duration(math.Exp(r.NormFloat64()*1.5) * float64(20*time.Millisecond))
		h.Add(d)
		all = append(all, d)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	for _, q := range []float64{.01, .5, .95, .99, 1} {
		want := all[int(math.Ceil(q*float64(len(all))))-1]
		lo, hi, ok := h.Quantile(q)
		if !ok || want <= lo || want > hi {
			t.Errorf("quantile %v: %v not in (%v, %v]", q, want, lo, hi)
		}
	}
	if _, _, ok := new(Histogram).Quantile(.5); ok {
		t.Error("an empty histogram has a quantile")
	}
}

func TestHistogramMergeAndSince(t *testing.T) {
	var a, b Histogram
	a.Add(time.Second)
	b = a
	b.Add(time.Millisecond)
	d, ok := b.Since(&a)
	if !ok || d.N() != 1 {
		t.Fatalf("Since = %d, %v, want 1", d.N(), ok)
	}
	d.Merge(&a)
	if d != b {
		t.Error("merging the difference back does not give the whole")
	}
	if _, ok := a.Since(&b); ok {
		t.Error("counters that went down were taken for later ones")
	}
}

func FuzzHistogramJSON(f *testing.F) {
	f.Add([]byte(`{"0":1,"176":2}`))
	f.Add([]byte(`{"177":2}`))
	f.Add([]byte(`{"01":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, back Histogram
		if json.Unmarshal(b, &h) != nil {
			return
		}
		out, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &back); err != nil || back != h {
			t.Fatalf("%s reads back as %v, %v", out, back, err)
		}
	})
}
