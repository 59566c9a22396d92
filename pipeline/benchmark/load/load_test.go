package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"llmops/serving/openai"
)

const ms = time.Millisecond

func take(p Pacer, n int) []time.Duration {
	var out []time.Duration
	for range n {
		at, ok := p.Next()
		if !ok {
			break
		}
		out = append(out, at)
	}
	return out
}

func TestPacers(t *testing.T) {
	for name, tt := range map[string]struct {
		p    Pacer
		want []time.Duration
	}{
		"constant":           {Constant(4), []time.Duration{0, 250 * ms, 500 * ms, 750 * ms, 1000 * ms, 1250 * ms}},
		"trace":              {Trace([]time.Duration{1, 5, 5}), []time.Duration{1, 5, 5}},
		"loop":               {Loop([]time.Duration{1, 5}, 10), []time.Duration{1, 5, 11, 15, 21, 25}},
		"no trace":           {Trace(nil), nil},
		"limit by number":    {Limit(Constant(1000), 2, 0), []time.Duration{0, ms}},
		"limit by time":      {Limit(Constant(1000), 0, 3*ms), []time.Duration{0, ms, 2 * ms}},
		"limit by both":      {Limit(Constant(1000), 2, ms), []time.Duration{0}},
		"limit beyond":       {Limit(Trace([]time.Duration{1}), 9, time.Hour), []time.Duration{1}},
		"a rate of nothing":  {Constant(0), nil},
		"nothing, at random": {Poisson(0, 1), nil},
	} {
		if got := take(tt.p, 6); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v", name, got)
		}
		if name != "constant" && name != "loop" {
			if at, ok := tt.p.Next(); ok {
				t.Errorf("%s: %v after the end", name, at)
			}
		}
	}
	// No drift: request three million at 3 a second is due at a million seconds.
	c := &constant{rate: 3, i: 3e6}
	if at, _ := c.Next(); at != 1_000_000*time.Second {
		t.Errorf("due at %v", at)
	}
}

// Constant is constant and Poisson is Poisson: one generator in use calls
// exponential gaps constant, another stretches its gaps to a fixed length.
func TestPacersAreWhatTheyAreCalled(t *testing.T) {
	cv := func(at []time.Duration) (mean, cv float64) {
		var gaps []float64
		for i := 1; i < len(at); i++ {
			gaps = append(gaps, float64(at[i]-at[i-1])/1e9)
			mean += gaps[i-1]
		}
		mean /= float64(len(gaps))
		var v float64
		for _, g := range gaps {
			v += (g - mean) * (g - mean)
		}
		return mean, math.Sqrt(v/float64(len(gaps))) / mean
	}
	if mean, c := cv(take(Constant(50), 10_000)); math.Abs(mean-0.02) > 1e-9 || c > 1e-6 {
		t.Errorf("constant: mean gap %v, CV %v", mean, c)
	}
	// The standard error of the mean gap is 1 %, of the CV about 1 %.
	if mean, c := cv(take(Poisson(50, 1), 10_000)); math.Abs(mean/0.02-1) > 0.04 || math.Abs(c-1) > 0.04 {
		t.Errorf("poisson: mean gap %v, CV %v", mean, c)
	}
	if !slices.Equal(take(Poisson(50, 7), 100), take(Poisson(50, 7), 100)) || slices.Equal(take(Poisson(50, 7), 100), take(Poisson(50, 8), 100)) {
		t.Error("the seed does not decide")
	}
	// The time of the last of n arrivals varies from seed to seed by √n gaps.
	var last []float64
	for seed := range uint64(200) {
		at := take(Poisson(100, seed), 100)
		last = append(last, at[99].Seconds())
	}
	var v float64
	for _, l := range last {
		v += (l - 1) * (l - 1)
	}
	if sd := math.Sqrt(v / 200); sd < 0.08 || sd > 0.12 {
		t.Errorf("the hundredth arrival varies by %.3f s, want 0.1", sd)
	}
}

func plain(int) (*Request, error) { return &Request{Stream: true}, nil }

// A server that answers nothing for an hour gets its arrivals on time.
func TestArrivalsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
			res.Sent = now()
			time.Sleep(time.Hour)
			res.FirstToken, res.LastToken = now(), now()
		}
		var got []*Result
		stats, err := Run(t.Context(), slow, Limit(Constant(100), 500, 0), plain, Options{Timeout: 24 * time.Hour}, func(r *Result) { got = append(got, r) })
		if err != nil || stats.Sent != 500 || stats.PeakOpen != 500 || stats.Stopped {
			t.Fatalf("%+v, %v", stats, err)
		}
		for i, r := range got {
			if r.ID != i || r.Scheduled != time.Duration(i)*10*ms || r.Sent != r.Scheduled || r.End != r.Scheduled+time.Hour {
				t.Fatalf("request %d: %+v", i, r)
			}
		}
		// 500 open for nearly an hour.
		if math.Abs(stats.MeanOpen-499.3) > 1 {
			t.Errorf("mean open %v", stats.MeanOpen)
		}
		s := Summarise(got, stats, SLO{})
		for _, c := range s.Checks {
			if !c.OK && c.Name != "counted" {
				t.Errorf("%s: %s", c.Name, c.Note)
			}
		}
	})
}

