package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/pipeline/eval"
	"llmops/serving/deploy"
	"llmops/serving/route"
)

func trafficName(s Spec) string { return fleet.Escape(s.Name) + "-traffic" }

// trafficJob replays the spec's traffic file through the routers, in a process of
// its own, so that it neither knows nor depends on what the run does.
func trafficJob(s Spec, routers map[string]string) fleet.Job {
	var to []string
	for _, name := range slices.Sorted(maps.Keys(routers)) {
		to = append(to, "http://"+routers[name])
	}
	return fleet.Job{Name: trafficName(s), Version: "1", Kind: fleet.Traffic, Meta: map[string]string{"alias": s.Name},
		Groups: []fleet.Group{{Name: "main", Count: 1, Grace: 3 * time.Second,
			Argv: []string{"${LLMOPS_BIN}", "traffic", "--replay", s.Traffic.Replay, "--to", strings.Join(to, ","), "--name", s.Name}}}}
}

// startTraffic starts the replay, when the spec has one.
func startTraffic(ctx context.Context, a *Attempt) error {
	if a.Spec.Traffic.Replay == "" {
		return nil
	}
	at, err := routerAddrs(ctx, a.Deps.Scheduler)
	if err != nil {
		return err
	}
	j := trafficJob(a.Spec, at)
	if err := a.Intent(ctx, "replay traffic", a.Spec.Traffic.Replay); err != nil {
		return err
	}
	return deploy.Start(ctx, a.Deps.Scheduler, j, func(string) {})
}

func stopTraffic(ctx context.Context, a *Attempt) error {
	if a.Spec.Traffic.Replay == "" {
		return nil
	}
	name := trafficName(a.Spec)
	st, err := a.Deps.Scheduler.Status(ctx, name)
	if err != nil || st.Rev == 0 && len(st.Replicas) == 0 {
		return err
	}
	if err := a.Intent(ctx, "stop the replay", nil); err != nil {
		return err
	}
	return deploy.Down(ctx, a.Deps.Scheduler, name)
}

// claimRoute takes the route for the run and returns it, with the epoch to write under.
// What routers may send to the candidate is in it before they send anything.
func claimRoute(ctx context.Context, a *Attempt, candidate Arm) (route.Doc, error) {
	caps, err := candidateCaps(ctx, a, len(candidate.Ready))
	if err != nil {
		return route.Doc{}, err
	}
	if err := a.Intent(ctx, "take the route", nil); err != nil {
		return route.Doc{}, err
	}
	d, _, err := a.control().Change(ctx, func(d route.Doc) (route.Doc, error) {
		d = route.Claim(d, a.Run)
		return route.Cap(d, d.Epoch, candidate.Version.Name, caps)
	})
	return d, err
}

// arms reads what was deployed and the route. live says that the candidate is
// live already: then there is nothing to compare.
func arms(ctx context.Context, a *Attempt) (dep DeployOutput, d route.Doc, live bool, err error) {
	if err := a.Result(ctx, StageDeploy, &dep); err != nil {
		return dep, d, false, err
	}
	d, _, err = a.control().Read(ctx)
	return dep, d, err == nil && d.Live() == dep.Candidate.Version.Name, err
}

// ShadowOutput is what the shadow stage leaves.
type ShadowOutput struct {
	canary.ShadowResult
}

