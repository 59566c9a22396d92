package embedded

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// fixed is an executor that takes a millisecond.
type fixed struct{ err error }

func (f fixed) Step(context.Context, *core.Batch, []core.Token) (time.Duration, error) {
	return time.Millisecond, f.err
}

func TestSlowFaults(t *testing.T) {
	row := func(prompt, start, n int) core.Row {
		return core.Row{Seq: &core.Sequence{Prompt: make([]int, prompt)}, Start: start, Tokens: make([]int, n)}
	}
	for _, tt := range []struct {
		fault string
		rows  []core.Row
		want  time.Duration
	}{
		{"slow-prompt:over=20,per-token=10ms", []core.Row{row(20, 0, 20)}, time.Millisecond},
		{"slow-prompt:over=20,per-token=10ms", []core.Row{row(21, 0, 21)}, 211 * time.Millisecond},
		{"slow-prompt:over=20,per-token=10ms", []core.Row{row(21, 16, 5), row(5, 0, 5)}, 51 * time.Millisecond},
		{"slow-prompt:over=20,per-token=10ms", []core.Row{row(21, 21, 1)}, time.Millisecond}, // decoding is as fast as ever
		{"slow-tokens:by=5ms", []core.Row{row(1, 0, 1), row(1, 0, 1)}, 6 * time.Millisecond},
		{"slow-load:over=1,by=5ms", []core.Row{row(1, 0, 1)}, time.Millisecond},
		{"slow-load:over=1,by=5ms", []core.Row{row(1, 0, 1), row(1, 0, 1), row(1, 0, 1)}, 11 * time.Millisecond},
		{"slow:factor=1.5", []core.Row{row(1, 0, 1)}, 1500 * time.Microsecond},
		{"slow:factor=1.5;slow-tokens:by=1ms", []core.Row{row(1, 0, 1)}, 2500 * time.Microsecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, err := ParseFault(tt.fault)
			if err != nil {
				t.Fatal(err)
			}
			exec := slow{fixed{}, f.list}
			start := time.Now()
			took, err := exec.Step(t.Context(), &core.Batch{Rows: tt.rows}, nil)
			if waited := time.Since(start); err != nil || took != tt.want || waited != tt.want-time.Millisecond {
				t.Errorf("%s: took %v, waited %v, %v; want %v", tt.fault, took, waited, err, tt.want)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if tt.want == time.Millisecond {
				return
			}
			if _, err := exec.Step(ctx, &core.Batch{Rows: tt.rows}, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: a step that is given up: %v", tt.fault, err)
			}
			if _, err := (slow{fixed{errNotFinite}, f.list}).Step(t.Context(), &core.Batch{Rows: tt.rows}, nil); !errors.Is(err, errNotFinite) {
				t.Errorf("%s: %v", tt.fault, err)
			}
		})
	}
}

var errNotFinite = errors.New("not finite")

