package terraform

import (
	"strings"
	"testing"

	"llmops/fleet"
)

func TestGuard(t *testing.T) {
	const name = "prod-chat-az2-02"
	node := func(eligible, draining bool) []fleet.Node {
		return []fleet.Node{{ID: name, Pool: "chat", Ready: true, Eligible: eligible, Draining: draining}}
	}
	on := func(st fleet.State) []fleet.Status {
		return []fleet.Status{{
			Pool: "chat", Job: fleet.Job{Name: "freight", Pool: "interactive", Groups: []fleet.Group{{Count: 1}}},
			Replicas: []fleet.Replica{{ID: "r1", Node: name, State: st}},
		}}
	}
	removes := &Summary{
		Servers: 3,
		Nodes:   []NodeChange{{Node: Node{Name: name, Pool: "chat"}, Action: Removed}},
		Pools:   []PoolChange{{Pool: "chat", Before: Sum{Nodes: 4}, After: Sum{Nodes: 3}}},
	}
	replaces := &Summary{Nodes: []NodeChange{{Node: Node{Name: name}, Action: Replaced}}}
	destroys := &Summary{
		Nodes: removes.Nodes,
		Pools: []PoolChange{{Pool: "chat", Before: Sum{Nodes: 1}}},
	}
	beside := func(c ...Change) *Summary { return &Summary{Servers: 3, Other: c} }
	network := Change{Address: "aws_vpc.cluster", Action: "delete"}
	server := func(n string) Change {
		return Change{Address: `aws_instance.server["` + n + `"]`, Action: "replace", Server: n}
	}
	drift := &Summary{Drift: []Change{{Address: "aws_vpc.cluster", Action: "update"}}}

	for _, c := range []struct {
		name   string
		s      *Summary
		u      *Use
		permit Permit
		want   string // in the only refusal; empty: none
	}{
		{"drained", removes, &Use{Nodes: node(false, false)}, Permit{}, ""},
		{"drained, with what ended there", removes, &Use{Nodes: node(false, false), Jobs: on(fleet.Stopped)}, Permit{}, ""},
		{"nobody asked", removes, nil, Permit{LetGo: []string{name}}, "no fleet was asked"},
		{"takes work", removes, &Use{Nodes: node(true, false)}, Permit{}, "still takes work; llmops fleet drain " + name},
		{"takes work, let go", removes, &Use{Nodes: node(true, false)}, Permit{LetGo: []string{name}}, "still takes work"},
		{"drains", removes, &Use{Nodes: node(false, true)}, Permit{}, "while it drains"},
		{"healthy replica", removes, &Use{Nodes: node(false, false), Jobs: on(fleet.Healthy)}, Permit{}, "holds 1 replicas (r1)"},
		{"pending replica", removes, &Use{Nodes: node(false, false), Jobs: on(fleet.Pending)}, Permit{}, "holds 1 replicas"},
		{"draining replica, let go", removes, &Use{Nodes: node(false, true), Jobs: on(fleet.Draining)}, Permit{LetGo: []string{name}}, "holds 1 replicas"},
		{"not known", removes, &Use{}, Permit{}, "the fleet does not know it"},
		{"not known, let go", removes, &Use{}, Permit{LetGo: []string{name}}, ""},
		{"not known, with a replica, let go", removes, &Use{Jobs: on(fleet.Running)}, Permit{LetGo: []string{name}}, "holds 1 replicas"},
		{"replaced and takes work", replaces, &Use{Nodes: node(true, false)}, Permit{}, "would be replaced"},
		{"last node of a live pool", destroys, &Use{Nodes: node(false, false), Jobs: on(fleet.Failed)}, Permit{}, "would lose its last node, and is live: freight"},
		{"last node of an idle pool", destroys, &Use{Nodes: node(false, false)}, Permit{}, ""},
		{"added", &Summary{Nodes: []NodeChange{{Node: Node{Name: "n"}, Action: Added}}}, nil, Permit{}, ""},
		{"changed", &Summary{Nodes: []NodeChange{{Node: Node{Name: name}, Action: Changed}}}, nil, Permit{}, ""},
		{"network", beside(network), &Use{}, Permit{}, "belongs to no one node"},
		{"network, let go", beside(network), &Use{}, Permit{LetGo: []string{"aws_vpc.cluster"}}, ""},
		{"another thing let go", beside(network), &Use{}, Permit{LetGo: []string{"aws_subnet.a"}}, "belongs to no one node"},
		{"one server", beside(server("s0")), &Use{}, Permit{}, ""},
		{"two servers", beside(server("s0"), server("s1")), &Use{}, Permit{}, "2 of 3 would go at once"},
		{"drift", drift, &Use{}, Permit{}, "was updated outside of Terraform"},
		{"drift accepted", drift, &Use{}, Permit{Drift: true}, ""},
	} {
		got := Guard(c.s, c.u, c.permit)
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: refused: %v", c.name, got)
		case c.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), c.want)):
			t.Errorf("%s: %v, want one with %q", c.name, got, c.want)
		}
	}
}

