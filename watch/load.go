package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/internal/prom"
	"llmops/pipeline"
	"llmops/serving/engine"
	"llmops/serving/route"
	"llmops/serving/scale"
	"llmops/serving/slo"
)

const (
	scrapeWait = 2 * time.Second
	// burnFloor is the least number of requests of a window that a burn is told from.
	burnFloor = 50
)

// burnWindows are the windows whose smaller burn counts, so that it is neither a
// moment's nor over already (SRE workbook, chapter 5).
var burnWindows = [2]time.Duration{time.Minute, 5 * time.Minute}

// arms reads one alias as it stands. missing names what could not be seen.
func (h *host) arms(ctx context.Context, sc pipeline.Scaling, doc route.Doc) (arms []scale.Arm, revs map[string]uint64, missing []string, err error) {
	revs = map[string]uint64{}
	for version, role := range map[string]scale.Role{doc.Live(): scale.Live, doc.Standby: scale.Standby} {
		if version == "" {
			continue
		}
		st, err := h.o.Deps.Scheduler.Status(ctx, pipeline.JobName(sc.Alias, version))
		if err != nil {
			return nil, nil, nil, err
		}
		if st.Rev == 0 || len(st.Job.Groups) != 1 {
			continue // gone, or of groups that must be sized together
		}
		a := scale.Arm{Job: st.Job.Name, Group: st.Job.Groups[0].Name, Role: role, Count: st.Job.Groups[0].Count}
		revs[a.Job] = st.Rev
		var serve []fleet.Replica
		for _, r := range st.Replicas {
			switch r.State {
			case fleet.Healthy:
				serve = append(serve, r)
			case fleet.Pending:
				if a.Waits == "" {
					a.Waits = r.Reason
				}
			}
		}
		a.Ready = len(serve)
		if role == scale.Live {
			var silent []string
			a.Load, silent = load(ctx, sc.Engine, serve)
			missing = append(missing, silent...)
			burn, why := h.burn(ctx, sc, version)
			a.Load.Burn = burn
			if why != "" {
				missing = append(missing, why)
			}
		}
		arms = append(arms, a)
	}
	slices.SortFunc(arms, func(a, b scale.Arm) int { return strings.Compare(a.Job, b.Job) })
	return arms, revs, missing, nil
}

// load asks replicas what they have to do.
func load(ctx context.Context, kind string, replicas []fleet.Replica) (l scale.Load, silent []string) {
	about, err := engine.About(engine.Serve{Kind: kind})
	if err != nil || about.Metrics.Path == "" {
		return l, []string{fmt.Sprintf("engine %s exposes no load", kind)}
	}
	client := &http.Client{Timeout: scrapeWait}
	defer client.CloseIdleConnections()
	var mu sync.Mutex // guards l and silent
	var wg sync.WaitGroup
	for _, r := range replicas {
		wg.Go(func() {
			s, err := prom.Scrape(ctx, client, "http://"+r.Addr+about.Metrics.Path)
			running, ok1 := about.Metrics.Read(engine.Running, s.Sum)
			waiting, ok2 := about.Metrics.Read(engine.Waiting, s.Sum)
			kv, ok3 := about.Metrics.Read(engine.KVUse, s.Mean)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !(ok1 && ok2 && ok3) {
				err = errors.New("it lacks a metric of its load")
			}
			if err != nil {
				silent = append(silent, fmt.Sprintf("replica %s: %v", r.ID, err))
				return
			}
			l.Seen++
			l.Running, l.Waiting, l.KV = l.Running+running, l.Waiting+waiting, l.KV+kv
		})
	}
	wg.Wait()
	l.KV /= float64(max(1, l.Seen))
	slices.Sort(silent)
	return l, silent
}

// past is a router's report at a time.
type past struct {
	at      time.Time
	reports map[string]route.Report
}

// burn is the multiple of the TTFT budget that a version uses up, by what the routers
// counted in both windows; -1 when a router is silent.
func (h *host) burn(ctx context.Context, sc pipeline.Scaling, version string) (burn float64, why string) {
	if sc.Policy.Burn == 0 {
		return 0, ""
	}
	c := h.control(sc.Alias)
	reports, missing, err := c.Reports(ctx)
	if err != nil || len(missing) > 0 || len(reports) == 0 {
		delete(h.pasts, sc.Alias)
		return -1, fmt.Sprintf("routers %v do not say what they counted", missing)
	}
	now := h.o.Deps.Now()
	all := append(h.pasts[sc.Alias], past{now, reports})
	for len(all) > 1 && now.Sub(all[1].at) >= burnWindows[1] {
		all = all[1:]
	}
	h.pasts[sc.Alias] = all
	return burnOf(all, now, version, sc.TTFT), ""
}

// burnOf compares the newest reports with those of each window's beginning. A window
// that has not passed yet, or has few requests, burns nothing.
func burnOf(all []past, now time.Time, version string, bound slo.Bound) float64 {
	burn := -1.0
	for _, w := range burnWindows {
		var from *past
		for i := range all {
			if now.Sub(all[i].at) >= w {
				from = &all[i]
			}
		}
		if from == nil || bound.Quantile >= 1 {
			return 0
		}
		var over, n uint64
		newest := all[len(all)-1].reports
		for _, name := range slices.Sorted(maps.Keys(newest)) {
			c := newest[name].Since(from.reports[name]).Versions[version]
			total := c.Total()
			o, of, _ := total.Arrival.Over(bound.Limit)
			over, n = over+o, n+of
		}
		if n < burnFloor {
			return 0
		}
		b := float64(over) / float64(n) / (1 - bound.Quantile)
		if burn < 0 || b < burn {
			burn = b
		}
	}
	return burn
}
