package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/serving/route"
	"llmops/serving/scale"
	"llmops/serving/trace"
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
	all, err := h.scheduler.All(ctx, "")
	if err != nil {
		return s, err
	}
	s.Jobs = append(s.Jobs, all...)
	admins := pipeline.Admins(all, nil)
	docs, err := h.store.List(ctx, route.Prefix)
	if err != nil {
		return s, err
	}
	for _, d := range docs {
		a, err := h.aliasStatus(ctx, d.Name, admins)
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

func (h *home) aliasStatus(ctx context.Context, name string, admins map[string]*route.Admin) (a aliasStatus, err error) {
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
	return a, nil
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
			for _, version := range slices.Sorted(maps.Keys(st.Caps)) {
				row(w, "", "", "caps of "+version, capsOf(st, version))
			}
			if st.Records != nil {
				row(w, "", "", fmt.Sprintf("%d records", st.Records.Written), recordsOf(*st.Records))
			}
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

// capsOf says what each replica of a version may have, and what the fullest has, of one
// router.
func capsOf(st route.State, version string) string {
	c := st.Caps[version]
	var most route.Load
	for _, l := range st.Loads {
		if l.Version == version {
			most.Streams, most.KVTokens = max(most.Streams, l.Streams), max(most.KVTokens, l.KVTokens)
		}
	}
	var parts []string
	if c.Streams > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d streams", most.Streams, c.Streams))
	}
	if c.KVTokens > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d tokens", most.KVTokens, c.KVTokens))
	}
	out := strings.Join(parts, ", ") + " a replica"
	if c.From != "" {
		out += " (" + c.From + ")"
	}
	return out
}

// recordsOf says what became of a router's records that were not written.
func recordsOf(s trace.Stats) string {
	out := fmt.Sprintf("%d dropped, %d waiting", s.Dropped, s.Waiting)
	if s.Failing != "" {
		out += ": " + s.Failing
	}
	return out
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