// Time lost before sending is in the latency: what the client queues is not
// hidden from the headline figure.
func TestLatencyCountsFromTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := func(_ context.Context, r *Request, now func() time.Duration, res *Result) {
			time.Sleep(3 * time.Second) // a client that gets round to it late
			res.Sent = now()
			time.Sleep(500 * ms)
			res.FirstToken, res.LastToken = now(), now()
		}
		var got *Result
		if _, err := Run(t.Context(), late, Limit(Constant(1), 1, 0), plain, Options{}, func(r *Result) { got = r }); err != nil {
			t.Fatal(err)
		}
		ttft, _ := got.TTFT()
		sent, _ := got.TTFTSent()
		lag, _ := got.Lag()
		if ttft != 3500*ms || sent != 500*ms || lag != 3*time.Second {
			t.Errorf("TTFT %v, since sent %v, lag %v", ttft, sent, lag)
		}
		s := Summarise([]*Result{got}, Stats{}, SLO{TTFT: time.Second})
		if s.Good != 0 {
			t.Error("a request that waited three seconds is good at one")
		}
		if i := slices.IndexFunc(s.Checks, func(c Check) bool { return c.Name == "lag" }); s.Checks[i].OK {
			t.Error("a lag of three seconds passes")
		}
	})
}

func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hang := func(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
			res.Sent = now()
			<-ctx.Done()
			res.fail(KindStream, ctx.Err())
		}
		time.AfterFunc(1050*ms, cancel)
		var got []*Result
		stats, err := Run(ctx, hang, Constant(10), plain, Options{}, func(r *Result) { got = append(got, r) })
		if err != nil || !stats.Stopped || len(got) != 11 || stats.Sent != 11 {
			t.Fatalf("%d results, %+v, %v", len(got), stats, err)
		}
		for _, r := range got {
			if r.Kind != KindCancelled || r.End != 1050*ms {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestRunLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
			<-ctx.Done()
			res.fail(KindConnect, ctx.Err())
		}
		var kinds []Kind
		stats, err := Run(t.Context(), hang, Limit(Constant(10), 5, 0), plain, Options{MaxOpen: 3, Timeout: time.Minute}, func(r *Result) { kinds = append(kinds, r.Kind) })
		if want := []Kind{KindLimit, KindLimit, KindTimeout, KindTimeout, KindTimeout}; err != nil || !slices.Equal(kinds, want) || stats.Sent != 5 {
			t.Errorf("%v, %+v, %v", kinds, stats, err)
		}
		broken := errors.New("no more prompts")
		n := 0
		_, err = Run(t.Context(), func(context.Context, *Request, func() time.Duration, *Result) { time.Sleep(time.Second) }, Constant(10),
			func(i int) (*Request, error) {
				if i == 3 {
					return nil, broken
				}
				return &Request{}, nil
			}, Options{}, func(*Result) { n++ })
		if !errors.Is(err, broken) || n != 3 {
			t.Errorf("%d results, %v", n, err)
		}
	})
}

// emit is never called twice at a time.
func TestEmitIsSerial(t *testing.T) {
	var in atomic.Int32
	n := 0
	quick := func(context.Context, *Request, func() time.Duration, *Result) {}
	if _, err := Run(t.Context(), quick, Trace(make([]time.Duration, 2000)), plain, Options{}, func(*Result) {
		if in.Add(1) != 1 {
			t.Error("two at a time")
		}
		n++
		in.Add(-1)
	}); err != nil || n != 2000 {
		t.Error(n, err)
	}
}

// serve answers requests with what the script writes.
func serve(t *testing.T, script http.HandlerFunc) *httptest.Server {
	srv := httptest.NewServer(script)
	t.Cleanup(srv.Close)
	return srv
}

func one(t *testing.T, script http.HandlerFunc, r *Request) *Result {
	t.Helper()
	return ask(t, client(t).Target(serve(t, script).URL, nil), r)
}

// ask sends r alone.
func ask(t *testing.T, target Target, r *Request) (got *Result) {
	t.Helper()
	if _, err := Run(t.Context(), target, Trace([]time.Duration{0}), func(int) (*Request, error) { return r, nil }, Options{}, func(r *Result) { got = r }); err != nil {
		t.Fatal(err)
	}
	return got
}

func client(t *testing.T) *Client {
	c := NewClient()
	t.Cleanup(c.Close)
	return c
}

