package router

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/serving/openai"
	"llmops/serving/route"
)

func (r *Router) adminHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /route/{alias}", func(w http.ResponseWriter, req *http.Request) {
		s, ok := r.State(req.PathValue("alias"))
		if !ok {
			http.Error(w, "no such route", http.StatusNotFound)
			return
		}
		answerJSON(w, s)
	})
	mux.HandleFunc("PUT /route/{alias}", r.putRoute)
	mux.HandleFunc("GET /report/{alias}", func(w http.ResponseWriter, req *http.Request) {
		rep, ok := r.Report(req.PathValue("alias"))
		if !ok {
			http.Error(w, "no such route", http.StatusNotFound)
			return
		}
		answerJSON(w, rep)
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { r.metrics(w) })
	return mux
}

func answerJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

func (r *Router) putRoute(w http.ResponseWriter, req *http.Request) {
	alias := req.PathValue("alias")
	var p route.Push
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 4*fleet.MaxBody))
	if err == nil && !r.signed(req.Context(), body, req.Header.Get(route.HeaderSignature)) {
		http.Error(w, "the push is not signed with the key in the fleet's store", http.StatusUnauthorized)
		return
	}
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	var d *route.Doc
	if err == nil {
		d, err = decode(alias, p.Doc)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the pushed route: %v", err), http.StatusBadRequest)
		return
	}
	if err := r.push(alias, p.Rev, *d); err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, route.ErrFenced) {
			status = http.StatusConflict
		}
		http.Error(w, err.Error(), status)
		return
	}
	// The push renews nothing; the read that it causes may.
	r.want(alias)
	s, _ := r.State(alias)
	answerJSON(w, s)
}

// State is what the router has in force for alias; ok is false when it knows
// no such route.
func (r *Router) State(alias string) (s route.State, ok bool) {
	r.cfg.Lock()
	defer r.cfg.Unlock()
	f := r.cfg.followers[alias]
	if f == nil {
		return s, false
	}
	now := r.o.Now()
	doc, rev, ok := f.Doc()
	if !ok {
		return s, false
	}
	in, leased := f.At(now)
	split, _ := in.For(r.o.Zone, r.o.Pool)
	s = route.State{Router: r.o.Name, Boot: r.boot, Rev: rev, Epoch: doc.Epoch, Leased: leased, Shares: split.Shares, Mirror: in.Mirror, Read: -1, Reason: r.cfg.problems[alias]}
	if until, live := f.Until(); live {
		s.Left = max(0, until-now)
	}
	if at, read := f.ReadAt(); read {
		s.Read = now - at
	}
	if r.o.Records != nil {
		written := r.o.Records.Stats()
		s.Records = &written
	}
	if a := r.view.Load().routes[alias]; a != nil {
		s.Caps, s.Loads = a.caps, r.loads(a)
	}
	return s, true
}

// loads is what is under way on the alias's replicas, by version and name.
func (r *Router) loads(a *aliasView) (out []route.Load) {
	r.mu.Lock()
	for version, replicas := range a.replicas {
		for _, m := range replicas {
			out = append(out, route.Load{Replica: m.ID, Version: version, Health: m.Health().String(), Streams: m.streams, KVTokens: int(m.tokens.Load())})
		}
	}
	r.mu.Unlock()
	slices.SortFunc(out, func(x, y route.Load) int {
		return cmp.Or(cmp.Compare(x.Version, y.Version), cmp.Compare(x.Replica, y.Replica))
	})
	return out
}

// Report is what the router has counted for alias since it started.
func (r *Router) Report(alias string) (rep route.Report, ok bool) {
	r.cfg.Lock()
	t := r.cfg.counts[alias]
	if f := r.cfg.followers[alias]; f != nil {
		_, rep.Rev, _ = f.Doc()
	}
	r.cfg.Unlock()
	if t == nil {
		return rep, false
	}
	rep.Router, rep.Boot = r.o.Name, r.boot
	t.fill(&rep, r.o.Now())
	return rep, true
}

