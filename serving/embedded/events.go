package embedded

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"llmops/serving/embedded/core"
)

// KVEvents says where changes of the prefix cache are published, as vLLM does: a
// ZeroMQ PUB socket with messages of topic, sequence number and payload, and a
// ROUTER socket that sends missed ones again. The zero value publishes nothing.
type KVEvents struct {
	Endpoint string // "tcp://host:port", to listen on
	Replay   string // the same; empty: nothing is sent again
	Topic    string
}

// kept is how many payloads can be asked for again, and how many may wait to be
// sent before some are left out; the sequence numbers tell. Both are vLLM's.
const kept, queued = 10_000, 100_000

// publisher sends block events. Publish never waits for a subscriber.
type publisher struct {
	topic  string
	pub    zmq4.Socket
	replay zmq4.Socket // nil: none
	stop   context.CancelFunc
	wg     sync.WaitGroup
	queue  chan message
	seq    uint64 // of the loop's goroutine

	mu   sync.Mutex
	past []message // guarded by mu; the last ones, sent or left out
}

type message struct {
	seq     uint64
	payload []byte
}

func newPublisher(k KVEvents) (*publisher, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &publisher{topic: k.Topic, pub: zmq4.NewPub(ctx), stop: cancel, queue: make(chan message, queued)}
	if err := p.pub.Listen(everywhere(k.Endpoint)); err != nil {
		cancel()
		return nil, fmt.Errorf("publishing block events on %q: %w", k.Endpoint, err)
	}
	if k.Replay != "" {
		p.replay = zmq4.NewRouter(ctx)
		if err := p.replay.Listen(everywhere(k.Replay)); err != nil {
			cancel()
			return nil, fmt.Errorf("replaying block events on %q: %w", k.Replay, err)
		}
		p.wg.Go(p.answer)
	}
	p.wg.Go(func() { p.send(ctx) })
	return p, nil
}

// everywhere reads the * that ZeroMQ has for all addresses.
func everywhere(endpoint string) string { return strings.Replace(endpoint, "//*:", "//0.0.0.0:", 1) }

// publish queues events. The loop's goroutine calls it.
func (p *publisher) publish(events []core.BlockEvent, now time.Time) {
	m := message{p.seq, pack(events, now)}
	p.seq++
	p.mu.Lock()
	if p.past = append(p.past, m); len(p.past) > kept {
		p.past = p.past[1:]
	}
	p.mu.Unlock()
	select {
	case p.queue <- m:
	default: // subscribers see the gap and ask again
	}
}

func (p *publisher) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-p.queue:
			// A subscriber that has left needs no error, and others got theirs.
			_ = p.pub.SendMulti(zmq4.NewMsgFrom([]byte(p.topic), m.number(), m.payload))
		}
	}
}

func (m message) number() []byte { return binary.BigEndian.AppendUint64(nil, m.seq) }