func chat(t *testing.T) *Request {
	r, err := Chat(openai.ChatRequest{Sampling: openai.Sampling{Model: "m"}, Messages: []openai.Message{{Role: "user", Content: openai.Text("hi")}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func delta(d openai.Delta) openai.ChatChunk {
	return openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: d}}}
}

// Each case is a mistake that a released load generator makes or made.
func TestTraps(t *testing.T) {
	usage := func(n int) openai.ChatChunk {
		return openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: &openai.Usage{PromptTokens: 9, CompletionTokens: n}}
	}
	for _, tt := range []struct {
		name   string
		script func(s *openai.Writer, gate func())
		check  func(r *Result, gates []time.Duration) bool
	}{
		{"the role does not stop the clock", func(s *openai.Writer, gate func()) {
			s.Send(delta(openai.Delta{Role: "assistant"}))
			s.Comment("ping")
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Send(usage(1))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.FirstToken >= g[0] && r.Events == 1 }},
		{"an empty text does not", func(s *openai.Writer, gate func()) {
			s.Send(delta(openai.Delta{Role: "assistant", Content: ""}))
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.FirstToken >= g[0] }},
		{"reasoning does, and is told apart", func(s *openai.Writer, gate func()) {
			s.Send(delta(openai.Delta{Reasoning: "hm"}))
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.FirstToken < g[0] && r.FirstAnswer >= g[0] }},
		{"reasoning has two names", func(s *openai.Writer, gate func()) {
			s.Send(delta(openai.Delta{ReasoningContent: "hm"}))
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.FirstToken < g[0] && r.FirstAnswer >= g[0] }},
		{"reasoning that is cut off has a TTFT and no TTFO", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{Reasoning: "hm"}))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			_, first := r.TTFT()
			_, answer := r.TTFO()
			return first && !answer
		}},
		{"null is no text", func(s *openai.Writer, gate func()) {
			s.Send(json.RawMessage(`{"choices":[{"delta":{"role":"assistant","content":null}}]}`))
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.FirstToken >= g[0] && r.Events == 1 }},
		{"a completion is timed as a chat is", func(s *openai.Writer, gate func()) {
			s.Send(json.RawMessage(`{"choices":[{"index":0,"text":""}]}`))
			gate()
			s.Send(json.RawMessage(`{"choices":[{"index":0,"text":"a"}]}`))
			s.Send(usage(1))
			s.Done()
		}, func(r *Result, g []time.Duration) bool {
			return r.FirstToken >= g[0] && r.LastToken == r.FirstToken && r.FirstAnswer == r.FirstToken
		}},
		{"usage in the middle is not the end's", func(s *openai.Writer, gate func()) {
			gate()
			c := delta(openai.Delta{Content: "a"})
			c.Usage = &openai.Usage{PromptTokens: 9, CompletionTokens: 1}
			s.Send(c)
			s.Send(delta(openai.Delta{Content: "b"}))
			s.Send(delta(openai.Delta{Content: "c"}))
			s.Send(usage(3))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			// The events between say nothing of their own: no ITL is made up.
			return r.Output == 3 && r.FirstTokens == 1 && !r.counted()
		}},
		{"usage does not extend the end", func(s *openai.Writer, gate func()) {
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Send(delta(openai.Delta{Content: "b"}))
			gate()
			s.Send(usage(2))
			s.Done()
		}, func(r *Result, g []time.Duration) bool { return r.LastToken < g[0] && r.Output == 2 && r.End >= g[0] }},
		{"no usage is unknown, not one and not the events", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Send(delta(openai.Delta{Content: "b"}))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			_, _, ok := r.TPOT()
			return r.Count == CountUnknown && r.Output == 0 && !ok && r.Events == 2 && r.OK()
		}},
		{"one token has no TPOT", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Send(usage(1))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool { _, _, ok := r.TPOT(); return !ok && r.Output == 1 }},
		{"tokens bundled in the first event are not divided by", func(s *openai.Writer, gate func()) {
			c := delta(openai.Delta{Content: "abc"})
			c.Usage = &openai.Usage{CompletionTokens: 3}
			s.Send(c)
			gate()
			c = delta(openai.Delta{Content: "d"})
			c.Usage = &openai.Usage{CompletionTokens: 5}
			s.Send(c)
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			d, exact, ok := r.TPOT()
			return ok && exact && r.FirstTokens == 3 && d == (r.LastToken-r.FirstToken)/2
		}},
		{"events are not tokens", func(s *openai.Writer, gate func()) {
			gate()
			for range 3 {
				s.Send(delta(openai.Delta{Content: "two tokens"}))
			}
			s.Send(usage(6))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			d, exact, ok := r.TPOT()
			return ok && !exact && d == (r.LastToken-r.FirstToken)/5 && r.Events == 3
		}},
		{"an error inside of status 200 is one", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
			s.Error(&openai.Error{Message: "out of memory"})
			s.Done()
		}, func(r *Result, _ []time.Duration) bool {
			return r.Kind == KindStream && strings.Contains(r.Error, "out of memory")
		}},
		{"a stream without an end is one", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{Content: "a"}))
		}, func(r *Result, _ []time.Duration) bool { return r.Kind == KindStream && r.FirstToken > 0 }},
		{"a tool call is output", func(s *openai.Writer, gate func()) {
			gate()
			s.Send(delta(openai.Delta{ToolCalls: []byte(`[{"index":0}]`)}))
			s.Done()
		}, func(r *Result, _ []time.Duration) bool { return r.FirstToken > 0 && r.FirstAnswer > 0 }},
		{"nothing at all has no TTFT, not 0", func(s *openai.Writer, gate func()) {
			gate()
			s.Done()
		}, func(r *Result, _ []time.Duration) bool { _, ok := r.TTFT(); return !ok && r.OK() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Whole events, and bytes one by one: what a byte means does not depend on
			// what it came with. A gate lies a millisecond behind what was sent before it
			// and before what is sent after.
			for _, most := range []int{1 << 20, 1} {
				got := &Result{Stream: true, Sent: 1, Count: CountUnknown}
				w := fed{a: &answer{r: chat(t), res: got}, at: ms, most: most}
				w.a.begin(&http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}}, w.at)
				var gates []time.Duration
				tt.script(openai.NewWriter(&w), func() {
					w.at += ms
					gates = append(gates, w.at)
					w.at += ms
				})
				w.a.end(nil, w.at)
				w.a.close()
				got.End = w.at
				if !tt.check(got, gates) {
					t.Errorf("at most %d bytes at a time: %+v, gates %v", most, got, gates)
				}
				for _, c := range Summarise([]*Result{got}, Stats{}, SLO{}).Checks {
					if !c.OK && c.Name != "counted" && c.Name != "lag" {
						t.Errorf("%s: %s", c.Name, c.Note)
					}
				}
			}
		})
	}
}

