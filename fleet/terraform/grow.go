package terraform

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"llmops/fleet"
)

// MoreFile is where a configuration's folder keeps its variable more_nodes, under a name
// that Terraform reads by itself.
const MoreFile = "llmops.auto.tfvars.json"

// Growth is what a fleet lacks in machines.
type Growth struct {
	// More are the nodes of each pool beside those that it was described with, as many
	// as there shall be: the variable more_nodes.
	More map[string]int `json:"more"`
	// Add are the nodes that are to come now, by pool, and Why is for whom.
	Add map[string]int      `json:"add"`
	Why map[string][]string `json:"why"`
	// Left is what waits and gets no node, and why.
	Left []string `json:"left"`
}

// Grow says which nodes would give a place to the replicas that have none for want of
// room. Nodes that were made and have not joined yet count as there, so that nobody is
// given two. A pool has at most as many nodes more as most says, and none where it is
// silent.
func Grow(inv *Inventory, u *Use, most map[string]int) Growth {
	g := Growth{More: map[string]int{}, Add: map[string]int{}, Why: map[string][]string{}, Left: []string{}}
	left := func(format string, args ...any) { g.Left = append(g.Left, fmt.Sprintf(format, args...)) }
	for name, p := range inv.Pools {
		if n := p.Nodes - p.Needed - p.Spare; n > 0 {
			g.More[name] = n
		}
	}
	wants := map[string][]int{} // GPUs of each replica that waits, by pool
	for _, st := range u.Jobs {
		for _, r := range st.Replicas {
			if !r.NoRoom {
				continue
			}
			who := st.Job.Name + "/" + r.Group
			i := slices.IndexFunc(st.Job.Groups, func(g fleet.Group) bool { return g.Name == r.Group })
			p, ok := inv.Pools[st.Pool]
			switch has := perNode(p); {
			case i < 0:
			case !ok:
				left("%s waits in pool %q, which the configuration does not have", who, st.Pool)
			case st.Job.Groups[i].GPU.Count > has:
				left("%s wants %d GPUs on one node, and one of pool %s has %d", who, st.Job.Groups[i].GPU.Count, st.Pool, has)
			default:
				wants[st.Pool] = append(wants[st.Pool], st.Job.Groups[i].GPU.Count)
				if !slices.Contains(g.Why[st.Pool], who) {
					g.Why[st.Pool] = append(g.Why[st.Pool], who)
				}
			}
		}
	}
	coming := map[string]int{}
	for name, n := range inv.Nodes {
		if _, there := u.node(name); !there {
			coming[n.Pool]++
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(wants)) {
		n := nodesFor(wants[pool], perNode(inv.Pools[pool])) - coming[pool]
		if n <= 0 {
			left("%s wait for %d nodes of pool %s that have not joined yet", few(g.Why[pool]), coming[pool], pool)
			delete(g.Why, pool)
			continue
		}
		room := max(0, most[pool]-g.More[pool])
		if n > room {
			left("pool %s is %d nodes short and may have %d more than the %d it has beside its plan", pool, n, room, g.More[pool])
			n = room
		}
		if n == 0 {
			delete(g.Why, pool)
			continue
		}
		g.Add[pool] = n
		g.More[pool] += n
	}
	slices.Sort(g.Left)
	return g
}

// perNode are the GPUs of a node of the pool.
func perNode(p Pool) int {
	if p.Nodes == 0 {
		return 0
	}
	return p.GPUs / p.Nodes
}

// nodesFor is how many empty nodes take replicas of so many GPUs, the largest first,
// each where there is room. What replicas without a GPU take is not known: one node is
// added for them, and another when that was not enough.
func nodesFor(gpus []int, node int) int {
	slices.SortFunc(gpus, func(a, b int) int { return b - a })
	var free []int
	for _, n := range gpus {
		i := slices.IndexFunc(free, func(f int) bool { return f >= n })
		if i < 0 {
			free = append(free, node)
			i = len(free) - 1
		}
		free[i] -= n
	}
	return len(free)
}

// Patience remembers since when each pool has been short.
type Patience map[string]time.Time

// Wait leaves in g what has been short for so long at every look, and keeps the rest for
// later.
func (p Patience) Wait(g Growth, now time.Time, after time.Duration) Growth {
	for pool := range p {
		if g.Add[pool] == 0 {
			delete(p, pool)
		}
	}
	for pool, n := range g.Add {
		since, ok := p[pool]
		if !ok {
			p[pool], since = now, now
		}
		if now.Sub(since) < after {
			g.Left = append(g.Left, fmt.Sprintf("%s wait for room in pool %s, which gets %d nodes when that has lasted %v", few(g.Why[pool]), pool, n, after))
			g.More[pool] -= n
			delete(g.Add, pool)
			delete(g.Why, pool)
		}
	}
	slices.Sort(g.Left)
	return g
}

// OnlyGrows says what a plan does beside adding the nodes of g; empty: nothing.
func OnlyGrows(s *Summary, g Growth) []Refusal {
	out := []Refusal{}
	added := map[string]int{}
	for _, c := range s.Nodes {
		if c.Action == Added {
			added[c.Node.Pool]++
			continue
		}
		out = append(out, Refusal{c.Node.Name, "would be " + c.Action, "apply what is new in the configuration first: llmops fleet plan"})
	}
	for _, pool := range slices.Sorted(maps.Keys(added)) {
		if added[pool] != g.Add[pool] {
			out = append(out, Refusal{"pool " + pool, fmt.Sprintf("would get %d nodes, and %d are wanted", added[pool], g.Add[pool]), "apply what is new in the configuration first: llmops fleet plan"})
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(g.Add)) {
		if added[pool] == 0 {
			out = append(out, Refusal{"pool " + pool, fmt.Sprintf("would get none of %d nodes", g.Add[pool]), "pass the variable more_nodes on to the contract module"})
		}
	}
	return out
}

// SetMore writes the variable more_nodes into the folder, and returns what puts back what
// was there.
func (w *Workspace) SetMore(more map[string]int) (restore func() error, err error) {
	path := filepath.Join(w.dir, MoreFile)
	was, err := os.ReadFile(path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return nil, fmt.Errorf("reading the nodes that were added: %w", err)
	}
	b, err := json.MarshalIndent(map[string]any{"more_nodes": more}, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("writing the nodes to add: %w", err)
	}
	return func() error {
		if missing {
			return remove(path)
		}
		return renameio.WriteFile(path, was, 0o644)
	}, nil
}
