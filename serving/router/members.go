package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
)

const (
	jobPrefix     = "job/"
	replicaPrefix = "replica/"
)

// members are the engines that the store names.
type members struct {
	jobs  map[string]fleet.Job     // by name
	seen  map[string]fleet.Replica // by document name
	revs  map[string]uint64        // of both, by document name
	alive map[string]*member

	routers int // that are there, this one among them; 0: nobody runs them as a job
}

// member is a replica that is probed.
type member struct {
	*Replica
	nonce string
	stop  context.CancelFunc
}

func (m *members) init() {
	m.jobs = map[string]fleet.Job{}
	m.seen = map[string]fleet.Replica{}
	m.revs = map[string]uint64{}
	m.alive = map[string]*member{}
}

// drop forgets a document.
func (m *members) drop(doc string) {
	delete(m.revs, doc)
	delete(m.seen, doc)
	delete(m.jobs, strings.TrimPrefix(doc, jobPrefix))
}

func (m *members) replicas() []*Replica {
	out := make([]*Replica, 0, len(m.alive))
	for _, a := range m.alive {
		out = append(out, a.Replica)
	}
	return out
}

// job finds the job of a replica's document: replica/<job>/<rest>, where a
// job's name may itself have slashes.
func (m *members) job(name string) (fleet.Job, bool) {
	name = strings.TrimPrefix(name, replicaPrefix)
	for {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return fleet.Job{}, false
		}
		name = name[:i]
		if j, ok := m.jobs[name]; ok {
			return j, true
		}
	}
}

// watchMembers follows jobs and replicas, and probes each replica that is to
// serve until it is gone.
func (r *Router) watchMembers(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	probe := func(rep *Replica) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		wg.Go(func() { r.probe(ctx, rep) })
		return cancel
	}
	var watches sync.WaitGroup
	for _, prefix := range []string{jobPrefix, replicaPrefix} {
		watches.Go(func() {
			r.watch(ctx, prefix, func(d fleet.Doc) {
				if err := r.member(d, probe); err != nil {
					r.o.Log.Warn("watching membership", "name", d.Name, "err", err)
				}
			})
		})
	}
	watches.Go(func() { r.prune(ctx, probe) })
	watches.Wait()
	r.cfg.Lock()
	defer r.cfg.Unlock()
	for _, m := range r.cfg.alive {
		m.stop()
		m.conns.close()
	}
}

// member takes a changed document of a job or a replica.
func (r *Router) member(d fleet.Doc, probe func(*Replica) context.CancelFunc) error {
	r.cfg.Lock()
	defer r.cfg.Unlock()
	var err error
	if name, ok := strings.CutPrefix(d.Name, jobPrefix); d.Body == nil {
		r.cfg.drop(d.Name)
	} else if ok {
		var j fleet.Job
		if err = json.Unmarshal(d.Body, &j); err == nil {
			r.cfg.jobs[name], r.cfg.revs[d.Name] = j, d.Rev
		}
	} else {
		var rep fleet.Replica
		if err = json.Unmarshal(d.Body, &rep); err == nil {
			r.cfg.seen[d.Name], r.cfg.revs[d.Name] = rep, d.Rev
		}
	}
	if err != nil {
		return err
	}
	r.reconcile(probe)
	return nil
}

// prune drops what was deleted while a watch was broken.
func (r *Router) prune(ctx context.Context, probe func(*Replica) context.CancelFunc) {
	for waitOr(ctx, r.o.Renew, nil) {
		r.cfg.Lock()
		known := maps.Clone(r.cfg.revs)
		r.cfg.Unlock()
		jobs, jerr := r.o.Store.List(ctx, jobPrefix)
		reps, rerr := r.o.Store.List(ctx, replicaPrefix)
		if jerr != nil || rerr != nil {
			continue // what a store cannot tell has not changed
		}
		for _, d := range slices.Concat(jobs, reps) {
			delete(known, d.Name)
		}
		r.cfg.Lock()
		for name, rev := range known {
			// Not if the watch has brought it anew since.
			if r.cfg.revs[name] == rev {
				r.cfg.drop(name)
			}
		}
		if len(known) > 0 {
			r.reconcile(probe)
		}
		r.cfg.Unlock()
	}
}

