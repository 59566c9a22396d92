package terraform

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// Node is a GPU node as the contract records it. Hourly is its price in US dollars, nil
// when nobody has said it.
type Node struct {
	Name       string   `json:"name"`
	Pool       string   `json:"pool"`
	Class      string   `json:"class,omitempty"`
	Zone       string   `json:"zone"`
	Rack       string   `json:"rack,omitempty"`
	GPU        string   `json:"gpu"`
	GPUs       int      `json:"gpus"`
	NodeClass  string   `json:"node_class,omitempty"`
	Spot       bool     `json:"spot,omitempty"`
	Residency  string   `json:"residency,omitempty"`
	Compliance string   `json:"compliance,omitempty"`
	Hourly     *float64 `json:"hourly"`
}

// What becomes of a node.
const (
	Added    = "added"
	Changed  = "changed" // the same machine, described or set up otherwise
	Replaced = "replaced"
	Removed  = "removed"
)

// NodeChange is what a plan does to one node.
type NodeChange struct {
	Node   Node   `json:"node"` // as it will be; as it was, when it is removed
	Was    *Node  `json:"was,omitempty"`
	Action string `json:"action"`
	// Through are the addresses of the node's resources that the plan deletes.
	Through []string `json:"through,omitempty"`
}

// Change is what a plan does to anything else, or what happened outside of Terraform.
type Change struct {
	Address string `json:"address"`
	Action  string `json:"action"` // create, update, replace, delete, forget
	Server  string `json:"server,omitempty"`
}

// Sum is a number of nodes, their GPUs, and their price in US dollars an hour, nil when
// that of any of them is unknown.
type Sum struct {
	Nodes  int      `json:"nodes"`
	GPUs   int      `json:"gpus"`
	Hourly *float64 `json:"hourly"`
}

// PoolChange is a pool before and after a plan.
type PoolChange struct {
	Pool   string `json:"pool"`
	Before Sum    `json:"before"`
	After  Sum    `json:"after"`
}

// Summary is what a plan means.
type Summary struct {
	Nodes    []NodeChange `json:"nodes"`
	Pools    []PoolChange `json:"pools"` // all pools, also those that stay
	Before   Sum          `json:"before"`
	After    Sum          `json:"after"`
	Servers  int          `json:"servers"` // how many there are before
	Other    []Change     `json:"other"`
	Drift    []Change     `json:"drift"`
	Warnings []string     `json:"warnings"`
	// Partial tells that the plan leaves out part of the configuration.
	Partial bool `json:"partial,omitempty"`
}

// Empty tells that applying the plan would change nothing.
func (s *Summary) Empty() bool { return len(s.Nodes)+len(s.Other) == 0 }

// record finds the contract's record in one side of a resource's change.
func record(rc *tfjson.ResourceChange, side any) (*Node, error) {
	m, ok := side.(map[string]any)
	if !ok || rc.Type != "terraform_data" || rc.Name != "node" {
		return nil, nil
	}
	n, err := decodeNode(m["input"])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", rc.Address, err)
	}
	if key, ok := rc.Index.(string); !ok || key != n.Name {
		return nil, fmt.Errorf("reading %s: it records node %q, and its key must be the node's name", rc.Address, n.Name)
	}
	return n, nil
}

func decodeNode(v any) (*Node, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	n := &Node{}
	if err := json.Unmarshal(b, n); err != nil {
		return nil, err
	}
	if n.Name == "" || n.Pool == "" || n.GPUs < 0 {
		return nil, fmt.Errorf("%s is no record of a node", b)
	}
	return n, nil
}

var keyInAddress = regexp.MustCompile(`\["((?:[^"\\]|\\.)*)"\]`)

// owner is the name among names that the resource's address has as a key, the innermost.
func owner[T any](address string, names map[string]T) string {
	found := ""
	for _, m := range keyInAddress.FindAllStringSubmatch(address, -1) {
		key, err := strconv.Unquote(`"` + m[1] + `"`)
		if err != nil {
			key = m[1]
		}
		if _, ok := names[key]; ok {
			found = key
		}
	}
	return found
}

func action(a tfjson.Actions) string {
	switch {
	case a.Replace():
		return "replace"
	case a.Delete():
		return "delete"
	case a.Create():
		return "create"
	case a.Update():
		return "update"
	case a.NoOp(), a.Read(), len(a) == 0:
		return ""
	}
	return string(a[0])
}

