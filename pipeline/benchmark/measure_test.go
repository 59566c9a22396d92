package benchmark

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmops/evidence"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/slo"
)

// steady answers each request after a second with ten tokens in another.
func steady(_ context.Context, _ *load.Request, now func() time.Duration, res *load.Result) {
	res.Sent = now()
	time.Sleep(time.Second)
	res.FirstToken, res.FirstTokens = now(), 1
	time.Sleep(900 * time.Millisecond)
	res.LastToken = now()
	res.Gaps = []time.Duration{900 * time.Millisecond}
	res.Events, res.Output, res.Count = 2, 10, load.CountUsage
}

func one(int) (*load.Request, error) { return &load.Request{Stream: true}, nil }

func TestMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, l := range []Load{
			{Shape: Constant, Rate: 10, For: 40 * time.Second, Warmup: 5 * time.Second},
			{Shape: Poisson, Rate: 10, For: 40 * time.Second, Warmup: 5 * time.Second, Seed: 1},
			{Shape: Gamma, Rate: 10, Burstiness: 0.5, For: 40 * time.Second, Warmup: 5 * time.Second, Seed: 1},
			{Shape: Constant, Rate: 10, Ramp: 5 * time.Second, For: 40 * time.Second, Warmup: 5 * time.Second},
			{Shape: Closed, Concurrency: 19, Ramp: 2 * time.Second, For: 40 * time.Second, Warmup: 5 * time.Second},
		} {
			p, rs, err := Measure(t.Context(), steady, one, l, Measuring{SLO: class})
			if err != nil || len(rs) != p.Stats.Sent {
				t.Fatal(err)
			}
			s := p.Summary
			if s.Attempted >= len(rs) || s.RequestRate < 8 || s.RequestRate > 12 || s.OutputRate < 80 || s.OutputRate > 120 || s.TTFT.P50 != 1e9 || p.Saturated || p.Over.TTFT != 0 || p.Over.TTFTOf != s.Attempted {
				t.Errorf("%s: %+v", l, p)
			}
			for _, c := range s.Checks {
				if !c.OK {
					t.Errorf("%s: %s: %s", l, c.Name, c.Note)
				}
			}
		}
	})
}

// What arrives faster than it is answered is not kept up with.
func TestSaturated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := make(chan struct{}, 5)
		busy := func(ctx context.Context, q *load.Request, now func() time.Duration, res *load.Result) {
			slots <- struct{}{}
			steady(ctx, q, now, res)
			<-slots
		}
		for rate, want := range map[float64]bool{2: false, 8: true} {
			p, _, err := Measure(t.Context(), busy, one, Load{Shape: Poisson, Rate: rate, For: 2 * time.Minute, Warmup: 10 * time.Second, Seed: 3}, Measuring{SLO: class, Timeout: time.Hour})
			if err != nil || p.Saturated != want {
				t.Errorf("%v a second: saturated %v, %v", rate, p.Saturated, err)
			}
		}
	})
}

// A run that is stopped tells what it saw, and passes nothing.
func TestStoppedIsNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Second, cancel)
		quick := func(_ context.Context, _ *load.Request, now func() time.Duration, res *load.Result) {
			res.Sent = now()
			time.Sleep(10 * time.Millisecond)
			res.FirstToken, res.LastToken, res.Output, res.Count = now(), now(), 1, load.CountUsage
		}
		c := slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}}
		p, rs, err := Measure(ctx, quick, one, Load{Shape: Constant, Rate: 10, For: time.Hour}, Measuring{SLO: c})
		if err != nil || len(rs) < 299 || !p.Stats.Stopped {
			t.Fatalf("%d results, %+v, %v", len(rs), p.Stats, err)
		}
		if v := Holds(p, c, ""); v.Outcome != evidence.Inconclusive || p.Over.TTFT > 0 {
			t.Errorf("%+v", v)
		}
		// What the stop cut off is no failure of the server's.
		hang := func(ctx context.Context, _ *load.Request, now func() time.Duration, res *load.Result) {
			res.Sent = now()
			<-ctx.Done()
			res.Kind, res.Error = load.KindStream, "cut"
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(30*time.Second, cancel)
		p, rs, err = Measure(ctx, hang, one, Load{Shape: Constant, Rate: 10, For: time.Hour}, Measuring{SLO: c})
		if err != nil || len(rs) < 299 || p.Over.ErrorsOf != 0 || p.Summary.Attempted != 0 || p.Summary.Failed[load.KindCancelled] < 299 || p.Failure != "" {
			t.Errorf("%d results, %+v, %v", len(rs), p, err)
		}
		if v := Holds(p, c, ""); v.Outcome != evidence.Inconclusive {
			t.Errorf("%+v", v)
		}
	})
}

