package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/serving/route"
	"llmops/serving/scale"
)

// status is what llmops status prints; its names are an interface.
type status struct {
	State   string          `json:"state"`
	Watch   bool            `json:"watch"`
	Router  string          `json:"router,omitempty"`
	Aliases []aliasStatus   `json:"aliases"`
	Jobs    []fleet.Status  `json:"jobs"`
	Runs    []pipeline.Head `json:"runs"`
}

type aliasStatus struct {
	Alias   string                 `json:"alias"`
	Route   route.Doc              `json:"route"`
	Live    string                 `json:"live"`
	Routers map[string]route.State `json:"routers,omitempty"`
	Missing []string               `json:"missing,omitempty"`
	Scale   *scaleStatus           `json:"scale,omitempty"`
	Drill   *pipeline.Drilled      `json:"drill,omitempty"`
}

// scaleStatus is how an alias's replicas follow its load.
type scaleStatus struct {
	pipeline.Scaled
	Policy scale.Policy `json:"policy"`
}

func (s scaleStatus) String() string {
	out := "no change yet"
	if l := s.Last; l != nil {
		out = fmt.Sprintf("%s from %d to %d: %s", l.Job, l.From, l.To, l.Reason)
	}
	if s.Missing != "" {
		out += "; not seen: " + s.Missing
	}
	return out
}

func newStatusCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what is live, what runs and what is under way",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			s, err := h.status(cmd.Context())
			if err != nil {
				return err
			}
			return e.answer(s, func(w *tabwriter.Writer) { statusTable(w, s) })
		},
	}
}

func (h *home) status(ctx context.Context) (s status, err error) {
	s = status{State: h.dir, Watch: h.watched(), Aliases: []aliasStatus{}, Jobs: []fleet.Status{}, Runs: []pipeline.Head{}}
	if s.Router, err = pipeline.RouterAddr(ctx, h.scheduler); err != nil {
		return s, err
	}
	jobs, err := h.scheduler.Jobs(ctx)
	if err != nil {
		return s, err
	}
	for _, j := range jobs {
		st, err := h.scheduler.Status(ctx, j.Name)
		if err != nil {
			return s, err
		}
		s.Jobs = append(s.Jobs, st)
	}
	docs, err := h.store.List(ctx, route.Prefix)
	if err != nil {
		return s, err
	}
	for _, d := range docs {
		a, err := h.aliasStatus(ctx, d.Name)
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return s, err
		}
		s.Aliases = append(s.Aliases, a)
	}
	scalings, err := pipeline.Scalings(ctx, h.store)
	if err != nil {
		return s, err
	}
	for _, sc := range scalings {
		for i := range s.Aliases {
			if s.Aliases[i].Alias != sc.Alias {
				continue
			}
			done, _, err := pipeline.ReadScaled(ctx, h.store, sc.Alias)
			if err != nil {
				return s, err
			}
			s.Aliases[i].Scale = &scaleStatus{done, sc.Policy}
		}
	}
	runs, err := h.runs(ctx)
	for _, r := range runs {
		if !r.Over() {
			s.Runs = append(s.Runs, r)
		}
	}
	return s, err
}

func (h *home) aliasStatus(ctx context.Context, name string) (a aliasStatus, err error) {
	d, err := h.store.Get(ctx, name)
	if err != nil {
		return a, err
	}
	if a.Route, err = route.Decode(d.Body); err != nil {
		return a, err
	}
	if a.Drill, err = pipeline.LastDrill(ctx, h.store, a.Route.Alias); err != nil {
		return a, err
	}
	a.Alias, a.Live, a.Routers = a.Route.Alias, a.Route.Live(), map[string]route.State{}
	admins, err := h.admins(ctx)
	for _, name := range slices.Sorted(maps.Keys(admins)) {
		actx, cancel := context.WithTimeout(ctx, time.Second)
		st, err := admins[name].State(actx, a.Alias)
		cancel()
		if err != nil {
			a.Missing = append(a.Missing, name)
			continue
		}
		a.Routers[name] = st
	}
	return a, err
}

