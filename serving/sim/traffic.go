package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"llmops/serving/route"
)

// Process is how requests follow each other.
type Process string

// Closed clients send the next request when the last has ended; with the others
// requests come at a rate, whatever becomes of them.
const (
	Poisson  Process = "poisson"
	Constant Process = "constant"
	Gamma    Process = "gamma"
	Closed   Process = "closed"
)

// Arrivals says when requests come.
type Arrivals struct {
	Process     Process
	Rate        float64 // a second; not for Closed
	CV          float64 // of the gaps, for Gamma: 1 is Poisson, more is burstier
	Concurrency int     // clients, for Closed
	Bursts      Bursts
}

// Bursts multiply the rate for a while, again and again from the beginning on.
// The zero Bursts are none.
type Bursts struct {
	Every, For time.Duration
	Times      float64
}

const mostRate = 1e6

func (a Arrivals) check() error {
	switch a.Process {
	case Closed:
		if a.Concurrency < 1 || a.Rate != 0 || a.Bursts != (Bursts{}) {
			return fmt.Errorf("%d closed clients at a rate of %v: want at least one, and neither a rate nor bursts", a.Concurrency, a.Rate)
		}
		return nil
	case Poisson, Constant:
	case Gamma:
		if !(a.CV > 0 && a.CV <= 100) {
			return fmt.Errorf("gamma arrivals with a coefficient of variation of %v: want more than 0 and at most 100", a.CV)
		}
	default:
		return fmt.Errorf("arrivals %q: want poisson, constant, gamma or closed", a.Process)
	}
	if !(a.Rate > 0 && a.Rate <= mostRate) {
		return fmt.Errorf("a rate of %v: want more than 0 and at most %g a second", a.Rate, mostRate)
	}
	if b := a.Bursts; b != (Bursts{}) && !(b.Every > 0 && b.For > 0 && b.For < b.Every && b.Times > 0 && a.Rate*b.Times <= mostRate) {
		return fmt.Errorf("bursts of %v every %v by %v: want each more than 0 and the bursts shorter than what is between them", b.For, b.Every, b.Times)
	}
	return nil
}

// clock draws one arrival after the other.
type clock struct {
	a     Arrivals
	rng   *rand.Rand
	gamma distuv.Gamma
	at    float64 // seconds
}

func newClock(a Arrivals, rng *rand.Rand) *clock {
	c := &clock{a: a, rng: rng}
	if a.Process == Gamma {
		shape := 1 / (a.CV * a.CV)
		c.gamma = distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}
	}
	return c
}

