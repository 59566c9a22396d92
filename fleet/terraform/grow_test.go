package terraform

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"llmops/fleet"
)

// chat is a pool of two nodes of eight GPUs, of which the fleet knows so many, and of
// nodes beside its plan.
func chat(known, more int) (*Inventory, *Use) {
	inv := &Inventory{Nodes: map[string]Node{}, Pools: map[string]Pool{"chat": {Needed: 1, Spare: 1, Nodes: 2 + more, GPUs: 8 * (2 + more)}, "infra": {Needed: 1, Nodes: 1}}}
	u := &Use{}
	for i := range 2 + more {
		name := "chat-" + string(rune('0'+i))
		inv.Nodes[name] = Node{Name: name, Pool: "chat", GPUs: 8}
		if i < known {
			u.Nodes = append(u.Nodes, fleet.Node{ID: name, Pool: "chat"})
		}
	}
	return inv, u
}

// waiting is a job with replicas that wait, each for so many GPUs.
func waiting(name, pool string, noRoom bool, gpus ...int) fleet.Status {
	st := fleet.Status{Job: fleet.Job{Name: name}, Pool: pool}
	for i, n := range gpus {
		g := string(rune('a' + i))
		st.Job.Groups = append(st.Job.Groups, fleet.Group{Name: g, Count: 1, GPU: fleet.Need{Count: n}})
		st.Replicas = append(st.Replicas, fleet.Replica{Group: g, State: fleet.Pending, NoRoom: noRoom})
	}
	return st
}

func TestGrow(t *testing.T) {
	type counts = map[string]int
	for _, c := range []struct {
		name        string
		known, more int
		jobs        []fleet.Status
		most        int
		add, all    counts // nodes to add, and beside the plan
		left        string // in the only line
	}{
		{"nobody waits", 2, 0, nil, 4, counts{}, counts{}, ""},
		{"one waits", 2, 0, []fleet.Status{waiting("m", "chat", true, 4)}, 4, counts{"chat": 1}, counts{"chat": 1}, ""},
		{"two fit one node", 2, 0, []fleet.Status{waiting("m", "chat", true, 4), waiting("n", "chat", true, 4)}, 4, counts{"chat": 1}, counts{"chat": 1}, ""},
		{"three sizes", 2, 0, []fleet.Status{waiting("m", "chat", true, 2, 5, 4, 3, 2)}, 4, counts{"chat": 2}, counts{"chat": 2}, ""},
		{"what fits only apart", 2, 0, []fleet.Status{waiting("m", "chat", true, 5, 5, 5)}, 4, counts{"chat": 3}, counts{"chat": 3}, ""},
		{"beside what was added", 3, 1, []fleet.Status{waiting("m", "chat", true, 8)}, 4, counts{"chat": 1}, counts{"chat": 2}, ""},
		{"no GPU at all", 2, 0, []fleet.Status{waiting("m", "chat", true, 0, 0)}, 4, counts{"chat": 1}, counts{"chat": 1}, ""},
		{"a constraint is not met", 2, 0, []fleet.Status{waiting("m", "chat", false, 4)}, 4, counts{}, counts{}, ""},
		{"more than a node has", 2, 0, []fleet.Status{waiting("m", "chat", true, 16)}, 4, counts{}, counts{}, "m/a wants 16 GPUs on one node, and one of pool chat has 8"},
		{"no such pool", 2, 0, []fleet.Status{waiting("m", "gone", true, 1)}, 4, counts{}, counts{}, `m/a waits in pool "gone"`},
		{"one is on its way", 2, 1, []fleet.Status{waiting("m", "chat", true, 8)}, 4, counts{}, counts{"chat": 1}, "m/a wait for 1 nodes of pool chat that have not joined yet"},
		{"one is on its way and is not enough", 2, 1, []fleet.Status{waiting("m", "chat", true, 8, 8)}, 4, counts{"chat": 1}, counts{"chat": 2}, ""},
		{"up to the limit", 3, 1, []fleet.Status{waiting("m", "chat", true, 8, 8)}, 2, counts{"chat": 1}, counts{"chat": 2}, "pool chat is 2 nodes short and may have 1 more than the 1 it has"},
		{"at the limit", 4, 2, []fleet.Status{waiting("m", "chat", true, 8)}, 2, counts{}, counts{"chat": 2}, "pool chat is 1 nodes short and may have 0 more"},
		{"above the limit", 4, 2, []fleet.Status{waiting("m", "chat", true, 8)}, 1, counts{}, counts{"chat": 2}, "may have 0 more"},
		{"a pool that was not named", 2, 0, []fleet.Status{waiting("m", "infra", true, 0)}, 4, counts{}, counts{}, "pool infra is 1 nodes short and may have 0 more"},
	} {
		inv, u := chat(c.known, c.more)
		u.Jobs = c.jobs
		g := Grow(inv, u, counts{"chat": c.most})
		if !reflect.DeepEqual(g.Add, c.add) || !reflect.DeepEqual(g.More, c.all) || len(g.Why) != len(g.Add) {
			t.Errorf("%s: %+v", c.name, g)
		}
		if c.left == "" && len(g.Left) > 0 || c.left != "" && (len(g.Left) != 1 || !strings.Contains(g.Left[0], c.left)) {
			t.Errorf("%s: left %q, want %q", c.name, g.Left, c.left)
		}
	}
}

