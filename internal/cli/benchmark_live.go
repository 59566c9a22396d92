package cli

import (
	"fmt"
	"sync"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

// live prints how a measurement goes.
type live struct {
	mu   sync.Mutex // guards what follows
	p    *progress
	at   time.Time
	l    benchmark.Load
	done int
	bad  int
	out  int
	last int // tokens when the last line was printed
	ttft []time.Duration
}

func newLive(e *env) *live { return &live{p: newProgress(e)} }

func (v *live) begin(l benchmark.Load) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.l, v.at = l, time.Now()
	v.done, v.bad, v.out, v.last, v.ttft = 0, 0, 0, 0, nil
	v.p.last = time.Now()
}

func (v *live) result(r *load.Result) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done++
	v.out += r.Output
	if !r.OK() {
		v.bad++
	}
	if d, ok := r.TTFT(); ok {
		v.ttft = append(v.ttft, d)
	}
	pause := quiet
	if v.p.terminal {
		pause = 200 * time.Millisecond
	}
	now := time.Now()
	if now.Sub(v.p.last) < pause {
		return
	}
	text := fmt.Sprintf("%s: %.0fs, %d ended, %d failed, %.0f tokens/s", v.l, now.Sub(v.at).Seconds(), v.done, v.bad, float64(v.out-v.last)/now.Sub(v.p.last).Seconds())
	if len(v.ttft) > 0 {
		text += fmt.Sprintf(", TTFT p50 %.0f p95 %.0f ms", load.NewDist(v.ttft).P50/1e6, load.NewDist(v.ttft).P95/1e6)
	}
	v.p.last, v.last, v.ttft = now, v.out, v.ttft[:0]
	v.p.status(text)
}

func (v *live) say(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.p.line(format, args...)
}

func (v *live) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.p.end()
}