// fed is a connection without one: what is written is read at once, at most bytes at a
// time.
type fed struct {
	a    *answer
	at   time.Duration
	most int
}

func (f *fed) Header() http.Header { return http.Header{} }

func (f *fed) WriteHeader(int) {}

func (f *fed) Flush() {}

func (f *fed) Write(b []byte) (int, error) {
	for piece := range slices.Chunk(bytes.Clone(b), f.most) {
		if !f.a.done {
			f.a.feed(piece, f.at)
		}
		clear(piece)
	}
	return len(b), nil
}

func TestNotStreamedAndRefused(t *testing.T) {
	whole := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Llmops-Version", "v7")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"message":{"content":"ab"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`)
	}
	r := one(t, whole, &Request{Path: PathChat, Body: []byte(`{}`)})
	_, ttft := r.TTFT()
	_, _, tpot := r.TPOT()
	if e2e, ok := r.E2E(); ttft || tpot || !ok || e2e != r.End-r.Scheduled || r.Output != 2 || r.Input != 3 || r.Cached != 1 || r.Finish != "length" || r.Version != "v7" || !r.OK() {
		t.Errorf("%+v", r)
	}
	s := Summarise([]*Result{r}, Stats{}, SLO{TTFT: time.Hour})
	if s.TTFT.N != 0 || s.Good != 0 || s.OutputTokens != 2 {
		t.Errorf("an answer in one piece has a TTFT: %+v", s)
	}
	if r := one(t, whole, chat(t)); r.Kind != KindStream {
		t.Errorf("no stream though one was asked for: %+v", r)
	}
	if r := one(t, func(w http.ResponseWriter, _ *http.Request) {
		openai.WriteError(w, 429, &openai.Error{Message: "busy"})
	}, chat(t)); r.Kind != KindStatus || r.Status != 429 || !strings.Contains(r.Error, "busy") {
		t.Errorf("%+v", r)
	}
	if r := one(t, func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, chat(t)); r.Kind != KindConnect {
		t.Errorf("%+v", r)
	}
	if r := one(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, &Request{Path: PathChat}); r.Kind != KindStream {
		t.Errorf("%+v", r)
	}
}

func TestSummary(t *testing.T) {
	res := func(id int, ttft, last time.Duration, n int) *Result {
		s := time.Duration(id) * time.Second
		return &Result{ID: id, Stream: true, Scheduled: s, Sent: s, FirstByte: s + ms, FirstToken: s + ttft, FirstAnswer: s + ttft, LastToken: s + last, End: s + last,
			Gaps: []time.Duration{last - ttft}, Events: 2, Output: n, Count: CountUsage}
	}
	ok1, ok2 := res(0, 100*ms, 1100*ms, 11), res(1, 300*ms, 1300*ms, 6) // TPOT 100 and 200 ms
	bad := res(2, 1*ms, 2*ms, 2)
	bad.fail(KindStream, errors.New("x"))
	s := Summarise([]*Result{ok1, ok2, bad}, Stats{}, SLO{TTFT: 200 * ms, TPOT: 150 * ms})
	// Failed requests are in no latency, and in the denominator of what is good.
	if s.Attempted != 3 || s.Done != 2 || s.Failed[KindStream] != 1 || s.Good != 1 || s.GoodShare != 1.0/3 {
		t.Errorf("%+v", s)
	}
	if s.TTFT.N != 2 || s.TTFT.P50 != float64(200*ms) || s.TPOT.P50 != float64(150*ms) || s.TPOTAssumed != 2 || s.OutputTokens != 17 || s.ICL.N != 2 {
		t.Errorf("%+v", s)
	}
	// 2.3 s from the first arrival to the last end.
	if s.Window != 2300*ms || math.Abs(s.OutputRate-17/2.3) > 1e-9 || math.Abs(s.Goodput-1/2.3) > 1e-9 {
		t.Errorf("window %v, rate %v", s.Window, s.OutputRate)
	}
	for _, c := range s.Checks {
		if !c.OK {
			t.Errorf("%s: %s", c.Name, c.Note)
		}
	}
	// The identity of the published figure that was 2.08 times too good.
	broken := *ok1
	broken.Gaps = []time.Duration{500 * ms}
	disorder := *ok2
	disorder.FirstToken = disorder.Scheduled - ms
	short := *ok1
	short.Want = 200
	for name, rs := range map[string][]*Result{"gaps": {&broken}, "order": {&disorder}, "length": {&short}, "little": {ok1}} {
		st := Stats{}
		if name == "little" {
			st = Stats{Wall: 2 * time.Second, MeanOpen: 3}
		}
		s := Summarise(rs, st, SLO{})
		if i := slices.IndexFunc(s.Checks, func(c Check) bool { return c.Name == name }); i < 0 || s.Checks[i].OK {
			t.Errorf("%s was not noticed", name)
		}
	}
	if s := Summarise(nil, Stats{}, SLO{}); s.TTFT.N != 0 || s.GoodShare != 0 || math.IsNaN(s.Goodput) {
		t.Errorf("of nothing: %+v", s)
	}
}

