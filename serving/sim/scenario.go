package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/router"
	"llmops/serving/slo"
)

// Scenario is what is simulated.
type Scenario struct {
	Seed     uint64
	Duration time.Duration // of the traffic; what has not ended by then is unfinished
	Warmup   time.Duration // the beginning that only the series shows
	Interval time.Duration // of the series; default: a sixtieth of Duration

	Fleet    Fleet
	Router   Router
	Arrivals Arrivals
	Tenants  []Tenant
	Faults   []Fault
	SLO      slo.Class // the limits of its TTFT and TPOT say what counts as good
}

// Fleet is the engines. Each node holds as many replicas as its GPUs allow.
type Fleet struct {
	Nodes  int
	GPUs   int              // of a node
	Engine estimate.Options // Seed and RealTime are the simulation's own

	Sequences  int  // running at once on a replica; default DefaultSequences
	StepTokens int  // in one step; default DefaultStepTokens
	Chunk      int  // of one prompt in a step; 0: as many as fit
	KVTokens   int  // that a replica's cache holds; 0: what memory allows
	Overcommit bool // admit by known tokens, not by the longest answer
	DecodeOnly bool // prompts come with their cache, from engines that only prefill
}

// Defaults of Fleet.
const (
	DefaultSequences = 256
	// DefaultStepTokens is vLLM's usual budget.
	DefaultStepTokens = 2048
)

// Router bounds what is sent to replicas and what waits.
type Router struct {
	Streams   int           // requests that a replica has at a time
	Queue     int           // requests that wait
	QueueTime time.Duration // that one waits at most
}

// Tenant is a share of the requests.
type Tenant struct {
	Name     string
	Share    float64 // in any unit; the sum is all
	Priority int     // in the engines; the lower goes first
	Prompt   Lengths
	Output   Lengths
	Prefix   Prefix
}

// Prefix makes prompts begin alike. The zero Prefix shares nothing.
type Prefix struct {
	Groups int     // different beginnings
	Tokens int     // of each; whole blocks of them are shared
	Zipf   float64 // how unequal they are: group n is asked for in proportion to n^-Zipf
}

// FaultKind is what is wrong with a replica.
type FaultKind string

// A slow replica takes Factor times as long for a step and nobody is told; for a
// while or, without For, to the end. A stalled one stands still, its health check
// too. A crashed one loses everything and is back, empty, after For, or never.
const (
	Slow  FaultKind = "slow"
	Stall FaultKind = "stall"
	Crash FaultKind = "crash"
)

// MostStall is the longest Stall: a router gives up on streams that are silent for
// longer, which is not simulated.
const MostStall = time.Minute

// Fault is one event.
type Fault struct {
	Kind    FaultKind
	Replica int // from 0
	At      time.Duration
	For     time.Duration
	Factor  float64 // of Slow
}

// replicas is how many there are.
func (f Fleet) replicas() int { return f.Nodes * (f.GPUs / f.Engine.TensorParallel) }

func (s Scenario) withDefaults() Scenario {
	s.Fleet.Engine.TensorParallel = cmp.Or(s.Fleet.Engine.TensorParallel, 1)
	s.Fleet.Engine.BlockSize = cmp.Or(s.Fleet.Engine.BlockSize, core.BlockSize)
	s.Fleet.Sequences = cmp.Or(s.Fleet.Sequences, DefaultSequences)
	s.Fleet.StepTokens = cmp.Or(s.Fleet.StepTokens, DefaultStepTokens)
	s.Router.Streams = cmp.Or(s.Router.Streams, router.DefaultStreams)
	s.Router.Queue = cmp.Or(s.Router.Queue, router.DefaultQueue)
	s.Router.QueueTime = cmp.Or(s.Router.QueueTime, router.DefaultQueueTime)
	s.Interval = cmp.Or(s.Interval, max(s.Duration/60, time.Millisecond))
	return s
}

// most bounds what a scenario may ask for, so that a slip of a digit is an error
// and not a machine without memory.
const (
	mostReplicas  = 1 << 16
	mostIntervals = 100_000
	mostGroups    = 1 << 22
	mostLive      = 1 << slotBits
	mostSequences = 1 << 16
	mostStep      = 1 << 20
	mostRequests  = 50e6
	mostBlocks    = 1 << 25 // of all replicas
)

