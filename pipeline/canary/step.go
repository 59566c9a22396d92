package canary

import (
	"fmt"
	"math"
	"time"

	"llmops/evidence"
	"llmops/serving/route"
)

// maxTick is the longest time between two looks that counts as baked: a judge
// that was not there has not seen the candidate be healthy.
const maxTick = 3 * time.Second

// maxPoints bounds the history that a state carries.
const maxPoints = 100

// Kind is what an action is.
type Kind string

// The actions. Wait leaves everything as it is.
const (
	Wait     Kind = "wait"
	Renew    Kind = "renew"
	Again    Kind = "grant again" // the weight of State.Step, which a router has lost
	Advance  Kind = "advance"     // grant the weight of State.Step
	Promote  Kind = "promote"
	Rollback Kind = "rollback"
	GiveUp   Kind = "give up" // return the traffic, undecided
)

// Action is what Step wants done, and why.
type Action struct {
	Kind   Kind   `json:"kind"`
	Guard  string `json:"guard,omitempty"` // of a rollback
	Reason string `json:"reason"`
}

// ends tells whether nothing comes after the action.
func (a Action) ends() bool { return a.Kind == Promote || a.Kind == Rollback || a.Kind == GiveUp }

// Guard is the evidence of one guard over all steps.
type Guard struct {
	Harm   evidence.Excess  `json:"harm"`
	Rate   *evidence.Rate   `json:"rate,omitempty"`   // the safe test against a service level
	Within *evidence.Within `json:"within,omitempty"` // the safe test without one
}

// Point is one moment of the evidence, for the report. Harm and Safe are
// log10 e-values by guard.
type Point struct {
	At     time.Duration   `json:"t"` // since the canary began
	Step   int             `json:"s"`
	Weight float64         `json:"w"`
	N      uint64          `json:"n"` // requests of the candidate so far
	Harm   [guards]float64 `json:"h"`
	Safe   [guards]float64 `json:"f"`
}

// State is all that a canary knows; it fits a run's head.
type State struct {
	Step     int                `json:"step"`
	Began    time.Time          `json:"began"`   // of the canary
	StepAt   time.Time          `json:"step_at"` // of the step
	Healthy  time.Duration      `json:"healthy"` // within the step
	Last     time.Time          `json:"last"`    // look
	Fresh    time.Time          `json:"fresh"`   // newest evidence of both arms
	Renewed  time.Time          `json:"renewed"`
	Chosen   [2]uint64          `json:"chosen"`   // stable, candidate; within the step
	Requests [2]uint64          `json:"requests"` // over all steps
	Guards   [guards]Guard      `json:"guards"`
	Cursor   map[string]Counted `json:"cursor"`
	Points   []Point            `json:"points,omitempty"`
	Stride   int                `json:"stride,omitempty"`
	Looks    int                `json:"looks"`
	Note     string             `json:"note,omitempty"` // why the bake stands still
	End      *Action            `json:"end,omitempty"`  // what was decided in the end
}

// Begin is the state before the first look.
func Begin(p Policy, now time.Time) State {
	s := State{Began: now, StepAt: now, Last: now, Fresh: now, Renewed: now, Cursor: map[string]Counted{}, Stride: 1}
	for g := range guards {
		s.Guards[g].Harm.Tolerated = p.Harm
		if l := p.limit(g); l > 0 {
			s.Guards[g].Rate = &evidence.Rate{Limit: l}
		} else {
			s.Guards[g].Within = &evidence.Within{Limit: safeRatio}
		}
	}
	return s
}

// Step takes one look into account. It keeps neither s's maps nor its slices,
// so an earlier state stays what it was. What was decided in the end stays
// decided.
func Step(s State, o Observation, p Policy) (State, Action) {
	if s.End != nil {
		return s, *s.End
	}
	s, a := step(s.clone(), o, p)
	if a.ends() {
		s.End = &a
	}
	return s, a
}

func step(s State, o Observation, p Policy) (State, Action) {
	fresh, lost := s.add(o, p)
	dt := min(max(0, o.At.Sub(s.Last)), maxTick)
	s.Last = o.At
	if fresh {
		s.Fresh = o.At
	}
	s.Looks++
	s.remember(o.At, p)
	for g := range guards {
		if p.guarded(g) && s.Guards[g].Harm.Harm(p.Level()) {
			h := &s.Guards[g].Harm
			return s, Action{Rollback, Names[g], fmt.Sprintf("%s: candidate had %s of stable, more than %g times the rate", Names[g], h, p.Harm)}
		}
	}
	s.Note = s.obstacle(o, p)
	if s.Note == "" {
		s.Healthy += dt
	}
	now := p.Steps[s.Step]
	last := s.Step == len(p.Steps)-1
	baked := s.Healthy >= now.Bake && s.Chosen[1] >= minRequests
	switch {
	case baked && !last:
		s.Step++
		s.StepAt, s.Healthy, s.Chosen = o.At, 0, [2]uint64{}
		s.Renewed = o.At
		return s, Action{Kind: Advance, Reason: fmt.Sprintf("healthy for %v at %.4g%%", now.Bake, 100*now.Weight)}
	case baked && s.safe(p):
		return s, Action{Kind: Promote, Reason: "every guard is shown safe"}
	case o.At.Sub(s.StepAt) > time.Duration(p.Max*float64(now.Bake)):
		return s, Action{Kind: GiveUp, Reason: "not decided in " + time.Duration(p.Max*float64(now.Bake)).String() + ": " + s.lacks(p)}
	case o.At.Sub(s.Fresh) > LeaseTTL:
		return s, Action{Kind: GiveUp, Reason: fmt.Sprintf("no outcome of both versions for %v", LeaseTTL)}
	case lost != "":
		// It gives the candidate nothing before it has seen the lease move, and if
		// no other router does there is no evidence to renew it by.
		s.Renewed = o.At
		return s, Action{Kind: Again, Reason: "router " + lost + " was started anew"}
	case fresh && o.At.Sub(s.Renewed) >= RenewEvery-time.Second:
		s.Renewed = o.At
		return s, Action{Kind: Renew, Reason: s.seen()}
	}
	return s, Action{Kind: Wait, Reason: s.Note}
}