func TestLoadIsChecked(t *testing.T) {
	for want, l := range map[string]Load{
		"a rate of 0":                      {Shape: Poisson, For: time.Second},
		"a burstiness of 0":                {Shape: Gamma, Rate: 1, For: time.Second},
		"a closed loop of 0":               {Shape: Closed, For: time.Second},
		"for how long is missing":          {Shape: Closed, Concurrency: 1},
		"neither is given":                 {Shape: Constant, Rate: 1},
		"nothing to replay":                {Shape: Replay},
		"a warm-up of 2s takes all":        {Shape: Constant, Rate: 1, For: time.Second, Warmup: 2 * time.Second},
		"a ramp from -1":                   {Shape: Constant, Rate: 1, For: time.Second, Ramp: 1, From: -1},
		`no load has the shape "sawtooth"`: {Shape: "sawtooth", Rate: 1, For: time.Second},
	} {
		if _, _, err := Measure(t.Context(), steady, one, l, Measuring{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
}

func TestPageIsOnePageThatLoadsNothing(t *testing.T) {
	rs := results(200, 50*time.Millisecond, 80*time.Millisecond, func(i int) time.Duration { return time.Duration(i%9) * time.Millisecond })
	var points []Point
	var all [][]*load.Result
	for _, rate := range []float64{10, 20} {
		points = append(points, Sum(Load{Shape: Constant, Rate: rate, Content: "<script>"}, rs, load.Stats{}, class))
		all = append(all, rs)
	}
	v := Holds(points[0], class, "it <b>holds</b>")
	r := &Record{Format: RecordFormat, System: System{Model: "m"}, Points: points, Found: &Found{Holds: 10, Knee: 20, Beyond: 40}, Verdict: &v, Batch: NewBatch(points[0], 1, time.Hour, 5)}
	b, err := Page(r, all)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<b>holds", "http://", "https://", "src=", "NaN", "ZgotmplZ"} {
		if strings.Contains(string(b), bad) {
			t.Errorf("page holds %q", bad)
		}
	}
	// Three load curves of two lines each, one with what was offered, and of each point
	// three distributions, two lines over time and what was open; each line has a key.
	if n, figures := strings.Count(string(b), "<path d=\"M"), strings.Count(string(b), "<figure"); n != 2*(3*2+1+2*(3+2+1)) || figures != 3+2*3 {
		t.Errorf("%d lines in %d figures", n, figures)
	}
	for _, want := range []string{"holds 10<", "knee 20<", "prefers-color-scheme:dark", "% take at most"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if _, err := Page(&Record{}, nil); err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ReadRecord(bytes.NewReader(text)); err != nil || len(back.Points) != 2 || back.Points[1].Summary.TTFT != points[1].Summary.TTFT {
		t.Errorf("%+v, %v", back, err)
	}
	if _, err := ReadRecord(strings.NewReader(`{"format": 9}`)); err == nil || !strings.Contains(err.Error(), "its format is 9") {
		t.Error(err)
	}
}

func TestLoadLasts(t *testing.T) {
	times := []time.Duration{0, time.Second, 5 * time.Second}
	for _, c := range []struct {
		l    Load
		want time.Duration
	}{
		{Load{Shape: Poisson, Rate: 5, For: time.Minute}, time.Minute},
		{Load{Shape: Poisson, Rate: 5, For: time.Minute, Requests: 100}, 20 * time.Second},
		{Load{Shape: Constant, Rate: 5, Requests: 1000}, 200 * time.Second},
		// 30 in the ten seconds from 1/s to 5/s, and 70 in 14 more.
		{Load{Shape: Constant, Rate: 5, From: 1, Ramp: 10 * time.Second, Requests: 100}, 24 * time.Second},
		{Load{Shape: Closed, Concurrency: 4, Requests: 10, For: time.Minute}, time.Minute},
		{Load{Shape: Replay, Times: times}, 5 * time.Second},
		{Load{Shape: Replay, Times: times, Requests: 2}, time.Second},
		{Load{Shape: Replay, Times: times, For: 3 * time.Second}, 3 * time.Second},
		{Load{}, 0},
	} {
		if got := c.l.Lasts(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.l, got, c.want)
		}
	}
}
