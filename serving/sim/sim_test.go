package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/slo"
)

var shape70B = model.Shape{Family: "llama", Hidden: 8192, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Intermediate: 28672, Vocab: 128256}

func node70B(gpu string, edits ...func(*estimate.Options)) estimate.Options {
	o := estimate.Options{GPU: gpu, TensorParallel: 8, Shape: shape70B, Parameters: 70e9, BlockSize: 128}
	for _, e := range edits {
		e(&o)
	}
	return o
}

func limits(ttft, tpot time.Duration) slo.Class {
	return slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: ttft}, TPOT: slo.Bound{Quantile: 0.95, Limit: tpot}}
}

// fleet is some minutes of a fleet of n nodes under the load of the published sizing.
func fleet(n int, d time.Duration) Scenario {
	return Scenario{
		Seed: 1, Duration: d, Warmup: d / 6,
		Fleet:    Fleet{Nodes: n, GPUs: 8, Engine: node70B("assumed-192gb"), StepTokens: 1024},
		Arrivals: Arrivals{Process: Poisson, Rate: 300.0 / 26 * float64(n)},
		Tenants: []Tenant{{
			Name: "chat", Share: 1, Prompt: Lengths{Mean: 1500}, Output: Lengths{Mean: 250},
			Prefix: Prefix{Groups: 100, Tokens: 1024, Zipf: 1},
		}},
		SLO: limits(400*time.Millisecond, 30*time.Millisecond),
	}
}

func simulate(t testing.TB, s Scenario) *Result {
	t.Helper()
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got/want-1) <= tolerance) {
		t.Errorf("%s: %.5g, want %.5g within %g %%", what, got, want, 100*tolerance)
	}
}

// The row of the published sizing: 192 sequences of 2,048 tokens on one node.
func TestSteadyBatch(t *testing.T) {
	s := fleet(1, 4*time.Minute)
	s.Fleet.DecodeOnly, s.Fleet.Sequences = true, 192
	s.Arrivals = Arrivals{Process: Closed, Concurrency: 192}
	s.Tenants = []Tenant{{Name: "chat", Share: 1, Prompt: Lengths{Mean: 1792}, Output: Lengths{Mean: 511}}}
	r := simulate(t, s)
	near(t, "TPOT ms", r.Total.TPOT.P50, 24.62, 0.01)
	near(t, "tokens/s", r.Engines.NodeOutputPerSecond, 7797, 0.01)
	near(t, "batch", r.Engines.Batch, 192, 0.01)
}

// Below its capacity a fleet serves what comes, and finds the prefixes that recur.
func TestFleetKeepsUp(t *testing.T) {
	r := simulate(t, fleet(4, 3*time.Minute))
	near(t, "tokens/s a node", r.Engines.NodeOutputPerSecond, 300.0/26*250, 0.05)
	near(t, "requests after the warm-up", float64(r.Total.Arrived), 300.0/26*4*150, 0.05)
	// 896 of 1,500 tokens are 7 whole blocks; each replica computes each group once.
	if h := r.Engines.PrefixHitShare; h < 0.5 || h > 896.0/1500+0.09 {
		t.Errorf("prefix hits %v", h)
	}
	near(t, "cached", r.Total.CachedShare, r.Engines.PrefixHitShare, 0.02)
	if r.Total.Rejected+r.Total.Failed > 0 || r.HotSpot > 1.5 || r.Engines.Preemptions > 0 {
		t.Errorf("%d rejected, %d failed, hot spot %v, %d preempted", r.Total.Rejected, r.Total.Failed, r.HotSpot, r.Engines.Preemptions)
	}
	apart := fleet(4, 3*time.Minute)
	apart.Tenants[0].Prefix = Prefix{}
	if h := simulate(t, apart).Engines.PrefixHitShare; h != 0 {
		t.Errorf("prompts that share nothing find %v of themselves", h)
	}
	// What one tenant's prompts begin with is nothing to another's.
	same := fleet(4, 3*time.Minute)
	same.Tenants[0].Prefix.Groups = 1
	two := same
	two.Tenants = []Tenant{same.Tenants[0], same.Tenants[0]}
	two.Tenants[1].Name = "other"
	a, b := simulate(t, same), simulate(t, two)
	if a.HotSpot > 1.5 || b.HotSpot > 1.5 || len(b.Tenants) != 2 {
		t.Errorf("one prefix for all makes a hot spot of %v, two of %v", a.HotSpot, b.HotSpot)
	}
}

