// Package sim runs engines and the router's choice under a virtual clock: the same
// scheduler (embedded/core), the same admission and the same choice
// ([router.Gate], [router.Choose]) as in production, over replicas whose steps take
// what embedded/estimate says. An hour of a fleet takes seconds.
//
// A [Scenario] says what is simulated, [Run] gives a [Result]. The same scenario and
// seed give the same Result to the last bit on the same kind of machine. One
// goroutine does everything in the order of one event queue; a Run shares nothing
// with another.
//
// Times are those of the engine: the network, tokenising and the router's own work
// take none, and health probes come when a router would send them, every half
// second. A request that a crash broke off before its first token is sent to another
// replica once, as the router does; others fail. There is one model and one version.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/route"
	"llmops/serving/router"
)

const (
	alias   = "model"
	version = "v1"

	// probeEvery and suspectAfter are the router's: it believes a refusal at once
	// and a silence of 700 ms the second time.
	probeEvery   = 500 * time.Millisecond
	suspectAfter = 1400 * time.Millisecond
)

// slotBits are the low bits of a sequence's id, which say where its request is.
const slotBits = 22

// request is one and all that belongs to it. It is used again for a later one.
type request struct {
	seq      core.Sequence
	route    router.Request
	decision router.Decision
	id       uint64
	prompt   []int
	room     []int // behind prompt
	output   int
	slot     int
	tenant   int
	replica  *replica
	state    reqState
	arrived  time.Duration
	first    time.Duration // when the first token came; 0: not yet
	again    bool          // sent to a second replica
}

type reqState uint8

const (
	free reqState = iota
	queued
	running
)

type simulation struct {
	s        Scenario
	now      time.Duration
	events   queue
	clock    *clock
	traffic  *traffic
	gate     router.Gate
	view     *router.View
	replicas []*replica
	byMember map[*router.Replica]*replica
	requests []*request
	spare    []*request
	lastID   uint64
	record   recorder

	out []core.Token // of the step that ends
}

// Run simulates s. It gives up when ctx ends.
func Run(ctx context.Context, s Scenario) (*Result, error) {
	m, err := prepare(s)
	if err != nil {
		return nil, err
	}
	return m.run(ctx)
}

func prepare(s Scenario) (*simulation, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	m := &simulation{
		s: s, traffic: newTraffic(s), clock: newClock(s.Arrivals, rand.New(rand.NewPCG(s.Seed, 4))),
		gate: router.Gate{Queue: s.Router.Queue}, byMember: make(map[*router.Replica]*replica),
		out: make([]core.Token, s.Fleet.Sequences),
	}
	var members []*router.Replica
	perNode := s.Fleet.GPUs / s.Fleet.Engine.TensorParallel
	for i := range s.Fleet.replicas() {
		name := fmt.Sprintf("node-%02d", i/perNode)
		if perNode > 1 {
			name = fmt.Sprintf("%s/%d", name, i%perNode)
		}
		r, err := newReplica(m, i, name)
		if err != nil {
			return nil, err
		}
		if all := float64(r.limits.Blocks) * float64(s.Fleet.replicas()); all > mostBlocks {
			return nil, fmt.Errorf("%.0f blocks of %d tokens: want at most %d; take larger blocks", all, r.limits.BlockSize, mostBlocks)
		}
		m.replicas, members, m.byMember[r.member] = append(m.replicas, r), append(members, r.member), r
	}
	doc := route.New(alias, "sim", version)
	m.view = router.NewView("", "", s.Router.Streams, []router.Route{{Doc: doc}}, members)
	m.record.begin(m)

	m.events.push(event{at: s.Duration, kind: end})
	if s.Warmup > 0 {
		m.events.push(event{at: s.Warmup, kind: warm})
	}
	m.events.push(event{at: s.Interval, kind: sample})
	for i, f := range s.Faults {
		m.events.push(event{at: f.At, kind: fault, of: i})
	}
	if s.Arrivals.Process == Closed {
		for range s.Arrivals.Concurrency {
			m.events.push(event{kind: arrival})
		}
	} else {
		m.events.push(event{at: m.clock.next(), kind: arrival})
	}
	return m, nil
}

func (m *simulation) run(ctx context.Context) (*Result, error) {
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e := m.events.pop()
		m.now = e.at
		switch e.kind {
		case stepped:
			if r := m.replicas[e.of]; r.boot == e.mark {
				if err := r.stepped(); err != nil {
					return nil, err
				}
			}
		case arrival:
			if m.s.Arrivals.Process != Closed {
				m.events.push(event{at: m.clock.next(), kind: arrival})
			}
			if err := m.arrive(); err != nil {
				return nil, err
			}
		case expired:
			if q := m.requests[e.of]; q.state == queued && q.id == e.mark && m.gate.Cancel(&q.route) {
				m.reject(q, m.gate.RetryAfter(m.now))
			}
		case fault:
			if err := m.fault(e.of, e.mark > 0); err != nil {
				return nil, err
			}
		case probe:
			r := m.replicas[e.of]
			r.probed()
			if err := m.pump(); err != nil {
				return nil, err
			}
		case warm:
			m.record.warm(m)
		case sample:
			m.record.sample(m)
			m.events.push(event{at: m.now + m.s.Interval, kind: sample})
		case end:
			return m.record.result(m), nil
		}
	}
}