func TestGood(t *testing.T) {
	one := &Result{Stream: true, FirstToken: ms, LastToken: ms, End: ms, Output: 1, Count: CountUsage}
	unknown := &Result{Stream: true, FirstToken: ms, LastToken: 2 * ms, End: 2 * ms, Count: CountUnknown}
	if slo := (SLO{TPOT: time.Second}); !slo.Good(one) || slo.Good(unknown) {
		t.Error("a known single token breaks a TPOT bound, or an unknown count keeps it")
	}
	if slo := (SLO{E2E: ms}); !slo.Good(one) || slo.Good(unknown) {
		t.Error("the bound on the end does not hold")
	}
	if !(SLO{}).Good(unknown) {
		t.Error("nothing is asked and not kept")
	}
}

// Values of numpy.percentile.
func TestQuantile(t *testing.T) {
	in := []time.Duration{1, 2, 4, 8, 16}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 4, 0.9: 12.8, 0.99: 15.68, 1: 16} {
		if got := Quantile(in, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("a quantile of nothing")
	}
	d := NewDist([]time.Duration{4, 2, 6})
	if d.Mean != 4 || math.Abs(d.Std-1.632993) > 1e-6 || d.Min != 2 || d.Max != 6 {
		t.Errorf("%+v", d)
	}
}

