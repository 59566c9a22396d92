// Package router is the gateway between tenants and engines: a streaming proxy
// for the OpenAI-compatible API that gives each conversation to the version
// that the route's intent says, and each request to a replica of that version.
//
// A [Router] reads intents and membership from the store, checks leases at
// each choice, probes replicas itself, counts what each version did, and has
// an admin handler for signed revisions, read-back and reports. [Choose] and
// [Gate] are the choice and the admission without clock or goroutine, for the
// router and for a simulation alike; they belong to whoever holds the lock.
// A Router is safe for concurrent use.
//
// It reads a request's body without decoding it and passes the bytes on as
// they came. With a recorder it writes down what went through, asks engines for
// the usage that takes, and gives clients the bytes that they would have had.
// It does not judge versions, starts nothing, keeps no other state beyond its
// process, and knows no tenant's limits.
package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"llmops/fleet"
	"llmops/serving/trace"
)

// Defaults of Options.
const (
	// DefaultRenew keeps a lease of 45 s alive over several lost reads.
	DefaultRenew = 5 * time.Second
	// DefaultStreams is above the batch of any engine we know, so that the
	// engine's own queue stays short and the router's order holds.
	DefaultStreams = 256
	DefaultQueue   = 1024
	// DefaultQueueTime is how long a request waits for room.
	DefaultQueueTime = 30 * time.Second
	// DefaultWait covers the prefill of the longest prompt on a busy engine.
	DefaultWait = 5 * time.Minute
	// DefaultStall is the longest silence within a stream: an engine that
	// makes a token a minute is dead for whoever reads it.
	DefaultStall = time.Minute
	// DefaultMaxBody holds a prompt of a million tokens.
	DefaultMaxBody = 16 << 20
	// DefaultMirrors bounds the copies under way.
	DefaultMirrors = 64
	// DefaultDrain lets a long answer end when the router is stopped.
	DefaultDrain = 5 * time.Minute
)

// Options configure a Router. Store is needed, the rest has defaults.
type Options struct {
	Name       string // in reports; default: random
	Zone, Pool string
	Store      fleet.Store
	Renew      time.Duration // between reads of the intents
	Probe      time.Duration // between probes of a replica; default 500 ms
	Streams    int           // requests a replica has at a time
	Queue      int
	QueueTime  time.Duration
	Wait       time.Duration // until an engine's first byte
	Stall      time.Duration // between later bytes
	MaxBody    int64
	Mirrors    int
	Drain      time.Duration
	Records    *trace.Recorder      // of every request to a known model; nil: none
	Log        *slog.Logger         // nil: discarded
	Now        func() time.Duration // monotonic clock; nil: since New
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Renew, DefaultRenew)
	def(&o.Probe, 500*time.Millisecond)
	def(&o.QueueTime, DefaultQueueTime)
	def(&o.Wait, DefaultWait)
	def(&o.Stall, DefaultStall)
	def(&o.Drain, DefaultDrain)
	if o.Streams <= 0 {
		o.Streams = DefaultStreams
	}
	if o.Queue <= 0 {
		o.Queue = DefaultQueue
	}
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.Mirrors <= 0 {
		o.Mirrors = DefaultMirrors
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.Name == "" {
		o.Name = token()
	}
	return o
}

func token() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Router is the gateway. Its ServeHTTP is the tenants' API.
type Router struct {
	o        Options
	boot     string
	view     atomic.Pointer[View]
	draining atomic.Bool
	admin    *http.ServeMux
	mirrors  chan struct{} // slots for copies

	mu   sync.Mutex // guards gate and the streams of all replicas
	gate Gate

	cfg struct {
		sync.Mutex // guards what follows, and the order of views
		intents
		members
		counts map[string]*tallies
	}

	copies struct {
		sync.Mutex // guards stop
		stop       map[*context.CancelFunc]struct{}
		wg         sync.WaitGroup
	}

	reread chan struct{} // tells that routes are wanted
	key    key           // of pushes
}