// thrash is a node whose burst at the beginning is more than its cache holds.
func thrash(overcommit bool) Scenario {
	return Scenario{
		Seed: 1, Duration: time.Hour, Interval: 10 * time.Minute,
		Fleet: Fleet{
			Nodes: 1, GPUs: 8, Engine: node70B("a100-80gb", func(o *estimate.Options) { o.BlockSize = 16 }),
			Sequences: 512, StepTokens: 2048, Overcommit: overcommit,
		},
		Router:   Router{Streams: 512, Queue: 64},
		Arrivals: Arrivals{Process: Poisson, Rate: 0.5, Bursts: Bursts{Every: 2 * time.Hour, For: 10 * time.Minute, Times: 3}},
		Tenants:  []Tenant{{Name: "agents", Share: 1, Prompt: Lengths{Mean: 1000, CV: 0.5, Max: 8000}, Output: Lengths{Mean: 4000, CV: 0.3, Max: 16000}}},
		SLO:      limits(time.Minute, 120*time.Millisecond),
	}
}

// Over-commitment turns a burst into a spiral: what is thrown out is computed again,
// and computing it again takes what would have drained the queue. With reservation the
// same node is well again within the hour.
func TestThrashSpiral(t *testing.T) {
	over, kept := simulate(t, thrash(true)), simulate(t, thrash(false))
	if e := over.Engines; e.Preemptions < 1000 || e.RecomputedShare < 0.25 || e.KVPeak < 0.99 {
		t.Errorf("over-committed: %+v", e)
	}
	if e := kept.Engines; e.Preemptions != 0 || e.RecomputedTokens != 0 || e.KVPeak > 0.9 {
		t.Errorf("reserved: %+v", e)
	}
	// What is late already counts against it, before it has ended.
	if g := over.Total; g.GoodShare >= ratio(float64(g.Good), float64(g.Finished+g.Rejected+g.Failed)) || g.Unfinished == 0 {
		t.Errorf("over-committed: %+v", g)
	}
	a, b := over.Series[len(over.Series)-1], kept.Series[len(kept.Series)-1]
	if a.Good != 0 || a.TPOTp95 < 200 || a.Waiting == 0 {
		t.Errorf("over-committed, after an hour: %+v", a)
	}
	if b.Good != b.Finished || b.Finished < 250 || b.Waiting != 0 {
		t.Errorf("reserved, after an hour: %+v", b)
	}
}