func runShadow(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	dep, _, live, err := arms(ctx, a)
	if err != nil || live {
		return alreadyLive(dep), err
	}
	if a.Spec.Change == Infra { // copies are compared by their answers
		if err := eval.Computed(ctx, eval.Arm{Name: "candidate", Client: dep.Candidate.client()}); err != nil {
			return evidence.Verdict{}, err
		}
	}
	if err := startTraffic(ctx, a); err != nil {
		return evidence.Verdict{}, err
	}
	claimed, err := claimRoute(ctx, a, dep.Candidate)
	if err != nil {
		return evidence.Verdict{}, err
	}
	p := canary.ShadowPolicy{Stable: dep.Stable.Version.Name, Candidate: dep.Candidate.Version.Name, Share: a.Spec.Shadow.Share, For: a.Spec.Shadow.For,
		Max: a.Spec.Canary.Max, SLO: a.Spec.SLO, Same: a.Spec.Change == Infra && a.Spec.Task == ""}
	began := a.Deps.Now()
	res, err := canary.Shadow(ctx, a.control(), p, claimed.Epoch, canary.Hooks{Intent: a.canaryIntent}, func(r canary.ShadowResult) {
		a.Progress(fmt.Sprintf("%d copies", r.Copies.Total().Done), int64(a.Deps.Now().Sub(began)), int64(p.For))
	})
	if lost(err) {
		return taken(StageShadow, err), nil
	}
	if err != nil {
		return evidence.Verdict{}, err
	}
	a.Output(ShadowOutput{res})
	return res.Verdict, nil
}

// canaryIntent records an intent of package canary, which knows no runs: to it a
// run that was taken over is a route that was.
func (a *Attempt) canaryIntent(ctx context.Context, what string, detail any) error {
	return asTaken(a.Intent(ctx, what, detail))
}

func asTaken(err error) error {
	if errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w: %w", route.ErrFenced, err)
	}
	return err
}

// lost tells whether a stage ended because somebody else took the route, while
// the run was still ours.
func lost(err error) bool { return canary.Fenced(err) && !errors.Is(err, ErrFenced) }

// taken is the verdict of a stage that lost its route: mostly to a rollback, and
// always a reason to go no further.
func taken(stage string, why error) evidence.Verdict {
	return evidence.Check(stage+": the run kept the route", false, 1, "somebody else took the route or rolled back: "+why.Error())
}

func alreadyLive(dep DeployOutput) evidence.Verdict {
	return evidence.Check(fmt.Sprintf("version %s is live already", dep.Candidate.Version.Name), true, 1)
}

