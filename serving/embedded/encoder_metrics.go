package embedded

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// encoderMetrics are an encoder's numbers under vLLM's names, which counts each
// text as a request.
type encoderMetrics struct {
	labels string

	mu      sync.Mutex // guards all below
	running int
	waiting int
	tokens  uint64
	success map[string]uint64 // by finish reason
	e2e     histogram
	queue   histogram
	size    histogram
}

func newEncoderMetrics(model string) *encoderMetrics {
	return &encoderMetrics{
		labels: `engine="0",model_name="` + escapeLabel(model) + `"`, success: map[string]uint64{"stop": 0, "abort": 0, "error": 0},
		e2e: newHistogram(timeBounds), queue: newHistogram(timeBounds), size: newHistogram(sizeBounds),
	}
}

func (m *encoderMetrics) waits(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = n
}

func (m *encoderMetrics) begin(batch []text) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = len(batch)
	for _, t := range batch {
		m.tokens += uint64(len(t.in.IDs))
		m.queue.observe(time.Since(t.since).Seconds())
	}
}

func (m *encoderMetrics) finished(t text, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.success[reason]++
	if reason == "stop" {
		m.e2e.observe(time.Since(t.since).Seconds())
		m.size.observe(float64(len(t.in.IDs)))
	}
}

func (m *encoderMetrics) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = 0
}

func (m *encoderMetrics) write(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	one := func(name, kind, help string, v float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %s\n", name, help, name, kind, name, m.labels, number(v))
	}
	one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(m.running))
	one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(m.waiting))
	one("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(m.tokens))
	b.WriteString("# HELP vllm:request_success_total Count of finished requests by reason.\n# TYPE vllm:request_success_total counter\n")
	for _, reason := range slices.Sorted(maps.Keys(m.success)) {
		fmt.Fprintf(&b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %d\n", m.labels, reason, m.success[reason])
	}
	m.e2e.write(&b, "vllm:e2e_request_latency_seconds", "Request latency in seconds.", m.labels)
	m.queue.write(&b, "vllm:request_queue_time_seconds", "Time a request waited in seconds.", m.labels)
	m.size.write(&b, "vllm:request_prompt_tokens", "Prompt tokens of a request.", m.labels)
	_, err := io.WriteString(w, b.String())
	return err
}
