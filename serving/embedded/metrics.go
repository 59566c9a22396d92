package embedded

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"llmops/serving/embedded/core"
)

// metrics are the engine's numbers under vLLM's names, written as Prometheus text.
type metrics struct {
	model  string
	blocks int

	mu      sync.Mutex // guards all below
	stats   core.Stats
	lora    loraMetrics
	asleep  int    // the level; 0: awake
	lost    uint64 // transfers of keys and values that failed
	steps   histogram
	success map[string]uint64 // by finish reason
	ttft    histogram
	itl     histogram
	tpot    histogram
	e2e     histogram
	queue   histogram
	prefill histogram
	decode  histogram
	promptN histogram
	outputN histogram
}

// The bounds are vLLM's, so that dashboards made for it fit.
var (
	ttftBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBounds  = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	timeBounds = []float64{.01, .025, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	stepBounds = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	sizeBounds = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

func newMetrics(model string, blocks int) *metrics {
	return &metrics{
		model: model, blocks: blocks, success: map[string]uint64{"stop": 0, "length": 0, "abort": 0, "error": 0},
		ttft: newHistogram(ttftBounds), itl: newHistogram(itlBounds), tpot: newHistogram(itlBounds), e2e: newHistogram(timeBounds),
		queue: newHistogram(timeBounds), prefill: newHistogram(timeBounds), decode: newHistogram(timeBounds),
		promptN: newHistogram(sizeBounds), steps: newHistogram(stepBounds), outputN: newHistogram(sizeBounds),
	}
}

// loraMetrics are the names of the adapters by what their sequences do.
type loraMetrics struct {
	max              int // 0: the engine runs none
	running, waiting []string
	at               time.Time
}

// set notes where c stands after a step of n tokens, or at idle with 0.
func (m *metrics) set(c *core.Core, n int) {
	s := c.Stats()
	running, waiting := c.Adapters()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats = s
	if m.lora.max > 0 {
		m.lora.running, m.lora.waiting, m.lora.at = namesOf(running), namesOf(waiting), time.Now()
	}
	if n > 0 {
		m.steps.observe(float64(n))
	}
}

func namesOf(keys []string) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = nameOf(k)
	}
	return names
}

func (m *metrics) transferFailed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost++
}

func (m *metrics) sleep(level int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asleep = level
}

func (m *metrics) token(now time.Duration, r *request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.generated == 1 {
		r.first = now
		m.ttft.observe((now - r.seq.Arrived()).Seconds())
		m.queue.observe((r.seq.Admitted() - r.seq.Arrived()).Seconds())
		m.prefill.observe((now - r.seq.Admitted()).Seconds())
	} else {
		m.itl.observe((now - r.last).Seconds())
	}
	r.last = now
}

func (m *metrics) finished(now time.Duration, r *request, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.success[reason]++
	if reason != "stop" && reason != "length" {
		return
	}
	m.e2e.observe((now - r.seq.Arrived()).Seconds())
	m.promptN.observe(float64(len(r.seq.Prompt)))
	m.outputN.observe(float64(r.generated))
	if r.generated > 0 {
		m.decode.observe((now - r.first).Seconds())
	}
	if r.generated > 1 {
		m.tpot.observe((now - r.first).Seconds() / float64(r.generated-1))
	}
}

func (m *metrics) write(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	labels := `engine="0",model_name="` + escapeLabel(m.model) + `"`
	one := func(name, kind, help string, v float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %s\n", name, help, name, kind, name, labels, number(v))
	}
	s := m.stats
	one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(s.Running))
	one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(s.Waiting))
	one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", float64(s.UsedBlocks)/float64(m.blocks))
	one("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", float64(s.PrefixQueries))
	one("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(s.PrefixHits))
	one("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", float64(s.Preemptions))
	one("vllm:external_prefix_cache_queries_total", "counter", "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.", float64(s.ImportQueries))
	one("vllm:external_prefix_cache_hits_total", "counter", "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.", float64(s.Imported))
	one("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(s.Prompt))
	one("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(s.Generated))
	fmt.Fprintf(&b, "# HELP vllm:cache_config_info Information of the cache.\n# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%d\"} 1\n", labels, core.BlockSize, m.blocks)
	one("vllm:nixl_num_failed_transfers_total", "counter", "Number of failed KV cache transfers; the prompts were computed here.", float64(m.lost))
	if m.lora.max > 0 {
		fmt.Fprintf(&b, "# HELP vllm:lora_requests_info Running stats on lora requests.\n# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=\"%s\",waiting_lora_adapters=\"%s\"} %s\n",
			m.lora.max, escapeLabel(strings.Join(m.lora.running, ",")), escapeLabel(strings.Join(m.lora.waiting, ",")), number(float64(m.lora.at.UnixMilli())/1e3))
	}
	b.WriteString("# HELP vllm:engine_sleep_state Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.\n# TYPE vllm:engine_sleep_state gauge\n")
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		on := 0
		if m.asleep == level {
			on = 1
		}
		fmt.Fprintf(&b, "vllm:engine_sleep_state{%s,sleep_state=\"%s\"} %d\n", labels, state, on)
	}
	b.WriteString("# HELP vllm:request_success_total Count of finished requests by reason.\n# TYPE vllm:request_success_total counter\n")
	for _, reason := range slices.Sorted(maps.Keys(m.success)) {
		fmt.Fprintf(&b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %d\n", labels, reason, m.success[reason])
	}
	for _, h := range []struct {
		name, help string
		h          *histogram
	}{
		{"time_to_first_token_seconds", "Time to first token in seconds.", &m.ttft},
		{"inter_token_latency_seconds", "Time between two tokens in seconds.", &m.itl},
		{"request_time_per_output_token_seconds", "Mean time per output token of a request in seconds.", &m.tpot},
		{"e2e_request_latency_seconds", "Request latency in seconds.", &m.e2e},
		{"request_queue_time_seconds", "Time a request waited in seconds.", &m.queue},
		{"request_prefill_time_seconds", "Time from admission to the first token in seconds.", &m.prefill},
		{"request_decode_time_seconds", "Time from the first token to the last in seconds.", &m.decode},
		{"iteration_tokens_total", "Tokens of a step.", &m.steps},
		{"request_prompt_tokens", "Prompt tokens of a request.", &m.promptN},
		{"request_generation_tokens", "Generated tokens of a request.", &m.outputN},
	} {
		h.h.write(&b, "vllm:"+h.name, h.help, labels)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// histogram counts observations up to each bound.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
	n      uint64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
	h.n++
}

func (h *histogram) write(b *strings.Builder, name, help, labels string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
	var below uint64
	for i, n := range h.counts {
		below += n
		bound := math.Inf(1)
		if i < len(h.bounds) {
			bound = h.bounds[i]
		}
		fmt.Fprintf(b, "%s_bucket{%s,le=\"%s\"} %d\n", name, labels, number(bound), below)
	}
	fmt.Fprintf(b, "%s_sum{%s} %s\n%s_count{%s} %d\n", name, labels, number(h.sum), name, labels, h.n)
}

func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
