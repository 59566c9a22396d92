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
	"llmops/serving/openai"
	"llmops/serving/route"
)

// DeployOutput names the arms and where they answer. In a first run stable is
// the parent.
type DeployOutput struct {
	Parent    Arm  `json:"parent"`
	Candidate Arm  `json:"candidate"`
	Stable    Arm  `json:"stable"`
	First     bool `json:"first"` // the alias had no live version before
}

// Arm is a deployed version.
type Arm struct {
	Version Version        `json:"version"`
	Ready   []deploy.Ready `json:"ready"`
}

// addr is where the arm's first replica answers.
func (a Arm) addr() string {
	if len(a.Ready) == 0 {
		return ""
	}
	return a.Ready[0].Addr
}

func (a Arm) client() *openai.Client { return &openai.Client{BaseURL: "http://" + a.addr()} }

// control is the route of the run's alias.
func (a *Attempt) control() *canary.Control {
	return &canary.Control{Store: a.Deps.Store, Alias: a.Spec.Name, Routers: a.Deps.Admins}
}

func runDeploy(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var src, cand Weights
	if err := errors.Join(a.Result(ctx, StageDownload, &src), a.Result(ctx, StageQuantise, &cand)); err != nil {
		return evidence.Verdict{}, err
	}
	parentEngine := a.Spec.Engine.reference()
	parent, err := version(ctx, a, src, parentEngine)
	if err != nil {
		return evidence.Verdict{}, err
	}
	candidate, err := version(ctx, a, cand, a.Spec.Engine)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if err := routers(ctx, a); err != nil {
		return evidence.Verdict{}, err
	}
	var out DeployOutput
	if out.Parent, err = up(ctx, a, parent, parentEngine); err != nil {
		return evidence.Verdict{}, err
	}
	caps, err := parentCaps(a.Spec, src)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if err := firstRoute(ctx, a, parent.Name, caps, &out); err != nil {
		return evidence.Verdict{}, err
	}
	if candidate.Name == parent.Name {
		out.Candidate = out.Parent
	} else if out.Candidate, err = up(ctx, a, candidate, a.Spec.Engine); err != nil {
		return evidence.Verdict{}, err
	}
	if err := stable(ctx, a, &out); err != nil {
		return evidence.Verdict{}, err
	}
	if out.First { // otherwise what is live scales as it did, until this is promoted
		if err := keepScaling(ctx, a); err != nil {
			return evidence.Verdict{}, err
		}
	}
	a.Output(out)
	n := len(out.Parent.Ready) + len(out.Candidate.Ready)
	v := evidence.Check("every replica of parent and candidate has produced a token", n > 0, n)
	arms := []Arm{out.Parent}
	if candidate.Name != parent.Name {
		arms = append(arms, out.Candidate)
	}
	for _, arm := range arms {
		if have, want := len(arm.Ready), a.Spec.Placement.Replicas; have != want {
			v.Warnings = append(v.Warnings, fmt.Sprintf("version %s was there before and keeps its %d replicas; the file asks for %d", arm.Version.Name, have, want))
		}
	}
	return v, nil
}

// up brings a version's replicas to their first token.
func up(ctx context.Context, a *Attempt, v Version, e Engine) (Arm, error) {
	there, fetch := v, []string(nil)
	if a.Deps.Shared != nil {
		var err error
		if there.Dir, fetch, err = a.share(ctx, v); err != nil {
			return Arm{}, err
		}
	}
	j, err := engineJob(a.Spec, there, e)
	if err != nil {
		return Arm{}, err
	}
	for i := range j.Groups {
		j.Groups[i].Fetch = fetch
	}
	if err := a.Intent(ctx, "start "+j.Name, nil); err != nil {
		return Arm{}, err
	}
	warm, err := warmPrompts(a.Spec.Placement.Warm)
	if err != nil {
		return Arm{}, err
	}
	// What an earlier run brought up is of the size that its load has given it since.
	o := deploy.Options{Warm: warm, Loads: a.Spec.Placement.Loads, Grow: v.Run == a.Run}
	ready, err := deploy.Up(ctx, a.Deps.Scheduler, j, o, func(s string) { a.Progress(s, 0, 0) })
	if err != nil {
		return Arm{}, fmt.Errorf("starting version %s: %w", v.Name, err)
	}
	for _, r := range ready {
		if r.Cold != nil {
			a.Note("replica %s", r)
		}
	}
	return Arm{Version: v, Ready: ready}, nil
}

