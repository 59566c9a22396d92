package canary

import (
	"context"
	"fmt"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
	"llmops/serving/slo"
)

// The bounds of a shadow. It sees few requests and is followed by a canary, so
// it is asked to exclude gross faults only, and says which.
const (
	shadowErrors = 0.15 // share of copies that failed
	shadowSlow   = 0.20 // share of copies over the service level's TTFT
	shadowEqual  = 0.70 // share of copies answered like the live request
	shadowLevel  = 0.95
)

// ShadowPolicy is what a shadow goes by.
type ShadowPolicy struct {
	Stable    string        `json:"stable"`
	Candidate string        `json:"candidate"`
	Share     float64       `json:"share"`
	For       time.Duration `json:"for"`
	Max       float64       `json:"max"` // gives up after Max times For
	SLO       slo.Class     `json:"slo"`
	// Same says that the candidate's answers must be the same as stable's.
	Same bool `json:"same"`
}

// ShadowResult is what was seen of the copies.
type ShadowResult struct {
	Policy  ShadowPolicy     `json:"policy"`
	Copies  route.Counters   `json:"copies"`
	Live    route.Counters   `json:"live"`
	Verdict evidence.Verdict `json:"verdict"`
}

// Shadow mirrors a share of the traffic to the candidate until the time is
// over and the bounds are decided, then ends the mirror. The mirror is leased
// like any weight.
func Shadow(ctx context.Context, c *Control, p ShadowPolicy, epoch uint64, h Hooks, tell func(ShadowResult)) (ShadowResult, error) {
	res := ShadowResult{Policy: p}
	grant := func() error {
		if err := h.Intent(ctx, fmt.Sprintf("mirror %.4g%% to %s", 100*p.Share, p.Candidate), nil); err != nil {
			return err
		}
		_, _, err := c.Change(ctx, func(d route.Doc) (route.Doc, error) {
			return route.Grant(d, epoch, route.Lease{Intent: route.Intent{Mirror: map[string]uint32{p.Candidate: ppm(p.Share)}}, TTL: LeaseTTL})
		})
		return err
	}
	before, _, err := c.Reports(ctx)
	if err != nil {
		return res, err
	}
	boots := map[string]string{}
	anew(boots, before)
	if err := grant(); err != nil {
		return res, err
	}
	began, renewed, seen := time.Now(), time.Now(), uint64(0)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return res, ctx.Err()
		case <-tick.C:
		}
		if err := c.holds(ctx, epoch); err != nil {
			return res, err
		}
		reports, err := res.look(ctx, c, before)
		if err != nil {
			return res, err
		}
		tell(res)
		if anew(boots, reports) {
			// It copies nothing before it has seen the lease move, and if no other
			// router does there is nothing to renew it by.
			if err := grant(); err != nil {
				return res, err
			}
			renewed = time.Now()
		}
		n := res.Copies.Total().Chosen
		if fresh := n > seen; fresh && time.Since(renewed) >= RenewEvery-tickEvery {
			if _, _, err := c.Change(ctx, func(d route.Doc) (route.Doc, error) {
				if d.Lease == nil {
					return d, route.ErrFenced
				}
				return route.Renew(d, epoch, d.Seq+1, fmt.Sprintf("%d copies", n))
			}); err != nil {
				return res, err
			}
			renewed, seen = time.Now(), n
		}
		took := time.Since(began)
		decided := res.Verdict.Outcome != evidence.Inconclusive
		if took >= p.For && decided || took >= time.Duration(p.Max*float64(p.For)) || res.Verdict.Outcome == evidence.Fail {
			return res, endMirror(ctx, c, epoch, h)
		}
	}
}

// endMirror drops the lease and with it the mirror.
func endMirror(ctx context.Context, c *Control, epoch uint64, h Hooks) error {
	if err := h.Intent(ctx, "end the mirror", nil); err != nil {
		return err
	}
	_, _, err := c.Change(ctx, func(d route.Doc) (route.Doc, error) {
		if d.Epoch != epoch {
			return d, route.ErrFenced
		}
		d.Lease = nil
		return d, nil
	})
	return err
}

// anew notes which start of each router reports are of, and tells whether one was
// started again.
func anew(boots map[string]string, reports map[string]route.Report) (again bool) {
	for name, r := range reports {
		again = again || boots[name] != "" && boots[name] != r.Boot
		boots[name] = r.Boot
	}
	return again
}

// look reads the counters since before and judges them. Routers that are all out
// of reach for a moment change nothing.
func (r *ShadowResult) look(ctx context.Context, c *Control, before map[string]route.Report) (map[string]route.Report, error) {
	reports, _, err := c.Reports(ctx)
	if err != nil || len(reports) == 0 {
		return nil, err
	}
	r.Copies, r.Live = route.Counters{}, route.Counters{}
	for name, now := range reports {
		d := now.Since(before[name])
		if m, ok := d.Mirrored[r.Policy.Candidate]; ok {
			r.Copies.Merge(&m)
		}
		if v, ok := d.Versions[r.Policy.Stable]; ok {
			r.Live.Merge(&v)
		}
	}
	r.Verdict = r.judge()
	return reports, nil
}

func (r *ShadowResult) judge() evidence.Verdict {
	s := r.Copies.Total()
	bad := int(s.Errors + s.Invalid)
	parts := []evidence.Verdict{
		evidence.AtMost(fmt.Sprintf("at most %.4g%% of the copies fail", 100*shadowErrors), bad, bad+int(s.Done), shadowErrors, shadowLevel),
	}
	if b := r.Policy.SLO.TTFT; b.Set() {
		over, n, _ := s.TTFT.Over(b.Limit)
		parts = append(parts, evidence.AtMost(fmt.Sprintf("at most %.4g%% of the copies wait longer than %v for a token", 100*shadowSlow, b.Limit), int(over), int(n), shadowSlow, shadowLevel))
	}
	if r.Policy.Same {
		parts = append(parts, evidence.AtLeast(fmt.Sprintf("at least %.4g%% of the copies are answered word for word like the live request", 100*shadowEqual), int(r.Copies.Equal), int(r.Copies.Compared), shadowEqual, shadowLevel))
	}
	v := evidence.All("shadow: copies of live requests show no gross fault", parts...)
	v.N = int(s.Done)
	if r.Copies.Dropped > 0 {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d copies were not sent for want of a free slot", r.Copies.Dropped))
	}
	return v
}