// Check says everything that is wrong with s.
func (s Scenario) Check() error {
	s = s.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case s.Duration <= 0:
		bad("a duration of %v: want more than nothing", s.Duration)
	case s.Warmup < 0 || s.Warmup >= s.Duration:
		bad("a warm-up of %v: want less than the duration, %v", s.Warmup, s.Duration)
	case s.Interval < 0 || s.Duration/s.Interval > mostIntervals:
		bad("an interval of %v in %v: want at most %d of them", s.Interval, s.Duration, mostIntervals)
	}
	f := s.Fleet
	switch tp := f.Engine.TensorParallel; {
	case f.Nodes < 1 || f.GPUs < 1:
		bad("%d nodes of %d GPUs: want at least one of each", f.Nodes, f.GPUs)
	case tp < 1 || f.GPUs%tp != 0:
		bad("replicas of %d GPUs on nodes of %d: want a number that fits without a rest", tp, f.GPUs)
	case f.Nodes > mostReplicas || f.GPUs > mostReplicas || f.replicas() > mostReplicas:
		bad("%d nodes of %d GPUs: want at most %d replicas", f.Nodes, f.GPUs, mostReplicas)
	}
	if f.Sequences < 1 || f.Sequences > mostSequences || f.StepTokens < 1 || f.StepTokens > mostStep || f.Chunk < 0 || f.KVTokens < 0 {
		bad("%d sequences, %d tokens in a step, %d in a chunk, %d in the cache: want 1 to %d, 1 to %d, and the others not negative",
			f.Sequences, f.StepTokens, f.Chunk, f.KVTokens, mostSequences, mostStep)
	}
	if s.Router.Streams < 1 || s.Router.Queue < 1 || s.Router.QueueTime <= 0 {
		bad("a router of %d streams a replica and %d waiting for %v: want each more than nothing", s.Router.Streams, s.Router.Queue, s.Router.QueueTime)
	}
	if len(errs) == 0 {
		live := float64(f.replicas())*float64(s.Router.Streams) + float64(s.Router.Queue) + float64(s.Arrivals.Concurrency)
		if live >= mostLive {
			bad("up to %.0f requests at a time: want fewer than %d", live, mostLive)
		}
		if n := s.Arrivals.Rate * s.Duration.Seconds(); n > mostRequests {
			bad("%.0f requests: want at most %.0f", n, mostRequests)
		}
	}
	if err := s.Arrivals.check(); err != nil {
		errs = append(errs, err)
	}
	if len(s.Tenants) == 0 {
		bad("no tenants: nobody asks for anything")
	}
	seen := map[string]bool{}
	for _, t := range s.Tenants {
		if t.Name == "" || seen[t.Name] {
			bad("tenant %q: want a name of its own", t.Name)
		}
		seen[t.Name] = true
		if err := t.check(); err != nil {
			bad("tenant %q: %w", t.Name, err)
		}
	}
	for i, f := range s.Faults {
		// How many replicas there are is known when the rest is right.
		if len(errs) == 0 {
			if err := f.check(s.Fleet.replicas(), s.Duration); err != nil {
				bad("fault %d: %w", i+1, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (t Tenant) check() error {
	if !(t.Share > 0) || math.IsInf(t.Share, 1) {
		return fmt.Errorf("a share of %v: want more than 0", t.Share)
	}
	if err := t.Prompt.check(); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	if err := t.Output.check(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	p := t.Prefix
	if p.Groups < 0 || p.Groups > mostGroups || p.Tokens < 0 || !(p.Zipf >= 0 && p.Zipf <= 10) {
		return fmt.Errorf("%d prefixes of %d tokens with a Zipf exponent of %v: want at most %d, none negative and an exponent up to 10", p.Groups, p.Tokens, p.Zipf, mostGroups)
	}
	return nil
}

func (f Fault) check(replicas int, end time.Duration) error {
	switch {
	case f.Replica < 0 || f.Replica >= replicas:
		return fmt.Errorf("replica %d: there are %d, from 0", f.Replica, replicas)
	case f.At < 0 || f.For < 0:
		return fmt.Errorf("at %v for %v: neither may be negative", f.At, f.For)
	case f.At >= end:
		return fmt.Errorf("at %v: the traffic ends after %v", f.At, end)
	}
	switch f.Kind {
	case Slow:
		if !(f.Factor > 0 && f.Factor <= 1000) {
			return fmt.Errorf("slow by a factor of %v: want more than 0 and at most 1000", f.Factor)
		}
	case Stall:
		if f.For <= 0 || f.For > MostStall {
			return fmt.Errorf("a stall of %v: want up to %v; a router gives up on what is silent for longer, so use a crash", f.For, MostStall)
		}
	case Crash:
	default:
		return fmt.Errorf("kind %q: want slow, stall or crash", f.Kind)
	}
	return nil
}
