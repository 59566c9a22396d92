package terraform

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"llmops/fleet"
)

// Pool is what a pool was asked for, and what it costs.
type Pool struct {
	Class     string   `json:"class"`
	GPU       string   `json:"gpu"`
	Needed    int      `json:"needed"`
	Spare     int      `json:"spare"`
	Survive   string   `json:"survive"`
	Spot      bool     `json:"spot"`
	Residency string   `json:"residency"`
	NodeClass string   `json:"node_class"`
	Nodes     int      `json:"nodes"`
	GPUs      int      `json:"gpus"`
	Hourly    *float64 `json:"hourly"`
}

// Inventory is what the last apply left behind.
type Inventory struct {
	Nodes  map[string]Node `json:"nodes"`
	Pools  map[string]Pool `json:"pools"`
	Totals Sum             `json:"totals"`
}

// Inventory reads the configuration's outputs nodes, pools and totals. Before the first
// apply it is empty.
func (w *Workspace) Inventory(ctx context.Context) (*Inventory, error) {
	out, err := w.tf.Output(ctx)
	if err != nil {
		return nil, explain("reading the outputs of "+w.dir, err)
	}
	values := map[string]json.RawMessage{}
	for k, v := range out {
		values[k] = v.Value
	}
	inv, err := decodeInventory(values)
	if err != nil {
		return nil, fmt.Errorf("reading the outputs of %s: %w", w.dir, err)
	}
	return inv, nil
}

func decodeInventory(values map[string]json.RawMessage) (*Inventory, error) {
	inv := &Inventory{Nodes: map[string]Node{}, Pools: map[string]Pool{}}
	if len(values) == 0 {
		return inv, nil
	}
	for name, into := range map[string]any{"nodes": &inv.Nodes, "pools": &inv.Pools, "totals": &inv.Totals} {
		v, ok := values[name]
		if !ok {
			return nil, fmt.Errorf("the configuration has no output %q; the contract module's must be passed on", name)
		}
		if err := json.Unmarshal(v, into); err != nil {
			return nil, fmt.Errorf("output %q: %w", name, err)
		}
	}
	for name, n := range inv.Nodes {
		if n.Name != name || n.Pool == "" || n.GPUs < 0 {
			return nil, fmt.Errorf("output \"nodes\": %q is no record of a node", name)
		}
	}
	return inv, nil
}

// What a node of the inventory is to the fleet.
const (
	Ready    = "ready"
	Draining = "draining"
	Drained  = "drained" // takes no work and has none
	Down     = "down"
	Unknown  = "unknown" // to the fleet
	Short    = "short"   // of GPUs
	Stray    = "stray"   // in the fleet, and not in the inventory
	Misplace = "misplaced"
)

// Beside is one node in both views.
type Beside struct {
	Node     Node   `json:"node"`
	State    string `json:"state"`
	Found    string `json:"found,omitempty"` // what differs
	Replicas int    `json:"replicas"`
}

// PoolBeside is one pool in both views. Ready are its nodes that can take work.
type PoolBeside struct {
	Name string `json:"name"`
	Pool Pool   `json:"pool"`
	// Ready nodes can take work; Enough tells that they are as many as the load needs.
	Ready  int  `json:"ready"`
	Enough bool `json:"enough"`
}

// Comparison is the inventory beside what the fleet says.
type Comparison struct {
	Pools  []PoolBeside `json:"pools"`
	Nodes  []Beside     `json:"nodes"`
	Totals Sum          `json:"totals"`
}

// Compare holds the inventory beside a fleet. A nil use leaves every node unknown.
func Compare(inv *Inventory, u *Use) *Comparison {
	if u == nil {
		u = &Use{}
	}
	c := &Comparison{Pools: []PoolBeside{}, Nodes: []Beside{}, Totals: inv.Totals}
	ready := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(inv.Nodes)) {
		b := Beside{Node: inv.Nodes[name], State: Unknown, Replicas: len(u.replicas(name))}
		if n, ok := u.node(name); ok {
			b.State, b.Found = standing(b.Node, n, b.Replicas)
		}
		if b.State == Ready {
			ready[b.Node.Pool]++
		}
		c.Nodes = append(c.Nodes, b)
	}
	for _, n := range u.Nodes {
		if _, ok := inv.Nodes[n.ID]; !ok {
			c.Nodes = append(c.Nodes, Beside{Node: Node{Name: n.ID, Pool: n.Pool, Zone: n.Zone, Rack: n.Rack, GPUs: len(n.GPUs)}, State: Stray, Replicas: len(u.replicas(n.ID))})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inv.Pools)) {
		p := inv.Pools[name]
		c.Pools = append(c.Pools, PoolBeside{Name: name, Pool: p, Ready: ready[name], Enough: ready[name] >= p.Needed})
	}
	return c
}

func standing(want Node, n fleet.Node, replicas int) (state, found string) {
	switch {
	case !n.Ready:
		return Down, n.Reason
	case n.Draining || !n.Eligible && replicas > 0:
		return Draining, n.Reason
	case !n.Eligible:
		return Drained, n.Reason
	case n.Pool != want.Pool || n.Zone != "" && n.Zone != want.Zone: // not every scheduler tells the zone
		return Misplace, fmt.Sprintf("is in pool %s, zone %s", none(n.Pool), none(n.Zone))
	case len(n.GPUs) < want.GPUs:
		return Short, fmt.Sprintf("has %d of %d GPUs", len(n.GPUs), want.GPUs)
	}
	return Ready, ""
}
