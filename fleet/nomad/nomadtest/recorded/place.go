package recorded

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// reconcile makes the replicas of a job as many as there shall be, where they may be.
func (s *Server) reconcile(id string) {
	j := s.jobs[id]
	if s.closed {
		return
	}
	stopped := j == nil || *j.Stop
	failed := map[string]*api.AllocationMetric{}
	for _, name := range s.groups(id) {
		var g *api.TaskGroup
		if !stopped {
			g = j.LookupTaskGroup(name)
		}
		live := s.live(id, name)
		if g == nil {
			for _, a := range live {
				s.stop(a)
			}
			continue
		}
		live = slices.DeleteFunc(live, func(a *alloc) bool {
			leaves := a.JobVersion != *j.Version || s.nodeOf(a.NodeID).Drain
			if leaves {
				s.stop(a)
			}
			return leaves
		})
		for len(live) > *g.Count {
			s.stop(live[len(live)-1])
			live = live[:len(live)-1]
		}
		for n := len(live); n < *g.Count; n++ {
			node, why := s.choose(j.Job, g, nil)
			if node == nil {
				add(failed, name, why)
				continue
			}
			s.start(s.newAlloc(j.Job, g, node, n))
		}
	}
	if len(failed) == 0 {
		delete(s.evals, id)
		s.settle(id)
		return
	}
	e := s.newEval(id, "queued-allocs", "blocked")
	e.StatusDescription, e.FailedTGAllocs = "created to place remaining allocations", failed
	s.evals[id] = e
	s.tellEval(id, e)
}

// reconcileAll is for when room may have come, or gone.
func (s *Server) reconcileAll() {
	for _, id := range sortedKeys(s.jobs) {
		s.reconcile(id)
	}
}

// groups are those of the job and those of which there are replicas.
func (s *Server) groups(id string) []string {
	set := map[string]bool{}
	if j := s.jobs[id]; j != nil {
		for _, g := range j.TaskGroups {
			set[*g.Name] = true
		}
	}
	for _, a := range s.allocs {
		if a.JobID == id {
			set[a.TaskGroup] = true
		}
	}
	return sortedKeys(set)
}

