package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// wellFormed holds a figure to be XML without numbers that are none.
func wellFormed(t *testing.T, s string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(s))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, s)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "<script", "http"} {
		if strings.Contains(s, bad) {
			t.Errorf("%s in %s", bad, s)
		}
	}
}

func TestPlot(t *testing.T) {
	p := Plot{Title: `a <b> & "c"`, X: Axis{Unit: "requests/s"}, Y: Axis{Unit: "ms"}, Marks: []Mark{{10, "planned"}, {99, "beyond"}},
		Series: []Series{{Name: "p50", X: []float64{5, 10, 20}, Y: []float64{1, 2, 4}}, {Name: "p95", X: []float64{5, 10, 20}, Y: []float64{2, 4, math.NaN()}}, {Name: "none"}}}
	s := string(p.SVG())
	wellFormed(t, s)
	for want, n := range map[string]int{
		`d="M169.0 172.7`:               1, // of 470 from 56, and of 180 up from 216, 5 of 20.8 and 1 of 4.16
		`<circle`:                       5, // of the numbers
		`class="mark"`:                  1, // what is within
		`a &lt;b&gt; &amp; &#34;c&#34;`: 2,
		`>p95<`:                         1,
		`>none<`:                        0,
		`>20<`:                          1,
	} {
		if got := strings.Count(s, want); got != n {
			t.Errorf("%d of %q, want %d in\n%s", got, want, n, s)
		}
	}
	for _, nothing := range []Plot{{}, {Series: []Series{{X: []float64{0}, Y: []float64{0}}}}, {X: Axis{Log: true}, Series: []Series{{X: []float64{-1}, Y: []float64{1}}}}} {
		if s := nothing.SVG(); s != "" {
			t.Errorf("%+v is %s", nothing, s)
		}
	}
}

func TestLogarithmic(t *testing.T) {
	p := Plot{X: Axis{Log: true, SI: true}, Y: Axis{Log: true}, Series: []Series{
		{Name: "roof", Guide: true, X: []float64{1, 1e4}, Y: []float64{1, 1e3}},
		{Name: "points", Points: true, X: []float64{100, 0, 1e4}, Y: []float64{1000, 5, 10}, Labels: []string{"first", "never", "a label that is long"}},
	}}
	s := string(p.SVG())
	wellFormed(t, s)
	for want, n := range map[string]int{
		`<circle cx="291.0" cy="36.0" r="3" class="d1"/><text x="298.0"`: 1, // half of the way, at the top
		`never`:                                0,
		`class="ink end">a label that is long`: 1,
		`class="guide"`:                        2, // and its key
		`>10 k<`:                               1,
	} {
		if got := strings.Count(s, want); got != n {
			t.Errorf("%d of %q, want %d in\n%s", got, want, n, s)
		}
	}
	// A single value has a scale of its own.
	if p := (Plot{X: Axis{Log: true}, Series: []Series{{X: []float64{5}, Y: []float64{5}}}}); p.SVG() == "" {
		t.Error("one point is not drawn")
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		s    scale
		want []float64
	}{
		{scale{lo: 0, hi: 100}, []float64{0, 20, 40, 60, 80, 100}},
		{scale{lo: 0, hi: 7}, []float64{0, 2, 4, 6}},
		{scale{lo: -3, hi: 7}, []float64{-2, 0, 2, 4, 6}},
		{scale{lo: 0, hi: 0.3}, []float64{0, 0.1, 0.2, 0.3}},
		{scale{Axis: Axis{Log: true}, lo: 3, hi: 300}, []float64{5, 10, 20, 50, 100, 200}},
		{scale{Axis: Axis{Log: true}, lo: 1, hi: 1e4}, []float64{1, 10, 100, 1e3, 1e4}},
		{scale{Axis: Axis{Log: true}, lo: 1, hi: 1e12}, []float64{1, 100, 1e4, 1e6, 1e8, 1e10, 1e12}},
	} {
		got := c.s.ticks()
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9*max(1, math.Abs(b)) }) {
			t.Errorf("%+v: %v, want %v", c.s, got, c.want)
		}
	}
	for v, want := range map[float64]string{1.5e12: "1.5 T", 989.4e12: "989.4 T", 12: "12", 2e3: "2 k", 0.25: "0.25"} {
		if got := SI(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func FuzzPlot(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, 4.0, true)
	f.Fuzz(func(t *testing.T, x0, y0, x1, y1 float64, logarithmic bool) {
		for _, v := range []float64{x0, y0, x1, y1} {
			if math.Abs(v) > 1e100 || v != 0 && math.Abs(v) < 1e-100 {
				return
			}
		}
		a := Axis{Log: logarithmic, Unit: "u"}
		s := string(Plot{Title: "t", X: a, Y: a, Marks: []Mark{{x0, "m"}}, Series: []Series{{Name: "n", X: []float64{x0, x1}, Y: []float64{y0, y1}, Labels: []string{"l"}}}}.SVG())
		wellFormed(t, s)
	})
}
