package benchmark

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
	"llmops/serving/slo"
)

var class = slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}, TPOT: slo.Bound{Quantile: 0.95, Limit: 100 * time.Millisecond}}

// answered is a result whose first token came after ttft and whose nine others
// after tpot each.
func answered(ttft, tpot time.Duration) *load.Result {
	r := &load.Result{Stream: true, Sent: time.Millisecond, FirstToken: ttft, FirstTokens: 1, Output: 10, Count: load.CountUsage}
	r.LastToken = ttft + 9*tpot
	r.End = r.LastToken
	return r
}

func TestJudge(t *testing.T) {
	good := func() *load.Result { return answered(100*time.Millisecond, 10*time.Millisecond) }
	broken := func() *load.Result {
		r := good()
		r.Kind, r.Output, r.Count = load.KindStream, 0, load.CountUnknown
		return r
	}
	for _, c := range []struct {
		name  string
		n     int
		every int // which is other instead
		other func() *load.Result
		want  evidence.Outcome
	}{
		{"good", 200, 0, nil, evidence.Pass},
		{"too few", 20, 0, nil, evidence.Inconclusive},
		{"none", 0, 0, nil, evidence.Inconclusive},
		{"slow to begin", 200, 5, func() *load.Result { return answered(2*time.Second, 0) }, evidence.Fail},
		{"slow to go on", 200, 5, func() *load.Result { return answered(0, 200*time.Millisecond) }, evidence.Fail},
		{"never answered", 200, 5, func() *load.Result { return &load.Result{Kind: load.KindConnect} }, evidence.Fail},
		{"broken off after the first token", 200, 5, broken, evidence.Fail},
		{"few late", 200, 100, func() *load.Result { return answered(2*time.Second, 0) }, evidence.Pass},
	} {
		var rs []*load.Result
		for i := range c.n {
			if c.every > 0 && i%c.every == 0 {
				rs = append(rs, c.other())
			} else {
				rs = append(rs, good())
			}
		}
		o := Options{Plan: 10, SLO: class}
		v := Judge([]Point{{Rate: 10, Over: count(rs, class)}}, o)
		if v.Outcome != c.want {
			t.Errorf("%s: %v, %+v", c.name, v.Outcome, v)
		}
	}
	if v := Judge([]Point{{Rate: 5}}, Options{Plan: 10, SLO: class}); v.Outcome != evidence.Inconclusive {
		t.Errorf("without the planned rate: %+v", v)
	}
	if v := Judge([]Point{{Rate: 10, Over: Over{ErrorsOf: 100}}}, Options{Plan: 10}); v.Outcome != evidence.Inconclusive {
		t.Errorf("without a service level: %+v", v)
	}
}

// The load goes to all replicas in turn, as a router would send it.
func TestSweep(t *testing.T) {
	var seen [2]atomic.Int64
	var bases []string
	for i := range seen {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen[i].Add(1)
			var req openai.ChatRequest
			if err := openai.Decode(r.Body, &req); err != nil || *req.MaxTokens != 3 || *req.MinTokens != 3 || !req.IgnoreEOS || !req.Stream {
				t.Errorf("request %+v, %v", req, err)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for k := range 3 {
				_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", k)
			}
			_, _ = fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
		}))
		defer s.Close()
		bases = append(bases, s.URL)
	}
	var prompts []*load.Request
	for _, text := range []string{"a", "b"} {
		r, err := Chat("m", 3, []openai.Message{{Role: "user", Content: openai.Text(text)}})
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, r)
	}
	o := Options{Rates: []float64{200}, Plan: 200, SLO: class}
	last, all := int64(0), int64(0)
	points, results, err := Sweep(t.Context(), bases, prompts, o, func(_ string, done, total int64) { last, all = done, total })
	if err != nil || len(points) != 1 || len(results) != 1 || len(results[0]) != points[0].Stats.Sent {
		t.Fatalf("%d points, %v", len(points), err)
	}
	for _, p := range points {
		if p.Over.Errors != 0 || p.Summary.Done == 0 || p.Summary.OutputTokens != 3*p.Summary.Done || !strings.Contains(p.Describe(), "tokens/s") {
			t.Errorf("%+v", p)
		}
	}
	if last != all {
		t.Errorf("ended at %d of %d", last, all)
	}
	if a, b := seen[0].Load(), seen[1].Load(); a-b > 1 || b-a > 1 || a == 0 {
		t.Errorf("the replicas got %d and %d requests", a, b)
	}
	if _, _, err := Sweep(t.Context(), nil, prompts, o, nil); err == nil {
		t.Error("a sweep of no replicas has no error")
	}
	if _, _, err := Sweep(t.Context(), bases, nil, o, nil); err == nil {
		t.Error("a sweep without prompts has no error")
	}
}