func TestGuardOnARecordedPlan(t *testing.T) {
	u := &Use{Jobs: []fleet.Status{{Pool: "chat", Job: fleet.Job{Name: "freight", Groups: []fleet.Group{{Count: 2}}}}}}
	for _, n := range []string{"prod-chat-az1-01", "prod-chat-az1-02", "prod-chat-az2-01", "prod-chat-az2-02"} {
		u.Nodes = append(u.Nodes, fleet.Node{ID: n, Ready: true, Eligible: true})
	}
	// Each node, the pool, and the zone's network.
	if got := Guard(summary(t, "destroy"), u, Permit{}); len(got) != 6 {
		t.Errorf("destroy: %v", got)
	}
	if got := Guard(summary(t, "grow"), u, Permit{}); len(got) != 0 {
		t.Errorf("grow: %v", got)
	}
}

func TestCompare(t *testing.T) {
	inv := &Inventory{Nodes: map[string]Node{}, Pools: map[string]Pool{"chat": {Needed: 2}}}
	u := &Use{Jobs: []fleet.Status{{Replicas: []fleet.Replica{{ID: "r", Node: "draining", State: fleet.Draining}}}}}
	gpu := []fleet.GPU{{}, {}}
	for name, n := range map[string]fleet.Node{
		Ready:    {Ready: true, Eligible: true, Pool: "chat", Zone: "az1", GPUs: gpu},
		Down:     {Pool: "chat", Zone: "az1", GPUs: gpu, Reason: "missed heartbeats"},
		Draining: {Ready: true, Pool: "chat", Zone: "az1", GPUs: gpu},
		Drained:  {Ready: true, Pool: "chat", Zone: "az1", GPUs: gpu, Reason: "xid 79"},
		Short:    {Ready: true, Eligible: true, Pool: "chat", Zone: "az1", GPUs: gpu[:1]},
		Misplace: {Ready: true, Eligible: true, Pool: "default", Zone: "az1", GPUs: gpu},
		Unknown:  {},
		Stray:    {Ready: true, Pool: "other"},
	} {
		n.ID = name
		if name != Stray {
			inv.Nodes[name] = Node{Name: name, Pool: "chat", Zone: "az1", GPUs: 2}
		}
		if name != Unknown {
			u.Nodes = append(u.Nodes, n)
		}
	}
	c := Compare(inv, u)
	if len(c.Nodes) != 8 || c.Pools[0].Ready != 1 || c.Pools[0].Enough {
		t.Fatalf("%+v", c)
	}
	for _, b := range c.Nodes {
		if b.State != b.Node.Name {
			t.Errorf("%s is %s %s", b.Node.Name, b.State, b.Found)
		}
	}
}
