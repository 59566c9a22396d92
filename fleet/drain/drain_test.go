package drain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"llmops/fleet"
)

// cluster is a fleet that does what it is told, one thing a step.
type cluster struct {
	nodes   []fleet.Node
	job     fleet.Status
	ready   map[string]bool
	breaks  bool // new replicas fail
	next    int
	cordons []bool
	counts  []int
}

func newCluster(nodes, replicas int) *cluster {
	c := &cluster{ready: map[string]bool{}}
	for i := range nodes {
		c.nodes = append(c.nodes, fleet.Node{ID: fmt.Sprint("n", i), Ready: true, Eligible: true})
	}
	c.job = fleet.Status{Rev: 1, Job: fleet.Job{Name: "j", Groups: []fleet.Group{{Name: "main", Count: replicas}}}}
	for i := range replicas {
		c.place(c.nodes[i%nodes].ID)
	}
	return c
}

func (c *cluster) place(node string) {
	r := fleet.Replica{ID: fmt.Sprint("r", c.next), Group: "main", Node: node, State: fleet.Healthy}
	if c.breaks {
		r.State, r.Starts, r.Reason = fleet.Failed, maxStarts, "no GPU"
	}
	c.next++
	c.job.Replicas = append(c.job.Replicas, r)
	c.ready[r.ID] = !c.breaks
}

func (c *cluster) do(t *testing.T, s State, a Action) {
	t.Helper()
	node := &c.nodes[slices.IndexFunc(c.nodes, func(n fleet.Node) bool { return n.ID == s.Node })]
	switch a.Kind {
	case Cordon, Allow:
		node.Eligible = a.Kind == Allow
		c.cordons = append(c.cordons, a.Kind == Cordon)
	case Scale:
		c.counts = append(c.counts, a.Count)
		c.job.Job.Groups[0].Count = a.Count
		for len(c.job.Replicas) < a.Count {
			i := slices.IndexFunc(c.nodes, func(n fleet.Node) bool { return n.Eligible })
			c.place(c.nodes[i].ID)
		}
		c.job.Replicas = c.job.Replicas[:min(a.Count, len(c.job.Replicas))]
	case Drain:
		elsewhere := 0
		for _, r := range c.job.Replicas {
			if r.Node != s.Node && r.State == fleet.Healthy {
				elsewhere++
			}
		}
		if len(s.Groups) > 0 && elsewhere < s.Groups[0].Count {
			t.Errorf("the node is told to go with %d replicas elsewhere of %d", elsewhere, s.Groups[0].Count)
		}
		node.Draining = true
		c.job.Replicas = slices.DeleteFunc(c.job.Replicas, func(r fleet.Replica) bool { return r.Node == s.Node })
	}
}

func (c *cluster) run(t *testing.T, node string) State {
	t.Helper()
	s := State{Node: node}
	for range 50 {
		var a Action
		s, a = Step(s, Seen{c.nodes, []fleet.Status{c.job}, c.ready})
		if s.Phase == Done || s.Phase == Refused && a.Kind != Allow {
			return s
		}
		c.do(t, s, a)
	}
	t.Fatalf("the drain does not end: %+v", s)
	return s
}

// Capacity first: the group grows elsewhere before the node goes, and is what it was
// afterwards.
func TestMakeBeforeBreak(t *testing.T) {
	for _, tt := range []struct{ nodes, replicas int }{{2, 1}, {2, 2}, {3, 4}, {2, 5}} {
		c := newCluster(tt.nodes, tt.replicas)
		s := c.run(t, "n0")
		lost := (tt.replicas + tt.nodes - 1) / tt.nodes
		if s.Phase != Done || len(c.job.Replicas) != tt.replicas || !slices.Equal(c.counts, []int{tt.replicas + lost, tt.replicas}) {
			t.Errorf("%+v: %+v, counts %v, %d replicas", tt, s, c.counts, len(c.job.Replicas))
		}
		for _, r := range c.job.Replicas {
			if r.Node == "n0" {
				t.Errorf("%+v: replica %s is still on the node", tt, r.ID)
			}
		}
	}
}

// A replica that has produced no token is no capacity.
func TestUnreadyReplicasAreNoCapacity(t *testing.T) {
	c := newCluster(2, 2)
	s, a := Step(State{Node: "n0"}, Seen{c.nodes, []fleet.Status{c.job}, c.ready})
	for a.Kind != Wait {
		c.do(t, s, a)
		clear(c.ready)
		s, a = Step(s, Seen{c.nodes, []fleet.Status{c.job}, c.ready})
	}
	if s.Phase != Waiting {
		t.Fatalf("without a token the drain is %s", s.Phase)
	}
	s = GiveUp(s, "too long")
	for s.Phase == Undoing {
		s, a = Step(s, Seen{c.nodes, []fleet.Status{c.job}, c.ready})
		c.do(t, s, a)
	}
	if s.Phase != Refused || s.Why != "too long" || c.job.Job.Groups[0].Count != 2 || !c.nodes[0].Eligible {
		t.Errorf("given up: %+v, %+v", s, c.job.Job.Groups)
	}
}

func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		node  string
		spoil func(*cluster)
		want  string
	}{
		"unknown":         {"n9", func(*cluster) {}, "not in the fleet"},
		"another drains":  {"n0", func(c *cluster) { c.nodes[1].Draining = true }, "one at a time"},
		"nobody else":     {"n0", func(c *cluster) { c.nodes[1].Ready = false }, "no other node"},
		"nobody eligible": {"n0", func(c *cluster) { c.nodes[1].Eligible = false }, "no other node"},
		"new ones break":  {"n0", func(c *cluster) { c.breaks = true }, "failed 3 times"},
	} {
		c := newCluster(2, 2)
		tt.spoil(c)
		s := c.run(t, tt.node)
		if s.Phase != Refused || !strings.Contains(s.Why, tt.want) {
			t.Errorf("%s: %+v, want %q", name, s, tt.want)
		}
		if c.job.Job.Groups[0].Count != 2 || !c.nodes[0].Eligible || c.nodes[0].Draining {
			t.Errorf("%s: not all was put back: %+v, %+v", name, c.job.Job.Groups, c.nodes[0])
		}
	}
}

// A node that holds nothing of ours goes at once.
func TestEmptyNode(t *testing.T) {
	c := newCluster(3, 1)
	s := c.run(t, "n2")
	if s.Phase != Done || len(c.counts) != 0 || !slices.Equal(c.cordons, []bool{true}) {
		t.Errorf("%+v, counts %v", s, c.counts)
	}
}
