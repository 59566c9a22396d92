package cli

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/internal/config"
	"llmops/pipeline"
	"llmops/serving/route"
)

const defaultListen = "127.0.0.1:8400"

// handOverPatience bounds what is done after an interrupt.
const handOverPatience = 10 * time.Second

type onboardFlags struct {
	from, until, listen string
	detach, yes, again  bool
	routers             int
	guards              guardFlags
}

type guardFlags struct {
	on   []string
	only bool
}

func (g *guardFlags) add(c *cobra.Command) {
	c.Flags().StringSliceVar(&g.on, "rollback-on", nil, "a guard to add to those of the file: "+strings.Join(config.Guards, ", "))
	c.Flags().BoolVar(&g.only, "only", false, "use no guards but those of --rollback-on; it is recorded")
}

func (g *guardFlags) check() error {
	for _, n := range g.on {
		if !contains(config.Guards, n) {
			return usage("--rollback-on %s: want %s", n, strings.Join(config.Guards, ", "))
		}
	}
	if g.only && len(g.on) == 0 {
		return usage("--only needs --rollback-on")
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func newOnboardCmd(e *env) *cobra.Command {
	var f onboardFlags
	c := &cobra.Command{
		Use:   "onboard MODEL.yaml",
		Short: "Bring a model from its source to live traffic",
		Long: `Onboard runs download, quantise, plan, deploy, benchmark, eval, shadow, canary
and promote, each with a verdict that carries its evidence. A gate that does not
pass ends the run and takes the candidate off the fleet; live traffic stays
where it was.

  llmops onboard examples/freight/model.yaml
  llmops onboard --until eval model.yaml        # in CI: the exit code gates

Interrupted with Ctrl-C, or with --detach, the run goes on in the background;
see llmops runs. Run again it resumes what was not finished, and does nothing
when the candidate is live already.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			spec, err := config.Model(args[0])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			return e.onboard(cmd.Context(), spec, f)
		},
	}
	c.Flags().StringVar(&f.from, "from", "", "reach the verdicts of this stage and all after it anew")
	c.Flags().StringVar(&f.until, "until", "", "stop after this stage")
	c.Flags().StringVar(&f.listen, "listen", defaultListen, "where the router takes requests, when it is not running yet; on a cluster the port of all")
	c.Flags().IntVar(&f.routers, "routers", 1, "how many routers to run, each on a node of its own")
	c.Flags().BoolVar(&f.detach, "detach", false, "let the background process drive the run")
	c.Flags().BoolVar(&f.yes, "yes", false, "let the first version of the alias go live unasked")
	c.Flags().BoolVar(&f.again, "again", false, "begin a run although the candidate is live: it is measured anew, and cannot be shadowed by itself")
	f.guards.add(c)
	return c
}

func (f *onboardFlags) check() error {
	for _, s := range []string{f.from, f.until} {
		if s != "" && stageIndex(s) < 0 {
			return usage("no stage is called %q; the stages are %s", s, stageNames())
		}
	}
	if f.routers < 1 || f.routers > pipeline.MaxRouters {
		return usage("--routers is %d, want 1 to %d", f.routers, pipeline.MaxRouters)
	}
	return f.guards.check()
}

func stageIndex(name string) int {
	for i, s := range pipeline.Stages() {
		if s.Name == name {
			return i
		}
	}
	return -1
}

func stageNames() string {
	var names []string
	for _, s := range pipeline.Stages() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

func (e *env) onboard(ctx context.Context, spec pipeline.Spec, f onboardFlags) error {
	h, err := e.openHome()
	if err != nil {
		return err
	}
	if err := h.canRun(ctx, spec); err != nil {
		return err
	}
	d := h.deps()
	if !f.again && f.from == "" {
		live, why, err := pipeline.Live(ctx, d, spec)
		if err != nil {
			return err
		}
		if live {
			e.say("%s is live already: %s. Nothing to do; --again measures it anew.", spec.Name, why)
			return nil
		}
	}
	if err := e.confirmFirst(ctx, h, spec, f.yes); err != nil {
		return err
	}
	if h.fleet == "" {
		at, err := pipeline.RouterAddr(ctx, h.scheduler)
		if err != nil {
			return err
		}
		if at == "" {
			if err := free(f.listen); err != nil {
				return err
			}
		}
	}
	owner, release, err := h.own("onboard")
	if err != nil {
		return err
	}
	defer release()
	opts := pipeline.Options{RollbackOn: f.guards.on, Only: f.guards.only, Again: f.again, Listen: f.listen, Routers: f.routers}
	run, err := e.findOrCreate(ctx, h, d, spec, owner, opts)
	if err != nil {
		return err
	}
	if err := e.ensureWatch(ctx, h); err != nil {
		return err
	}
	if f.from != "" {
		if err := pipeline.Rewind(ctx, d, run, f.from); err != nil {
			return err
		}
	}
	if f.detach {
		if err := pipeline.HandOver(ctx, h.store, run, f.until); err != nil {
			return err
		}
		e.say("run %s goes on in the background; llmops runs attach %s takes it back", run, run)
		return &exitError{code: exitGoesOn}
	}
	return e.drive(ctx, h, d, run, owner, f.until)
}

// free tells whether the router can listen on addr, so that it turns out before
// hours of work.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return usage("the router cannot take requests on %s: %w; choose another --listen", addr, err)
	}
	return l.Close()
}

// confirmFirst asks before the first version of an alias goes live, since
// nothing was live before that it could be compared with.
func (e *env) confirmFirst(ctx context.Context, h *home, spec pipeline.Spec, yes bool) error {
	if _, err := h.store.Get(ctx, route.Name(spec.Name)); !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if yes || spec.First == "parent" {
		return nil
	}
	if !isTerminal(e.in) {
		return usage("%s has no live version yet: its unquantised source would go live as v0; say so with first: parent in %s, or with --yes", spec.Name, spec.File)
	}
	ok, err := e.ask(ctx, "%s has no live version yet. Let its unquantised source go live as v0?", spec.Name)
	if err == nil && !ok {
		err = usage("nothing was begun")
	}
	return err
}

func busy(h pipeline.Head) error {
	return usage("run %s of %s is being driven by another process (%s); see llmops runs show %s, or take it with llmops runs attach %s", h.Run, h.Alias, h.Owner, h.Run, h.Run)
}

// elsewhere refuses a run that another machine of the same fleet has begun.
func elsewhere(ctx context.Context, h *home, r pipeline.Head) error {
	err := pipeline.Here(ctx, h.blobs, r)
	if errors.Is(err, pipeline.ErrElsewhere) {
		return usage("%w (state %s, last moved %s); go on there, or give it up with llmops runs discard %s", err, r.State, r.Updated.Format(time.DateTime), r.Run)
	}
	return err
}

// findOrCreate resumes the alias's run of the same spec, or begins a new one in
// the place of one that nobody drives. A run that was handed over is taken back
// before there is a watch, which would take it first.
func (e *env) findOrCreate(ctx context.Context, h *home, d pipeline.Deps, spec pipeline.Spec, owner string, opts pipeline.Options) (string, error) {
	last, err := pipeline.Last(ctx, d.Store, spec.Name)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return "", err
	}
	if err != nil || last.Over() {
		return pipeline.Create(ctx, d, spec, opts)
	}
	if err := elsewhere(ctx, h, last); err != nil {
		return "", err
	}
	if last.State == pipeline.Running && d.Alive(last.Owner) {
		return "", busy(last)
	}
	if last.Host != "" {
		if err := pipeline.TakeBack(ctx, d.Store, last.Run); err != nil {
			return "", err
		}
	}
	old, err := pipeline.ReadSpec(ctx, d.Blobs, last)
	if err != nil {
		return "", err
	}
	if sameSpec(old, spec) {
		e.say("resuming run %s", last.Run)
		if len(opts.RollbackOn) == 0 {
			opts.RollbackOn, opts.Only = last.Options.RollbackOn, last.Options.Only
		}
		return last.Run, pipeline.Amend(ctx, d.Store, last.Run, opts)
	}
	e.say("run %s of another model file was not finished: taking its candidate off the fleet", last.Run)
	if err := e.ensureWatch(ctx, h); err != nil {
		return "", err
	}
	if err := pipeline.Discard(ctx, d, last.Run, owner, "another model file was onboarded"); err != nil {
		return "", err
	}
	return pipeline.Create(ctx, d, spec, opts)
}

// drive drives a run in this process and tells how it ended.
func (e *env) drive(ctx context.Context, h *home, d pipeline.Deps, run, owner, until string) error {
	p := newProgress(e)
	d.Emit = p.event
	d.Point = e.faultPoint()
	j, err := pipeline.Claim(ctx, d, run, owner)
	if errors.Is(err, pipeline.ErrBusy) || errors.Is(err, pipeline.ErrFenced) {
		return usage("%w", err)
	}
	if err != nil {
		return err
	}
	e.say("run %s", run)
	gctx, stop := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() { e.keepWatch(gctx, h, run, owner) })
	out, err := pipeline.Drive(ctx, d, j, until)
	stop()
	guard.Wait()
	p.end()
	if errors.Is(err, pipeline.ErrFenced) {
		e.say("run %s was taken over by another process", run)
		return &exitError{code: exitGoesOn}
	}
	if err != nil && ctx.Err() != nil {
		return e.leave(ctx, h, run, until)
	}
	if err != nil {
		return err
	}
	return e.finish(ctx, h, run, out)
}

// keepWatch brings the background process back while this process drives the
// run, since replicas start and stop by it alone.
func (e *env) keepWatch(ctx context.Context, h *home, run, owner string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if h.watched() {
			continue
		}
		// Whoever takes everything down fences the run first.
		head, err := pipeline.Read(ctx, h.store, run)
		if err != nil || head.Owner != owner {
			return
		}
		if err := e.ensureWatch(ctx, h); err != nil && ctx.Err() == nil {
			e.say("warning: the background process is gone: %v", err)
		}
	}
}

// leave hands an interrupted run over to watch.
func (e *env) leave(ctx context.Context, h *home, run, until string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverPatience)
	defer cancel()
	if err := pipeline.HandOver(ctx, h.store, run, until); err != nil {
		return err
	}
	e.say("interrupted: run %s goes on in the background; llmops runs attach %s takes it back, llmops down stops everything", run, run)
	return &exitError{code: exitGoesOn}
}

// finish writes the report and turns the outcome into an exit.
func (e *env) finish(ctx context.Context, h *home, run string, out evidence.Outcome) error {
	ctx = context.WithoutCancel(ctx) // an interrupt that comes now is too late
	head, err := pipeline.Read(ctx, h.store, run)
	if err != nil {
		return err
	}
	path, err := h.writeReport(ctx, head)
	if err != nil {
		return err
	}
	e.summary(ctx, h, head, out, path)
	return outcome(out)
}