func isServer(rc *tfjson.ResourceChange) bool {
	return rc.Type == "terraform_data" && rc.Name == "server"
}

// Summarise says what a plan means. It is an error when a record of a node cannot be read:
// what is not understood is not shown as nothing.
func Summarise(p *tfjson.Plan) (*Summary, error) {
	before, after, servers := map[string]*Node{}, map[string]*Node{}, map[string]bool{}
	for _, rc := range p.ResourceChanges {
		if rc.Change == nil {
			return nil, fmt.Errorf("reading %s: the plan has no change for it", rc.Address)
		}
		was, err := record(rc, rc.Change.Before)
		if err != nil {
			return nil, err
		}
		is, err := record(rc, rc.Change.After)
		if err != nil {
			return nil, err
		}
		if was != nil {
			before[was.Name] = was
		}
		if is != nil {
			after[is.Name] = is
		}
		if key, ok := rc.Index.(string); ok && isServer(rc) {
			servers[key] = servers[key] || rc.Change.Before != nil
		}
	}
	s := &Summary{Nodes: []NodeChange{}, Other: []Change{}, Drift: []Change{}, Warnings: warnings(p), Partial: p.Complete != nil && !*p.Complete}
	for _, had := range servers {
		if had {
			s.Servers++
		}
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	through, touched := map[string][]string{}, map[string]bool{}
	for _, rc := range p.ResourceChanges {
		act := action(rc.Change.Actions)
		if act == "" || rc.Mode == tfjson.DataResourceMode {
			continue
		}
		name := owner(rc.Address, all)
		switch {
		case name != "":
			touched[name] = true
			if act == "delete" || act == "replace" {
				through[name] = append(through[name], rc.Address)
			}
		case isServer(rc) && act != "delete" && act != "replace":
		default:
			s.Other = append(s.Other, Change{Address: rc.Address, Action: act, Server: owner(rc.Address, servers)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, is := before[name], after[name]
		c := NodeChange{Was: was, Through: through[name]}
		switch {
		case was == nil:
			c.Node, c.Action = *is, Added
		case is == nil:
			c.Node, c.Was, c.Action = *was, nil, Removed
		case len(through[name]) > 0:
			c.Node, c.Action = *is, Replaced
		case touched[name]:
			c.Node, c.Action = *is, Changed
		default:
			continue
		}
		s.Nodes = append(s.Nodes, c)
	}
	s.Pools, s.Before, s.After = pools(before, after)
	for _, rc := range p.ResourceDrift {
		if rc.Change == nil {
			continue
		}
		if act := action(rc.Change.Actions); act != "" {
			s.Drift = append(s.Drift, Change{Address: rc.Address, Action: act})
		}
	}
	return s, nil
}

func pools(before, after map[string]*Node) (out []PoolChange, was, is Sum) {
	by := map[string]*[2][]*Node{}
	for side, nodes := range []map[string]*Node{before, after} {
		for _, n := range nodes {
			if by[n.Pool] == nil {
				by[n.Pool] = &[2][]*Node{}
			}
			by[n.Pool][side] = append(by[n.Pool][side], n)
		}
	}
	out = []PoolChange{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, PoolChange{Pool: name, Before: sum(by[name][0]), After: sum(by[name][1])})
	}
	return out, sum(slices.Collect(maps.Values(before))), sum(slices.Collect(maps.Values(after)))
}

func sum(nodes []*Node) Sum {
	total := 0.0
	s := Sum{Nodes: len(nodes), Hourly: &total}
	for _, n := range nodes {
		s.GPUs += n.GPUs
		if n.Hourly == nil {
			s.Hourly = nil
		} else {
			total += *n.Hourly
		}
	}
	return s
}

// warnings are the checks of the configuration that do not hold.
func warnings(p *tfjson.Plan) []string {
	out := []string{}
	for _, c := range p.Checks {
		for _, i := range c.Instances {
			for _, problem := range i.Problems {
				out = append(out, strings.TrimSpace(problem.Message))
			}
			if len(i.Problems) == 0 && (i.Status == tfjson.CheckStatusFail || i.Status == tfjson.CheckStatusError) {
				out = append(out, fmt.Sprintf("%s does not hold", i.Address.ToDisplay))
			}
		}
	}
	return out
}