// random is a scenario of everything, small.
func random(rng *rand.Rand) Scenario {
	pick := func(n int) bool { return rng.IntN(n) == 0 }
	s := Scenario{
		Seed: rng.Uint64(), Duration: 30 * time.Second, Interval: 7 * time.Second,
		Fleet: Fleet{
			Nodes: 1 + rng.IntN(3), GPUs: 8, Engine: node70B("h100-sxm", func(o *estimate.Options) { o.BlockSize, o.Weights, o.TensorParallel = 16, "fp8", 2<<rng.IntN(3) }),
			Sequences: 1 + rng.IntN(60), StepTokens: 64 + rng.IntN(2000), Overcommit: pick(2), DecodeOnly: pick(4), KVTokens: 4000 + rng.IntN(40000),
		},
		Router:   Router{Streams: 1 + rng.IntN(100), Queue: 1 + rng.IntN(40), QueueTime: time.Duration(1+rng.IntN(5000)) * time.Millisecond},
		Arrivals: Arrivals{Process: []Process{Poisson, Constant, Gamma}[rng.IntN(3)], Rate: 1 + 60*rng.Float64(), CV: 2},
		SLO:      limits(time.Second, 50*time.Millisecond),
	}
	if pick(3) {
		s.Fleet.Chunk = 100
	}
	if pick(4) {
		s.Arrivals = Arrivals{Process: Closed, Concurrency: 1 + rng.IntN(100)}
	}
	if s.Arrivals.Process != Gamma {
		s.Arrivals.CV = 0
	}
	for i := range 1 + rng.IntN(3) {
		s.Tenants = append(s.Tenants, Tenant{
			Name: string(rune('a' + i)), Share: 1 + rng.Float64(), Priority: rng.IntN(3),
			Prompt: Lengths{Mean: 300, CV: 1, Max: 2000}, Output: Lengths{Values: []int{1, 2, 50, 200, 1000}},
			Prefix: Prefix{Groups: rng.IntN(5), Tokens: rng.IntN(400), Zipf: 1},
		})
	}
	n := s.Fleet.replicas()
	for range rng.IntN(7) {
		f := Fault{Kind: []FaultKind{Slow, Stall, Crash}[rng.IntN(3)], Replica: rng.IntN(n), At: time.Duration(rng.IntN(30000)) * time.Millisecond, For: time.Duration(1+rng.IntN(9000)) * time.Millisecond}
		if f.Kind == Slow {
			f.Factor = 2
		}
		s.Faults = append(s.Faults, f)
	}
	return s
}

// Nothing is lost, whatever happens, and the same seed gives the same result.
func TestNothingIsLost(t *testing.T) {
	var seen Group
	var preempted uint64
	for seed := range uint64(40) {
		s := random(rand.New(rand.NewPCG(seed, 5)))
		m, err := prepare(s)
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Whatever is sent is in an engine, whatever waits is in the router.
		sent, waiting := map[*replica]int{}, 0
		for _, q := range m.requests {
			switch q.state {
			case running:
				sent[q.replica]++
			case queued:
				waiting++
			}
		}
		if waiting != m.gate.Waiting() {
			t.Errorf("seed %d: %d requests wait, %d in the router", seed, waiting, m.gate.Waiting())
		}
		for _, rep := range m.replicas {
			in := 0
			if !rep.dead {
				in = rep.core.Stats().Running + rep.core.Stats().Waiting
			}
			if in != sent[rep] {
				t.Errorf("seed %d: %d requests were sent to %s, it has %d", seed, sent[rep], rep.name, in)
			}
		}
		var sum Group
		for i, g := range append(r.Tenants, r.Total) {
			if g.Arrived != g.Finished+g.Rejected+g.Failed+g.Unfinished {
				t.Errorf("seed %d: %s: %d arrived, %d finished, %d rejected, %d failed, %d open", seed, g.Name, g.Arrived, g.Finished, g.Rejected, g.Failed, g.Unfinished)
			}
			if g.GoodShare < 0 || g.GoodShare > 1 || g.CachedShare < 0 || g.CachedShare > 1 || g.Good > g.Finished {
				t.Errorf("seed %d: %+v", seed, g)
			}
			if i < len(r.Tenants) {
				sum.add(&g)
			}
		}
		if sum.Arrived != r.Total.Arrived || sum.Finished != r.Total.Finished || sum.OutputTokens != r.Total.OutputTokens {
			t.Errorf("seed %d: tenants are %+v together, all is %+v", seed, sum, r.Total)
		}
		var moments Moment
		for _, m := range r.Series {
			moments.Arrived += m.Arrived
			moments.Finished += m.Finished
			moments.Rejected += m.Rejected
			moments.Failed += m.Failed
			moments.Preemptions += m.Preemptions
			moments.OutputTokens += m.OutputTokens
		}
		if all := r.Engines.OutputPerSecond * r.Seconds; math.Abs(float64(moments.OutputTokens)-all) > 1 || moments.OutputTokens < uint64(r.Total.OutputTokens) {
			t.Errorf("seed %d: %d tokens in the series, %v of all engines, %d in finished answers", seed, moments.OutputTokens, all, r.Total.OutputTokens)
		}
		if g := r.Total; moments.Arrived != g.Arrived || moments.Finished != g.Finished || moments.Rejected != g.Rejected || moments.Failed != g.Failed || moments.Preemptions != r.Engines.Preemptions {
			t.Errorf("seed %d: the series has %+v, all is %+v", seed, moments, g)
		}
		for _, e := range r.Replicas {
			if e.Busy < 0 || e.Busy > 1.3 || e.KVUse > 1 || e.KVPeak > 1 || e.PrefixHitShare > 1 { // a step may end after its interval
				t.Errorf("seed %d: %+v", seed, e)
			}
		}
		if r.TTFT.N() != uint64(r.Total.Finished) {
			t.Errorf("seed %d: the histogram has %d of %d", seed, r.TTFT.N(), r.Total.Finished)
		}
		seen.add(&r.Total)
		preempted += r.Engines.Preemptions
		again := simulate(t, s)
		s.Seed++
		other := simulate(t, s)
		a, b, c := marshal(t, r), marshal(t, again), marshal(t, other)
		if !bytes.Equal(a, b) {
			t.Errorf("seed %d: the same scenario gives\n%s\nand\n%s", seed, a, b)
		}
		if other.Seed = r.Seed; bytes.Equal(a, marshal(t, other)) && r.Total.Finished > 5 {
			t.Errorf("seed %d: another seed gives the same\n%s", seed, c)
		}
	}
	if seen.Finished == 0 || seen.Rejected == 0 || seen.Failed == 0 || seen.Retried == 0 || preempted == 0 {
		t.Errorf("the scenarios show too little: %+v, %d preempted", seen, preempted)
	}
}

