package canary

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"llmops/serving/route"
)

// outcome is one request of a recording: the shipped model behind the router,
// both versions the same, one request a line in order of arrival.
type outcome struct {
	at      float64 // seconds
	prompt  int     // tokens
	ttft    time.Duration
	tpot    time.Duration // 0: an answer of one token
	failed  bool
	refused bool
}

func recording(t *testing.T) []outcome {
	t.Helper()
	f, err := os.Open("testdata/outcomes.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []outcome
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var o outcome
		var ttft, tpot float64
		var failed, refused int
		if _, err := fmt.Sscan(sc.Text(), &o.at, &o.prompt, &ttft, &tpot, &failed, &refused); err != nil {
			t.Fatalf("line %d: %v", len(out)+1, err)
		}
		o.ttft, o.tpot = time.Duration(ttft*1e6), time.Duration(tpot*1e6)
		o.failed, o.refused = failed == 1, refused == 1
		out = append(out, o)
	}
	if err := sc.Err(); err != nil || len(out) < 1000 {
		t.Fatalf("%d outcomes, %v", len(out), err)
	}
	return out
}

// Of 2,000 canaries in which recorded outcomes of one version are dealt to two,
// at most α plus three standard errors roll back. The recording has the bursts,
// the long prompts and the queueing of a real engine, which no drawn outcome has.
func TestFalseRollbacksOnRecordedOutcomes(t *testing.T) {
	const runs = 2000
	all := recording(t)
	slices.SortFunc(all, func(a, b outcome) int { return int(1e6 * (a.at - b.at)) })
	p := policy()
	p.Slow = recordedBounds(all, p)
	back, promoted, undecided := 0, 0, 0
	for i := range runs {
		switch deal(all, p, rand.New(rand.NewPCG(uint64(i), 7))) {
		case Rollback:
			back++
		case Promote:
			promoted++
		default:
			undecided++
		}
	}
	t.Logf("%d requests recorded, slow bounds %v: of %d canaries %d promoted, %d rolled back, %d undecided", len(all), p.Slow, runs, promoted, back, undecided)
	if limit := alpha + 3*math.Sqrt(alpha*(1-alpha)/runs); float64(back)/runs > limit {
		t.Errorf("%d of %d canaries of equal versions were rolled back", back, runs)
	}
	if promoted < runs/2 {
		t.Errorf("only %d of %d were promoted", promoted, runs)
	}
}

// recordedBounds are the bounds that a run would have fixed from the recording.
func recordedBounds(all []outcome, p Policy) [2]time.Duration {
	var s route.Stratum
	for _, o := range all {
		s.TTFT.Seen.Add(o.ttft)
		if o.tpot > 0 {
			s.TPOT.Add(o.tpot)
		}
	}
	return SlowBounds(s, p.SLO)
}

// deal plays the recording from a random moment on, round and round, giving
// each request to the candidate with the step's weight.
func deal(all []outcome, p Policy, r *rand.Rand) Kind {
	at := time.Unix(1e9, 0)
	c := Counted{Boot: "x"}
	s := Begin(p, at)
	s, _ = Step(s, Observation{At: at, Routers: map[string]Counted{"r": c}}, p)
	i := r.IntN(len(all))
	for range 200 {
		at = at.Add(time.Second)
		for until := all[i].at + 1; all[i].at < until; {
			arm := &c.Stable
			if r.Float64() < p.Steps[s.Step].Weight {
				arm = &c.Candidate
			}
			arm[route.StratumOf(all[i].prompt)].count(all[i], p)
			if i++; i == len(all) {
				i = 0
				break
			}
		}
		var a Action
		s, a = Step(s, Observation{At: at, Routers: map[string]Counted{"r": c}}, p)
		switch a.Kind {
		case Promote, Rollback, GiveUp:
			return a.Kind
		}
	}
	return Wait
}

func (a *Arm) count(o outcome, p Policy) {
	add := func(c *Count, bad bool) {
		c.N++
		if bad {
			c.Bad++
		}
	}
	a.Chosen++
	add(&a.Harm[errorsGuard], o.failed)
	add(&a.Safe[errorsGuard], o.failed)
	if o.failed {
		return
	}
	add(&a.Harm[ttft], o.ttft > p.Slow[ttft])
	add(&a.Safe[ttft], o.ttft > p.SLO.TTFT.Limit)
	if o.tpot > 0 {
		add(&a.Harm[tpot], o.tpot > p.Slow[tpot])
		add(&a.Safe[tpot], o.tpot > p.SLO.TPOT.Limit)
	}
	add(&a.Harm[refusals], o.refused)
	add(&a.Safe[refusals], o.refused)
}