func statusTable(w *tabwriter.Writer, s status) {
	watch := "not running"
	if s.Watch {
		watch = "running"
	}
	row(w, "STATE", s.State, "watch "+watch, "")
	if s.Router != "" {
		row(w, "ROUTER", "http://"+s.Router, "", "")
	}
	for _, a := range s.Aliases {
		row(w, "ALIAS", a.Alias, "live "+a.Live, "standby "+dash(a.Route.Standby))
		for _, name := range slices.Sorted(maps.Keys(a.Routers)) {
			st := a.Routers[name]
			row(w, "", name, fmt.Sprintf("revision %d", st.Rev), shares(st))
		}
		for _, name := range a.Missing {
			row(w, "", name, "does not answer", "")
		}
		if a.Drill != nil {
			row(w, "", "drilled", a.Drill.At.Format(time.DateTime), a.Drill.Verdict.Outcome)
		}
		if a.Scale != nil {
			row(w, "", "scales", fmt.Sprintf("%d to %d", a.Scale.Policy.Min, a.Scale.Policy.Max), a.Scale.String())
		}
	}
	for _, j := range s.Jobs {
		for _, r := range j.Replicas {
			job := j.Job.Name // which an identifier of this machine begins with
			if strings.HasPrefix(r.ID, job+"/") {
				job = ""
			}
			row(w, "REPLICA", r.ID, r.Addr, strings.Join(strings.Fields(job+" "+string(r.State)+" "+r.Reason), " "))
		}
		if len(j.Replicas) == 0 {
			row(w, "JOB", j.Job.Name, "", "no replicas")
		}
	}
	for _, r := range s.Runs {
		row(w, "RUN", r.Run, string(r.State)+" "+r.Stage, r.Reason)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func shares(st route.State) string {
	var parts []string
	for _, v := range slices.Sorted(maps.Keys(st.Shares)) {
		parts = append(parts, fmt.Sprintf("%s %.4g%%", v, float64(st.Shares[v])/1e4))
	}
	out := strings.Join(parts, ", ")
	if st.Leased {
		out += fmt.Sprintf(", leased for %v", st.Left.Round(time.Second))
	}
	return out
}

func newLogsCmd(e *env) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs REPLICA",
		Short: "Print a replica's output",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			r, err := h.scheduler.Logs(cmd.Context(), args[0], follow)
			if errors.Is(err, fleet.ErrNotFound) {
				return usage("%w; llmops status names the replicas", err)
			}
			if err != nil {
				return err
			}
			_, err = io.Copy(e.out, r)
			return errors.Join(err, r.Close())
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	return c
}

func newDownCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop every run, replica, router and the background process",
		Long: `Down stops everything that runs from this state directory. Records, weights and
verdicts stay; no alias has a live version afterwards.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.down(cmd.Context(), h)
		},
	}
}

func (e *env) down(ctx context.Context, h *home) error {
	runs, err := pipeline.Runs(ctx, h.store)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.Over() {
			continue
		}
		if err := pipeline.TakeBack(ctx, h.store, r.Run); err != nil {
			if now, e := pipeline.Read(ctx, h.store, r.Run); e != nil || !now.Over() {
				return err
			}
		}
	}
	// A driver that was fenced a moment ago may be in the middle of something, and
	// so may the supervisor: what is left once that is gone goes, too.
	for {
		err := errors.Join(e.stopJobs(ctx, h), h.deleteRoutes(ctx), h.stopWatch(ctx))
		if err != nil {
			return err
		}
		if some, err := h.serves(ctx); err != nil || !some {
			return err
		}
	}
}

func (h *home) deleteRoutes(ctx context.Context) error {
	docs, err := h.store.List(ctx, route.Prefix)
	if err != nil {
		return err
	}
	for _, d := range docs {
		if err := h.store.Delete(ctx, d.Name, d.Rev); err != nil && !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
	}
	return nil
}

// serves tells whether there is a job, a replica or a route.
func (h *home) serves(ctx context.Context) (bool, error) {
	for _, prefix := range []string{"job/", route.Prefix} {
		docs, err := h.store.List(ctx, prefix)
		if err != nil || len(docs) > 0 {
			return len(docs) > 0, err
		}
	}
	left, _, err := h.ending(ctx)
	return left > 0, err
}

// ending counts the replicas that there are. Those of which nobody hears, because
// their node is silent, are apart: they end when it is heard of again.
func (h *home) ending(ctx context.Context) (n int, silent []string, err error) {
	docs, err := h.store.List(ctx, "replica/")
	if err != nil {
		return 0, nil, err
	}
	for _, d := range docs {
		d, err := h.store.Get(ctx, d.Name)
		var r fleet.Replica
		if err == nil {
			err = json.Unmarshal(d.Body, &r)
		}
		// One that has gone since is told of once more.
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return 0, nil, err
		}
		if r.State == fleet.Unknown {
			silent = append(silent, d.Name+" on "+r.Node)
			continue
		}
		n++
	}
	return n, silent, nil
}

// stopJobs stops every job, those that come meanwhile, too, and waits for their
// replicas, which needs a watch.
func (e *env) stopJobs(ctx context.Context, h *home) error {
	jobs, err := h.scheduler.Jobs(ctx)
	if err != nil {
		return err
	}
	left, _, err := h.ending(ctx)
	if err != nil || len(jobs)+left == 0 {
		return err
	}
	if err := e.ensureWatch(ctx, h); err != nil {
		return err
	}
	gone := errors.New("gone")
	err = h.store.Watch(ctx, "", func(d fleet.Doc) error {
		if !strings.HasPrefix(d.Name, "job/") && !strings.HasPrefix(d.Name, "replica/") {
			return nil
		}
		jobs, err := h.scheduler.Jobs(ctx)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			if err := h.scheduler.Stop(ctx, j.Name); err != nil {
				return err
			}
			e.say("stopping %s", j.Name)
		}
		left, silent, err := h.ending(ctx)
		if err != nil || left > 0 {
			return err
		}
		for _, s := range silent {
			e.say("%s is not heard of: it ends when its node is back", s)
		}
		return gone
	})
	if !errors.Is(err, gone) {
		return err
	}
	return nil
}

// stopWatch asks the background process to end and waits for it. It asks whoever
// holds the directory by now: one may be just beginning.
func (h *home) stopWatch(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for asked := 0; h.watched(); {
		pid, err := local.SupervisorPID(h.dir)
		if err == nil && pid != asked {
			asked = pid
			err = syscall.Kill(pid, syscall.SIGTERM)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping the background process: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}