// New makes a router. It serves nothing before Run has read the store.
func New(o Options) *Router {
	r := &Router{o: o.withDefaults(), boot: token(), reread: make(chan struct{}, 1)}
	r.mirrors = make(chan struct{}, r.o.Mirrors)
	r.gate.Queue = r.o.Queue
	r.cfg.intents.init()
	r.cfg.members.init()
	r.cfg.counts = map[string]*tallies{}
	r.copies.stop = map[*context.CancelFunc]struct{}{}
	r.view.Store(NewView("", "", 0, nil, nil))
	r.admin = r.adminHandler()
	return r
}

// Admin is the handler of the operators' address: GET and PUT /route/<alias>,
// GET /report/<alias>.
func (r *Router) Admin() http.Handler { return r.admin }

// Run follows the store, probes replicas and writes records until ctx ends. It waits
// for what it started, copies of requests included. Its error is of records that were
// lost.
func (r *Router) Run(ctx context.Context) (err error) {
	var wg sync.WaitGroup
	if r.o.Records != nil {
		wg.Go(func() { err = r.o.Records.Run(ctx) })
	}
	for _, f := range []func(context.Context){r.readIntents, r.watchIntents, r.watchMembers} {
		wg.Go(func() { f(ctx) })
	}
	wg.Wait()
	r.copies.Lock()
	for stop := range r.copies.stop {
		(*stop)()
	}
	r.copies.stop = nil
	r.copies.Unlock()
	r.copies.wg.Wait()
	return err
}

// Serve runs the router on two listeners until ctx ends, then takes no more
// requests, lets those under way end within Options.Drain and returns.
func (r *Router) Serve(ctx context.Context, traffic, admin net.Listener) error {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := func(h http.Handler) *http.Server {
		return &http.Server{
			Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
			ErrorLog: slog.NewLogLogger(r.o.Log.Handler(), slog.LevelWarn),
		}
	}
	front, back := server(r), server(r.admin)
	errs := make(chan error, 3)
	go func() { errs <- front.Serve(traffic) }()
	go func() { errs <- back.Serve(admin) }()
	go func() { errs <- r.Run(run) }()
	var err error
	left := 3
	select {
	case <-ctx.Done():
	case err = <-errs:
		left--
	}
	r.draining.Store(true)
	drain, cancel := context.WithTimeout(run, r.o.Drain)
	defer cancel()
	if derr := front.Shutdown(drain); derr != nil {
		err = errors.Join(err, front.Close())
	}
	// Reports are wanted until the last stream has ended.
	err = errors.Join(err, back.Close())
	stop()
	for range left {
		if e := <-errs; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// rebuild makes a view of what is known now. The caller holds cfg.
func (r *Router) rebuild() {
	routes := make([]Route, 0, len(r.cfg.followers))
	for _, f := range r.cfg.followers {
		doc, _, ok := f.Doc()
		if !ok {
			continue
		}
		until, live := f.Until()
		if !live {
			until = 0
		}
		routes = append(routes, Route{doc, until, r.cfg.routers})
	}
	v := NewView(r.o.Zone, r.o.Pool, r.o.Streams, routes, r.cfg.replicas())
	for alias, a := range v.routes {
		if r.cfg.counts[alias] == nil {
			r.cfg.counts[alias] = newTallies()
		}
		a.counts = r.cfg.counts[alias]
	}
	r.view.Store(v)
}

// pump sends waiting requests on their way: after anything that may have made
// room.
func (r *Router) pump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next(nil)
}

// next hands out decisions; that for own is returned. The caller holds mu.
func (r *Router) next(own *Request) (d Decision, ok bool) {
	if r.gate.Waiting() == 0 {
		return d, false
	}
	v, now := r.view.Load(), r.o.Now()
	for {
		q, e, more := r.gate.Next(now, v)
		if !more {
			return d, ok
		}
		if q == own {
			d, ok = e, true
		} else {
			q.ready <- e // has room for its one decision
		}
	}
}

// release gives a stream back and lets the next request have it.
func (r *Router) release(d Decision, u Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate.Done(r.o.Now(), d, u)
	r.next(nil)
}

// waitOr waits for d unless ctx ends first.
func waitOr(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-kick:
	}
	return true
}

// kick asks for something to be done soon, without waiting.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var _ http.Handler = (*Router)(nil)
