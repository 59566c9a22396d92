package router

import (
	"sync/atomic"
	"time"

	"llmops/serving/route"
)

// Health is what the router itself has last seen of a replica.
type Health int32

// A replica is Unknown until its first probe, Suspect when probes time out,
// Down when it refuses them. Unknown and Suspect ones serve only when no other
// replica of their version is up: a busy machine is slow to answer a probe,
// and would be lost to the first overload otherwise.
const (
	Unknown Health = iota
	Up
	Suspect
	Down
)

// Replica is one engine process. Make it with NewReplica.
type Replica struct {
	ID, Addr, Alias, Version string
	Adapters                 []string // names that requests may have in the alias's place

	seed   uint64
	health atomic.Int32
	// streams is the number of requests booked; the Gate's owner guards it.
	streams int
	// tokens of the prompts and outputs so far of these; see Decision.Grow.
	tokens atomic.Int64
	conns  pool
	failed chan struct{} // a request found the replica dead
}

// NewReplica makes a replica of one version of an alias.
func NewReplica(id, addr, alias, version string) *Replica {
	return &Replica{ID: id, Addr: addr, Alias: alias, Version: version,
		seed: route.Sum([]byte(id)), conns: pool{addr: addr}, failed: make(chan struct{}, 1)}
}

// SetHealth notes the outcome of a probe. It is safe for concurrent use.
func (r *Replica) SetHealth(h Health) { r.health.Store(int32(h)) }

// Health is the outcome of the newest probe.
func (r *Replica) Health() Health { return Health(r.health.Load()) }

// View is what choices are made from: the intents in force and the replicas.
// It is immutable; only the replicas' own state moves.
type View struct {
	routes   map[string]*aliasView
	adapters map[string]*aliasView // by their names
	streams  int
}

// Route is the intent of one alias as a router holds it.
type Route struct {
	Doc     route.Doc
	Until   time.Duration // when the lease's weights end on the router's clock; 0: not live
	Routers int           // that share the caps of the document; 0: one
}

type aliasView struct {
	doc       route.Doc
	run       uint64
	otherwise weights
	leased    weights
	until     time.Duration
	replicas  map[string][]*Replica
	caps      map[string]route.Caps // this router's part
	counts    *tallies              // nil outside of a server
}

type weights struct {
	intent route.Intent
	table  route.Table
	mirror []mirrorShare
}

type mirrorShare struct {
	version string
	share   uint32
}

// NewView prepares routes and replicas for choices by a router in zone and
// pool. At most as many requests are sent to a replica at a time as the caps of its
// version allow, or streams where they say nothing.
func NewView(zone, pool string, streams int, routes []Route, replicas []*Replica) *View {
	v := &View{routes: make(map[string]*aliasView, len(routes)), adapters: map[string]*aliasView{}, streams: streams}
	for _, r := range routes {
		a := &aliasView{doc: r.Doc, run: route.Sum([]byte(r.Doc.Run)), until: r.Until, replicas: map[string][]*Replica{}, caps: make(map[string]route.Caps, len(r.Doc.Caps))}
		for version, c := range r.Doc.Caps {
			a.caps[version] = c.Part(r.Routers)
		}
		a.otherwise = newWeights(zone, pool, r.Doc.At(0, false))
		a.leased = newWeights(zone, pool, r.Doc.At(0, true))
		for _, m := range replicas {
			if m.Alias == r.Doc.Alias {
				a.replicas[m.Version] = append(a.replicas[m.Version], m)
				for _, name := range m.Adapters {
					// Of two aliases with an adapter of one name every router takes the same.
					if old := v.adapters[name]; old == nil || a.doc.Alias < old.doc.Alias {
						v.adapters[name] = a
					}
				}
			}
		}
		v.routes[r.Doc.Alias] = a
	}
	return v
}

func newWeights(zone, pool string, in route.Intent) weights {
	s, _ := in.For(zone, pool)
	w := weights{intent: in, table: route.NewTable(s.Shares)}
	for version, share := range in.Mirror {
		if share > 0 {
			w.mirror = append(w.mirror, mirrorShare{version, share})
		}
	}
	return w
}

