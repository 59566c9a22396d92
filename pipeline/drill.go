package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/serving/deploy"
	"llmops/serving/route"
)

const drillPrefix = "index/drill/"

// Drilled is how the last rehearsal of an alias's rollback went.
type Drilled struct {
	At time.Time `json:"at"`
	By string    `json:"by"`
	canary.DrillResult
}

// ErrDrill reports a rehearsal that cannot be held now.
var ErrDrill = errors.New("no drill can be held")

// LastDrill returns the last rehearsal of an alias, nil when there was none.
func LastDrill(ctx context.Context, s fleet.Store, alias string) (*Drilled, error) {
	var d Drilled
	_, err := readDoc(ctx, s, drillPrefix+fleet.Escape(alias), &d)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, nil
	}
	return &d, err
}

// PlanDrill tells what a rehearsal of the alias's rollback would send where: a share
// of 0 is as much as the standby has replicas for.
func PlanDrill(ctx context.Context, d Deps, alias string, p canary.DrillPolicy) (canary.DrillPolicy, error) {
	c := &canary.Control{Store: d.Store, Alias: alias, Routers: d.Admins}
	doc, _, err := c.Read(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return p, fmt.Errorf("%w: nothing is live under %s", ErrDrill, alias)
	}
	if err != nil {
		return p, err
	}
	p.Live, p.Standby = doc.Live(), doc.Standby
	last, err := Last(ctx, d.Store, alias)
	switch {
	case doc.Standby == "":
		return p, fmt.Errorf("%w: %s has no standby", ErrDrill, alias)
	case doc.Lease != nil:
		return p, fmt.Errorf("%w: traffic of %s is being moved already", ErrDrill, alias)
	case err == nil && !last.Over():
		return p, fmt.Errorf("%w: run %s is under way", ErrDrill, last.Run)
	case err != nil && !errors.Is(err, fleet.ErrNotFound):
		return p, err
	}
	if all, _, err := Standbys(ctx, d.Store); err == nil {
		for _, b := range all {
			if b.Alias == alias && b.Version == p.Standby {
				p.SLO = b.SLO
			}
		}
	}
	room, err := roomOf(ctx, d, alias, p)
	if err != nil {
		return p, err
	}
	if p.Share == 0 {
		p.Share = room
	}
	if p.Share > room {
		return p, fmt.Errorf("%w: the standby has replicas for %.0f%% of the traffic, not for %.0f%%; scale it, or give a smaller --share", ErrDrill, 100*room, 100*p.Share)
	}
	return p, nil
}

// roomOf is the share of the traffic that the standby has replicas for that have each
// just produced a token.
func roomOf(ctx context.Context, d Deps, alias string, p canary.DrillPolicy) (float64, error) {
	count := func(version string, probe bool) (n int, err error) {
		st, err := d.Scheduler.Status(ctx, JobName(alias, version))
		if err != nil {
			return 0, err
		}
		for _, r := range st.Replicas {
			if r.State != fleet.Healthy {
				continue
			}
			if probe {
				if err := deploy.Probe(ctx, r.Addr, alias, version, deploy.Task(st.Job.Meta["task"])); err != nil {
					return 0, fmt.Errorf("%w: replica %s of the standby is broken: %w", ErrDrill, r.ID, err)
				}
			}
			n++
		}
		return n, nil
	}
	standby, err := count(p.Standby, true)
	if err != nil {
		return 0, err
	}
	live, err := count(p.Live, false)
	if err != nil {
		return 0, err
	}
	if standby == 0 || live == 0 {
		return 0, fmt.Errorf("%w: %d replicas of %s and %d of the standby %s are healthy", ErrDrill, live, p.Live, standby, p.Standby)
	}
	return min(1, float64(standby)/float64(live)), nil
}

// Drill rehearses the rollback and writes down how it went. Whatever happens, traffic
// is back where it was when it returns, or by when the lease ends.
func Drill(ctx context.Context, d Deps, alias, by string, p canary.DrillPolicy, tell func(canary.DrillResult)) (Drilled, error) {
	out := Drilled{At: d.Now().UTC(), By: by}
	c := &canary.Control{Store: d.Store, Alias: alias, Routers: d.Admins}
	var run string
	doc, _, err := c.Change(ctx, func(r route.Doc) (route.Doc, error) {
		if r.Lease != nil || r.Live() != p.Live || r.Standby != p.Standby {
			return r, fmt.Errorf("%w: the route of %s has changed meanwhile", ErrDrill, alias)
		}
		run = r.Run
		return route.Claim(r, "drill"), nil
	})
	if err != nil {
		return out, err
	}
	out.DrillResult, err = canary.Drill(ctx, c, p, run, doc.Epoch, tell)
	if canary.Fenced(err) {
		out.Verdict = evidence.All(fmt.Sprintf("the standby %s takes over and gives back: somebody else took the route meanwhile", p.Standby))
		err = nil
	}
	if err != nil {
		return out, err
	}
	return out, keepDrill(context.WithoutCancel(ctx), d.Store, alias, out)
}

func keepDrill(ctx context.Context, s fleet.Store, alias string, out Drilled) error {
	name := drillPrefix + fleet.Escape(alias)
	for {
		d, err := s.Get(ctx, name)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
		if _, err = s.Put(ctx, name, mustJSON(out), d.Rev); !errors.Is(err, fleet.ErrConflict) {
			return err
		}
	}
}