func marshal(t *testing.T, r *Result) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A replica that is 15 % slow shows in its own numbers and nowhere in the router's.
func TestSlowReplica(t *testing.T) {
	s := fleet(3, 2*time.Minute)
	s.Faults = []Fault{{Kind: Slow, Replica: 1, Factor: 1.15}}
	r := simulate(t, s)
	if a, b := r.Replicas[0].TPOT.P50, r.Replicas[1].TPOT.P50; b < 1.05*a || b > 1.4*a {
		t.Errorf("TPOT of a good replica %v ms, of the slow one %v ms", a, b)
	}
	// A fault that ends leaves nothing.
	s.Faults = []Fault{{Kind: Slow, Replica: 1, Factor: 10, At: 2 * time.Second, For: 3 * time.Second}}
	r = simulate(t, s)
	s.Faults = nil
	near(t, "TPOT after the fault", r.Replicas[1].TPOT.P50, simulate(t, s).Replicas[1].TPOT.P50, 0.05)
}

func TestCrash(t *testing.T) {
	s := fleet(3, 2*time.Minute)
	s.Warmup = 0
	s.Faults = []Fault{{Kind: Crash, Replica: 1, At: 30 * time.Second, For: 20 * time.Second}}
	r := simulate(t, s)
	if r.Total.Failed == 0 || r.Total.Failed > 300 || r.Total.Rejected != 0 {
		t.Errorf("%d failed, %d rejected", r.Total.Failed, r.Total.Rejected)
	}
	// A third of the time it has nothing; the others have it all.
	if share := float64(r.Replicas[1].Routed) / float64(r.Replicas[0].Routed); share < 0.5 || share > 0.95 {
		t.Errorf("the crashed replica got %v of what another did", share)
	}
	if r.Replicas[1].PrefixHitShare >= r.Replicas[0].PrefixHitShare {
		t.Errorf("its cache outlived the crash: %v and %v", r.Replicas[1].PrefixHitShare, r.Replicas[0].PrefixHitShare)
	}
	s.Faults[0].For = 0
	never := simulate(t, s)
	if never.Replicas[1].Routed >= r.Replicas[1].Routed {
		t.Error("a replica that never comes back serves as much as one that does")
	}

	// When all are dead, requests fail at once; closed clients come back, but not at once.
	s = fleet(1, time.Minute)
	s.Warmup = 0
	s.Arrivals = Arrivals{Process: Closed, Concurrency: 10}
	s.Faults = []Fault{{Kind: Crash, At: 30 * time.Second}}
	if r = simulate(t, s); r.Total.Failed < 290 || r.Total.Failed > 320 {
		t.Errorf("10 clients that find nobody for 30 s fail %d times", r.Total.Failed)
	}
}

