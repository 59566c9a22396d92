package load

import (
	"math"
	"math/rand/v2"
	"time"
)

// Pacer says when requests are due, counted from the start of the run and never
// going back; ok is false behind the last. It is pure arithmetic: no clock, and
// the same times whatever the server does.
type Pacer interface {
	Next() (at time.Duration, ok bool)
}

var (
	_ Pacer = (*constant)(nil)
	_ Pacer = (*poisson)(nil)
	_ Pacer = (*trace)(nil)
	_ Pacer = (*limit)(nil)
)

type constant struct {
	rate float64
	i    float64
}

// Constant is rate requests a second at equal distances, the first at once.
func Constant(rate float64) Pacer { return &constant{rate: rate} }

func (c *constant) Next() (time.Duration, bool) {
	// From the number and not the sum of gaps: no drift in a long run.
	at := c.i / c.rate * float64(time.Second)
	c.i++
	return span(at)
}

type poisson struct {
	rate float64
	rnd  *rand.Rand
	at   float64
}

// Poisson is rate requests a second on average with exponential gaps, the same
// for the same seed. Its times are not stretched to fit a length, which would
// take out the variance that it is for.
func Poisson(rate float64, seed uint64) Pacer {
	return &poisson{rate: rate, rnd: rand.New(rand.NewPCG(seed, 0x6c6c6d6f7073))}
}

func (p *poisson) Next() (time.Duration, bool) {
	p.at += p.rnd.ExpFloat64() / p.rate * float64(time.Second)
	return span(p.at)
}

// span ends a pacer whose times leave what a Duration holds, as with a rate of
// zero.
func span(at float64) (time.Duration, bool) {
	if !(at < math.MaxInt64/2) {
		return 0, false
	}
	return time.Duration(math.Round(at)), true
}

type trace struct {
	at     []time.Duration
	period time.Duration
	i      int
}

// Trace is given times, in order.
func Trace(at []time.Duration) Pacer { return &trace{at: at} }

// Loop is given times again and again, each pass period after the last.
func Loop(at []time.Duration, period time.Duration) Pacer {
	return &trace{at: at, period: period}
}

func (t *trace) Next() (time.Duration, bool) {
	if len(t.at) == 0 || t.period <= 0 && t.i >= len(t.at) {
		return 0, false
	}
	at := t.at[t.i%len(t.at)] + time.Duration(t.i/len(t.at))*t.period
	t.i++
	return at, true
}

type limit struct {
	p       Pacer
	n, sent int
	last    time.Duration
	ended   bool
}

// Limit ends p after n requests and before the time last; a limit of 0 is none.
func Limit(p Pacer, n int, last time.Duration) Pacer { return &limit{p: p, n: n, last: last} }

func (l *limit) Next() (time.Duration, bool) {
	if l.ended || l.n > 0 && l.sent >= l.n {
		return 0, false
	}
	at, ok := l.p.Next()
	if !ok || l.last > 0 && at >= l.last {
		l.ended = true
		return 0, false
	}
	l.sent++
	return at, true
}
