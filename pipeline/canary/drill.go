package canary

import (
	"context"
	"fmt"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
	"llmops/serving/slo"
)

// The bounds of a drill where the service level states none. A standby's caches are
// cold, so that its first tokens may be late for more requests than are promised.
const (
	drillErrors = 0.05
	drillSlow   = 0.20
	drillLevel  = 0.95
)

// backWithin is by when reachable routers must have taken traffic back.
const backWithin = time.Second

// DrillPolicy is what a rehearsed rollback goes by.
type DrillPolicy struct {
	Live    string        `json:"live"`
	Standby string        `json:"standby"`
	Share   float64       `json:"share"` // of the traffic that goes to the standby
	For     time.Duration `json:"for"`
	Max     time.Duration `json:"max"` // gives up, undecided
	SLO     slo.Class     `json:"slo"`
}

// DrillResult is how a rehearsal went.
type DrillResult struct {
	Policy  DrillPolicy      `json:"policy"`
	Routers int              `json:"routers"`
	There   time.Duration    `json:"there"` // until every router sent to the standby; 0: not all did
	Back    Delivery         `json:"back"`
	Standby route.Counters   `json:"standby"`
	Live    route.Counters   `json:"live"`
	Verdict evidence.Verdict `json:"verdict"`
}

// Drill sends a share of the live traffic to the standby for a while, under a lease of
// the claimed epoch, and takes it back, as a rollback would and yet so that the lease
// returns the traffic should the caller die. run is whose name the route then bears
// again.
func Drill(ctx context.Context, c *Control, p DrillPolicy, run string, epoch uint64, tell func(DrillResult)) (DrillResult, error) {
	res := DrillResult{Policy: p}
	before, _, err := c.Reports(ctx)
	if err != nil {
		return res, err
	}
	began := time.Now()
	err = res.hold(ctx, c, epoch, before, began, tell)
	if !Fenced(err) {
		// Whatever happened, the traffic goes back now and not when the lease ends.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseTTL)
		defer cancel()
		var berr error
		_, res.Back, berr = c.Change(rctx, func(d route.Doc) (route.Doc, error) {
			if d.Epoch != epoch {
				return d, route.ErrFenced
			}
			d = route.Fallback(d)
			d.Run = run
			return d, nil
		})
		if err == nil {
			err = berr
		}
	}
	if err != nil {
		return res, err
	}
	res.Verdict = res.judge(true)
	return res, nil
}

// hold leases the share and renews it by what the standby has answered since.
func (r *DrillResult) hold(ctx context.Context, c *Control, epoch uint64, before map[string]route.Report, began time.Time, tell func(DrillResult)) error {
	p := &r.Policy
	w := ppm(p.Share)
	grant := func(d route.Doc) (route.Doc, error) {
		shares := map[string]uint32{p.Standby: w}
		if w < route.Million {
			shares[p.Live] = route.Million - w
		}
		return route.Grant(d, epoch, route.Lease{Intent: route.Intent{Splits: []route.Split{{Shares: shares}}}, TTL: LeaseTTL})
	}
	if _, _, err := c.Change(ctx, grant); err != nil {
		return err
	}
	renewed, seen := time.Now(), uint64(0)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := c.holds(ctx, epoch); err != nil {
			return err
		}
		n, err := r.look(ctx, c, before)
		if err != nil {
			return err
		}
		if r.There == 0 && r.everywhere(ctx, c, w) {
			r.There = time.Since(began)
		}
		r.Verdict = r.judge(false)
		tell(*r)
		if n > seen && time.Since(renewed) >= RenewEvery-tickEvery {
			if _, _, err := c.Change(ctx, func(d route.Doc) (route.Doc, error) {
				if d.Lease == nil {
					return d, route.ErrFenced
				}
				return route.Renew(d, epoch, d.Seq+1, fmt.Sprintf("%d requests", n))
			}); err != nil {
				return err
			}
			renewed, seen = time.Now(), n
		}
		took := time.Since(began)
		switch {
		case r.Verdict.Outcome == evidence.Fail, took >= p.Max:
			return nil
		case took >= p.For && r.There > 0 && r.Verdict.Outcome == evidence.Pass:
			return nil
		}
	}
}

// look reads the counters since before and returns how many requests were chosen at
// all, which is what shows that routers still say something new.
func (r *DrillResult) look(ctx context.Context, c *Control, before map[string]route.Report) (chosen uint64, err error) {
	reports, _, err := c.Reports(ctx)
	if err != nil || len(reports) == 0 {
		return 0, err
	}
	r.Routers = len(reports)
	r.Standby, r.Live = route.Counters{}, route.Counters{}
	for name, now := range reports {
		d := now.Since(before[name])
		if v, ok := d.Versions[r.Policy.Standby]; ok {
			r.Standby.Merge(&v)
		}
		if v, ok := d.Versions[r.Policy.Live]; ok {
			r.Live.Merge(&v)
		}
	}
	return r.Standby.Total().Chosen + r.Live.Total().Chosen, nil
}

// everywhere tells whether every router has the share in force.
func (r *DrillResult) everywhere(ctx context.Context, c *Control, w uint32) bool {
	acked, missing, err := c.each(ctx, func(ctx context.Context, _ string, a *route.Admin) error {
		st, err := a.State(ctx, c.Alias)
		if err == nil && st.Shares[r.Policy.Standby] != w {
			err = fmt.Errorf("router %s sends %d parts per million", st.Router, st.Shares[r.Policy.Standby])
		}
		return err
	})
	return err == nil && len(acked) > 0 && len(missing) == 0
}

// judge says what was seen; of the way back only when it is over.
func (r *DrillResult) judge(over bool) evidence.Verdict {
	s, p := r.Standby.Total(), &r.Policy
	limit := p.SLO.ErrorRate
	if limit == 0 {
		limit = drillErrors
	}
	bad := int(s.Errors + s.Invalid)
	parts := []evidence.Verdict{
		evidence.AtMost(fmt.Sprintf("at most %.4g%% of the standby's requests fail", 100*limit), bad, bad+int(s.Done), limit, drillLevel),
	}
	late, n, _ := s.TTFT.Over(p.SLO.TTFT.Limit)
	streamed := n > 0 || s.Done == 0
	if b := p.SLO.TTFT; b.Set() && streamed {
		parts = append(parts, evidence.AtMost(fmt.Sprintf("at most %.4g%% wait longer than %v for a token", 100*drillSlow, b.Limit), int(late), int(n), drillSlow, drillLevel))
	}
	if over {
		there := evidence.Check("every router sent to the standby", r.There > 0, r.Routers)
		if r.There == 0 && r.Routers > 0 && s.Chosen == 0 {
			there.Outcome = evidence.Inconclusive // without traffic no lease is renewed
		}
		parts = append(parts, there,
			evidence.Check(fmt.Sprintf("every router was back within %v", backWithin), len(r.Back.Missing) == 0 && r.Back.Took <= backWithin, len(r.Back.Acked)+len(r.Back.Missing)))
	}
	v := evidence.All(fmt.Sprintf("the standby %s takes over and gives back", p.Standby), parts...)
	v.N = int(s.Done)
	if !streamed {
		v.Warnings = append(v.Warnings, "no answer was streamed: nothing is known of the time to the first token")
	}
	if r.Standby.Mismatched > 0 {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d answers named another version than the standby", r.Standby.Mismatched))
	}
	return v
}