func (s State) clone() State {
	cursor := make(map[string]Counted, len(s.Cursor))
	for k, v := range s.Cursor {
		cursor[k] = v
	}
	s.Cursor = cursor
	s.Points = append([]Point(nil), s.Points...)
	for g := range guards {
		if r := s.Guards[g].Rate; r != nil {
			c := *r
			s.Guards[g].Rate = &c
		}
		if w := s.Guards[g].Within; w != nil {
			c := *w
			s.Guards[g].Within = &c
		}
	}
	return s
}

// add counts what is new since the last look. It reports whether both arms had
// new outcomes, and a router that was started anew. A router that is new to us
// only sets its mark: what it counted before may be from before the canary.
func (s *State) add(o Observation, p Policy) (fresh bool, lost string) {
	var news [2]uint64
	for id, now := range o.Routers {
		old, known := s.Cursor[id]
		s.Cursor[id] = now
		if !known {
			continue
		}
		if old.Boot != now.Boot {
			old, lost = Counted{}, id
		}
		for i := range route.Strata {
			st, ca := now.Stable[i].since(old.Stable[i]), now.Candidate[i].since(old.Candidate[i])
			s.Chosen[0] += st.Chosen
			s.Chosen[1] += ca.Chosen
			s.Requests[0] += st.Chosen
			s.Requests[1] += ca.Chosen
			news[0] += st.Harm[errorsGuard].N
			news[1] += ca.Harm[errorsGuard].N
			for g := range guards {
				s.Guards[g].Harm.Add(ca.Harm[g].Bad, ca.Harm[g].N, st.Harm[g].Bad, st.Harm[g].N)
				if r := s.Guards[g].Rate; r != nil {
					r.Add(ca.Safe[g].Bad, ca.Safe[g].N)
				}
				if w := s.Guards[g].Within; w != nil {
					w.Add(ca.Safe[g].Bad, ca.Safe[g].N, st.Safe[g].Bad, st.Safe[g].N)
				}
			}
		}
	}
	return news[0] > 0 && news[1] > 0, lost
}

// obstacle says why the bake does not go on; empty when it does.
func (s *State) obstacle(o Observation, p Policy) string {
	if len(o.Routers) == 0 {
		return "no router answers"
	}
	if age := o.At.Sub(s.Fresh); age > p.Stale {
		return fmt.Sprintf("no outcome of both versions for %v", age.Round(time.Second))
	}
	total := s.Chosen[0] + s.Chosen[1]
	want := p.Steps[s.Step].Weight
	if share := float64(s.Chosen[1]) / float64(max(1, total)); total >= 100 && math.Abs(share-want) > want/2 {
		return fmt.Sprintf("the measured share is %.1f%%, not %.1f%%", 100*share, 100*want)
	}
	return ""
}

func (s *State) safe(p Policy) bool {
	for g := range guards {
		if p.guarded(g) && !s.Guards[g].safe(p.Level()) {
			return false
		}
	}
	return true
}

func (g *Guard) safe(level float64) bool {
	if g.Rate != nil {
		return g.Rate.Shown(level)
	}
	return g.Within.Shown(level)
}

// lacks names the guards that are not shown safe.
func (s *State) lacks(p Policy) string {
	out := ""
	for g := range guards {
		if p.guarded(g) && !s.Guards[g].safe(p.Level()) {
			if out != "" {
				out += ", "
			}
			out += Names[g]
		}
	}
	switch {
	case s.Note != "":
		return s.Note
	case out == "":
		return fmt.Sprintf("%d requests of the candidate in the step", s.Chosen[1])
	}
	return out + " not shown safe"
}

// seen names the newest evidence, so that a renewal can be told from the last.
func (s *State) seen() string {
	return fmt.Sprintf("%d+%d@%d", s.Requests[0], s.Requests[1], s.Last.UnixMilli())
}

// remember adds a point, thinning the history when it is full.
func (s *State) remember(at time.Time, p Policy) {
	if s.Looks%s.Stride != 0 {
		return
	}
	pt := Point{At: at.Sub(s.Began), Step: s.Step, Weight: p.Steps[s.Step].Weight, N: s.Requests[1]}
	for g := range guards {
		pt.Harm[g] = round2(s.Guards[g].Harm.LogE() / math.Ln10)
		if r := s.Guards[g].Rate; r != nil {
			pt.Safe[g] = round2(r.LogE() / math.Ln10)
		} else {
			pt.Safe[g] = round2(s.Guards[g].Within.LogE() / math.Ln10)
		}
	}
	s.Points = append(s.Points, pt)
	if len(s.Points) >= maxPoints {
		half := s.Points[:0]
		for i := 1; i < len(s.Points); i += 2 {
			half = append(half, s.Points[i])
		}
		s.Points = half
		s.Stride *= 2
	}
}

func round2(x float64) float64 { return math.Round(100*x) / 100 }
