package benchmark

import (
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/pipeline/benchmark/load"
)

func TestMostOpen(t *testing.T) {
	r := func(from, to int) *load.Result {
		return &load.Result{Sent: time.Duration(from) * time.Second, Scheduled: time.Duration(from), End: time.Duration(to) * time.Second}
	}
	// Three at a time in the second moment of two seconds, one of them on through the third
	// and fourth, in which one ends as another begins.
	got := mostOpen([]*load.Result{r(1, 3), r(2, 3), r(2, 7), r(7, 8)}, 2*time.Second, 6)
	if want := []float64{1, 3, 1, 1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := mostOpen(nil, time.Second, 2); !slices.Equal(got, []float64{0, 0}) {
		t.Errorf("%v", got)
	}
}

func TestRooflineSVG(t *testing.T) {
	r := &Roofline{Device: "h100-sxm", BytesPerSecond: 2e12, FLOPS: 400e12}
	// Half of what memory allows at 2 operations a byte, and a quarter of arithmetic at 1000.
	r.Add("decode", 2, 0.010, 0.0001, 0.020, "")
	r.Add("prefill", 1000, 0.001, 0.005, 0.020, "")
	r.Add("nothing", 5, 1, 1, 0, "")
	if len(r.Points) != 2 || r.Points[0].Share != 0.5 || r.Points[0].FLOPS != 2e12 || r.Points[0].Binds != "memory" || r.Points[1].Share != 0.25 || r.Points[1].Binds != "arithmetic" {
		t.Fatalf("%+v", r.Points)
	}
	s := string(r.SVG())
	for want, n := range map[string]int{
		"decode: 50 % of memory": 1, "prefill: 25 % of arithmetic": 1, `class="guide"`: 2, "<circle": 3, // the roofs, two points, and their keys
		"memory up to 2 TB/s, alike at 200 FLOP a byte": 2, "arithmetic up to 400 TFLOP/s": 2,
	} {
		if got := strings.Count(s, want); got != n {
			t.Errorf("%d of %q, want %d in\n%s", got, want, n, s)
		}
	}
	r.BytesPerSecond = 0
	if s := string(r.SVG()); !strings.Contains(s, "memory binds nothing") || strings.Count(s, `class="guide"`) != 2 {
		t.Errorf("%s", s)
	}
	if (*Roofline)(nil).SVG() != "" || (&Roofline{FLOPS: 1}).SVG() != "" {
		t.Error("nothing is drawn")
	}
}

// A server that falls behind answers less than arrives, though the run goes on until it is
// done.
func TestArrived(t *testing.T) {
	var rs []*load.Result
	for i := range 101 { // ten a second, and five a second answered
		at := time.Duration(i) * 100 * time.Millisecond
		rs = append(rs, &load.Result{ID: i, Stream: true, Scheduled: at, Sent: at, FirstToken: 2*at + 1, LastToken: 2*at + 1, End: 2*at + 1, FirstTokens: 1, Output: 2, Count: load.CountUsage})
	}
	for _, whole := range []bool{true, false} {
		p := Sum(Load{Shape: Constant, Rate: 10, Whole: whole}, rs, load.Stats{}, class)
		if got := p.arrived(); got < 10 || got > 10.2 || p.Summary.RequestRate > 5.2 {
			t.Errorf("whole %v: %v arrived, %v answered", whole, got, p.Summary.RequestRate)
		}
	}
	if got := (Point{}).arrived(); got != 0 {
		t.Error(got)
	}
}
