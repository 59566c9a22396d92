// Package load sends requests at given times, whatever the server does, and
// writes down when each thing happened.
//
// A [Pacer] says when requests are due, a [Source] what they are, a [Target]
// sends one and fills in its [Result]; [Run] brings them together as an open
// loop: a slow server never delays an arrival. [Summarise] turns results into
// distributions with named definitions and checks them against each other.
// [Traffic] is a file of requests to be replayed as live traffic.
//
// Definitions. Latencies count from the scheduled arrival, and beside that from
// sending. The first token is the first event with text, reasoning, a refusal or
// a tool call; the role, an empty text, a comment and usage are none. The end is
// the last such event. TPOT is (last − first) / (n − n₁), n₁ being the tokens of
// the first event where the server says so, else one; answers with n ≤ n₁ have
// none. n comes from the server's usage or is unknown, and never a count of
// events. What was not seen is missing and never zero.
//
// Run calls its callback one result at a time; everything else is plain data.
// The package neither decides what load to try nor judges what it measured.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Request is what a Target sends.
type Request struct {
	Path         string
	Body         []byte
	Conversation string // X-Conversation-Id; empty: not sent
	Stream       bool
	Encode       bool   // the answer is vectors or scores: its end is its first token
	Class        string // carried into the result
	Want         int    // output tokens the request asks for exactly; 0: open
}

// Source makes the i-th request of a run, i from 0. It is called in order, from
// one goroutine, before the request is due.
type Source func(i int) (*Request, error)

// Target sends r and fills res. It stamps times with now, which counts from the
// start of the run, and returns when the answer has ended or ctx has.
type Target func(ctx context.Context, r *Request, now func() time.Duration, res *Result)

// Options of a run.
type Options struct {
	MaxOpen int           // requests at a time; what is due beyond fails; default DefaultMaxOpen
	Timeout time.Duration // of one request; default DefaultTimeout
}

// Defaults of Options.
const (
	// DefaultMaxOpen is a little below the ports of one address, of which each
	// request takes one.
	DefaultMaxOpen = 20_000
	// DefaultTimeout is above the longest answer that anybody waits for.
	DefaultTimeout = 10 * time.Minute
)

func (o Options) withDefaults() Options {
	if o.MaxOpen <= 0 {
		o.MaxOpen = DefaultMaxOpen
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return o
}

// Stats is what a run knows beside its results. Open is counted while it runs,
// and so independent of them.
type Stats struct {
	Sent     int           `json:"sent"`
	Wall     time.Duration `json:"wall_ns"` // from the start to the end of the last request
	MeanOpen float64       `json:"mean_open"`
	PeakOpen int           `json:"peak_open"`
	Stopped  bool          `json:"stopped,omitempty"` // by its context, before the pacer's end
}

var (
	errTimeout = errors.New("no end within the request's time limit")
	errOpen    = errors.New("too many requests are open")
)

// Run sends requests as p says until p or ctx ends, waits for all answers and
// calls emit for each result, in the order in which they end and never twice at
// a time. When ctx ends, requests under way are cancelled and emitted as such.
// The error is the source's; results until then are emitted.
func Run(ctx context.Context, target Target, p Pacer, source Source, o Options, emit func(*Result)) (Stats, error) {
	o = o.withDefaults()
	var (
		wg    sync.WaitGroup
		count openCount
		out   sync.Mutex // one emit at a time
		stats Stats
		start = time.Now()
		timer = time.NewTimer(0)
	)
	defer timer.Stop()
	now := func() time.Duration { return time.Since(start) }
	for {
		at, ok := p.Next()
		if !ok {
			break
		}
		r, err := source(stats.Sent)
		if err != nil {
			wg.Wait()
			return stats, fmt.Errorf("making request %d: %w", stats.Sent, err)
		}
		if !wait(ctx, timer, at-now()) {
			stats.Stopped = true
			break
		}
		res := &Result{ID: stats.Sent, Class: r.Class, Scheduled: at, Stream: r.Stream, Want: r.Want, Count: CountUnknown}
		stats.Sent++
		open := count.add(now(), 1)
		wg.Go(func() {
			if open > o.MaxOpen {
				res.fail(KindLimit, errOpen)
			} else {
				send(ctx, target, r, now, res, o.Timeout)
			}
			res.End = now()
			count.add(res.End, -1)
			out.Lock()
			defer out.Unlock()
			emit(res)
		})
	}
	wg.Wait()
	stats.Wall = now()
	stats.MeanOpen, stats.PeakOpen = count.result(stats.Wall)
	return stats, nil
}

func send(ctx context.Context, target Target, r *Request, now func() time.Duration, res *Result, limit time.Duration) {
	run := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	target(ctx, r, now, res)
	// Whatever the transport calls it, these two are what happened.
	if res.Kind != "" && ctx.Err() != nil {
		if run.Err() != nil {
			res.fail(KindCancelled, context.Cause(run))
		} else {
			res.fail(KindTimeout, errTimeout)
		}
	}
}

func wait(ctx context.Context, t *time.Timer, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	t.Reset(d)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// openCount integrates the number of open requests over time.
type openCount struct {
	mu   sync.Mutex // guards what follows
	open int
	peak int
	at   time.Duration
	area float64 // request-nanoseconds
}

func (c *openCount) add(now time.Duration, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Two goroutines may come in another order than their clocks were read.
	if now > c.at {
		c.area += float64(c.open) * float64(now-c.at)
		c.at = now
	}
	c.open += n
	c.peak = max(c.peak, c.open)
	return c.open
}

func (c *openCount) result(wall time.Duration) (mean float64, peak int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wall > 0 {
		mean = c.area / float64(wall)
	}
	return mean, c.peak
}