// take gives an unused request.
func (m *simulation) take() *request {
	if n := len(m.spare); n > 0 {
		q := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return q
	}
	q := &request{slot: len(m.requests)}
	m.requests = append(m.requests, q)
	return q
}

// of is the request of a sequence.
func (m *simulation) of(id uint64) *request { return m.requests[id&(1<<slotBits-1)] }

func (m *simulation) arrive() error {
	q := m.take()
	m.lastID++
	id := m.lastID<<slotBits | uint64(q.slot)
	q.route = router.Request{Alias: alias, Conversation: id}
	q.arrived, q.first, q.again, q.replica = m.now, 0, false, nil
	m.traffic.fill(q, id)
	m.record.arrived(q)
	if rej := m.gate.Arrive(m.now, &q.route); rej != nil {
		m.reject(q, rej.RetryAfter)
		return nil
	}
	q.state = queued
	if err := m.pump(); err != nil {
		return err
	}
	if q.state == queued {
		m.events.push(event{at: m.now + m.s.Router.QueueTime, kind: expired, of: q.slot, mark: q.id})
	}
	return nil
}

// pump sends what can go.
func (m *simulation) pump() error {
	for {
		r, d, ok := m.gate.Next(m.now, m.view)
		if !ok {
			return nil
		}
		q := m.of(r.Conversation)
		if d.Replica == nil {
			m.record.failed(q)
			m.release(q, time.Second)
			continue
		}
		if err := m.send(q, d); err != nil {
			return err
		}
	}
}

// send gives q to the replica that was chosen, or to another when that one turns
// out to be dead.
func (m *simulation) send(q *request, d router.Decision) error {
	for {
		r := m.byMember[d.Replica]
		q.decision, q.replica, q.state = d, r, running
		if !r.dead {
			return r.add(q)
		}
		r.member.SetHealth(router.Down)
		again, ok := m.another(q)
		if !ok {
			return nil
		}
		d = again
	}
}

// another gives the stream of q back and books it a second replica, once.
func (m *simulation) another(q *request) (router.Decision, bool) {
	m.gate.Done(m.now, q.decision, router.Usage{})
	if !q.again && q.first == 0 {
		q.again, q.route.Avoid = true, q.decision.Replica
		if d, ok := m.gate.Take(m.now, m.view, &q.route, version); ok {
			m.record.retried(q)
			return d, true
		}
	}
	m.record.failed(q)
	m.release(q, time.Second)
	return router.Decision{}, false
}

func (m *simulation) reject(q *request, after time.Duration) {
	m.record.rejected(q)
	m.release(q, after)
}

// release gives q up. Closed clients come back: at once after an answer, otherwise
// after a while.
func (m *simulation) release(q *request, after time.Duration) {
	q.state, q.replica = free, nil
	m.spare = append(m.spare, q)
	if m.s.Arrivals.Process == Closed {
		m.events.push(event{at: m.now + after, kind: arrival})
	}
}

// nextProbe is when the router probes a replica next.
func (m *simulation) nextProbe() time.Duration { return m.now/probeEvery*probeEvery + probeEvery }

// fault begins fault number i, or ends it.
func (m *simulation) fault(i int, over bool) error {
	f := m.s.Faults[i]
	r := m.replicas[f.Replica]
	switch f.Kind {
	case Slow:
		if over {
			r.factor /= f.Factor
			return nil
		}
		r.factor *= f.Factor
	case Stall:
		if over {
			m.events.push(event{at: m.nextProbe(), kind: probe, of: f.Replica})
			return nil
		}
		r.stall(f.For)
		m.events.push(event{at: m.nextProbe() + suspectAfter, kind: probe, of: f.Replica})
	case Crash:
		m.events.push(event{at: m.nextProbe(), kind: probe, of: f.Replica})
		if over {
			if !r.dead {
				return nil // back already, after another crash
			}
			return r.start()
		}
		if err := m.crash(r); err != nil {
			return err
		}
	}
	if !over && f.For > 0 {
		m.events.push(event{at: m.now + f.For, kind: fault, of: i, mark: 1})
	}
	return nil
}

// crash breaks off all that r does.
func (m *simulation) crash(r *replica) error {
	r.crash()
	var lost []*request
	for _, q := range m.requests {
		if q.state == running && q.replica == r {
			lost = append(lost, q)
		}
	}
	slices.SortFunc(lost, func(a, b *request) int { return cmp.Compare(a.id, b.id) })
	if len(lost) > 0 {
		r.member.SetHealth(router.Down)
	}
	for _, q := range lost {
		q.seq = core.Sequence{} // the old one is still of the dead engine
		d, ok := m.another(q)
		if !ok {
			continue
		}
		q.renew(&m.s.Tenants[q.tenant])
		if err := m.send(q, d); err != nil {
			return err
		}
	}
	return m.pump()
}
