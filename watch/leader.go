package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"llmops/fleet"
)

const (
	leaderDoc = "leader"
	leadTTL   = 20 * time.Second
	leadEvery = 5 * time.Second
)

// lease is the document by which one watch of a fleet acts and the others wait. Seq
// grows with each renewal: whether it moves is told by the clock of whoever looks, so
// that no two clocks are compared.
type lease struct {
	Owner string `json:"owner"`
	Seq   uint64 `json:"seq"`
}

// leadership is what one watch knows of the lease. Its zero value leads nothing.
type leadership struct {
	rev   uint64        // of the document that was seen
	lease lease         // that was seen
	since time.Duration // when it was first seen so
	began time.Duration // when the own last write that took effect was begun
	leads bool
}

// holds tells whether the watch leads at now: the lease it wrote cannot have been taken
// over yet by anybody who waits for all of leadTTL.
func (l leadership) holds(now time.Duration) bool {
	return l.leads && now-l.began < leadTTL-leadEvery
}

// step takes what the document says at now and tells whether to write it, and what.
func (l leadership) step(owner string, rev uint64, d lease, now time.Duration) (leadership, *lease) {
	if rev != l.rev || d != l.lease {
		l.rev, l.lease, l.since = rev, d, now
	}
	switch {
	case rev == 0:
		return l, &lease{owner, 1}
	case d.Owner == owner:
		return l, &lease{owner, d.Seq + 1}
	}
	l.leads = false
	if now-l.since >= leadTTL {
		return l, &lease{owner, d.Seq + 1}
	}
	return l, nil
}

// wrote takes note of a write that was begun at began and took effect.
func (l leadership) wrote(rev uint64, d lease, began time.Duration) leadership {
	return leadership{rev: rev, lease: d, since: began, began: began, leads: true}
}

// leader keeps the lease while it can.
type leader struct {
	store fleet.Store
	owner string
	log   *slog.Logger
	until atomic.Int64 // since start, in ns; before it this watch leads
	start time.Time
}

func newLeader(s fleet.Store, owner string, log *slog.Logger) *leader {
	return &leader{store: s, owner: owner, log: log, start: time.Now()}
}

// Leads tells whether this watch may act on the fleet now.
func (l *leader) Leads() bool { return time.Since(l.start) < time.Duration(l.until.Load()) }

func (l *leader) run(ctx context.Context) error {
	tick := time.NewTicker(leadEvery)
	defer tick.Stop()
	var s leadership
	for {
		next, err := l.once(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			l.log.Warn("keeping the leader's document", "err", err)
		}
		if now := time.Since(l.start); next.holds(now) != s.holds(now) {
			l.log.Info("leading the fleet", "leads", next.holds(now))
		}
		s = next
		if s.leads {
			l.until.Store(int64(s.began + leadTTL - leadEvery))
		} else {
			l.until.Store(0)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (l *leader) once(ctx context.Context, s leadership) (leadership, error) {
	ctx, cancel := context.WithTimeout(ctx, leadEvery)
	defer cancel()
	var d lease
	doc, err := l.store.Get(ctx, leaderDoc)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
	case err != nil:
		return s, err
	default:
		if err := json.Unmarshal(doc.Body, &d); err != nil {
			return s, fmt.Errorf("reading %s: %w", leaderDoc, err)
		}
	}
	began := time.Since(l.start)
	s, write := s.step(l.owner, doc.Rev, d, began)
	if write == nil {
		return s, nil
	}
	body, err := json.Marshal(write)
	if err != nil {
		return s, err
	}
	rev, err := l.store.Put(ctx, leaderDoc, body, doc.Rev)
	if errors.Is(err, fleet.ErrConflict) {
		s.leads = false
		return s, nil
	}
	if err != nil {
		return s, err
	}
	return s.wrote(rev, *write, began), nil
}

// resign lets another take over at once.
func (l *leader) resign(ctx context.Context) {
	if !l.Leads() {
		return
	}
	var d lease
	doc, err := l.store.Get(ctx, leaderDoc)
	if err == nil && json.Unmarshal(doc.Body, &d) == nil && d.Owner == l.owner {
		err = l.store.Delete(ctx, leaderDoc, doc.Rev)
	}
	if err != nil && !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
		l.log.Warn("giving the leader's document up", "err", err)
	}
}