// live are the replicas that shall run, the oldest first.
func (s *Server) live(id, group string) []*alloc {
	var out []*alloc
	for _, a := range s.allocs {
		if a.JobID == id && a.TaskGroup == group && a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == "" && a.ClientStatus != api.AllocClientStatusComplete {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *alloc) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// choose finds the node with the fewest replicas, of those that will do; used are some
// that are not there yet, by node. Without one it says why.
func (s *Server) choose(j *api.Job, g *api.TaskGroup, used map[string]int) (*api.Node, *api.AllocationMetric) {
	why := &api.AllocationMetric{NodePool: *j.NodePool, NodesAvailable: map[string]int{"dc1": 0}, ConstraintFiltered: map[string]int{}, DimensionExhausted: map[string]int{}}
	var best *api.Node
	fewest := 0
	for _, n := range s.nodes {
		if n.NodePool != *j.NodePool || n.Status != api.NodeStatusReady || n.SchedulingEligibility != api.NodeSchedulingEligible {
			continue
		}
		why.NodesEvaluated++
		why.NodesInPool++
		why.NodesAvailable["dc1"]++
		held, taken := used[n.ID], uint64(0)
		for _, a := range s.allocs {
			if a.NodeID == n.ID && (a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending) {
				held++
				taken += gpus(a.group)
			}
		}
		taken += uint64(used[n.ID]) * gpus(g)
		switch constraint := unmet(j, n); {
		case constraint != "":
			why.NodesFiltered++
			why.ConstraintFiltered[constraint]++
		case gpus(g) > 0 && matching(g, n) == 0:
			why.NodesFiltered++
			why.ConstraintFiltered["missing devices"]++
		case gpus(g) > matching(g, n)-min(taken, matching(g, n)):
			why.NodesExhausted++
			why.DimensionExhausted["devices: no devices match request"]++
		case best == nil || held < fewest:
			best, fewest = n, held
		}
	}
	return best, why
}

// unmet is the constraint of the job that the node does not meet.
func unmet(j *api.Job, n *api.Node) string {
	for _, c := range j.Constraints {
		key := strings.TrimSuffix(strings.TrimPrefix(c.LTarget, "${meta."), "}")
		if n.Meta[key] != c.RTarget {
			return c.LTarget + " " + c.Operand + " " + c.RTarget
		}
	}
	return ""
}

func gpus(g *api.TaskGroup) uint64 {
	n := uint64(0)
	if r := g.Tasks[0].Resources; r != nil {
		for _, d := range r.Devices {
			n += *d.Count
		}
	}
	return n
}

// matching are the GPUs of the node that the group could use, were they free.
func matching(g *api.TaskGroup, n *api.Node) uint64 {
	if gpus(g) == 0 {
		return 0
	}
	count := uint64(0)
	for _, d := range n.NodeResources.Devices {
		fits := true
		for _, c := range g.Tasks[0].Resources.Devices[0].Constraints {
			ok, err := regexp.MatchString(c.RTarget, d.Name)
			fits = fits && err == nil && ok
		}
		if fits {
			count += uint64(len(d.Instances))
		}
	}
	return count
}

func (s *Server) nodeOf(id string) *api.Node {
	for _, n := range s.nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

func (s *Server) nodeList(r *http.Request) (reply, error) {
	out := []*api.NodeListStub{}
	for _, n := range s.nodes {
		stub := &api.NodeListStub{
			Address: "127.0.0.1", ID: n.ID, Datacenter: n.Datacenter, Name: n.Name, NodePool: n.NodePool, Version: s.o.Version, Drain: n.Drain,
			SchedulingEligibility: n.SchedulingEligibility, Status: n.Status, Drivers: n.Drivers, LastDrain: n.LastDrain, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
		}
		if r.URL.Query().Get("resources") == "true" {
			stub.NodeResources, stub.ReservedResources = n.NodeResources, &api.NodeReservedResources{}
		}
		out = append(out, stub)
	}
	return reply{body: out, table: "nodes"}, nil
}

func (s *Server) nodeInfo(r *http.Request) (reply, error) {
	n := s.nodeOf(r.PathValue("id"))
	if n == nil {
		return reply{table: "nodes"}, refusef(http.StatusNotFound, "node not found")
	}
	return reply{body: n, table: "nodes"}, nil
}

func (s *Server) eligibility(r *http.Request) (reply, error) {
	var req api.NodeUpdateEligibilityRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	n := s.nodeOf(r.PathValue("id"))
	if n == nil {
		return reply{}, refusef(http.StatusNotFound, "node not found")
	}
	n.SchedulingEligibility = req.Eligibility
	n.ModifyIndex = s.touch("nodes")
	s.reconcileAll()
	return reply{body: &api.NodeEligibilityUpdateResponse{NodeModifyIndex: n.ModifyIndex}}, nil
}

// drain moves all replicas of a node at once; it is over when they have ended.
func (s *Server) drain(r *http.Request) (reply, error) {
	var req api.NodeUpdateDrainRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	n := s.nodeOf(r.PathValue("id"))
	if n == nil {
		return reply{}, refusef(http.StatusNotFound, "node not found")
	}
	now := time.Now()
	if n.Drain = req.DrainSpec != nil; n.Drain {
		n.SchedulingEligibility = api.NodeSchedulingIneligible
		n.LastDrain = &api.DrainMetadata{StartedAt: now, UpdatedAt: now, Status: api.DrainStatusDraining, Meta: req.Meta}
	} else if req.MarkEligible {
		n.SchedulingEligibility = api.NodeSchedulingEligible
	}
	n.ModifyIndex = s.touch("nodes")
	s.reconcileAll()
	s.drained(n)
	return reply{body: &api.NodeDrainUpdateResponse{NodeModifyIndex: n.ModifyIndex}}, nil
}

func (s *Server) drained(n *api.Node) {
	if !n.Drain {
		return
	}
	for _, a := range s.allocs {
		if a.NodeID == n.ID && a.ClientStatus == api.AllocClientStatusRunning {
			return
		}
	}
	n.Drain = false
	n.LastDrain.Status, n.LastDrain.UpdatedAt = api.DrainStatusComplete, time.Now()
	n.ModifyIndex = s.touch("nodes")
}