func TestParseFault(t *testing.T) {
	for _, s := range []string{
		"", "slow-prompt:over=200,per-token=4ms", "slow:factor=1.15", "error", "error:share=2%,status=503", "stall:after=3,share=1%;seed=7",
		"version:say=v9;crash:after=100", "refuse:share=12.5%",
	} {
		f, err := ParseFault(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		again, err := ParseFault(f.String())
		if err != nil || again.String() != f.String() {
			t.Errorf("%q became %q and then %q, %v", s, f, again, err)
		}
	}
	for s, want := range map[string]string{
		"slow-prompt":                      "wants over",
		"slow-prompt:over=1":               "wants per-token",
		"slow-prompt:over=x,per-token=1ms": "whole number",
		"slow-prompt:over=1,per-token=0s":  "above 0",
		"slow:factor=0.5":                  "above 1",
		"slow:factor=NaN":                  "above 1",
		"error:share=0":                    "share",
		"error:share=101%":                 "share",
		"error:status=200":                 "status",
		"error:share=1%,share=2%":          "twice",
		"flood":                            "not one of",
		"error:over=3":                     "no key",
		"error;":                           "not one of",
		"seed=3":                           "without a fault",
		"error;seed=-1":                    "seed",
		"version:say=a b":                  "version's name",
	} {
		if _, err := ParseFault(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", s, err, want)
		}
	}
	for kind := range kinds {
		if !strings.Contains(FaultHelp(), "  "+kind) {
			t.Errorf("the help lacks %s", kind)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("slow-prompt:over=200,per-token=4ms;error:share=2%;seed=3")
	f.Fuzz(func(t *testing.T, s string) {
		parsed, err := ParseFault(s)
		if err != nil {
			return
		}
		again, err := ParseFault(parsed.String())
		if err != nil || again.String() != parsed.String() {
			t.Errorf("%q became %q and then %q, %v", s, parsed, again, err)
		}
	})
}

// Shares are drawn by the seed: the same requests are hit again, others by another.
func TestFaultShares(t *testing.T) {
	draw := func(s string) (hit []bool, n int) {
		f, err := ParseFault(s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(10000) {
			_, ok := f.hits(i)["error"]
			hit = append(hit, ok)
			if ok {
				n++
			}
		}
		return hit, n
	}
	a, n := draw("error:share=5%;seed=1")
	again, _ := draw("error:share=5%;seed=1")
	other, _ := draw("error:share=5%;seed=2")
	if n < 430 || n > 570 {
		t.Errorf("5%% of 10000 are %d", n)
	}
	same := 0
	for i := range a {
		if a[i] != again[i] {
			t.Fatal("the same seed hits others")
		}
		if a[i] && other[i] {
			same++
		}
	}
	if same > 60 {
		t.Errorf("another seed hits %d of the same", same)
	}
}

// Each fault of requests, as a client sees it.
func TestRequestFaults(t *testing.T) {
	faulty := func(fault string) (*Server, string) {
		return serve(t, Options{Version: "v1", Fault: mustFault(t, fault), Crash: func() {}})
	}
	const body = `{"prompt":"ship","max_tokens":12,"temperature":0,"ignore_eos":true}`
	_, plainURL := serve(t, Options{Version: "v1"})
	plain := ask[openai.CompletionResponse](t, plainURL+"/v1/completions", body)

	_, url := faulty("error:status=503")
	if status, _, b := post(t, url+"/v1/completions", body); status != 503 || !strings.Contains(string(b), "fault") {
		t.Errorf("error: %d %s", status, b)
	}
	_, url = faulty("refuse")
	if r := ask[openai.CompletionResponse](t, url+"/v1/completions", body).Choices[0]; r.Text != "" || *r.FinishReason != openai.FinishFilter {
		t.Errorf("refuse: %+v", r)
	}
	_, url = faulty("truncate:after=5")
	if r := ask[openai.CompletionResponse](t, url+"/v1/completions", body); r.Usage.CompletionTokens != 5 || *r.Choices[0].FinishReason != openai.FinishStop ||
		!strings.HasPrefix(plain.Choices[0].Text, r.Choices[0].Text) {
		t.Errorf("truncate: %+v", r)
	}
	_, url = faulty("script")
	r := ask[openai.CompletionResponse](t, url+"/v1/completions", body)
	if strings.ContainsFunc(r.Choices[0].Text, func(r rune) bool { return unicode.Is(unicode.Latin, r) }) || !strings.ContainsFunc(r.Choices[0].Text, unicode.IsLetter) &&
		strings.ContainsFunc(plain.Choices[0].Text, unicode.IsLetter) {
		t.Errorf("script: %q for %q", r.Choices[0].Text, plain.Choices[0].Text)
	}
	_, url = faulty("garbage;seed=4")
	r = ask[openai.CompletionResponse](t, url+"/v1/completions", body)
	_, url = faulty("garbage;seed=4")
	if again := ask[openai.CompletionResponse](t, url+"/v1/completions", body); r.Choices[0].Text == plain.Choices[0].Text || again.Choices[0].Text != r.Choices[0].Text {
		t.Errorf("garbage: %q, then %q, without it %q", r.Choices[0].Text, again.Choices[0].Text, plain.Choices[0].Text)
	}
	_, url = faulty("version:say=v7")
	if _, h, _ := post(t, url+"/v1/completions", body); h.Get(VersionHeader) != "v7" {
		t.Errorf("version: %v", h)
	}
	var crashed atomic.Int64
	f := mustFault(t, "crash:after=2")
	_, url = serve(t, Options{Fault: f, Crash: func() { crashed.Add(1) }})
	for range 3 {
		post(t, url+"/v1/completions", body)
	}
	if n := crashed.Load(); n != 1 {
		t.Errorf("crash: %d times in three requests", n)
	}
	if _, err := New(Options{ModelDir: modelDir, Fault: f}); err == nil || !strings.Contains(err.Error(), "Crash") {
		t.Errorf("a crash without a way to: %v", err)
	}
}

// A stalled answer sends what it has and then nothing, until the client leaves.
func TestStallFault(t *testing.T) {
	s, url := serve(t, Options{Fault: mustFault(t, "stall:after=2")})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions",
		strings.NewReader(`{"prompt":"ship","max_tokens":12,"temperature":0,"ignore_eos":true,"stream":true,"return_token_ids":true}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for n := 0; n < 2; {
		if !lines.Scan() {
			t.Fatalf("ended after %d tokens: %v", n, lines.Err())
		}
		if strings.Contains(lines.Text(), "token_ids") {
			n++
		}
	}
	// The engine goes on computing and has ended all there is; still nothing comes.
	for {
		done := make(chan core.Stats)
		if err := s.loop.post(func(time.Duration) { done <- s.loop.core.Stats() }); err != nil {
			t.Fatal(err)
		}
		if st := <-done; st.Running+st.Waiting == 0 {
			break
		}
	}
	cancel()
	for lines.Scan() {
		if lines.Text() != "" {
			t.Errorf("after the stall came %q", lines.Text())
		}
	}
}

func mustFault(t *testing.T, s string) Fault {
	t.Helper()
	f, err := ParseFault(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
