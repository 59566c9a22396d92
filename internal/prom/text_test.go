package prom

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const exposition = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0"} 12
# TYPE vllm:e2e histogram
vllm:e2e_bucket{le="0.3"} 1
vllm:e2e_bucket{le="+Inf"} 2
vllm:e2e_sum 1
vllm:e2e_count 2
# TYPE tgi_request_generated_tokens summary
tgi_request_generated_tokens{quantile="0.5"} 2
tgi_request_generated_tokens_sum 6
tgi_request_generated_tokens_count 4
untyped_one 7
not_known NaN
`

func TestParse(t *testing.T) {
	s, err := Parse(strings.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := s.Sum("vllm:num_requests_running"); !ok || v != 7 {
		t.Errorf("running %v, %v", v, ok)
	}
	if v, ok := s.Mean("vllm:kv_cache_usage_perc"); !ok || v != 0.5 {
		t.Errorf("cache %v, %v", v, ok)
	}
	if v, ok := s.Sum("untyped_one"); !ok || v != 7 {
		t.Errorf("untyped %v, %v", v, ok)
	}
	for name, want := range map[string]float64{"vllm:e2e_sum": 1, "vllm:e2e_count": 2, "tgi_request_generated_tokens_sum": 6, "tgi_request_generated_tokens_count": 4} {
		if v, ok := s.Sum(name); !ok || v != want {
			t.Errorf("%s %v, %v", name, v, ok)
		}
	}
	for _, name := range []string{"absent", "not_known", "vllm:e2e"} {
		if v, ok := s.Sum(name); ok {
			t.Errorf("%s is %v", name, v)
		}
	}
}

// What is no exposition is an error, and not a fleet without load.
func TestRefuses(t *testing.T) {
	for _, text := range []string{"<html>busy</html>", `[{"iter": 1}]`, "a b c d\n", "x{y=\"z} 1\n"} {
		if s, err := Parse(strings.NewReader(text)); !errors.Is(err, ErrText) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
	if _, err := Parse(strings.NewReader(strings.Repeat("a 1\n", MaxText/4+1))); !errors.Is(err, ErrText) {
		t.Errorf("too long: %v", err)
	}
	for path, h := range map[string]http.HandlerFunc{
		"503":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "loading", http.StatusServiceUnavailable) },
		"html": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		srv := httptest.NewServer(h)
		defer srv.Close()
		if s, err := Scrape(t.Context(), srv.Client(), srv.URL); err == nil || !strings.Contains(err.Error(), srv.URL) {
			t.Errorf("%s: %v, %v", path, s, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(exposition)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(strings.NewReader(text))
		if err != nil && !errors.Is(err, ErrText) {
			t.Error(err)
		}
		for name := range s {
			if _, ok := s.Sum(name); !ok {
				t.Errorf("%q has no samples", name)
			}
		}
	})
}
