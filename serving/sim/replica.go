package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/route"
	"llmops/serving/router"
)

// replica is one engine and what the router knows of it.
type replica struct {
	m      *simulation
	index  int
	name   string
	member *router.Replica
	exec   *estimate.Executor
	limits core.Limits
	core   *core.Core
	emit   func(core.Event) // made once, so that steps allocate nothing

	batch core.Batch
	boot  uint64 // of the process; steps of an earlier one do not count
	busy  bool   // a step is under way
	took  time.Duration
	dead  bool

	factor       float64       // of Slow faults, multiplied
	stalledUntil time.Duration // of the latest stall
	frozen       time.Duration // what a stall adds to the step under way

	lost core.Stats // of earlier processes
	use  use
}

// use is what a replica did, summed over time.
type use struct {
	busy      time.Duration // in steps
	rows      float64       // in seconds of a sequence in a step
	blocks    float64       // in seconds of a block in use
	mostBlock int
	routed    uint64
	finished  uint64
}

func newReplica(m *simulation, i int, name string) (*replica, error) {
	f := m.s.Fleet
	o := f.Engine
	o.Seed, o.RealTime, o.AnswerTokens = m.s.Seed, false, 0
	exec, err := estimate.New(o)
	if err != nil {
		return nil, err
	}
	blocks := exec.Blocks()
	if f.KVTokens > 0 {
		if blocks = f.KVTokens / o.BlockSize; blocks > exec.Blocks() {
			return nil, fmt.Errorf("a cache of %d tokens: the memory of %d × %s holds %d", f.KVTokens, o.TensorParallel, o.GPU, exec.Blocks()*o.BlockSize)
		}
	}
	r := &replica{
		m: m, index: i, name: name, exec: exec, factor: 1,
		member: router.NewReplica(name, "", alias, version),
		limits: core.Limits{
			Sequences: f.Sequences, Tokens: f.StepTokens, Blocks: blocks, BlockSize: o.BlockSize, Chunk: f.Chunk, Overcommit: f.Overcommit, Hash: blockHash{},
		},
	}
	r.emit = r.event
	r.member.SetHealth(router.Up)
	return r, r.start()
}

// start makes a new process, which knows nothing.
func (r *replica) start() error {
	c, err := core.New(r.limits)
	r.core, r.dead, r.busy, r.stalledUntil, r.frozen = c, false, false, 0, 0
	return err
}

func (r *replica) crash() {
	r.dead = true
	r.boot++
	r.lost = r.stats()
	r.core = nil
}

func (r *replica) stall(d time.Duration) {
	r.stalledUntil = max(r.stalledUntil, r.m.now+d)
	if r.busy {
		r.frozen += d
	}
}

// probed is what a health probe finds.
func (r *replica) probed() {
	switch {
	case r.dead:
		r.member.SetHealth(router.Down)
	case r.m.now < r.stalledUntil:
		r.member.SetHealth(router.Suspect)
	default:
		r.member.SetHealth(router.Up)
	}
}

// imported stands for keys and values that another engine computed.
type imported struct{}

// add gives q to the engine, which looks at it before its next step. Whoever was
// at another replica before begins anew.
func (r *replica) add(q *request) error {
	s := &q.seq
	if n := len(s.Prompt) - 1; r.m.s.Fleet.DecodeOnly && n > 0 {
		s.Import, s.Imported = imported{}, n
	}
	r.use.routed++
	if err := r.core.Add(r.m.now, s); err != nil {
		return fmt.Errorf("tenant %s: %w; shorten its prompts or answers", r.m.s.Tenants[q.tenant].Name, err)
	}
	if r.busy {
		return nil
	}
	return r.begin()
}

// begin starts the next step, if there is something to do.
func (r *replica) begin() error {
	now := r.m.now
	if r.busy = r.core.Next(now, &r.batch); !r.busy {
		return nil
	}
	took := r.exec.Time(&r.batch)
	if r.factor != 1 {
		took = time.Duration(float64(took) * r.factor)
	}
	r.took = max(took, 1) + max(0, r.stalledUntil-now)
	r.m.events.push(event{at: now + r.took, kind: stepped, of: r.index, mark: r.boot})
	return nil
}

// stepped takes the results of a step and begins the next.
func (r *replica) stepped() error {
	if r.frozen > 0 {
		r.took += r.frozen
		r.m.events.push(event{at: r.m.now + r.frozen, kind: stepped, of: r.index, mark: r.boot})
		r.frozen = 0
		return nil
	}
	s, blocks := r.took.Seconds(), r.core.Stats().UsedBlocks
	r.use.busy += r.took
	r.use.rows += s * float64(len(r.batch.Rows))
	r.use.blocks += s * float64(blocks)
	r.use.mostBlock = max(r.use.mostBlock, blocks)
	before := r.use.finished
	r.exec.Fill(&r.batch, r.m.out)
	r.core.Commit(r.m.now, &r.batch, r.m.out, r.emit)
	if r.use.finished > before {
		// Requests that waited in the router come in time for the next step.
		if err := r.m.pump(); err != nil {
			return err
		}
	}
	return r.begin()
}

// event is called for each token, and does something for the first and the last.
func (r *replica) event(e core.Event) {
	if e.Finish == "" && len(e.Seq.Output()) > 1 {
		return
	}
	q := r.m.of(e.Seq.ID)
	if q.first == 0 {
		q.first = r.m.now
	}
	if e.Finish == "" {
		return
	}
	r.use.finished++
	r.m.gate.Done(r.m.now, q.decision, router.Usage{Prompt: len(e.Seq.Prompt), Output: len(e.Seq.Output())})
	r.m.record.finished(r.m, q)
	r.m.release(q, 0)
}

// stats are the counters over all processes.
func (r *replica) stats() core.Stats {
	if r.core == nil {
		return r.lost
	}
	return plus(r.core.Stats(), r.lost)
}

// blockHash tells blocks apart by their first token and what is before them, which is
// all that differs between the prompts of a simulation.
type blockHash struct{}

func (blockHash) Root(salt, adapter string) core.Key {
	return link(core.Key{}, route.Mix(route.Sum([]byte(salt)), route.Sum([]byte(adapter))))
}

func (blockHash) Next(k core.Key, tokens []int) core.Key { return link(k, uint64(tokens[0])) }

func link(k core.Key, x uint64) core.Key {
	a, b := binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])
	binary.LittleEndian.PutUint64(k[:], route.Mix(a, x))
	binary.LittleEndian.PutUint64(k[8:], route.Mix(b^x, a))
	return k
}
