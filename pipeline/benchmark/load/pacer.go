package load

import (
	"math"
	"math/rand/v2"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
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
	_ Pacer = (*gamma)(nil)
	_ Pacer = (*ramp)(nil)
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

type gamma struct {
	gap distuv.Gamma
	at  float64
}

// Gamma is rate requests a second on average with gaps of a gamma distribution
// whose shape is burstiness, as vLLM's bench serve calls it: 1 is Poisson, less
// comes in bursts, more is more even. The gaps' coefficient of variation is
// 1/√burstiness.
func Gamma(rate, burstiness float64, seed uint64) Pacer {
	if !(rate > 0 && burstiness > 0) {
		return &trace{}
	}
	return &gamma{gap: distuv.Gamma{Alpha: burstiness, Beta: burstiness * rate, Src: rand.NewPCG(seed, 0x67616d6d61)}}
}

func (g *gamma) Next() (time.Duration, bool) {
	g.at += g.gap.Rand() * float64(time.Second)
	return span(g.at)
}

type ramp struct {
	unit     Pacer
	from, to float64 // requests a second
	over     float64 // seconds
}

// Ramp turns unit, a pacer of one request a second, into one whose rate goes
// from one value to another in a straight line and then stays. What unit's gaps
// are distributed as, the ramp's are locally.
func Ramp(unit Pacer, from, to float64, over time.Duration) Pacer {
	if !(from >= 0 && to > 0) {
		return &trace{}
	}
	return &ramp{unit, from, to, over.Seconds()}
}

func (r *ramp) Next() (time.Duration, bool) {
	at, ok := r.unit.Next()
	if !ok {
		return 0, false
	}
	// Arrival number x is due when the integral of the rate reaches x:
	// from·t + (to−from)·t²/(2·over).
	x := at.Seconds()
	if x == 0 {
		return 0, true
	}
	if on := (r.from + r.to) / 2 * r.over; x >= on {
		return span((r.over + (x-on)/r.to) * float64(time.Second))
	}
	// The root that does not cancel.
	slope := (r.to - r.from) / r.over
	return span(2 * x / (r.from + math.Sqrt(max(0, r.from*r.from+2*slope*x))) * float64(time.Second))
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
