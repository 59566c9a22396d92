// Package load sends requests at given times, whatever the server does, and
// writes down when each thing happened.
//
// A [Pacer] says when requests are due, a [Source] what they are, a [Target]
// sends one and fills in its [Result]; [Run] brings them together as an open
// loop: a slow server never delays an arrival. [Summarise] turns results into
// distributions with named definitions and checks them against each other.
// [Traffic] is a file of requests to be replayed as live traffic.
//
// A [Client] makes targets of HTTP servers: on Linux it reads plain HTTP in event
// loops of its own and takes the times from the system's receive stamps; all else
// is net/http's.
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
	"sync/atomic"
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
	Keep         bool   // what the answer's events say is kept in the result

	// Next is the session's next turn and the pause before it, asked for when
	// this turn has been answered; a nil request ends the session. Nil: no session.
	Next func() (*Request, time.Duration)
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
	Wall     time.Duration `json:"wall_ns"`     // from the start to the end of the last request
	LastDue  time.Duration `json:"last_due_ns"` // the last arrival, or the last start of a closed loop
	MeanOpen float64       `json:"mean_open"`
	PeakOpen int           `json:"peak_open"`
	Stopped  bool          `json:"stopped,omitempty"` // by its context, before the pacer's end
}

var (
	errTimeout = errors.New("no end within the request's time limit")
	errOpen    = errors.New("too many requests are open")
)

// run is what an open and a closed loop have in common.
type run struct {
	target Target
	o      Options
	start  time.Time
	emit   func(*Result)
	wg     sync.WaitGroup
	open   openCount
	next   atomic.Int64 // request numbers
	out    sync.Mutex   // one emit at a time
}

func newRun(target Target, o Options, emit func(*Result)) *run {
	return &run{target: target, o: o.withDefaults(), emit: emit, start: time.Now()}
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// Run sends requests as p says until p or ctx ends, waits for all answers and
// calls emit for each result, in the order in which they end and never twice at
// a time. When ctx ends, requests under way are cancelled and emitted as such.
// A session's first turn is an arrival, the others follow their answers. The
// error is the source's; results until then are emitted.
func Run(ctx context.Context, target Target, p Pacer, source Source, o Options, emit func(*Result)) (Stats, error) {
	var stats Stats
	r := newRun(target, o, emit)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		at, ok := p.Next()
		if !ok {
			break
		}
		q, err := source(i)
		if err != nil && ctx.Err() != nil { // it ended with the run
			stats.Stopped = true
			break
		}
		if err != nil {
			r.wg.Wait()
			return stats, fmt.Errorf("making request %d: %w", i, err)
		}
		if !wait(ctx, timer, at-r.now()) {
			stats.Stopped = true
			break
		}
		stats.LastDue = at
		id, opened := int(r.next.Add(1)-1), r.now()
		open := r.open.add(opened, 1)
		r.wg.Go(func() { r.session(ctx, q, id, at, opened, open) })
	}
	r.finish(&stats)
	return stats, nil
}

// Closed is a loop of n clients, each of which sends its next request when the
// last has ended, until the time until, limit requests (0: no limit) or the end
// of ctx. Clients begin evenly over the time ramp, since n first requests at once
// are a burst that no later moment has. A request is due when its client is free.
func Closed(ctx context.Context, target Target, n int, ramp, until time.Duration, limit int, source Source, o Options, emit func(*Result)) (Stats, error) {
	var (
		stats  Stats
		mu     sync.Mutex // guards what follows, and the source
		made   int
		failed error
	)
	r := newRun(target, o, emit)
	begin := func() (q *Request, at time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		at = r.now()
		if failed != nil || ctx.Err() != nil || at >= until || limit > 0 && made >= limit {
			return nil, 0
		}
		q, err := source(made)
		if err != nil {
			if ctx.Err() == nil {
				failed = fmt.Errorf("making request %d: %w", made, err)
			}
			return nil, 0
		}
		made++
		stats.LastDue = at
		return q, at
	}
	for i := range n {
		first := time.Duration(float64(ramp) * float64(i) / float64(n))
		r.wg.Go(func() {
			timer := time.NewTimer(0)
			defer timer.Stop()
			if !wait(ctx, timer, first-r.now()) {
				return
			}
			for q, at := begin(); q != nil; q, at = begin() {
				opened := r.now()
				r.session(ctx, q, int(r.next.Add(1)-1), at, opened, r.open.add(opened, 1))
			}
		})
	}
	r.finish(&stats)
	stats.Stopped = ctx.Err() != nil
	return stats, failed
}

func (r *run) finish(stats *Stats) {
	r.wg.Wait()
	stats.Sent, stats.Wall = int(r.next.Load()), r.now()
	stats.MeanOpen, stats.PeakOpen = r.open.result(stats.Wall)
}

// session sends q, and the turns that follow it as long as they succeed.
func (r *run) session(ctx context.Context, q *Request, id int, at, opened time.Duration, open int) {
	for turn := 0; ; turn++ {
		res := &Result{ID: id, Class: q.Class, Scheduled: at, Stream: q.Stream, Want: q.Want, Conversation: q.Conversation, Turn: turn, Count: CountUnknown, opened: opened}
		if open > r.o.MaxOpen {
			res.fail(KindLimit, errOpen)
		} else {
			send(ctx, r.target, q, r.now, res, r.o.Timeout)
		}
		res.End = r.now()
		r.open.add(res.End, -1)
		r.out.Lock()
		r.emit(res)
		r.out.Unlock()
		if q.Next == nil || !res.OK() {
			return
		}
		var pause time.Duration
		if q, pause = q.Next(); q == nil {
			return
		}
		at = res.End + pause
		timer := time.NewTimer(at - r.now())
		on := wait(ctx, timer, at-r.now())
		timer.Stop()
		if !on {
			return
		}
		id, opened = int(r.next.Add(1)-1), r.now()
		open = r.open.add(opened, 1)
	}
}

func send(ctx context.Context, target Target, q *Request, now func() time.Duration, res *Result, limit time.Duration) {
	all := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	target(ctx, q, now, res)
	// Whatever the transport calls it, these two are what happened.
	if res.Kind != "" && ctx.Err() != nil {
		if all.Err() != nil {
			res.fail(KindCancelled, context.Cause(all))
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