// firstRoute sends the alias's traffic to its first version, when it has none.
func firstRoute(ctx context.Context, a *Attempt, version string, caps route.Caps, out *DeployOutput) error {
	c := a.control()
	d, _, err := c.Read(ctx)
	if err == nil {
		// Brought back into its state, it is still the run that began the alias.
		var was DeployOutput
		if a.j.head.stage(StageDeploy) != nil {
			err = a.Result(ctx, StageDeploy, &was)
		}
		out.First = was.First || d.Run == a.Run && d.Epoch == 1
		return err
	}
	if !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	out.First = true
	if err := a.Intent(ctx, "send all traffic to "+version, nil); err != nil {
		return err
	}
	_, _, err = c.Change(ctx, func(d route.Doc) (route.Doc, error) {
		if d.Alias != "" {
			return d, nil
		}
		d = route.New(a.Spec.Name, a.Run, version)
		return route.Cap(d, d.Epoch, version, caps)
	})
	if err != nil {
		return err
	}
	return reachable(ctx, a)
}

// stable finds what is live, which in a first run is the parent.
func stable(ctx context.Context, a *Attempt, out *DeployOutput) error {
	d, _, err := a.control().Read(ctx)
	if err != nil {
		return err
	}
	name := d.Live()
	if name == out.Candidate.Version.Name && d.Run == a.Run && d.Standby != "" {
		name = d.Standby // this run has promoted its candidate already
	}
	for _, arm := range []Arm{out.Parent, out.Candidate} {
		if arm.Version.Name == name {
			out.Stable = arm
			return nil
		}
	}
	vs, err := Versions(ctx, a.Deps.Store, a.Spec.Name)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if v.Name == name {
			out.Stable.Version = v
			st, err := a.Deps.Scheduler.Status(ctx, JobName(a.Spec.Name, name))
			for _, r := range st.Replicas {
				if r.State == fleet.Healthy {
					out.Stable.Ready = append(out.Stable.Ready, deploy.Ready{Replica: r})
				}
			}
			return err
		}
	}
	return fmt.Errorf("the route of %s names version %s, of which nothing is recorded", a.Spec.Name, name)
}

// Abandon takes the candidate of a run that was refused off the fleet: its lease
// ends, and every version of the alias stops that its route does not name, be it
// that an interrupted deployment left it. What is replayed as traffic stops too.
func Abandon(ctx context.Context, a *Attempt) error {
	if err := stopTraffic(ctx, a); err != nil {
		return err
	}
	c := a.control()
	d, _, err := c.Read(ctx)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if d.Lease != nil && d.Run == a.Run {
		if err := a.Intent(ctx, "return the leased traffic", nil); err != nil {
			return err
		}
		if d, _, err = c.Change(ctx, func(d route.Doc) (route.Doc, error) { return route.Fallback(d), nil }); err != nil {
			return err
		}
	}
	return sweep(ctx, a, d, a.Deps.Now())
}

// sweep takes every version of the alias off the fleet that its route d, which
// was written at since or before, does not name.
func sweep(ctx context.Context, a *Attempt, d route.Doc, since time.Time) error {
	vs, err := Versions(ctx, a.Deps.Store, a.Spec.Name)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if d.Knows(v.Name) {
			continue
		}
		if err := remove(ctx, a, v.Name, since); err != nil {
			return err
		}
	}
	return nil
}

// remove stops a version after every router has acknowledged a revision that
// does not name it, or cannot send to it any more: the route was changed at
// since or before.
func remove(ctx context.Context, a *Attempt, version string, since time.Time) error {
	job := JobName(a.Spec.Name, version)
	st, err := a.Deps.Scheduler.Status(ctx, job)
	if err != nil || st.Rev == 0 && len(st.Replicas) == 0 {
		return err
	}
	_, rev, err := a.control().Read(ctx)
	if err == nil {
		var missing []string
		if missing, err = a.control().Settle(ctx, rev, since); len(missing) > 0 {
			a.Note("routers %v did not answer; their lease is over", missing)
		}
	}
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if err := a.Intent(ctx, "stop "+job, nil); err != nil {
		return err
	}
	return deploy.Down(ctx, a.Deps.Scheduler, job)
}