func (r *Router) models(w http.ResponseWriter) {
	m := openai.Models{Object: "list", Data: []openai.Model{}}
	v := r.view.Load()
	names := slices.Collect(maps.Keys(v.routes))
	for name := range v.adapters {
		if v.routes[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		m.Data = append(m.Data, openai.Model{ID: name, Object: "model", OwnedBy: "llmops"})
	}
	slices.SortFunc(m.Data, func(a, b openai.Model) int { return strings.Compare(a.ID, b.ID) })
	answerJSON(w, m)
}

// metrics writes the counters in the text format of Prometheus. Histograms
// keep three bounds a decade: a scraper sums what it gets over all routers,
// and the exact ones are in the report.
func (r *Router) metrics(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := bufio.NewWriter(w)
	defer func() { _ = out.Flush() }()
	r.mu.Lock()
	waiting, served := r.gate.Waiting(), r.gate.Served
	r.mu.Unlock()
	fmt.Fprintf(out, "# TYPE llmops_router_waiting gauge\nllmops_router_waiting %d\n", waiting)
	fmt.Fprintf(out, "# TYPE llmops_router_prompt_tokens_total counter\nllmops_router_prompt_tokens_total %d\n", served.Prompt)
	fmt.Fprintf(out, "# TYPE llmops_router_output_tokens_total counter\nllmops_router_output_tokens_total %d\n", served.Output)

	if r.o.Records != nil {
		s, failing := r.o.Records.Stats(), 0
		if s.Failing != "" {
			failing = 1
		}
		fmt.Fprintf(out, "# TYPE llmops_router_records_total counter\nllmops_router_records_total{outcome=\"written\"} %d\nllmops_router_records_total{outcome=\"dropped\"} %d\n", s.Written, s.Dropped)
		fmt.Fprintf(out, "# TYPE llmops_router_records_waiting gauge\nllmops_router_records_waiting %d\n", s.Waiting)
		fmt.Fprintf(out, "# TYPE llmops_router_records_failing gauge\nllmops_router_records_failing %d\n", failing)
	}

	r.cfg.Lock()
	aliases := make([]string, 0, len(r.cfg.counts))
	for alias := range r.cfg.counts {
		aliases = append(aliases, alias)
	}
	r.cfg.Unlock()
	slices.Sort(aliases)
	reports := make([]route.Report, len(aliases))
	for i, alias := range aliases {
		reports[i], _ = r.Report(alias)
	}
	r.loadMetrics(out, aliases)
	each := func(name, kind string, f func(labels string, version string, rep route.Report)) {
		fmt.Fprintf(out, "# TYPE %s %s\n", name, kind)
		for i, alias := range aliases {
			for _, version := range slices.Sorted(maps.Keys(reports[i].Versions)) {
				f("model="+strconv.Quote(alias)+",version="+strconv.Quote(version), version, reports[i])
			}
		}
	}
	each("llmops_router_requests_total", "counter", func(labels, version string, rep route.Report) {
		c := rep.Versions[version]
		t := c.Total()
		for _, o := range []struct {
			name string
			n    uint64
		}{{"done", t.Done}, {"error", t.Errors}, {"invalid", t.Invalid}, {"cancelled", t.Cancelled}} {
			fmt.Fprintf(out, "llmops_router_requests_total{%s,outcome=%q} %d\n", labels, o.name, o.n)
		}
	})
	each("llmops_router_in_flight", "gauge", func(labels, version string, rep route.Report) {
		fmt.Fprintf(out, "llmops_router_in_flight{%s} %d\n", labels, rep.InFlight[version])
	})
	each("llmops_router_ttft_seconds", "histogram", func(labels, version string, rep route.Report) {
		c := rep.Versions[version]
		t := c.Total()
		n := t.Arrival.Seen.N()
		for _, bound := range metricBounds {
			over, _ := t.Arrival.Seen.Over(bound)
			fmt.Fprintf(out, "llmops_router_ttft_seconds_bucket{%s,le=\"%g\"} %d\n", labels, bound.Seconds(), n-over)
		}
		fmt.Fprintf(out, "llmops_router_ttft_seconds_bucket{%s,le=\"+Inf\"} %d\nllmops_router_ttft_seconds_count{%s} %d\n", labels, n, labels, n)
	})
}

// loadMetrics writes what replicas have and may have, and who was turned away.
func (r *Router) loadMetrics(out io.Writer, aliases []string) {
	v := r.view.Load()
	of := func(name, kind string, f func(alias string, a *aliasView)) {
		fmt.Fprintf(out, "# TYPE %s %s\n", name, kind)
		for _, alias := range aliases {
			if a := v.routes[alias]; a != nil {
				f(alias, a)
			}
		}
	}
	of("llmops_router_rejected_total", "counter", func(alias string, a *aliasView) {
		fmt.Fprintf(out, "llmops_router_rejected_total{model=%q} %d\n", alias, a.counts.rejected.Load())
	})
	of("llmops_router_replica_streams", "gauge", func(alias string, a *aliasView) {
		for _, l := range r.loads(a) {
			fmt.Fprintf(out, "llmops_router_replica_streams{model=%q,version=%q,replica=%q} %d\n", alias, l.Version, l.Replica, l.Streams)
		}
	})
	of("llmops_router_replica_kv_tokens", "gauge", func(alias string, a *aliasView) {
		for _, l := range r.loads(a) {
			fmt.Fprintf(out, "llmops_router_replica_kv_tokens{model=%q,version=%q,replica=%q} %d\n", alias, l.Version, l.Replica, l.KVTokens)
		}
	})
	for _, c := range []struct {
		name string
		of   func(route.Caps) int
	}{{"llmops_router_cap_streams", func(c route.Caps) int { return c.Streams }}, {"llmops_router_cap_kv_tokens", func(c route.Caps) int { return c.KVTokens }}} {
		of(c.name, "gauge", func(alias string, a *aliasView) {
			for _, version := range slices.Sorted(maps.Keys(a.caps)) {
				if n := c.of(a.caps[version]); n > 0 {
					fmt.Fprintf(out, "%s{model=%q,version=%q} %d\n", c.name, alias, version, n)
				}
			}
		})
	}
}

var metricBounds = func() (b []time.Duration) {
	for unit := time.Millisecond; unit <= 100*time.Second; unit *= 10 {
		b = append(b, unit, unit*25/10, unit*5)
	}
	return b
}()
