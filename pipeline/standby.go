package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/serving/deploy"
	"llmops/serving/route"
	"llmops/serving/slo"
)

const standbyPrefix = "index/standby/"

// Standby is a version that is kept warm to go back to, and until when.
type Standby struct {
	Alias   string    `json:"alias"`
	Version string    `json:"version"`
	Until   time.Time `json:"until"`
	// Probed is when it last produced a token, and Broken why it did not since.
	Probed time.Time `json:"probed"`
	Broken string    `json:"broken,omitempty"`
	SLO    slo.Class `json:"slo"` // that it is held to
}

// keepStandby writes down until when the version before is kept.
func keepStandby(ctx context.Context, a *Attempt, out PromoteOutput) error {
	if out.Standby == "" || out.Standby == out.Live {
		return nil
	}
	name := standbyPrefix + fleet.Escape(out.Alias)
	d, err := a.Deps.Store.Get(ctx, name)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	body := mustJSON(Standby{Alias: out.Alias, Version: out.Standby, Until: out.Until, Probed: a.Deps.Now().UTC(), SLO: a.Spec.SLO})
	if _, err := a.Deps.Store.Put(ctx, name, body, d.Rev); err != nil && !errors.Is(err, fleet.ErrConflict) {
		return fmt.Errorf("keeping the standby: %w", err)
	}
	return nil
}

// Standbys lists the versions that are kept warm, with the revisions of their
// documents.
func Standbys(ctx context.Context, s fleet.Store) (out []Standby, revs []uint64, err error) {
	docs, err := s.List(ctx, standbyPrefix)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range docs {
		d, err := s.Get(ctx, d.Name)
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		var b Standby
		if err := json.Unmarshal(d.Body, &b); err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", d.Name, err)
		}
		out, revs = append(out, b), append(revs, d.Rev)
	}
	return out, revs, nil
}

// TendStandbys asks each standby for a token and writes down whether it came;
// one whose time is over, and that the route still names as standby and nothing
// more, is taken off the fleet. Where somebody has rolled back, what the route no
// longer names is, as soon as no run of the alias is under way. It returns what a person should know.
func TendStandbys(ctx context.Context, d Deps) (notes []string, err error) {
	all, revs, err := Standbys(ctx, d.Store)
	if err != nil {
		return nil, err
	}
	for i, b := range all {
		name := standbyPrefix + fleet.Escape(b.Alias)
		c := &canary.Control{Store: d.Store, Alias: b.Alias, Routers: d.Admins}
		doc, rev, err := c.Read(ctx)
		if errors.Is(err, fleet.ErrNotFound) || err == nil && doc.Standby != b.Version {
			// Rolled back or taken down: there is no standby to keep any more.
			left, idle, err := idleVersions(ctx, d, b.Alias, doc)
			if err != nil {
				return notes, err
			}
			if !idle {
				continue
			}
			for _, v := range left {
				if err := retire(ctx, d, c, rev, b.Alias, v); err != nil {
					return notes, err
				}
				notes = append(notes, fmt.Sprintf("version %s of %s is not in its route any more and is stopped", v, b.Alias))
			}
			if err := d.Store.Delete(ctx, name, revs[i]); err != nil && !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
				return notes, err
			}
			continue
		}
		if err != nil {
			return notes, err
		}
		if d.Now().After(b.Until) {
			if err := expire(ctx, d, c, b); err != nil {
				return notes, err
			}
			notes = append(notes, fmt.Sprintf("standby %s of %s was kept until %s and is stopped", b.Version, b.Alias, b.Until.Format(time.DateTime)))
			continue
		}
		if note := probeStandby(ctx, d, &b); note != "" {
			notes = append(notes, note)
		}
		if _, err := d.Store.Put(ctx, name, mustJSON(b), revs[i]); err != nil && !errors.Is(err, fleet.ErrConflict) {
			return notes, err
		}
	}
	return notes, nil
}

func probeStandby(ctx context.Context, d Deps, b *Standby) (note string) {
	st, err := d.Scheduler.Status(ctx, JobName(b.Alias, b.Version))
	there := deploy.Heard(st.Replicas)
	if err == nil && len(there) == 0 {
		err = errors.New("it has no replicas")
	}
	var broken []string
	for _, r := range there {
		if err := deploy.Probe(ctx, r.Addr, b.Alias, b.Version, deploy.Task(st.Job.Meta["task"])); err != nil {
			broken = append(broken, r.ID+": "+err.Error())
		}
	}
	if err != nil {
		broken = append(broken, err.Error())
	}
	was := b.Broken
	b.Broken = strings.Join(broken, "; ")
	if b.Broken == "" {
		b.Probed = d.Now().UTC()
		return ""
	}
	if was == b.Broken {
		return ""
	}
	return fmt.Sprintf("standby %s of %s is broken, there is nothing to go back to: %s", b.Version, b.Alias, b.Broken)
}

// expire takes the standby out of the route, then off the fleet.
func expire(ctx context.Context, d Deps, c *canary.Control, b Standby) error {
	doc, delivery, err := c.Change(ctx, func(r route.Doc) (route.Doc, error) {
		if r.Standby == b.Version {
			r.Standby = ""
		}
		return r, nil
	})
	if err != nil || doc.Knows(b.Version) {
		return err
	}
	return retire(ctx, d, c, delivery.Rev, b.Alias, b.Version)
}

// retire takes a version off the fleet that the route does not name since
// revision rev.
func retire(ctx context.Context, d Deps, c *canary.Control, rev uint64, alias, version string) error {
	if _, err := c.Settle(ctx, rev, d.Now()); err != nil {
		return err
	}
	return deploy.Down(ctx, d.Scheduler, JobName(alias, version))
}

// idleVersions are the deployed versions of an alias that its route does not
// name. While a run of the alias is not over it may be about to route one: idle
// is false then.
func idleVersions(ctx context.Context, d Deps, alias string, doc route.Doc) (left []string, idle bool, err error) {
	if last, err := Last(ctx, d.Store, alias); err == nil && !last.Over() {
		return nil, false, nil
	} else if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return nil, false, err
	}
	vs, err := Versions(ctx, d.Store, alias)
	if err != nil {
		return nil, false, err
	}
	for _, v := range vs {
		st, err := d.Scheduler.Status(ctx, JobName(alias, v.Name))
		if err != nil {
			return nil, false, err
		}
		if !doc.Knows(v.Name) && (st.Rev != 0 || len(st.Replicas) > 0) {
			left = append(left, v.Name)
		}
	}
	return left, true, nil
}