// at checks the lease, at each choice and never by a timer: a process that
// stood still finds out here.
func (a *aliasView) at(now time.Duration) *weights {
	if now < a.until {
		return &a.leased
	}
	return &a.otherwise
}

// Request is what admission and choice need to know of a request.
type Request struct {
	Alias        string
	Pin          string // the version that the client named; empty: by share
	Conversation uint64 // hash of what is sticky
	Prefix       uint64 // hash of what a prefix cache may know
	Tokens       int    // of the prompt, as far as they are known
	Avoid        *Replica

	// At is when the request arrived, set by Gate.Arrive.
	At time.Duration

	ready chan Decision // the server's: where a queued request is told
}

// Decision is where a request goes. Replica is nil when no replica of the
// version can take it.
type Decision struct {
	Version string
	Replica *Replica
	At      time.Duration
	mirror  []mirrorShare
	hash    uint64
	tokens  int // booked on the replica
}

// Grow counts n more tokens in the cache of the replica, for the rest of the stream.
// It needs no lock of the Gate's, but one owner of d.
func (d *Decision) Grow(n int) {
	d.tokens += n
	d.Replica.tokens.Add(int64(n))
}

// Version is the version that r belongs to at now, "" for an unknown alias.
func (v *View) Version(now time.Duration, r *Request) (version string, hash uint64) {
	a := v.routes[r.Alias]
	if a == nil {
		return "", 0
	}
	hash = route.Mix(a.run, r.Conversation)
	if r.Pin != "" {
		return r.Pin, hash
	}
	return a.at(now).table.Pick(hash), hash
}

// Choose picks the replica of version with the fewest requests, or the one
// that the request's prefix belongs to when it is hardly busier: that one may
// have the prefix in its cache. full tells that replicas serve but all have as
// many streams, or as many tokens in their cache, as they may. It allocates
// nothing and books nothing.
func Choose(v *View, r *Request, version string) (d Decision, full bool) {
	d.Version = version
	a := v.routes[r.Alias]
	if a == nil {
		return d, false
	}
	replicas, limit := a.replicas[version], v.limit(a, version)
	if d.Replica, full = choose(replicas, r, limit, true); d.Replica == nil && !full {
		d.Replica, full = choose(replicas, r, limit, false)
	}
	return d, full
}

// limit is what a replica of version may have; 0 is no bound.
func (v *View) limit(a *aliasView, version string) route.Caps {
	l := route.Caps{Streams: v.streams}
	if len(a.caps) > 0 {
		c := a.caps[version]
		if l.KVTokens = c.KVTokens; c.Streams > 0 {
			l.Streams = c.Streams // what is known of the version, in the place of a guess
		}
	}
	return l
}

// full tells that r has to wait for one of m's streams to end. Who is alone on a
// replica needs no room but the engine's: larger prompts than a cap would wait for ever.
func (m *Replica) full(r *Request, limit route.Caps) bool {
	return limit.Streams > 0 && m.streams >= limit.Streams ||
		limit.KVTokens > 0 && m.streams > 0 && m.tokens.Load()+int64(r.Tokens) > int64(limit.KVTokens)
}

func choose(replicas []*Replica, r *Request, limit route.Caps, up bool) (pick *Replica, full bool) {
	var (
		home, least           *Replica
		homeScore, leastScore uint64
	)
	for _, m := range replicas {
		if h := m.Health(); up != (h == Up) || h == Down || m == r.Avoid {
			continue
		}
		if m.full(r, limit) {
			full = true
			continue
		}
		score := route.Mix(r.Prefix, m.seed)
		if home == nil || score > homeScore {
			home, homeScore = m, score
		}
		// Ties go by score too, so that requests spread when all are idle.
		if least == nil || m.streams < least.streams || m.streams == least.streams && score > leastScore {
			least, leastScore = m, score
		}
	}
	if least == nil {
		return nil, full
	}
	// A hit saves a prefill, two requests more in the batch cost a little of
	// each step; beyond that the load wins, or one hot prefix makes a hot spot.
	if home.streams <= least.streams+2+least.streams/4 {
		return home, false
	}
	return least, false
}
