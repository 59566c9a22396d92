package terraform

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"llmops/fleet"
)

// Fleet is what is asked of a fleet before machines are taken from it.
type Fleet interface {
	Nodes(ctx context.Context) ([]fleet.Node, error)
	All(ctx context.Context, prefix string) ([]fleet.Status, error)
}

// Use is what a fleet said of itself at one moment.
type Use struct {
	Nodes []fleet.Node
	Jobs  []fleet.Status
}

// Observe asks a fleet for its nodes and what runs on them.
func Observe(ctx context.Context, f Fleet) (*Use, error) {
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the fleet for its nodes: %w", err)
	}
	jobs, err := f.All(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("asking the fleet for its jobs: %w", err)
	}
	return &Use{Nodes: nodes, Jobs: jobs}, nil
}

func (u *Use) node(name string) (fleet.Node, bool) {
	i := slices.IndexFunc(u.Nodes, func(n fleet.Node) bool { return n.ID == name })
	if i < 0 {
		return fleet.Node{}, false
	}
	return u.Nodes[i], true
}

// replicas are the ids of those on a node that have not ended.
func (u *Use) replicas(node string) []string {
	var out []string
	for _, st := range u.Jobs {
		for _, r := range st.Replicas {
			if r.Node == node && r.State != fleet.Failed && r.State != fleet.Stopped {
				out = append(out, r.ID)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Refusal is one reason not to apply a plan, and what to do about it.
type Refusal struct {
	What   string `json:"what"` // a node, a pool or an address
	Reason string `json:"reason"`
	Do     string `json:"do"`
}

func (r Refusal) String() string { return r.What + ": " + r.Reason + "; " + r.Do }

// Permit is what a person has said may happen all the same. Nothing permits taking away
// a node that works.
type Permit struct {
	// LetGo are nodes that the fleet does not know, and addresses beside the nodes, that
	// a plan may delete.
	LetGo []string
	// Drift tells that what was changed outside of Terraform may be undone.
	Drift bool
}

// Guard says what speaks against applying a plan to a fleet in this use. A nil use is a
// fleet that was not asked: no node may go then.
func Guard(s *Summary, u *Use, p Permit) []Refusal {
	out := []Refusal{}
	refuse := func(what, do, format string, args ...any) {
		out = append(out, Refusal{What: what, Reason: fmt.Sprintf(format, args...), Do: do})
	}
	for _, c := range s.Nodes {
		if c.Action != Removed && c.Action != Replaced {
			continue
		}
		name := c.Node.Name
		drain := "llmops fleet drain " + name + " --reason …, then plan again"
		if u == nil {
			refuse(name, "name the fleet that knows", "would be %s, and no fleet was asked what runs there", c.Action)
			continue
		}
		n, known := u.node(name)
		running := u.replicas(name)
		switch {
		case len(running) > 0:
			refuse(name, drain, "would be %s and holds %d replicas (%s)", c.Action, len(running), few(running))
		case !known && !slices.Contains(p.LetGo, name):
			refuse(name, "look for it under another name; if the machine is of no use to anybody, --let-go "+name, "would be %s and the fleet does not know it", c.Action)
		case known && n.Eligible:
			refuse(name, drain, "would be %s and still takes work", c.Action)
		case known && n.Draining:
			refuse(name, "wait until its drain is done", "would be %s while it drains", c.Action)
		}
	}
	if u != nil {
		for _, pool := range s.Pools {
			if pool.Before.Nodes == 0 || pool.After.Nodes > 0 {
				continue
			}
			if jobs := u.in(pool.Pool); len(jobs) > 0 {
				refuse("pool "+pool.Pool, "stop them or move them to another pool first", "would lose its last node, and is live: %s run in it", few(jobs))
			}
		}
	}
	gone := map[string]bool{}
	for _, c := range s.Other {
		if c.Action != "delete" && c.Action != "replace" {
			continue
		}
		if c.Server != "" {
			gone[c.Server] = true
		}
		if !slices.Contains(p.LetGo, c.Address) && c.Server == "" {
			refuse(c.Address, "if nothing needs it, --let-go '"+c.Address+"'", "would be %sd, and belongs to no one node", c.Action)
		}
	}
	if most := max(s.Servers-1, 0) / 2; len(gone) > most {
		refuse("servers", "replace them one at a time, and wait for each to join", "%d of %d would go at once, and more than %d end the quorum", len(gone), s.Servers, most)
	}
	for _, c := range s.Drift {
		if !p.Drift {
			refuse(c.Address, "find out who did it and why; to undo it, --accept-drift", "was %sd outside of Terraform", c.Action)
		}
	}
	return out
}

// in are the jobs that are registered for a pool and shall run, or do.
func (u *Use) in(pool string) []string {
	var out []string
	for _, st := range u.Jobs {
		if st.Pool == pool && slices.ContainsFunc(st.Job.Groups, func(g fleet.Group) bool { return g.Count > 0 }) {
			out = append(out, st.Job.Name)
		}
	}
	slices.Sort(out)
	return out
}

func few(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