func TestCodec(t *testing.T) {
	want := []*Result{
		{ID: 0, Stream: true, Scheduled: 0, Sent: 5, FirstToken: 7, LastToken: 9, End: 10, Gaps: []time.Duration{2}, Events: 2, Count: CountUsage, Output: 2, Finish: "stop"},
		{ID: 1, Scheduled: 5, End: 6, Kind: KindConnect, Error: "x", Count: CountUnknown},
	}
	var b bytes.Buffer
	for _, r := range want {
		if err := Write(&b, r); err != nil {
			t.Fatal(err)
		}
	}
	read := func(s string) (got []*Result, err error) {
		err = Read(strings.NewReader(s), func(r *Result) error { got = append(got, r); return nil })
		return got, err
	}
	if got, err := read(b.String()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := read(b.String()[:b.Len()-5]); err == nil || len(got) != 1 || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a cut line: %d results, %v", len(got), err)
	}
	for _, bad := range []string{`{"id":1}`, `{"id":1,"count":"chunks"}`, `{"id":1,"count":"usage","ttft":3}`,
		`{"id":1,"count":"usage","steps":[99999999999]}`, `{"id":1,"count":"usage","output":-1}`, `{"id":1,"count":"usage","end_ns":-5}`} {
		if _, err := read(bad); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestTraffic(t *testing.T) {
	file := `{"at":0,"messages":[{"role":"user","content":"a"}],"max_tokens":4}

{"at":1,"messages":[{"role":"user","content":"b"}],"conversation":"x"}
{"at":2,"messages":[{"role":"user","content":"c"}],"conversation":"x"}
`
	tr, err := ReadTraffic(strings.NewReader(file))
	if err != nil || len(tr.at) != 3 || tr.Rate() != 1 {
		t.Fatal(tr, err)
	}
	p, src, err := tr.Replay("m", "run", 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := take(p, 5), []time.Duration{0, 500 * ms, 1000 * ms, 1500 * ms, 2000 * ms}; !slices.Equal(got, want) {
		t.Errorf("due at %v", got)
	}
	ids := map[string]int{}
	for i := range 6 {
		r, err := src(i)
		if err != nil {
			t.Fatal(err)
		}
		ids[r.Conversation]++
		var c openai.ChatRequest
		if err := openai.Decode(bytes.NewReader(r.Body), &c); err != nil || c.Model != "m" || !c.Stream || !c.StreamOptions.IncludeUsage || c.Messages[0].Content.Text != "abc"[i%3:i%3+1] {
			t.Errorf("%s, %v", r.Body, err)
		}
	}
	// Each pass: one talk of its own, one of two turns.
	if len(ids) != 4 || ids["run-0"] != 1 || ids["run-3"] != 1 || ids["run-0-x"] != 2 || ids["run-1-x"] != 2 {
		t.Errorf("conversations %v", ids)
	}
	for _, speed := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, _, err := tr.Replay("m", "r", speed); err == nil {
			t.Errorf("speed %v was accepted", speed)
		}
	}
	for in, want := range map[string]string{
		"": "no requests",
		`{"messages":[{"role":"user","content":"a"}]}`:         "line 1: at is missing",
		`{"at":-1,"messages":[{"role":"user","content":"a"}]}`: "line 1: at is -1",
		`{"at":0}`:              "line 1: messages are missing",
		`{"at":0,"mesages":[]}`: "line 1",
		"\n" + `{"at":0,`:       "line 2",
		`{"at":0,"messages":[{"role":"user","content":"a"}],"max_tokens":0}`:                                                 "max_tokens is 0",
		`{"at":2,"messages":[{"role":"user","content":"a"}]}` + "\n" + `{"at":1,"messages":[{"role":"user","content":"a"}]}`: "line 2: at goes back",
	} {
		if _, err := ReadTraffic(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", in, err)
		}
	}
}

func FuzzReadTraffic(f *testing.F) {
	f.Add(`{"at":0.5,"messages":[{"role":"user","content":"a"}],"max_tokens":4}`)
	f.Fuzz(func(t *testing.T, in string) {
		tr, err := ReadTraffic(strings.NewReader(in))
		if err != nil {
			return
		}
		p, src, err := tr.Replay("m", "r", 1)
		if err != nil {
			return
		}
		last := time.Duration(0)
		for i := range 2 * len(tr.at) {
			at, ok := p.Next()
			if !ok || at < last {
				t.Fatalf("request %d is due at %v after %v, %v", i, at, last, ok)
			}
			last = at
			if _, err := src(i); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add(`{"id":1,"stream":true,"scheduled_ns":0,"end_ns":5,"count":"usage","output":3,"first_token_ns":1,"last_token_ns":4}`)
	f.Fuzz(func(t *testing.T, in string) {
		var all []*Result
		_ = Read(strings.NewReader(in), func(r *Result) error { all = append(all, r); return nil })
		Summarise(all, Stats{Wall: 1}, SLO{TTFT: 1, TPOT: 1, E2E: 1})
	})
}

// What an event costs once it has been read.
func BenchmarkEvent(b *testing.B) {
	piece := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	a := answer{r: &Request{Stream: true}, res: &Result{Gaps: make([]time.Duration, 0, 1)}, sse: true}
	b.ReportAllocs()
	for b.Loop() {
		a.feed(piece, 1)
		a.res.Gaps = a.res.Gaps[:0]
	}
}

// Gaps of a gamma distribution vary by 1/√burstiness of their mean, and are not
// stretched to fit a length.
func TestGamma(t *testing.T) {
	for _, burst := range []float64{0.25, 1, 4} {
		at := take(Gamma(50, burst, 3), 40_000)
		var mean, v float64
		for i := 1; i < len(at); i++ {
			mean += (at[i] - at[i-1]).Seconds() / float64(len(at)-1)
		}
		for i := 1; i < len(at); i++ {
			d := (at[i] - at[i-1]).Seconds() - mean
			v += d * d / float64(len(at)-1)
		}
		if cv := math.Sqrt(v) / mean; math.Abs(mean/0.02-1) > 0.04 || math.Abs(cv*math.Sqrt(burst)-1) > 0.05 {
			t.Errorf("burstiness %v: mean gap %v, CV %v", burst, mean, cv)
		}
	}
	if _, ok := Gamma(0, 1, 1).Next(); ok {
		t.Error("a rate of nothing")
	}
}

func TestRamp(t *testing.T) {
	// From 0 to 10 a second in 10 s: the 50th is due at the end of the ramp, and
	// from there on every 100 ms.
	at := take(Ramp(Constant(1), 0, 10, 10*time.Second), 71)
	for i, want := range map[int]time.Duration{0: 0, 2: 2 * time.Second, 8: 4 * time.Second, 50: 10 * time.Second, 60: 11 * time.Second, 70: 12 * time.Second} {
		if d := at[i] - want; d < -time.Microsecond || d > time.Microsecond {
			t.Errorf("request %d is due at %v, want %v", i, at[i], want)
		}
	}
	down := take(Ramp(Constant(1), 10, 1, 10*time.Second), 60)
	if down[1] > 101*ms || down[59]-down[58] != time.Second || !slices.IsSorted(down) {
		t.Errorf("%v", down)
	}
	if same := take(Ramp(Constant(1), 4, 4, time.Second), 9); same[8] != 2*time.Second {
		t.Errorf("%v", same)
	}
}

// A closed loop hands each client's slot on without a gap, and its clients do not
// all begin at once.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steady := func(_ context.Context, _ *Request, now func() time.Duration, res *Result) {
			res.Sent = now()
			time.Sleep(time.Second)
			res.FirstToken, res.LastToken = now(), now()
		}
		var got []*Result
		stats, err := Closed(t.Context(), steady, 4, 2*time.Second, 10*time.Second, 0, plain, Options{}, func(r *Result) { got = append(got, r) })
		if err != nil || stats.PeakOpen != 4 || stats.Stopped || stats.Sent != len(got) {
			t.Fatalf("%+v, %v", stats, err)
		}
		due := map[time.Duration]int{}
		for _, r := range got {
			due[r.Scheduled]++
			if r.Sent != r.Scheduled {
				t.Errorf("request %d left %v late", r.ID, r.Sent-r.Scheduled)
			}
		}
		// Clients start at 0, 0.5, 1 and 1.5 s and send each second until 10 s.
		if due[0] != 1 || due[500*ms] != 1 || due[time.Second] != 2 || due[1500*ms] != 2 || due[9500*ms] != 2 || len(got) != 10+10+9+9 {
			t.Errorf("%d requests, due %v", len(got), due)
		}
		got = nil
		if _, err = Closed(t.Context(), steady, 4, 0, time.Hour, 6, plain, Options{}, func(r *Result) { got = append(got, r) }); err != nil || len(got) != 6 {
			t.Errorf("%d of 6, %v", len(got), err)
		}
		broken := errors.New("no more prompts")
		if _, err = Closed(t.Context(), steady, 4, 0, time.Hour, 0, func(int) (*Request, error) { return nil, broken }, Options{}, nil); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	})
}

// Turns of a session follow their answers, and a failed one ends it.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		target := func(_ context.Context, _ *Request, now func() time.Duration, res *Result) {
			res.Sent = now()
			time.Sleep(time.Second)
			if n++; n == 5 {
				res.fail(KindStream, errors.New("x"))
				return
			}
			res.FirstToken, res.LastToken = now(), now()
		}
		source := func(int) (*Request, error) {
			left := 2
			q := &Request{Stream: true, Conversation: "c"}
			q.Next = func() (*Request, time.Duration) {
				if left--; left < 0 {
					return nil, 0
				}
				return q, 5 * time.Second
			}
			return q, nil
		}
		var got []*Result
		stats, err := Run(t.Context(), target, Trace([]time.Duration{0, 10 * time.Minute, 20 * time.Minute}), source, Options{}, func(r *Result) { got = append(got, r) })
		if err != nil || len(got) != 3+2+3 || stats.PeakOpen != 1 {
			t.Fatalf("%d results, %+v, %v", len(got), stats, err)
		}
		if got[1].Turn != 1 || got[1].Scheduled != 6*time.Second || got[2].Scheduled != 12*time.Second || got[3].Scheduled != 10*time.Minute {
			t.Errorf("%+v", got[1])
		}
	})
}