// reconcile makes the set of live replicas what the documents say. A replica
// that is the same process stays the same value, with its streams and its
// health. The caller holds cfg.
func (r *Router) reconcile(probe func(*Replica) context.CancelFunc) {
	changed, routers := false, 0
	for name, rep := range r.cfg.seen {
		j, ok := r.cfg.job(name)
		if ok && j.Kind == fleet.Router && isMember(rep.State) {
			routers++
		}
		serves := ok && j.Kind == fleet.Engine && j.Meta["alias"] != "" && j.Meta["version"] != "" && rep.Addr != "" && isMember(rep.State)
		m := r.cfg.alive[name]
		var adapters []string
		if list := j.Meta["adapters"]; list != "" {
			adapters = strings.Split(list, ",")
		}
		if m != nil && serves && m.nonce == rep.Nonce && m.Addr == rep.Addr && m.Alias == j.Meta["alias"] && m.Version == j.Meta["version"] && slices.Equal(m.Adapters, adapters) {
			continue
		}
		if m != nil {
			m.stop()
			m.conns.close()
			delete(r.cfg.alive, name)
			changed = true
		}
		if serves {
			n := NewReplica(strings.TrimPrefix(name, replicaPrefix), rep.Addr, j.Meta["alias"], j.Meta["version"])
			n.Adapters = adapters
			r.cfg.alive[name] = &member{n, rep.Nonce, probe(n)}
			changed = true
		}
	}
	for name, m := range r.cfg.alive {
		if _, ok := r.cfg.seen[name]; !ok {
			m.stop()
			m.conns.close()
			delete(r.cfg.alive, name)
			changed = true
		}
	}
	if routers != r.cfg.routers {
		r.cfg.routers, changed = routers, true
	}
	if changed {
		r.rebuild()
		defer r.pump()
	}
}

// isMember tells whether a replica may get requests. One whose node is silent may:
// that the scheduler does not hear of it says nothing about who else does, which is
// what probes are for. Draining ones finish what they have and get nothing new.
func isMember(s fleet.State) bool {
	return s == fleet.Running || s == fleet.Healthy || s == fleet.Unknown
}

// probe asks a replica for its health until ctx ends. A refusal is believed at
// once, a silence the second time: with the interval of half a second and the
// patience of 700 ms, a replica that hangs is out of use within two seconds.
func (r *Router) probe(ctx context.Context, rep *Replica) {
	const patience = 700 * time.Millisecond
	head := []byte("GET /health HTTP/1.1\r\nHost: " + rep.Addr + "\r\nAccept-Encoding: identity\r\n\r\n")
	silent := 0
	for {
		err := checkHealth(ctx, &rep.conns, head, patience)
		if ctx.Err() != nil {
			return
		}
		was := rep.Health()
		switch {
		case err == nil:
			silent = 0
			rep.SetHealth(Up)
		case isTimeout(err):
			if silent++; silent >= 2 {
				rep.SetHealth(Suspect)
			}
		default:
			silent = 0
			rep.SetHealth(Down)
		}
		if h := rep.Health(); h != was {
			r.o.Log.Info("replica changed", "replica", rep.ID, "health", h, "err", err)
			r.pump()
		}
		wait := r.o.Probe
		if silent == 1 {
			wait = 0
		}
		if !waitOr(ctx, wait, rep.failed) {
			return
		}
	}
}

func checkHealth(ctx context.Context, p *pool, head []byte, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := p.ask(ctx, head, nil, patience)
	var te *transportError
	if errors.As(err, &te) && te.reused {
		a, err = p.ask(ctx, head, nil, patience)
	}
	if err != nil {
		return err
	}
	defer a.close()
	if a.Status != 200 {
		return fmt.Errorf("health answered with status %d", a.Status)
	}
	for size := 0; ; {
		b, err := a.next(ctx)
		if err != nil {
			break // how the body ends does not matter, only the connection's reuse
		}
		if size += len(b); size > maxHead {
			break
		}
	}
	return nil
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

func (h Health) String() string {
	return [...]string{"unknown", "up", "suspect", "down"}[h]
}
