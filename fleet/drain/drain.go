// Package drain takes a node out of service without a gap: make before break.
//
// [Step] is the decision, pure: it sees nodes and jobs as they stand and says what to
// do next. First the node takes nothing new, then every group that it holds grows by
// what it will lose, elsewhere; only when as many replicas as before have produced a
// token outside the node is the node told to go, and when it is empty the groups
// shrink to what they were. Where room is missing, or a new replica fails, everything
// is put back and the drain is refused. One node at a time. [Run] does what Step says.
//
// A State can be written down and taken up by another process. It does not repair
// nodes and does not choose them.
package drain

import (
	"cmp"
	"fmt"
	"slices"

	"llmops/fleet"
)

// Phase is how far a drain has come.
type Phase string

// The phases, in order; Refused and Done end it.
const (
	Checking Phase = "checking"
	Growing  Phase = "growing"
	Waiting  Phase = "waiting"
	Draining Phase = "draining"
	Undoing  Phase = "undoing"
	Refused  Phase = "refused"
	Done     Phase = "done"
)

// Group is one that has replicas on the node.
type Group struct {
	Job   string `json:"job"`
	Group string `json:"group"`
	Count int    `json:"count"` // before the drain
	Lost  int    `json:"lost"`  // of them on the node
	// Old are the replicas that were there before, so that new ones are known.
	Old []string `json:"old"`
}

// State is a drain under way.
type State struct {
	Node   string  `json:"node"`
	Phase  Phase   `json:"phase"`
	Groups []Group `json:"groups,omitempty"`
	Why    string  `json:"why,omitempty"` // of Refused
	At     int     `json:"at"`            // the group that is scaled next
}

// Seen is what is known at a moment. Ready names the replicas that have produced a
// token since they were started.
type Seen struct {
	Nodes []fleet.Node
	Jobs  []fleet.Status
	Ready map[string]bool
}

// Kind is what an Action does.
type Kind string

// The kinds of actions. Wait is to look again later.
const (
	Wait   Kind = "wait"
	Cordon Kind = "cordon" // the node takes nothing new
	Scale  Kind = "scale"
	Drain  Kind = "drain"
	Allow  Kind = "allow" // the node takes new replicas again
)

// Action is the next thing to do. What is about to be done twice does no harm.
type Action struct {
	Kind       Kind
	Job, Group string // of Scale
	Count      int
}

// maxStarts is how often a new replica may fail before the drain is given up.
const maxStarts = 3

// Step decides.
func Step(s State, o Seen) (State, Action) {
	switch s.Phase {
	case "", Checking:
		return check(s, o)
	case Growing:
		if s.At < len(s.Groups) {
			g := s.Groups[s.At]
			s.At++
			return s, Action{Kind: Scale, Job: g.Job, Group: g.Group, Count: g.Count + g.Lost}
		}
		s.Phase, s.At = Waiting, 0
		return wait(s, o)
	case Waiting:
		return wait(s, o)
	case Draining:
		return empty(s, o)
	case Undoing:
		return undo(s)
	}
	return s, Action{Kind: Wait}
}

func refuse(s State, format string, args ...any) (State, Action) {
	s.Phase, s.Why = Refused, fmt.Sprintf(format, args...)
	return s, Action{Kind: Wait}
}

func check(s State, o Seen) (State, Action) {
	i := slices.IndexFunc(o.Nodes, func(n fleet.Node) bool { return n.ID == s.Node })
	if i < 0 {
		return refuse(s, "node %s is not in the fleet", s.Node)
	}
	takers := 0
	for _, n := range o.Nodes {
		switch {
		case n.ID == s.Node:
		case n.Draining:
			return refuse(s, "node %s is being drained: one at a time", n.ID)
		case n.Ready && n.Eligible:
			takers++
		}
	}
	s.Groups = affected(s.Node, o.Jobs)
	for _, g := range s.Groups {
		if takers == 0 {
			return refuse(s, "no other node is ready to take %d replicas of %s", g.Lost, g.Job)
		}
	}
	s.Phase, s.At = Growing, 0
	return s, Action{Kind: Cordon}
}

// affected are the groups with replicas on the node that serve or are about to.
func affected(node string, jobs []fleet.Status) []Group {
	var out []Group
	for _, st := range jobs {
		if st.Rev == 0 {
			continue
		}
		for _, g := range st.Job.Groups {
			a := Group{Job: st.Job.Name, Group: g.Name, Count: g.Count}
			for _, r := range st.Replicas {
				if r.Group != g.Name {
					continue
				}
				a.Old = append(a.Old, r.ID)
				if r.Node == node && r.State != fleet.Draining && r.State != fleet.Stopped {
					a.Lost++
				}
			}
			if a.Lost > 0 {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group)) })
	return out
}

// wait is over when every group has as many replicas elsewhere as it had in all.
func wait(s State, o Seen) (State, Action) {
	for _, g := range s.Groups {
		elsewhere := 0
		for _, r := range replicasOf(o.Jobs, g) {
			switch {
			case r.Node != s.Node && r.State == fleet.Healthy && o.Ready[r.ID]:
				elsewhere++
			case r.State == fleet.Failed && r.Starts >= maxStarts && !slices.Contains(g.Old, r.ID):
				s.Phase, s.At = Undoing, 0
				s.Why = fmt.Sprintf("a new replica of %s failed %d times on %s: %s", g.Job, r.Starts, r.Node, r.Reason)
				return undo(s)
			}
		}
		if elsewhere < g.Count {
			return s, Action{Kind: Wait}
		}
	}
	s.Phase = Draining
	return s, Action{Kind: Drain}
}

func replicasOf(jobs []fleet.Status, g Group) (out []fleet.Replica) {
	for _, st := range jobs {
		if st.Job.Name != g.Job {
			continue
		}
		for _, r := range st.Replicas {
			if r.Group == g.Group {
				out = append(out, r)
			}
		}
	}
	return out
}

// empty waits for the node to be, then gives the groups their counts back.
func empty(s State, o Seen) (State, Action) {
	for _, g := range s.Groups {
		for _, r := range replicasOf(o.Jobs, g) {
			// One that was moved is a new one: until it serves, the count that goes down
			// may take one that does.
			moving := r.Node != "" && (r.State == fleet.Pending || r.State == fleet.Running)
			if moving || r.Node == s.Node && r.State != fleet.Stopped {
				return s, Action{Kind: Wait}
			}
		}
	}
	if s.At < len(s.Groups) {
		g := s.Groups[s.At]
		s.At++
		return s, Action{Kind: Scale, Job: g.Job, Group: g.Group, Count: g.Count}
	}
	s.Phase = Done
	return s, Action{Kind: Wait}
}

// undo puts the counts back, then lets the node take replicas again.
func undo(s State) (State, Action) {
	if s.At < len(s.Groups) {
		g := s.Groups[s.At]
		s.At++
		return s, Action{Kind: Scale, Job: g.Job, Group: g.Group, Count: g.Count}
	}
	s.Phase = Refused
	return s, Action{Kind: Allow}
}

// GiveUp puts everything back: a deadline has passed, or somebody has changed his mind.
func GiveUp(s State, why string) State {
	switch s.Phase {
	case Growing, Waiting:
		s.Phase, s.Why, s.At = Undoing, why, 0
	case "", Checking:
		s.Phase, s.Why = Refused, why
	}
	return s
}
