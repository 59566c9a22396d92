package canary

import (
	"time"

	"llmops/evidence"
	"llmops/serving/route"
)

// Count is bad among known outcomes.
type Count struct {
	Bad uint64 `json:"b"`
	N   uint64 `json:"n"`
}

func (c Count) since(old Count) Count {
	return Count{c.Bad - min(c.Bad, old.Bad), c.N - min(c.N, old.N)}
}

// Arm is what one version did in one stratum, by guard, against the bounds of
// the harm test and of the safe test. All numbers only grow.
type Arm struct {
	Chosen uint64        `json:"c"`
	Harm   [guards]Count `json:"h"`
	Safe   [guards]Count `json:"s"`
}

func (a Arm) since(old Arm) Arm {
	d := Arm{Chosen: a.Chosen - min(a.Chosen, old.Chosen)}
	for g := range guards {
		d.Harm[g] = a.Harm[g].since(old.Harm[g])
		d.Safe[g] = a.Safe[g].since(old.Safe[g])
	}
	return d
}

// Counted is what one router counted since it started.
type Counted struct {
	Boot      string            `json:"boot"`
	Stable    [route.Strata]Arm `json:"stable"`
	Candidate [route.Strata]Arm `json:"candidate"`
}

// Observation is one look at all routers. Missing names those that did not
// answer.
type Observation struct {
	At      time.Time
	Routers map[string]Counted
	Missing []string
}

// Counts reads a router's report against the policy's bounds. Outcomes are
// indexed by admission, so a request that hangs past a bound counts as over it
// before it ends.
func (p *Policy) Counts(r route.Report) Counted {
	c := Counted{Boot: r.Boot}
	for i := range route.Strata {
		c.Stable[i] = p.arm(r.Versions[p.Stable].Strata[i])
		c.Candidate[i] = p.arm(r.Versions[p.Candidate].Strata[i])
	}
	return c
}

func (p *Policy) arm(s route.Stratum) Arm {
	a := Arm{Chosen: s.Chosen}
	over := func(l *route.Latency, bound time.Duration) Count {
		bad, n, _ := l.Over(bound)
		return Count{bad, n}
	}
	overTPOT := func(h *evidence.Histogram, bound time.Duration) Count {
		bad, _ := h.Over(bound)
		return Count{bad, h.N()}
	}
	a.Harm[ttft] = over(&s.TTFT, p.Slow[ttft])
	a.Safe[ttft] = over(&s.Arrival, p.SLO.TTFT.Limit)
	a.Harm[tpot] = overTPOT(&s.TPOT, p.Slow[tpot])
	a.Safe[tpot] = overTPOT(&s.TPOT, p.SLO.TPOT.Limit)
	// A request that the engine calls invalid is the client's fault, unless one
	// version refuses what the other takes: it counts in the comparison only.
	a.Harm[errorsGuard] = Count{s.Errors + s.Invalid, s.Done + s.Errors + s.Invalid}
	a.Safe[errorsGuard] = Count{s.Errors, s.Done + s.Errors}
	a.Harm[refusals] = Count{s.Refusals, s.Done}
	a.Safe[refusals] = a.Harm[refusals]
	return a
}