// A stall stops everything of one replica for as long as it lasts, and the router sends
// it nothing once it knows.
func TestStall(t *testing.T) {
	s := fleet(3, time.Minute)
	s.Warmup = 0
	calm := simulate(t, s)
	s.Faults = []Fault{{Kind: Stall, Replica: 2, At: 20 * time.Second, For: 10 * time.Second}}
	r := simulate(t, s)
	if got, was := r.Total.E2E.P99, calm.Total.E2E.P99; got < was+8000 || got > was+13000 {
		t.Errorf("E2E p99 %v ms, without the stall %v", got, was)
	}
	if r.Total.Failed > 0 || r.Replicas[2].Routed >= calm.Replicas[2].Routed {
		t.Errorf("%d failed, %d requests sent, without the stall %d", r.Total.Failed, r.Replicas[2].Routed, calm.Replicas[2].Routed)
	}
}

// A request that comes to an idle engine during a stall waits for its end.
func TestStallOfAnIdleEngine(t *testing.T) {
	s := fleet(1, 30*time.Second)
	s.Warmup = 0
	s.Arrivals = Arrivals{Process: Constant, Rate: 0.2} // at 5 s, 10 s, 15 s …
	s.Tenants[0].Output.Mean = 2
	s.Faults = []Fault{{Kind: Stall, At: 14 * time.Second, For: 4 * time.Second}}
	if got := simulate(t, s).Total.TTFT.P99; got < 3000 || got > 3300 {
		t.Errorf("the longest wait is %v ms, want that of 15 s until 18 s", got)
	}
}

// Under more than an engine can do, those who go first are served and the router turns
// away what it has no room for.
func TestOverload(t *testing.T) {
	s := fleet(1, 2*time.Minute)
	s.Arrivals.Rate *= 3
	s.Fleet.Sequences = 64
	s.Router = Router{Streams: 200, Queue: 20, QueueTime: 2 * time.Second}
	chat := s.Tenants[0]
	batch := chat
	batch.Name, batch.Priority, batch.Share = "batch", 1, 3
	s.Tenants = []Tenant{chat, batch}
	r := simulate(t, s)
	if r.Total.Rejected == 0 || r.Total.Finished == 0 {
		t.Fatalf("%+v", r.Total)
	}
	if a, b := r.Tenants[0].TTFT.P50, r.Tenants[1].TTFT.P50; a > b/2 {
		t.Errorf("TTFT p50 of those who go first %v ms, of the others %v ms", a, b)
	}
	for _, m := range r.Series {
		if m.Queued > 20 || m.Running+m.Waiting > 200 || m.Running > 64 {
			t.Errorf("over the bounds: %+v", m)
		}
	}
	if r.Total.GoodShare > 0.5 {
		t.Errorf("good share %v", r.Total.GoodShare)
	}
}

func TestRunGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, fleet(1, time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestCheck(t *testing.T) {
	if err := fleet(2, time.Minute).Check(); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*Scenario){
		"a duration":           func(s *Scenario) { s.Duration = 0 },
		"a warm-up":            func(s *Scenario) { s.Warmup = s.Duration },
		"an interval":          func(s *Scenario) { s.Interval = time.Microsecond },
		"0 nodes":              func(s *Scenario) { s.Fleet.Nodes = 0 },
		"of 3 GPUs on nodes":   func(s *Scenario) { s.Fleet.Engine.TensorParallel = 3 },
		"at most 65536":        func(s *Scenario) { s.Fleet.Nodes = 1 << 40 },
		"in a chunk":           func(s *Scenario) { s.Fleet.Chunk = -1 },
		"streams a replica":    func(s *Scenario) { s.Router.Streams = -1 },
		"300000 tokens":        func(s *Scenario) { s.Fleet.StepTokens, s.Fleet.Sequences = 300000, 70000 },
		"tokens: want at most": func(s *Scenario) { s.Fleet.Nodes, s.Fleet.Engine.BlockSize = 100, 1 },
		"requests: want at":    func(s *Scenario) { s.Arrivals.Rate, s.Duration = 1e6, time.Hour },
		"requests at a time":   func(s *Scenario) { s.Router.Streams = 1 << 30 },
		"want poisson":         func(s *Scenario) { s.Arrivals.Process = "uniform" },
		"a rate":               func(s *Scenario) { s.Arrivals.Rate = math.NaN() },
		"coefficient":          func(s *Scenario) { s.Arrivals.Process = Gamma },
		"closed clients":       func(s *Scenario) { s.Arrivals.Process = Closed },
		"bursts":               func(s *Scenario) { s.Arrivals.Bursts.Every = time.Second },
		"no tenants":           func(s *Scenario) { s.Tenants = nil },
		"of its own":           func(s *Scenario) { s.Tenants = append(s.Tenants, s.Tenants[0]) },
		"a share":              func(s *Scenario) { s.Tenants[0].Share = 0 },
		"prompt: lengths":      func(s *Scenario) { s.Tenants[0].Prompt.Mean = 0 },
		"output: a length":     func(s *Scenario) { s.Tenants[0].Output = Lengths{Values: []int{0}} },
		"output: a list":       func(s *Scenario) { s.Tenants[0].Output = Lengths{Values: []int{1}, Mean: 2} },
		"prefixes":             func(s *Scenario) { s.Tenants[0].Prefix.Zipf = -1 },
		"fault 1: replica 2":   func(s *Scenario) { s.Faults = []Fault{{Kind: Crash, Replica: 2}} },
		"fault 1: slow":        func(s *Scenario) { s.Faults = []Fault{{Kind: Slow}} },
		"fault 1: a stall":     func(s *Scenario) { s.Faults = []Fault{{Kind: Stall, For: time.Hour}} },
		"fault 1: at":          func(s *Scenario) { s.Faults = []Fault{{Kind: Crash, At: -1}} },
		"the traffic ends":     func(s *Scenario) { s.Faults = []Fault{{Kind: Crash, At: time.Hour}} },
		"fault 1: kind":        func(s *Scenario) { s.Faults = []Fault{{Kind: "melt"}} },
		"not in the catalog":   func(s *Scenario) { s.Fleet.Engine.GPU = "h100" },
		"the memory of":        func(s *Scenario) { s.Fleet.KVTokens = 1 << 40 },
		"shorten its prompts":  func(s *Scenario) { s.Fleet.KVTokens = 1280 },
	} {
		s := fleet(2, time.Minute)
		edit(&s)
		if _, err := Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
}

// A token costs no allocation, and a request few.
func TestAllocations(t *testing.T) {
	m, err := prepare(fleet(2, 20*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	for _, r := range m.replicas {
		r.emit = func(e core.Event) {
			tokens++
			r.event(e)
		}
	}
	advance := func(upTo time.Duration) {
		m.events.push(event{at: upTo, kind: end})
		if _, err := m.run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	advance(5 * time.Minute) // until buffers have grown
	tokens = 0
	n := testing.AllocsPerRun(1, func() { advance(m.now + time.Minute) })
	if per := n / (float64(tokens) / 2); per > 0.01 {
		t.Errorf("%v allocations for %d tokens", n, tokens)
	}
}

func BenchmarkFleet(b *testing.B) {
	tokens := 0.0
	for b.Loop() {
		r := simulate(b, fleet(26, 2*time.Minute))
		tokens += r.Engines.OutputPerSecond * 120
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/tokens, "ns/token")
}
