package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/serving/openai"
	"llmops/serving/slo"
)

// answering is a server that answers each chat with two words, and hands each
// body to seen first.
func answering(t *testing.T, seen func(n int, body []byte, h http.Header)) string {
	t.Helper()
	return exposing(t, "test", func(n int) string {
		return fmt.Sprintf("# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total %d\n", 2*n)
	}, seen)
}

// exposing is the same with what it says of itself after n chats.
func exposing(t *testing.T, owner string, metrics func(n int) string, seen func(n int, body []byte, h http.Header)) string {
	t.Helper()
	var mu sync.Mutex
	n := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":"m","owned_by":%q,"meta":{"n":1}}]}`, owner)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(w, metrics(n))
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		n++
		k := n
		mu.Unlock()
		seen(k, body, r.Header)
		s := openai.NewWriter(w)
		for range 2 {
			_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{{Delta: openai.Delta{Content: "w"}}}})
		}
		_ = s.Send(openai.ChatChunk{Choices: []openai.ChunkChoice{}, Usage: &openai.Usage{PromptTokens: 5, CompletionTokens: 2}})
		_ = s.Done()
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func runBench(ctx context.Context, t *testing.T, home string, args ...string) (code int, rec benchmark.Record, stderr string) {
	t.Helper()
	var out, errw bytes.Buffer
	env := map[string]string{"LLMOPS_HOME": home, "OPENAI_API_KEY": "sk-test"}
	code = Main(ctx, append([]string{"benchmark", "--output", "json"}, args...), strings.NewReader(""), &out, &errw, func(k string) string { return env[k] })
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &rec); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	return code, rec, errw.String()
}

// Nothing is sent but what is measured: no warm-up and no probe with a prompt that a
// cache then knows, and no prompt twice.
func TestBenchmarkSendsWhatItMeasures(t *testing.T) {
	var mu sync.Mutex
	bodies := map[string]int{}
	url := answering(t, func(_ int, body []byte, h http.Header) {
		mu.Lock()
		defer mu.Unlock()
		bodies[string(body)]++
		if h.Get("Authorization") != "Bearer sk-test" {
			t.Errorf("authorization %q", h.Get("Authorization"))
		}
	})
	home := t.TempDir()
	code, rec, stderr := runBench(t.Context(), t, home, "--url", url+"/v1", "--rate", "400", "--requests", "40", "--input-tokens", "30", "--output-tokens", "2")
	if code != exitDone || len(bodies) != 40 {
		t.Fatalf("exit %d, %d different requests: %s", code, len(bodies), stderr)
	}
	if len(rec.Checks) != 1 || !rec.Checks[0].OK {
		t.Errorf("against the server's counter: %+v", rec.Checks)
	}
	if rec.System.Model != "m" || rec.System.Engine != "test" || rec.State != benchmark.Done || rec.Points[0].Stats.Sent != 40 {
		t.Errorf("%+v", rec)
	}
	if b, err := os.ReadFile(filepath.Join(home, "benchmarks", "history.jsonl")); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("%s, %v", b, err)
	}
}

// An interrupt keeps what had been measured, says that it is not all, and passes
// nothing.
func TestBenchmarkInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := answering(t, func(n int, _ []byte, _ http.Header) {
		if n == 20 {
			cancel()
		}
	})
	dir := filepath.Join(t.TempDir(), "out")
	code, rec, _ := runBench(ctx, t, t.TempDir(), "--url", url, "--rate", "200", "--for", "10m", "--warmup", "0s", "--input-tokens", "5", "--output-tokens", "2", "--slo", "ttft=1h", "--out", dir)
	if code != exitInconclusive || rec.State != benchmark.Stopped || rec.Verdict == nil || len(rec.Points) != 1 || !rec.Points[0].Stats.Stopped || len(rec.Checks) != 1 {
		t.Fatalf("exit %d, %+v", code, rec)
	}
	read, all, err := readBenchmark(dir)
	if err != nil || read.State != benchmark.Stopped || len(all[0]) < 20 || len(all[0]) != rec.Points[0].Stats.Sent {
		t.Errorf("%d of %d results, %v", len(all[0]), rec.Points[0].Stats.Sent, err)
	}
}

// Each engine counts under names of its own.
func TestServerCounters(t *testing.T) {
	for engine, text := range map[string]string{
		"vllm":      "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{engine=\"0\"} %[2]d\n# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{engine=\"0\"} %[1]d\n",
		"sglang":    "# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total{model_name=\"m\"} %[2]d\n# TYPE sglang:generation_tokens_total counter\nsglang:generation_tokens_total{model_name=\"m\"} %[1]d\n",
		"llama.cpp": "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total %[2]d\n# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total %[1]d\n",
		"tgi": "# TYPE tgi_request_input_length histogram\ntgi_request_input_length_bucket{le=\"+Inf\"} 9\ntgi_request_input_length_sum %[2]d\ntgi_request_input_length_count 9\n" +
			"# TYPE tgi_request_generated_tokens histogram\ntgi_request_generated_tokens_bucket{le=\"+Inf\"} 9\ntgi_request_generated_tokens_sum %[1]d\ntgi_request_generated_tokens_count 9\n",
	} {
		url := exposing(t, "", func(n int) string { return fmt.Sprintf(text, 100+2*n, 1000+5*n) }, func(int, []byte, http.Header) {})
		code, rec, stderr := runBench(t.Context(), t, t.TempDir(), "--url", url, "--rate", "400", "--requests", "20", "--input-tokens", "5", "--output-tokens", "2", "--no-history")
		if code != exitDone || rec.System.Engine != engine || len(rec.Checks) != 2 || !rec.Checks[0].OK || !rec.Checks[1].OK {
			t.Errorf("%s: exit %d, %+v, %+v: %s", engine, code, rec.System, rec.Checks, stderr)
		}
	}
}

func TestSLOFlag(t *testing.T) {
	p := func(q float64, d time.Duration) slo.Bound { return slo.Bound{Quantile: q, Limit: d} }
	for in, want := range map[string]slo.Class{
		"":                     {},
		"batch":                {Name: "batch"},
		"interactive":          slo.Presets()["interactive"],
		"ttft=800ms":           {TTFT: p(0.95, 800*time.Millisecond)},
		"tpot@99=50ms,ttft=1s": {TTFT: p(0.95, time.Second), TPOT: p(0.99, 50*time.Millisecond)},
		"errors=0.5%":          {ErrorRate: 0.005},
	} {
		got, err := sloOf(in)
		if want.Name == "" {
			want.Name = in
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, bad := range []string{"fast", "ttft", "ttft=", "ttft=-1s", "ttft@0=1s", "ttft@100=1s", "errors=5", "errors=0%", "errors=100%", "e2e=1s", "ttft=1s,,"} {
		if _, err := sloOf(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