// The window leaves the burst of the beginning and the drain of the end out of
// rates and latencies, and no request that was due in it, however slow.
func TestWindow(t *testing.T) {
	res := func(at, ttft time.Duration, n int) *Result {
		r := &Result{Stream: true, Scheduled: at, Sent: at, FirstToken: at + ttft, FirstTokens: 1, LastToken: at + ttft, Events: n, Output: n, Count: CountUsage}
		for range n - 1 {
			r.Gaps, r.Steps = append(r.Gaps, 100*ms), append(r.Steps, 1)
			r.LastToken += 100 * ms
		}
		r.End = r.LastToken
		return r
	}
	var all []*Result
	for range 10 { // all at once, and slow for it
		all = append(all, res(0, 900*ms, 21))
	}
	for i := range 8 {
		all = append(all, res(time.Second+time.Duration(i)*time.Second, 100*ms, 5))
	}
	slow := res(8900*ms, 5*time.Second, 5)
	all = append(all, slow)
	s := SummariseIn(Window{time.Second, 9 * time.Second}, all, Stats{}, SLO{TTFT: time.Second})
	if s.Attempted != 9 || s.TTFT.P50 != float64(100*ms) || s.TTFT.Max != float64(5*time.Second) || s.Good != 8 || s.Goodput != 1 {
		t.Errorf("%+v", s)
	}
	// 8 × 5 tokens of those due in it, and of the ten of the burst what came from
	// second 1 to second 2.9: 20 tokens each but that at 0.9 s.
	if want := (8*5 + 10*20) / 8.0; math.Abs(s.OutputRate-want) > 1e-9 {
		t.Errorf("%v tokens a second, want %v", s.OutputRate, want)
	}
	if s.ITL.N != 9*4 || s.ITL.P50 != float64(100*ms) || s.PeakRate < s.OutputRate {
		t.Errorf("ITL %+v, peak %v", s.ITL, s.PeakRate)
	}
	if whole := Summarise(all, Stats{}, SLO{}); whole.Attempted != 19 || whole.TTFT.P50 == s.TTFT.P50 {
		t.Errorf("%+v", whole)
	}
}

// A peak below the mean is what one gets who counts events for tokens.
func TestPeakCountsTokens(t *testing.T) {
	r := &Result{Stream: true, FirstToken: 500 * ms, LastToken: 1500 * ms, End: 1500 * ms, Gaps: []time.Duration{time.Second}, Events: 2, Output: 100, Count: CountUsage}
	if s := Summarise([]*Result{r}, Stats{}, SLO{}); s.PeakRate != 50 || s.OutputRate > 67 || s.OutputRate < 66 {
		t.Errorf("peak %v, mean %v", s.PeakRate, s.OutputRate)
	}
}

