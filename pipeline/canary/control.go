package canary

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/serving/route"
)

// pushWait bounds one exchange with one router: a router that takes longer is
// left to the lease.
const pushWait = time.Second

// settleEvery is how often routers that have not acknowledged are asked again.
const settleEvery = 500 * time.Millisecond

// Control writes the route of one alias and sees to it that routers follow.
type Control struct {
	Store fleet.Store
	Alias string
	// Routers lists the routers that there are, by name.
	Routers func(ctx context.Context) (map[string]*route.Admin, error)
}

// Delivery is how far a write has come.
type Delivery struct {
	Rev     uint64        `json:"rev"`
	Acked   []string      `json:"acked"`
	Missing []string      `json:"missing,omitempty"`
	Took    time.Duration `json:"took"` // to the last of Acked
}

// Read returns the route, and ErrNotFound when the alias has none.
func (c *Control) Read(ctx context.Context) (route.Doc, uint64, error) {
	d, err := c.Store.Get(ctx, route.Name(c.Alias))
	if err != nil {
		return route.Doc{}, 0, err
	}
	doc, err := route.Decode(d.Body)
	return doc, d.Rev, err
}

// Change applies a transition under compare-and-set, pushes the result to every
// router and reads it back once. The document is empty when there is none yet.
func (c *Control) Change(ctx context.Context, fn func(route.Doc) (route.Doc, error)) (route.Doc, Delivery, error) {
	for {
		old, rev, err := c.Read(ctx)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return old, Delivery{}, err
		}
		next, err := fn(old)
		if err != nil {
			return old, Delivery{}, err
		}
		body, err := route.Encode(next)
		if err != nil {
			return old, Delivery{}, fmt.Errorf("writing the route of %s: %w", c.Alias, err)
		}
		rev, err = c.Store.Put(ctx, route.Name(c.Alias), body, rev)
		if errors.Is(err, fleet.ErrConflict) {
			continue
		}
		if err != nil {
			return old, Delivery{}, fmt.Errorf("writing the route of %s: %w", c.Alias, err)
		}
		d, err := c.push(ctx, rev, next)
		return next, d, err
	}
}

func (c *Control) push(ctx context.Context, rev uint64, doc route.Doc) (Delivery, error) {
	routers, err := c.Routers(ctx)
	if err != nil {
		return Delivery{Rev: rev}, fmt.Errorf("listing routers: %w", err)
	}
	began := time.Now()
	var mu sync.Mutex // guards d
	d := Delivery{Rev: rev}
	var wg sync.WaitGroup
	for name, admin := range routers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, pushWait)
			defer cancel()
			st, err := admin.Push(ctx, rev, doc)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || st.Rev < rev {
				d.Missing = append(d.Missing, name)
				return
			}
			d.Acked = append(d.Acked, name)
			d.Took = max(d.Took, time.Since(began))
		})
	}
	wg.Wait()
	slices.Sort(d.Acked)
	slices.Sort(d.Missing)
	return d, nil
}

// Settle waits until every router has acknowledged revision rev or a later one,
// is gone, or has outlived its lease, which ends LeaseTTL after since.
func (c *Control) Settle(ctx context.Context, rev uint64, since time.Time) (missing []string, err error) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		routers, err := c.Routers(ctx)
		if err != nil {
			return nil, err
		}
		missing = missing[:0]
		for name, admin := range routers {
			actx, cancel := context.WithTimeout(ctx, pushWait)
			st, err := admin.State(actx, c.Alias)
			cancel()
			if err != nil || st.Rev < rev {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 || time.Since(since) > LeaseTTL {
			slices.Sort(missing)
			return missing, nil
		}
		select {
		case <-ctx.Done():
			return missing, ctx.Err()
		case <-tick.C:
		}
	}
}

// Observe asks every router for its counters.
func (c *Control) Observe(ctx context.Context, p *Policy) (Observation, error) {
	o := Observation{Routers: map[string]Counted{}}
	reports, missing, err := c.Reports(ctx)
	if err != nil {
		return o, err
	}
	o.At, o.Missing = time.Now(), missing
	for name, r := range reports {
		o.Routers[name] = p.Counts(r)
	}
	return o, nil
}

// Reports asks every router for its report, all at once.
func (c *Control) Reports(ctx context.Context) (reports map[string]route.Report, missing []string, err error) {
	routers, err := c.Routers(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("listing routers: %w", err)
	}
	reports = map[string]route.Report{}
	var mu sync.Mutex // guards reports and missing
	var wg sync.WaitGroup
	for name, admin := range routers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, pushWait)
			defer cancel()
			r, err := admin.Report(ctx, c.Alias)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, name)
				return
			}
			reports[name] = r
		})
	}
	wg.Wait()
	slices.Sort(missing)
	return reports, missing, nil
}
