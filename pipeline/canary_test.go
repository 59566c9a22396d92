package pipeline

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"llmops/pipeline/canary"
	"llmops/serving/route"
)

// The state of a canary over as many routers as may be asked for, after years
// of traffic, fits the head.
func TestCanaryStateFitsTheHead(t *testing.T) {
	p := canary.Policy{Stable: "v10", Candidate: "v11", Guards: canary.Names[:], Harm: 1.25, Max: 4, Steps: make([]canary.Stage, 8)}
	s := canary.Begin(p, time.Now().UTC())
	for i := range MaxRouters {
		c := canary.Counted{Boot: "0123456789abcdef01234567"}
		for k := range c.Stable {
			for _, a := range []*canary.Arm{&c.Stable[k], &c.Candidate[k]} {
				a.Chosen = math.MaxUint32
				for g := range a.Harm {
					a.Harm[g] = canary.Count{Bad: math.MaxUint32 / 100, N: math.MaxUint32}
					a.Safe[g] = a.Harm[g]
				}
			}
		}
		s.Cursor[fmt.Sprintf("router-%d", i)] = c
	}
	for i := range 100 { // what a canary keeps
		pt := canary.Point{At: time.Duration(i) * 1e15, Step: 2, Weight: 0.05, N: math.MaxUint32}
		for g := range pt.Harm {
			pt.Harm[g], pt.Safe[g] = -1234.56, 1234.56
		}
		s.Points = append(s.Points, pt)
	}
	for g := range s.Guards {
		for i := range s.Guards[g].Harm.Logs {
			s.Guards[g].Harm.Logs[i] = -12345.678901234567
		}
	}
	b, err := json.Marshal(canarySaved{p, s, math.MaxUint32, math.MaxUint32})
	if err != nil || len(b) > maxState {
		t.Errorf("%d bytes, at most %d, %v", len(b), maxState, err)
	}
}

// A canary whose lease somebody ended meanwhile is not begun again. One that had
// none yet, because its drivers died before they granted it, is.
func TestCanaryThatWasReturned(t *testing.T) {
	first := route.New("a", "r", "v0")
	leased, err := route.Grant(route.Claim(first, "r"), 2, route.Lease{TTL: time.Second, Seen: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		looks int
		doc   route.Doc
		want  bool
	}{
		{"rolled back before the first look", 0, route.Fallback(leased), true},
		{"as it was left", 3, leased, false},
		{"claimed by a driver that died", 3, route.Claim(leased, "r"), false},
		{"rolled back", 3, route.Fallback(leased), true},
		{"rolled back after a claim", 3, route.Fallback(route.Claim(leased, "r")), true},
		{"made anew", 3, first, false},
		{"never leased", 0, route.Claim(first, "r"), false},
		{"never leased, claimed twice", 0, route.Claim(route.Claim(first, "r"), "r"), false},
	} {
		s := canarySaved{State: canary.State{Looks: c.looks}, Epoch: 2}
		if got := s.returned(c.doc); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