// Several tokens an event: the time between tokens is not that between events.
func TestITLIsNotICL(t *testing.T) {
	r := &Result{Stream: true, FirstToken: 100 * ms, FirstTokens: 2, LastToken: 500 * ms, End: 500 * ms, Gaps: []time.Duration{100 * ms, 300 * ms}, Steps: []int{1, 3}, Events: 3, Output: 6, Count: CountUsage}
	s := Summarise([]*Result{r}, Stats{}, SLO{})
	if s.ICL.N != 2 || s.ICL.Mean != float64(200*ms) || s.ITL.N != 4 || s.ITL.Mean != float64(100*ms) || s.TPOT.Mean != float64(100*ms) {
		t.Errorf("ICL %+v, ITL %+v, TPOT %+v", s.ICL, s.ITL, s.TPOT)
	}
	r.Steps = []int{1}
	if s := Summarise([]*Result{r}, Stats{}, SLO{}); s.ITL.N != 0 {
		t.Errorf("an ITL out of events that were not all counted: %+v", s.ITL)
	}
	r.Steps = []int{1, 4}
	s = Summarise([]*Result{r}, Stats{}, SLO{})
	if i := slices.IndexFunc(s.Checks, func(c Check) bool { return c.Name == "steps" }); s.Checks[i].OK {
		t.Error("steps that do not add up to the usage pass")
	}
}

// The published sizes at which a quantile is supported by samples of which none
// is above: 459 for p99 and 4603 for p99.9 at 99 %.
func TestSupported(t *testing.T) {
	for _, c := range []struct {
		n    int
		q    float64
		over int
		ok   bool
	}{{458, 0.99, 0, false}, {459, 0.99, 0, true}, {4602, 0.999, 0, false}, {4603, 0.999, 0, true}, {0, 0.5, 0, false}, {662, 0.99, 1, true}, {661, 0.99, 0, true}} {
		if over, ok := Supported(c.n, c.q); over != c.over || ok != c.ok {
			t.Errorf("%d at %v: %d, %v", c.n, c.q, over, ok)
		}
	}
	samples := make([]time.Duration, 500)
	for i := range samples {
		samples[i] = time.Duration(i)
	}
	if d := NewDist(samples); d.Upper99 != 499 || d.Upper999 != 0 || d.Upper95 <= d.P95 || d.Upper95 >= 499 {
		t.Errorf("%+v", d)
	}
}

func TestGrowing(t *testing.T) {
	run := func(wait func(i int) time.Duration) (out []*Result) {
		for i := range 400 {
			at := time.Duration(i) * 50 * ms
			d := wait(i)
			out = append(out, &Result{Scheduled: at, Sent: at, FirstToken: at + d, LastToken: at + d, End: at + d})
		}
		return out
	}
	w := Window{0, 20 * time.Second}
	if Growing(run(func(i int) time.Duration { return 500*ms + time.Duration(i%7)*20*ms }), w) {
		t.Error("a steady run grows")
	}
	if !Growing(run(func(i int) time.Duration { return 500*ms + time.Duration(i)*20*ms }), w) {
		t.Error("a queue that grows was not noticed")
	}
	if Growing(nil, w) || Growing(nil, Window{}) {
		t.Error("nothing grows")
	}
}

// A body that ends as HTTP says, behind a finish reason, is complete; servers that
// send no [DONE] exist. One that is cut is not.
func TestNoDone(t *testing.T) {
	stop := openai.FinishStop
	last := openai.ChatChunk{Choices: []openai.ChunkChoice{{FinishReason: &stop}}, Usage: &openai.Usage{CompletionTokens: 1}}
	if r := one(t, func(w http.ResponseWriter, _ *http.Request) {
		s := openai.NewWriter(w)
		s.Send(delta(openai.Delta{Content: "a"}))
		s.Send(last)
	}, chat(t)); !r.OK() || !r.Unended || r.Output != 1 {
		t.Errorf("%+v", r)
	}
	if r := one(t, func(w http.ResponseWriter, _ *http.Request) {
		s := openai.NewWriter(w)
		s.Send(delta(openai.Delta{Content: "a"}))
		s.Send(last)
		panic(http.ErrAbortHandler)
	}, chat(t)); r.OK() {
		t.Errorf("%+v", r)
	}
}

// One read may bring many events, and one event may be larger than every buffer.
func TestLargeAndManyEvents(t *testing.T) {
	r := one(t, func(w http.ResponseWriter, _ *http.Request) {
		s := openai.NewWriter(w)
		s.Send(delta(openai.Delta{Content: strings.Repeat("a", 3<<20)}))
		var b bytes.Buffer
		for range 5000 {
			b.WriteString("data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\r\n\r\n: ping\r\n\r\n")
		}
		w.Write(b.Bytes())
		s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: &openai.Usage{CompletionTokens: 9000}})
		s.Done()
	}, chat(t))
	if !r.OK() || r.Events != 5001 || r.Output != 9000 {
		t.Errorf("%d events, %d tokens, %s %s", r.Events, r.Output, r.Kind, r.Error)
	}
}

// Usage on each event says how many tokens each had.
func TestUsageOnEachEvent(t *testing.T) {
	r := one(t, func(w http.ResponseWriter, _ *http.Request) {
		s := openai.NewWriter(w)
		for i, n := range []int{2, 3, 7} {
			c := delta(openai.Delta{Content: "x"})
			if i == 0 {
				s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Role: "assistant"}}}, Usage: &openai.Usage{PromptTokens: 5}})
			}
			c.Usage = &openai.Usage{PromptTokens: 5, CompletionTokens: n}
			s.Send(c)
		}
		s.Done()
	}, chat(t))
	if !r.OK() || r.FirstTokens != 2 || !slices.Equal(r.Steps, []int{1, 4}) || r.Output != 7 || r.Input != 5 {
		t.Errorf("%+v", r)
	}
}
