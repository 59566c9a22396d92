package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"llmops/internal/tui"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

// live shows how a measurement goes: a picture on a terminal, and lines now and then where
// there is none.
type live struct {
	x      *bench
	mu     sync.Mutex // guards the fields down to ttft
	p      *progress
	at     time.Time
	l      benchmark.Load
	done   int
	bad    int
	out    int
	last   int // tokens when the last line was printed
	ttft   []time.Duration
	said   []string // while the picture stood where they belong
	meter  *tui.Meter
	screen *tui.Screen
	stop   context.CancelFunc
	drawn  sync.WaitGroup
	closed sync.Once
}

// frame is how often the picture is drawn.
const frame = 200 * time.Millisecond

func newLive(ctx context.Context, x *bench) *live {
	v := &live{x: x, p: newProgress(x.e)}
	if v.p.terminal {
		v.meter, v.screen = new(tui.Meter), tui.NewScreen(x.e.err)
		drawing, stop := context.WithCancel(context.WithoutCancel(ctx)) // it is still to be seen how the run ends
		v.stop = stop
		v.drawn.Go(func() { v.draw(drawing, ctx.Done()) })
	}
	return v
}

// draw draws until ctx ends; stopped is closed when the run is asked to stop.
func (v *live) draw(ctx context.Context, stopped <-chan struct{}) {
	defer v.screen.Close()
	tick := time.NewTicker(frame)
	defer tick.Stop()
	for {
		width, height, _ := terminalSize(v.x.e.err)
		if v.screen.Show(v.meter.Bench(time.Now()).Render(cmp.Or(width, 80), cmp.Or(height, 24))) != nil {
			return // the terminal is gone, and the run goes on
		}
		select {
		case <-ctx.Done():
			return
		case <-stopped:
			v.meter.Stop()
			stopped = nil
		case <-tick.C:
		}
	}
}

// counted is the target with what it sends counted, where somebody looks.
func (v *live) counted(to load.Target) load.Target {
	if v.meter == nil {
		return to
	}
	return func(ctx context.Context, r *load.Request, now func() time.Duration, res *load.Result) {
		v.meter.Sent(time.Now())
		to(ctx, r, now, res)
		v.meter.Closed(time.Now())
	}
}

func (v *live) begin(l benchmark.Load) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.l, v.at = l, time.Now()
	v.done, v.bad, v.out, v.last, v.ttft = 0, 0, 0, 0, nil
	v.p.last = time.Now()
	if v.meter == nil {
		return
	}
	b := tui.Bench{What: v.x.b.system.Model + " at " + v.x.rec.URL, Load: l.String() + ", " + l.Content, Length: l.Lasts(), Warm: l.Warmup, Keeps: v.x.dir}
	if v.x.b.sweep {
		b.Step, b.Most = len(v.x.rec.Points)+1, benchmark.MostPoints
	}
	v.meter.Begin(b, v.at)
}

func (v *live) result(r *load.Result) {
	if v.meter != nil {
		v.meter.Result(r, time.Now())
		return
	}
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
	now := time.Now()
	if now.Sub(v.p.last) < quiet {
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
	if v.meter != nil {
		text := fmt.Sprintf(format, args...)
		v.meter.Note(text)
		v.said = append(v.said, text)
		return
	}
	v.p.line(format, args...)
}

// close gives the terminal back, and says what was said meanwhile.
func (v *live) close() {
	v.closed.Do(func() {
		if v.stop != nil {
			v.stop()
			v.drawn.Wait()
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.p.end()
		if len(v.said) > 0 {
			v.x.e.say("%s", strings.Join(v.said, "\n"))
		}
	})
}