// canaryPolicy is what the spec and the command line ask of a canary.
func canaryPolicy(s Spec, o Options, stable, candidate string) canary.Policy {
	p := canary.Policy{Stable: stable, Candidate: candidate, Max: s.Canary.Max, Harm: s.Canary.Harm, SLO: s.SLO, Guards: s.Canary.RollbackOn}
	if o.Only && len(o.RollbackOn) > 0 {
		p.Guards = o.RollbackOn
	} else {
		for _, g := range o.RollbackOn {
			if !contains(p.Guards, g) {
				p.Guards = append(p.Guards[:len(p.Guards):len(p.Guards)], g)
			}
		}
	}
	for _, st := range s.Canary.Steps {
		p.Steps = append(p.Steps, canary.Stage{Weight: st.Weight, Bake: st.Bake})
	}
	// At the lowest weight ten requests of the candidate must be able to come.
	p.Stale = 5 * time.Second
	if rate := s.Traffic.Rate * s.Canary.Steps[0].Weight; rate > 0 {
		p.Stale = max(p.Stale, min(canary.LeaseTTL, time.Duration(10/rate*float64(time.Second))))
	}
	return p
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// canarySaved is the running canary in the head. Epoch is the one that it holds
// the route under, Seq what the route's leases had been counted to before its first.
type canarySaved struct {
	Policy canary.Policy `json:"policy"`
	State  canary.State  `json:"state"`
	Epoch  uint64        `json:"epoch"`
	Seq    uint64        `json:"seq"`
}

// CanaryOutput is what the canary leaves. Epoch is the route's, so that promote
// can tell whether somebody has changed it since.
type CanaryOutput struct {
	canary.Result
	Epoch uint64 `json:"epoch"`
}

func runCanary(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	dep, doc, live, err := arms(ctx, a)
	if err != nil || live {
		a.Output(CanaryOutput{Epoch: doc.Epoch})
		return alreadyLive(dep), err
	}
	var saved canarySaved
	resumed, err := a.Load(&saved)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if resumed && saved.returned(doc) {
		return taken(StageCanary, errors.New("its lease was ended while nobody drove the run")), nil
	}
	if err := startTraffic(ctx, a); err != nil {
		return evidence.Verdict{}, err
	}
	c := a.control()
	p, now := canaryPolicy(a.Spec, a.Opts, dep.Stable.Version.Name, dep.Candidate.Version.Name), a.Deps.Now().UTC()
	if resumed {
		saved.Policy.Guards = p.Guards
		// What happened while nobody judged is neither baked nor a delay.
		saved.State.StepAt = saved.State.StepAt.Add(now.Sub(saved.State.Last))
		saved.State.Last, saved.State.Fresh = now, now
	} else {
		if p.Slow, err = slowBounds(ctx, c, p); err != nil {
			return evidence.Verdict{}, err
		}
		saved.Policy, saved.State = p, canary.Begin(p, now)
	}
	claimed, err := claimRoute(ctx, a, dep.Candidate)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if saved.Epoch = claimed.Epoch; !resumed {
		saved.Seq = claimed.Seq
	}
	// Before anything is leased, so that whoever goes on can tell that it was.
	if err := a.Save(ctx, saved); err != nil {
		return evidence.Verdict{}, err
	}
	hooks := canary.Hooks{
		Intent: a.canaryIntent,
		Save: func(ctx context.Context, s canary.State) error {
			return asTaken(a.Save(ctx, canarySaved{saved.Policy, s, saved.Epoch, saved.Seq}))
		},
		Tell: func(s canary.State, act canary.Action) { tellCanary(a, saved.Policy, s, act) },
	}
	res, err := canary.Run(ctx, c, saved.Policy, saved.State, saved.Epoch, hooks)
	if lost(err) {
		return taken(StageCanary, err), nil
	}
	if err != nil {
		return evidence.Verdict{}, err
	}
	a.Output(CanaryOutput{res, saved.Epoch})
	return res.Verdict(), nil
}

// returned tells whether somebody ended the lease of a canary that nobody drove:
// they had their reasons, and it is not begun again. That there was one, the route's
// count of leases tells. A lower epoch is that of a route that was made anew after
// everything had been taken down.
func (s *canarySaved) returned(d route.Doc) bool {
	return s.State.End == nil && d.Lease == nil && d.Seq > s.Seq && d.Epoch > s.Epoch
}

func tellCanary(a *Attempt, p canary.Policy, s canary.State, act canary.Action) {
	step := p.Steps[s.Step]
	text := fmt.Sprintf("%.4g%%, %d requests of the candidate", 100*step.Weight, s.Requests[1])
	if s.Note != "" {
		text += ", " + s.Note
	}
	a.Progress(text, int64(s.Healthy), int64(step.Bake))
	switch act.Kind {
	case canary.Advance, canary.Promote, canary.Rollback, canary.GiveUp:
		a.Note("%s: %s", act.Kind, act.Reason)
	}
}

// slowBounds reads what stable did so far off all routers.
func slowBounds(ctx context.Context, c *canary.Control, p canary.Policy) ([2]time.Duration, error) {
	reports, missing, err := c.Reports(ctx)
	if err != nil {
		return [2]time.Duration{}, err
	}
	if len(reports) == 0 {
		return [2]time.Duration{}, fmt.Errorf("no router answers (%v)", missing)
	}
	var all route.Counters
	for _, r := range reports {
		v := r.Versions[p.Stable]
		all.Merge(&v)
	}
	return canary.SlowBounds(all.Total(), p.SLO), nil
}

// PromoteOutput is what promotion leaves.
type PromoteOutput struct {
	Alias    string          `json:"alias"`
	Live     string          `json:"live"`
	Standby  string          `json:"standby"`
	Until    time.Time       `json:"until"` // the standby is kept
	Delivery canary.Delivery `json:"delivery"`
}

func runPromote(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	dep, _, live, err := arms(ctx, a)
	if err != nil {
		return evidence.Verdict{}, err
	}
	cand := dep.Candidate
	c := a.control()
	out := PromoteOutput{Alias: a.Spec.Name, Live: cand.Version.Name, Until: a.Deps.Now().UTC().Add(a.Spec.Standby)}
	if !live {
		if out.Delivery, err = promote(ctx, a, cand.Version.Name); lost(err) {
			return taken(StagePromote, err), nil
		} else if err != nil {
			return evidence.Verdict{}, err
		}
	} else if err := capCandidate(ctx, a, cand); err != nil {
		return evidence.Verdict{}, err
	}
	doc, rev, err := c.Read(ctx)
	if err != nil {
		return evidence.Verdict{}, err
	}
	out.Standby = doc.Standby
	since := a.Deps.Now()
	missing, err := c.Settle(ctx, rev, since)
	if err != nil {
		return evidence.Verdict{}, err
	}
	if err := stopTraffic(ctx, a); err != nil {
		return evidence.Verdict{}, err
	}
	if err := sweep(ctx, a, doc, since); err != nil {
		return evidence.Verdict{}, err
	}
	if err := errors.Join(keepStandby(ctx, a, out), keepScaling(ctx, a)); err != nil {
		return evidence.Verdict{}, err
	}
	a.Output(out)
	return promoted(ctx, a, out, missing), nil
}

// promote sends all traffic to the candidate, unless somebody has changed the
// route since the canary said so.
func promote(ctx context.Context, a *Attempt, version string) (canary.Delivery, error) {
	var was CanaryOutput
	if !a.j.head.approved(StageCanary) {
		if err := a.Result(ctx, StageCanary, &was); err != nil {
			return canary.Delivery{}, err
		}
	}
	if err := a.Intent(ctx, "promote "+version, nil); err != nil {
		return canary.Delivery{}, err
	}
	_, delivery, err := a.control().Change(ctx, func(d route.Doc) (route.Doc, error) {
		epoch := was.Epoch
		if d.Run != a.Run {
			return d, route.ErrFenced
		}
		if was.Epoch == 0 || d.Epoch < was.Epoch {
			// A person says so, or the route was made anew after everything had been
			// taken down.
			epoch = d.Epoch
		}
		return route.Promote(d, epoch, version)
	})
	return delivery, err
}

// promoted asks the live version through the router and the standby directly
// for a token. A router that is out of reach is named: what it serves until it is
// back is the standby.
func promoted(ctx context.Context, a *Attempt, out PromoteOutput, missing []string) evidence.Verdict {
	v := probed("the router answers from "+out.Live, a.through(ctx, out.Live))
	parts := []evidence.Verdict{v}
	if out.Standby != "" {
		st, err := a.Deps.Scheduler.Status(ctx, JobName(a.Spec.Name, out.Standby))
		if err == nil {
			err = answers(ctx, st)
		}
		parts = append(parts, probed("standby "+out.Standby+" produces a token", err))
	}
	all := evidence.All("the candidate is live and the version before it is ready to take over", parts...)
	if len(missing) > 0 {
		all.Warnings = append(all.Warnings, fmt.Sprintf("routers %v did not acknowledge; until they do, they serve the version before", missing))
	}
	return all
}

// answers is nil when a replica of a version produces a token.
func answers(ctx context.Context, st fleet.Status) error {
	n, err := deploy.Answering(ctx, st)
	switch {
	case n > 0:
		return nil
	case err == nil:
		return errors.New("it has no replicas that can be reached")
	}
	return err
}

func probed(claim string, err error) evidence.Verdict {
	v := evidence.Check(claim, err == nil, 1)
	if err != nil {
		v.Warnings = append(v.Warnings, err.Error())
	}
	return v
}
