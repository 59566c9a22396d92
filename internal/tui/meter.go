package tui

import (
	"math"
	"slices"
	"sync"
	"time"

	"llmops/pipeline/benchmark/load"
)

// Meter counts what a load does while it runs. The zero value is ready.
type Meter struct {
	mu sync.Mutex // guards what follows
	b  Bench      // but for what moments say
	count
}

// count is what begins anew with each load.
type count struct {
	began time.Time
	all   latencies
	every time.Duration // how long a moment is
	over  []past        // moments that are over
	at    moment        // the one that is not
}

type latencies struct{ ttft, tpot, lag tally }

type moment struct {
	latencies
	open            int // at most
	answers, tokens int
}

// past is a moment that is over; latencies in milliseconds.
type past struct{ ttft, tpot, lag, open, answers, tokens float64 }

// moments bounds how many are kept: of twice as many, two at a time become one.
const moments = 160

// Begin starts to count anew, for the load that b is.
func (m *Meter) Begin(b Bench, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b.Notes, b.Stop = m.b.Notes, m.b.Stop
	m.b, m.count = b, count{began: now, every: time.Second}
}

// Note adds a line to what was found.
func (m *Meter) Note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.b.Notes = append(m.b.Notes, text)
}

// Stop says that the run was asked to stop.
func (m *Meter) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.b.Stop = true
}

// Sent counts a request that is sent.
func (m *Meter) Sent(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	m.b.Sent++
	m.b.Open++
	m.at.open = max(m.at.open, m.b.Open)
}

// Closed counts one that is no longer open.
func (m *Meter) Closed(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	m.b.Open--
}

// Result counts what became of a request, be it that it was never sent.
func (m *Meter) Result(r *load.Result, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	if !r.OK() {
		m.b.Failed++
		return
	}
	m.b.Done++
	m.at.answers++
	m.at.tokens += r.Output
	m.all.add(r)
	m.at.latencies.add(r)
}

func (l *latencies) add(r *load.Result) {
	if d, ok := r.TTFT(); ok {
		l.ttft.add(d)
	}
	if d, _, ok := r.TPOT(); ok {
		l.tpot.add(d)
	}
	if d, ok := r.Lag(); ok {
		l.lag.add(d)
	}
}

// turn ends moments that are over.
func (m *Meter) turn(now time.Time) {
	if m.every == 0 {
		return // nothing has begun
	}
	for now.Sub(m.began) >= time.Duration(len(m.over)+1)*m.every {
		a, sec := &m.at, m.every.Seconds()
		m.over = append(m.over, past{a.ttft.milli(0.5), a.tpot.milli(0.5), a.lag.milli(0.5), float64(max(a.open, m.b.Open)), float64(a.answers) / sec, float64(a.tokens) / sec})
		m.at = moment{open: m.b.Open}
		if len(m.over) < 2*moments {
			continue
		}
		for i := range moments {
			m.over[i] = m.over[2*i].and(m.over[2*i+1])
		}
		m.over, m.every = m.over[:moments], 2*m.every
	}
}

// and is both moments as one.
func (p past) and(q past) past {
	mean := func(a, b float64) float64 { return (a + b) / 2 }
	return past{mean(p.ttft, q.ttft), mean(p.tpot, q.tpot), mean(p.lag, q.lag), max(p.open, q.open), mean(p.answers, q.answers), mean(p.tokens, q.tokens)}
}

// lately is how many moments "of late" are.
const lately = 3

// Bench is how it stands. The caller owns it.
func (m *Meter) Bench(now time.Time) Bench {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	b := m.b
	b.Notes = slices.Clone(b.Notes)
	if m.every > 0 {
		b.Elapsed = now.Sub(m.began)
	}
	figure := func(t *tally, of func(past) float64) Figure {
		f := Figure{N: t.n, P50: t.quantile(0.5), P95: t.quantile(0.95)}
		for _, p := range m.over {
			f.Over = append(f.Over, of(p))
		}
		return f
	}
	b.TTFT = figure(&m.all.ttft, func(p past) float64 { return p.ttft })
	b.TPOT = figure(&m.all.tpot, func(p past) float64 { return p.tpot })
	b.Lag = figure(&m.all.lag, func(p past) float64 { return p.lag })
	for _, p := range m.over {
		b.Opened = append(b.Opened, p.open)
	}
	last := m.over[max(0, len(m.over)-lately):]
	for _, p := range last {
		b.Answers += p.answers / float64(len(last))
		b.Tokens += p.tokens / float64(len(last))
	}
	return b
}

// tally counts durations in buckets a fiftieth wide, from 100 ns to beyond an hour: enough
// to look at, and of a size that does not grow with the run.
type tally struct {
	n      int
	counts [buckets]uint32
}

const (
	buckets = 1250
	finest  = 100 * time.Nanosecond
	growth  = 1.02
)

func (t *tally) add(d time.Duration) {
	i := 0
	if d > finest {
		i = min(buckets-1, int(math.Log(float64(d)/float64(finest))/math.Log(growth)))
	}
	t.n++
	t.counts[i]++
}

// quantile is the middle of the bucket that the q-quantile lies in; 0 of none.
func (t *tally) quantile(q float64) time.Duration {
	if t.n == 0 {
		return 0
	}
	left := int(math.Ceil(q * float64(t.n)))
	for i, c := range t.counts {
		if left -= int(c); left <= 0 {
			return time.Duration(float64(finest) * math.Pow(growth, float64(i)+0.5))
		}
	}
	return 0
}

func (t *tally) milli(q float64) float64 { return float64(t.quantile(q)) / 1e6 }
