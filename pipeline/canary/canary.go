// Package canary moves traffic to a candidate as far as the evidence carries,
// and back when it says so.
//
// [Step] is the judge: a pure function from state and observation to state and
// action. For each guard it runs two sequential tests, which may be looked at
// as often as one likes: harm (is the candidate worse than stable by more than
// the tolerated ratio?) rolls back, safe (is it within its service level?) is
// what promotion needs. Not harmed is not safe, and no data moves nothing.
// [Run] is the driver around it: it reads what the routers counted, steps, and
// acts through [Control], which writes the route under compare-and-set, pushes
// it to every router and reads it back. [Shadow] compares copies of requests
// whose answers nobody gets.
//
// Traffic beyond stable is leased: it returns by itself unless fresh evidence
// renews the lease, so that a dead, hung or blind controller is no danger.
// Nothing here knows runs or specs. A Control is safe for concurrent use, the
// rest belongs to one goroutine.
package canary

import (
	"time"

	"llmops/evidence"
	"llmops/serving/route"
	"llmops/serving/slo"
)

// Guards by index. Their names are those of model.yaml.
const (
	ttft = iota
	tpot
	errorsGuard
	refusals
	guards
)

// Names of the guards, by index.
var Names = [guards]string{"ttft", "tpot", "errors", "refusals"}

// LeaseTTL is how long leased weights outlive the last renewal.
const LeaseTTL = 45 * time.Second

// RenewEvery is how often fresh evidence renews the lease.
const RenewEvery = 5 * time.Second

// alpha is the chance of rolling back a good candidate that is spent over all
// guards, and of passing a bad one that is spent over each.
const alpha = 0.05

// minRequests of the candidate are wanted in a step before it may be left.
const minRequests = 10

// Stage is one step: the candidate's share of the traffic and how long it must
// be healthy under it.
type Stage struct {
	Weight float64       `json:"weight"`
	Bake   time.Duration `json:"bake"`
}

// Policy is what a canary goes by; it does not change while it runs.
type Policy struct {
	Stable    string    `json:"stable"`
	Candidate string    `json:"candidate"`
	Zone      string    `json:"zone,omitempty"`
	Steps     []Stage   `json:"steps"`
	Max       float64   `json:"max"`  // a step ends undecided after Max times its bake
	Harm      float64   `json:"harm"` // the ratio to stable that is tolerated
	Guards    []string  `json:"guards"`
	SLO       slo.Class `json:"slo"`
	// Slow are the bounds of the harm test for ttft and tpot, near stable's
	// p95, measured before the canary began and not moved after.
	Slow [2]time.Duration `json:"slow"`
	// Stale is how old the newest evidence may be for the bake to go on.
	Stale time.Duration `json:"stale"`
}

func (p *Policy) guarded(g int) bool {
	for _, n := range p.Guards {
		if n == Names[g] {
			return true
		}
	}
	return false
}

// Level is the α of one guard.
func (p *Policy) Level() float64 { return alpha / float64(max(1, len(p.Guards))) }

// limit is the rate that a guard's safe test must show the candidate to be
// below; 0 when no service level says one.
func (p *Policy) limit(g int) float64 {
	switch g {
	case ttft:
		if p.SLO.TTFT.Set() {
			return 1 - p.SLO.TTFT.Quantile
		}
	case tpot:
		if p.SLO.TPOT.Set() {
			return 1 - p.SLO.TPOT.Quantile
		}
	case errorsGuard:
		return p.SLO.ErrorRate
	case refusals:
		return p.SLO.RefusalRate
	}
	return 0
}

// safeRatio is the ratio to stable that a guard without a service level must be
// shown to be below.
const safeRatio = 2

// SlowBounds picks the bounds of the harm test from what stable did before the
// canary: the upper edge of the bucket that holds its p95, but at least half
// of the service level's bound, since nobody notices what is far below it.
// Where stable has fewer than 59 requests its p95 has no upper bound, and the
// service level's own is used.
func SlowBounds(stable route.Stratum, c slo.Class) [2]time.Duration {
	pick := func(h *evidence.Histogram, b slo.Bound) time.Duration {
		if _, hi, ok := h.Quantile(0.95); ok && hi > 0 && h.N() >= 59 {
			return max(hi, b.Limit/2)
		}
		return b.Limit
	}
	return [2]time.Duration{pick(&stable.TTFT.Seen, c.TTFT), pick(&stable.TPOT, c.TPOT)}
}

// Needs is how many requests of the candidate, none of them bad, each guard
// with a service level needs to be shown safe.
func Needs(p Policy) map[string]int {
	out := map[string]int{}
	for g := range guards {
		if l := p.limit(g); p.guarded(g) && l > 0 {
			out[Names[g]] = evidence.CleanRequests(l, p.Level())
		}
	}
	return out
}