// next is when the next request comes: a gap of mean 1 is spent at the rate of each
// moment, so that bursts and processes combine.
func (c *clock) next() time.Duration {
	gap := 1.0
	switch c.a.Process {
	case Poisson:
		gap = c.rng.ExpFloat64()
	case Gamma:
		gap = c.gamma.Rand()
	}
	b := c.a.Bursts
	if b.Every == 0 {
		c.at += gap / c.a.Rate
		return seconds(c.at)
	}
	every, on := b.Every.Seconds(), b.For.Seconds()
	for {
		start := math.Floor(c.at/every) * every
		rate, end := c.a.Rate, start+every
		if c.at < start+on {
			rate, end = rate*b.Times, start+on
		}
		if room := rate * (end - c.at); gap > room {
			gap -= room
			c.at = math.Nextafter(end, math.Inf(1)) // past a boundary that rounding might keep before
			continue
		}
		c.at += gap / rate
		return seconds(c.at)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Lengths are a distribution of tokens: Values, each as likely as the others, or
// else a log-normal one of this mean and coefficient of variation. With a CV of 0
// all are the mean.
type Lengths struct {
	Mean     float64
	CV       float64
	Min, Max int // what is outside is moved to the bound; default 1 and none
	Values   []int
}

const mostTokens = 1 << 21

func (l Lengths) check() error {
	if len(l.Values) > 0 {
		for _, v := range l.Values {
			if v < 1 || v > mostTokens {
				return fmt.Errorf("a length of %d: want 1 to %d", v, mostTokens)
			}
		}
		if l.Mean != 0 || l.CV != 0 {
			return fmt.Errorf("a list of lengths and a mean of %v: want one of both", l.Mean)
		}
		return nil
	}
	if !(l.Mean >= 1 && l.Mean <= mostTokens) || !(l.CV >= 0 && l.CV <= 100) || l.Min < 0 || l.Max < 0 || l.Max > mostTokens || l.Max > 0 && l.Max < l.Min {
		return fmt.Errorf("lengths of mean %v and variation %v between %d and %d: want a mean of 1 to %d, a variation up to 100 and bounds in order", l.Mean, l.CV, l.Min, l.Max, mostTokens)
	}
	return nil
}

func (l Lengths) draw(rng *rand.Rand) int {
	if len(l.Values) > 0 {
		return l.Values[rng.IntN(len(l.Values))]
	}
	v := l.Mean
	if l.CV > 0 {
		variance := math.Log1p(l.CV * l.CV)
		v = math.Exp(math.Log(l.Mean) - variance/2 + math.Sqrt(variance)*rng.NormFloat64())
	}
	most := l.Max
	if most == 0 {
		most = mostTokens
	}
	return int(min(max(math.Round(v), float64(l.Min), 1), float64(most)))
}

// cumulative is a table to draw an index from by weight.
type cumulative []float64

func newCumulative(n int, weight func(int) float64) cumulative {
	c := make(cumulative, n)
	sum := 0.0
	for i := range c {
		sum += weight(i)
		c[i] = sum
	}
	return c
}

func (c cumulative) draw(rng *rand.Rand) int {
	if len(c) == 1 {
		return 0
	}
	return min(sort.SearchFloat64s(c, rng.Float64()*c[len(c)-1]), len(c)-1)
}

// traffic makes requests up. Each question has its own random numbers, so that a
// scenario with other lengths has the same arrivals.
type traffic struct {
	tenants []Tenant
	shares  cumulative
	groups  []cumulative // by tenant
	tenant  *rand.Rand
	length  *rand.Rand
	prefix  *rand.Rand
	seed    uint64
	block   int
	made    uint64
}

func newTraffic(s Scenario) *traffic {
	t := &traffic{
		tenants: s.Tenants, seed: s.Seed, block: s.Fleet.Engine.BlockSize,
		tenant: rand.New(rand.NewPCG(s.Seed, 1)), length: rand.New(rand.NewPCG(s.Seed, 2)), prefix: rand.New(rand.NewPCG(s.Seed, 3)),
		shares: newCumulative(len(s.Tenants), func(i int) float64 { return s.Tenants[i].Share }),
	}
	for _, n := range s.Tenants {
		var c cumulative
		if n.Prefix.Tokens > 0 && n.Prefix.Groups > 0 {
			c = newCumulative(n.Prefix.Groups, func(i int) float64 { return math.Pow(float64(i+1), -n.Prefix.Zipf) })
		}
		t.groups = append(t.groups, c)
	}
	return t
}

// renew makes the sequence of q new, for its first replica or another.
func (q *request) renew(n *Tenant) {
	s := &q.seq
	s.Reset()
	s.ID, s.Prompt, s.Max, s.Salt, s.Priority, s.Sampling.Top = q.id, q.prompt, q.output, n.Name, n.Priority, -1
}

// fill makes q the next request. Of its prompt only the first token of each block
// means something, as blockHash knows; the others are 0.
func (t *traffic) fill(q *request, id uint64) {
	t.made++
	q.tenant = t.shares.draw(t.tenant)
	n := &t.tenants[q.tenant]
	tokens, output := n.Prompt.draw(t.length), n.Output.draw(t.length)
	// A prompt of its own is all that a prefix cache can know of it.
	own := route.Mix(t.seed, t.made)
	common, same := own, 0
	if c := t.groups[q.tenant]; c != nil {
		common = route.Mix(uint64(q.tenant)+1, uint64(c.draw(t.prefix))+1)
		same = min(n.Prefix.Tokens, tokens) / t.block
	}
	if cap(q.room) < tokens {
		q.room = make([]int, tokens, tokens+tokens/2)
	}
	prompt := q.room[:tokens]
	for i := 0; i*t.block < tokens; i++ {
		if i < same {
			prompt[i*t.block] = int(common)
		} else {
			prompt[i*t.block] = int(own)
		}
	}
	q.prompt, q.output, q.id = prompt, output, id
	q.renew(n)
	q.route.Prefix = own
	if same > 0 {
		q.route.Prefix = common
	}
}
