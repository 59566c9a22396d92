package router

import (
	"net/http"
	"time"
)

// Reject is a request that was not let in, and when to come back.
type Reject struct {
	Status     int
	RetryAfter time.Duration
	Reason     string
}

// Usage is what a finished request took.
type Usage struct {
	Prompt, Output int // tokens; 0: unknown
}

// Gate admits requests in the order in which they came, as far as replicas
// have room, and keeps the rest in a bounded queue. It has no clock and no
// goroutine: the server calls it under one lock, a simulation from its event
// loop.
type Gate struct {
	// Queue is how many requests may wait, at least one.
	Queue int
	// Served adds up what finished requests took.
	Served Usage

	waiting []*Request
	done    [64]time.Duration // when the latest requests were done, a ring
	dones   int
}

// Arrive admits r to the queue or turns it away. Next follows.
func (g *Gate) Arrive(now time.Duration, r *Request) *Reject {
	if len(g.waiting) >= max(1, g.Queue) {
		return &Reject{http.StatusTooManyRequests, g.RetryAfter(now), "queue_full"}
	}
	r.At = now
	g.waiting = append(g.waiting, r)
	return nil
}

// Next takes the first waiting request that can go and books its stream. A
// request of a version that has no replica left goes too, with a Decision
// without one. It is called until it returns false, after every Arrive and
// Done and whenever the view changed.
func (g *Gate) Next(now time.Duration, v *View) (*Request, Decision, bool) {
	// Versions are few: one that was full stays full for this pass, so that a
	// long queue costs a comparison a request and not a choice.
	var full [8]fullVersion
	n := 0
next:
	for i, r := range g.waiting {
		version, hash := v.Version(now, r)
		for _, f := range full[:n] {
			if f.version == version && f.alias == r.Alias {
				continue next
			}
		}
		d, busy := Choose(v, r, version)
		if d.Replica == nil && busy {
			if n < len(full) {
				full[n] = fullVersion{r.Alias, version}
				n++
			}
			continue
		}
		g.remove(i)
		g.book(now, v, r, &d, hash)
		return r, d, true
	}
	return nil, Decision{}, false
}

type fullVersion struct{ alias, version string }

func (g *Gate) book(now time.Duration, v *View, r *Request, d *Decision, hash uint64) {
	d.At, d.hash = now, hash
	if a := v.routes[r.Alias]; a != nil {
		d.mirror = a.at(now).mirror
	}
	if d.Replica != nil {
		d.Replica.streams++
		d.Grow(r.Tokens)
	}
}

// Take books a stream of version past the queue: for a second try of a request
// that was admitted, and for copies. It does not wait for room.
func (g *Gate) Take(now time.Duration, v *View, r *Request, version string) (Decision, bool) {
	d, _ := Choose(v, r, version)
	if d.Replica == nil {
		return d, false
	}
	d.At = now
	d.Replica.streams++
	d.Grow(r.Tokens)
	return d, true
}

// Cancel takes r out of the queue; false when it has left it already.
func (g *Gate) Cancel(r *Request) bool {
	for i, w := range g.waiting {
		if w == r {
			g.remove(i)
			return true
		}
	}
	return false
}

func (g *Gate) remove(i int) {
	if i == 0 {
		g.waiting[0] = nil
		g.waiting = g.waiting[1:]
		return
	}
	copy(g.waiting[i:], g.waiting[i+1:])
	g.waiting[len(g.waiting)-1] = nil
	g.waiting = g.waiting[:len(g.waiting)-1]
}

// Done gives back the stream of d and the room of its tokens. It must be called once for each Decision
// with a Replica, whatever became of the request.
func (g *Gate) Done(now time.Duration, d Decision, u Usage) {
	if d.Replica == nil {
		return
	}
	d.Replica.streams--
	d.Replica.tokens.Add(int64(-d.tokens))
	g.Served.Prompt += u.Prompt
	g.Served.Output += u.Output
	g.done[g.dones%len(g.done)] = now
	g.dones++
}

// Waiting is the length of the queue.
func (g *Gate) Waiting() int { return len(g.waiting) }

// RetryAfter estimates when a request that comes now would be let in: the
// queue's length over the rate at which requests were done lately, between one
// second and one minute.
func (g *Gate) RetryAfter(now time.Duration) time.Duration {
	const least, most = time.Second, time.Minute
	n := min(g.dones, len(g.done))
	if n < 2 {
		return least
	}
	// Measured up to now, so that a standstill shows.
	oldest := g.done[(g.dones-n)%len(g.done)]
	per := (now - oldest) / time.Duration(n)
	return min(max(per*time.Duration(len(g.waiting)+1), least), most)
}