// Only what is short at every look for long enough gets nodes.
func TestPatience(t *testing.T) {
	p, at := Patience{}, time.Unix(0, 0)
	look := func(minutes int, short bool) int {
		inv, u := chat(2, 0)
		if short {
			u.Jobs = []fleet.Status{waiting("m", "chat", true, 8)}
		}
		g := p.Wait(Grow(inv, u, map[string]int{"chat": 4}), at.Add(time.Duration(minutes)*time.Minute), 10*time.Minute)
		if g.More["chat"] != g.Add["chat"] || len(g.Why) != len(g.Add) || short && g.Add["chat"] == 0 && len(g.Left) != 1 {
			t.Errorf("minute %d: %+v", minutes, g)
		}
		return g.Add["chat"]
	}
	for _, l := range []struct {
		minute int
		short  bool
		add    int
	}{{0, true, 0}, {9, true, 0}, {10, true, 1}, {11, false, 0}, {12, true, 0}, {21, true, 0}, {22, true, 1}} {
		if got := look(l.minute, l.short); got != l.add {
			t.Errorf("minute %d: %d nodes, want %d", l.minute, got, l.add)
		}
	}
}

// Somebody's unfinished change of the configuration is not applied along.
func TestOnlyGrows(t *testing.T) {
	adds := func(pool string) NodeChange { return NodeChange{Node: Node{Name: "n", Pool: pool}, Action: Added} }
	g := Growth{Add: map[string]int{"chat": 2}}
	for _, c := range []struct {
		name  string
		nodes []NodeChange
		want  string
	}{
		{"as wanted", []NodeChange{adds("chat"), adds("chat")}, ""},
		{"too few", []NodeChange{adds("chat")}, "pool chat: would get 1 nodes, and 2 are wanted"},
		{"none", nil, "pass the variable more_nodes on"},
		{"another pool", []NodeChange{adds("chat"), adds("chat"), adds("bulk")}, "pool bulk: would get 1 nodes, and 0 are wanted"},
		{"a change", []NodeChange{adds("chat"), adds("chat"), {Node: Node{Name: "old"}, Action: Changed}}, "old: would be changed"},
		{"a removal", []NodeChange{adds("chat"), adds("chat"), {Node: Node{Name: "old"}, Action: Removed}}, "old: would be removed"},
	} {
		r := OnlyGrows(&Summary{Nodes: c.nodes}, g)
		if c.want == "" && len(r) > 0 || c.want != "" && (len(r) != 1 || !strings.Contains(r[0].String(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, r, c.want)
		}
	}
}

func TestSetMore(t *testing.T) {
	w := &Workspace{dir: t.TempDir()}
	path := filepath.Join(w.dir, MoreFile)
	read := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(b)
	}
	undo, err := w.SetMore(map[string]int{"chat": 1})
	const one = "{\n  \"more_nodes\": {\n    \"chat\": 1\n  }\n}\n"
	if err != nil || read() != one {
		t.Fatalf("%q, %v", read(), err)
	}
	undo2, err := w.SetMore(map[string]int{"chat": 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := undo2(); err != nil || read() != one {
		t.Errorf("%q, %v", read(), err)
	}
	if err := undo(); err != nil || read() != "" {
		t.Errorf("%q, %v", read(), err)
	}
}