// answer sends what was asked for again, and -1 at its end.
func (p *publisher) answer() {
	for {
		req, err := p.replay.Recv()
		if err != nil {
			return // closed
		}
		if len(req.Frames) != 3 || len(req.Frames[2]) != 8 {
			continue
		}
		from := binary.BigEndian.Uint64(req.Frames[2])
		p.mu.Lock()
		past := p.past
		p.mu.Unlock()
		send := func(number, payload []byte) {
			_ = p.replay.SendMulti(zmq4.NewMsgFrom(req.Frames[0], nil, number, payload))
		}
		for _, m := range past {
			if m.seq >= from {
				send(m.number(), m.payload)
			}
		}
		send(binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
	}
}

// close ends both sockets. Their connections may be gone already, which they call
// an error.
func (p *publisher) close() {
	p.stop()
	_ = p.pub.Close()
	if p.replay != nil {
		_ = p.replay.Close()
	}
	p.wg.Wait()
}

// pack writes a batch in MessagePack as vLLM 0.26 and later do: the batch is a list
// of time, events and rank, each event a map with its type. Blocks that follow each
// other are one event. Of a key only the last eight bytes are told, as a number.
func pack(events []core.BlockEvent, now time.Time) []byte {
	var merged [][]core.BlockEvent
	for i, e := range events {
		if i > 0 {
			last := events[i-1]
			follows := e.Kind == core.BlockStored && e.Parent == last.Key && e.Adapter == last.Adapter && e.Salt == last.Salt || e.Kind == core.BlockRemoved
			if e.Kind == last.Kind && follows {
				merged[len(merged)-1] = append(merged[len(merged)-1], e)
				continue
			}
		}
		merged = append(merged, []core.BlockEvent{e})
	}
	m := pen{}
	m.list(3)
	m.float(float64(now.UnixNano()) / 1e9)
	m.list(len(merged))
	for _, run := range merged {
		m.event(run)
	}
	m.uint(0)
	return m
}

func short(k core.Key) uint64 { return binary.BigEndian.Uint64(k[8:]) }

// pen writes MessagePack.
type pen []byte

func (m *pen) event(run []core.BlockEvent) {
	first := run[0]
	hashes := func() {
		m.text("block_hashes")
		m.list(len(run))
		for _, e := range run {
			m.uint(short(e.Key))
		}
	}
	switch first.Kind {
	case core.AllBlocksCleared:
		m.dict(1)
		m.text("type")
		m.text("AllBlocksCleared")
	case core.BlockRemoved:
		m.dict(3)
		m.text("type")
		m.text("BlockRemoved")
		hashes()
		m.text("medium")
		m.null()
	case core.BlockStored:
		m.dict(9)
		m.text("type")
		m.text("BlockStored")
		hashes()
		m.text("parent_block_hash")
		if first.Parent == (core.Key{}) {
			m.null()
		} else {
			m.uint(short(first.Parent))
		}
		m.text("token_ids")
		n := 0
		for _, e := range run {
			n += len(e.Tokens)
		}
		m.list(n)
		for _, e := range run {
			for _, t := range e.Tokens {
				m.uint(uint64(t))
			}
		}
		m.text("block_size")
		m.uint(uint64(len(first.Tokens)))
		m.text("lora_id")
		m.null()
		m.text("medium")
		m.null()
		m.text("lora_name")
		m.optional(nameOf(first.Adapter))
		m.text("extra_keys")
		m.list(len(run))
		for i, e := range run {
			m.extra(e, i == 0 && first.Parent == (core.Key{}))
		}
	}
}

// extra is what enters a block's hash beside its tokens: the adapter, and for a
// first block the salt.
func (m *pen) extra(e core.BlockEvent, root bool) {
	var keys []string
	if e.Adapter != "" {
		keys = append(keys, nameOf(e.Adapter))
	}
	if root && e.Salt != "" {
		keys = append(keys, e.Salt)
	}
	if keys == nil {
		m.null()
		return
	}
	m.list(len(keys))
	for _, k := range keys {
		m.text(k)
	}
}

func (m *pen) null() { *m = append(*m, 0xc0) }

func (m *pen) float(v float64) {
	*m = binary.BigEndian.AppendUint64(append(*m, 0xcb), math.Float64bits(v))
}

func (m *pen) uint(v uint64) {
	switch {
	case v < 0x80:
		*m = append(*m, byte(v))
	case v <= math.MaxUint32:
		*m = binary.BigEndian.AppendUint32(append(*m, 0xce), uint32(v))
	default:
		*m = binary.BigEndian.AppendUint64(append(*m, 0xcf), v)
	}
}

func (m *pen) optional(s string) {
	if s == "" {
		m.null()
		return
	}
	m.text(s)
}

func (m *pen) text(s string) {
	*m = append(binary.BigEndian.AppendUint32(append(*m, 0xdb), uint32(len(s))), s...)
}
func (m *pen) list(n int) { *m = binary.BigEndian.AppendUint32(append(*m, 0xdd), uint32(n)) }
func (m *pen) dict(n int) { *m = binary.BigEndian.AppendUint32(append(*m, 0xdf), uint32(n)) }
