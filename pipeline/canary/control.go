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

// holds is nil while the controller of epoch has its lease: a rollback is seen at
// the next look and not only when something is to be written.
func (c *Control) holds(ctx context.Context, epoch uint64) error {
	d, _, err := c.Read(ctx)
	switch {
	case err != nil && !errors.Is(err, fleet.ErrNotFound):
		return fmt.Errorf("reading the route of %s: %w", c.Alias, err)
	case d.Epoch != epoch || d.Lease == nil:
		return fmt.Errorf("the route of %s is at epoch %d, not %d: %w", c.Alias, d.Epoch, epoch, route.ErrFenced)
	}
	return nil
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
		return next, c.push(ctx, rev, next), nil
	}
}

// push hands the revision to all routers. The write is done by then, so routers
// that cannot even be listed are missing, and no error.
func (c *Control) push(ctx context.Context, rev uint64, doc route.Doc) Delivery {
	began := time.Now()
	d := Delivery{Rev: rev}
	var mu sync.Mutex // guards d.Took
	var err error
	d.Acked, d.Missing, err = c.each(ctx, func(ctx context.Context, _ string, a *route.Admin) error {
		st, err := a.Push(ctx, rev, doc)
		if err == nil {
			err = behind(st, rev)
		}
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			d.Took = max(d.Took, time.Since(began))
		}
		return err
	})
	if err != nil {
		d.Missing = []string{"all: " + err.Error()}
	}
	return d
}

// behind is an error when a router has not come to rev yet.
func behind(st route.State, rev uint64) error {
	if st.Rev < rev {
		return fmt.Errorf("router %s is at revision %d, before %d", st.Router, st.Rev, rev)
	}
	return nil
}

// each asks all routers at once, none for longer than pushWait.
func (c *Control) each(ctx context.Context, ask func(ctx context.Context, name string, a *route.Admin) error) (acked, missing []string, err error) {
	routers, err := c.Routers(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("listing routers: %w", err)
	}
	var mu sync.Mutex // guards acked and missing
	var wg sync.WaitGroup
	for name, admin := range routers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, pushWait)
			defer cancel()
			err := ask(ctx, name, admin)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, name)
				return
			}
			acked = append(acked, name)
		})
	}
	wg.Wait()
	slices.Sort(acked)
	slices.Sort(missing)
	return acked, missing, nil
}

// Settle waits until every router has acknowledged revision rev or a later one,
// is gone, or has outlived its lease, which ends LeaseTTL after since. It
// returns those that did not acknowledge.
func (c *Control) Settle(ctx context.Context, rev uint64, since time.Time) (missing []string, err error) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		_, missing, err := c.each(ctx, func(ctx context.Context, _ string, a *route.Admin) error {
			st, err := a.State(ctx, c.Alias)
			if err == nil {
				err = behind(st, rev)
			}
			return err
		})
		if err != nil || len(missing) == 0 || time.Since(since) > LeaseTTL {
			return missing, err
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
	reports = map[string]route.Report{}
	var mu sync.Mutex // guards reports
	_, missing, err = c.each(ctx, func(ctx context.Context, name string, a *route.Admin) error {
		r, err := a.Report(ctx, c.Alias)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			reports[name] = r
		}
		return err
	})
	return reports, missing, err
}
