package nomad

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// replicas are the allocations that live, or would if they could. gone says that the
// job is not registered any more: what runs is on its way out.
func replicas(allocs []*api.AllocationListStub, gone bool) []fleet.Replica {
	var out []fleet.Replica
	for _, a := range allocs {
		switch a.ClientStatus {
		case api.AllocClientStatusComplete, api.AllocClientStatusLost:
			continue
		case api.AllocClientStatusFailed:
			if a.NextAllocation != "" || gone || a.DesiredStatus != api.AllocDesiredStatusRun {
				continue // another has taken its place
			}
		}
		out = append(out, replica(a, gone))
	}
	slices.SortFunc(out, func(a, b fleet.Replica) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.ID, b.ID)) })
	return out
}

func replica(a *api.AllocationListStub, gone bool) fleet.Replica {
	r := fleet.Replica{ID: a.ID, Group: a.TaskGroup, Node: a.NodeName, Addr: address(a, "http"), Admin: address(a, "admin"), Since: time.Unix(0, a.ModifyTime).UTC(), Starts: starts(a)}
	r.Placed = time.Unix(0, a.CreateTime).UTC()
	r.Nonce = fmt.Sprintf("%s-%d", a.ID, r.Starts)
	healthy := a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && *a.DeploymentStatus.Healthy
	task, dead := state(a)
	if task != nil {
		r.Started = task.StartedAt
	}
	switch {
	case a.ClientStatus == api.AllocClientStatusUnknown:
		r.State, r.Reason = fleet.Unknown, "node "+a.NodeName+" is silent"
	case gone || a.DesiredStatus != api.AllocDesiredStatusRun:
		r.State = fleet.Draining
	case a.ClientStatus == api.AllocClientStatusFailed:
		r.State, r.Reason = fleet.Failed, why(before(a, task))
	case before(a, task) != task:
		w := before(a, task)
		r.State, r.Reason = fleet.Pending, "bringing its weights: "+why(w)
		if w.State == "dead" || w.State == "pending" && w.Restarts > 0 {
			r.State = fleet.Failed
		}
	case dead:
		r.State, r.Reason = fleet.Failed, why(task)
	case a.ClientStatus == api.AllocClientStatusRunning && healthy:
		r.State = fleet.Healthy
	case a.ClientStatus == api.AllocClientStatusRunning:
		r.State = fleet.Running
	default:
		r.State, r.Reason = fleet.Pending, why(before(a, task))
	}
	return r
}

// The tasks of our job files: what serves, and what brings its weights before.
const (
	taskMain    = "main"
	taskWeights = "weights"
)

// serving is the task that serves: ours by its name, of another's file the only one.
func serving(a *api.AllocationListStub) *api.TaskState {
	if t := a.TaskStates[taskMain]; t != nil {
		return t
	}
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		if name != taskWeights {
			return a.TaskStates[name]
		}
	}
	return nil
}

// state is the task that serves, and whether it has ended and waits to be started again.
func state(a *api.AllocationListStub) (*api.TaskState, bool) {
	t := serving(a)
	return t, t != nil && (t.State == "pending" && t.Restarts > 0 || t.State == "dead")
}

// before is what goes on until the task that serves is started: a task that brings the
// weights and has not ended well speaks for both.
func before(a *api.AllocationListStub, main *api.TaskState) *api.TaskState {
	if t := a.TaskStates[taskWeights]; t != nil && (t.State != "dead" || t.Failed) {
		return t
	}
	return main
}

func starts(a *api.AllocationListStub) int {
	n := 0
	if a.RescheduleTracker != nil {
		n += len(a.RescheduleTracker.Events)
	}
	t := serving(a)
	if w := before(a, t); w != t {
		t = w // what it fails at counts as a start of both
	}
	if t != nil {
		if !t.StartedAt.IsZero() {
			n++
		}
		n += int(t.Restarts)
	}
	return n
}

// why is what the last events say that were not good news.
func why(t *api.TaskState) string {
	if t == nil {
		return ""
	}
	for _, e := range slices.Backward(t.Events) {
		switch e.Type {
		case api.TaskTerminated, api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation, api.TaskDownloadingArtifacts, api.TaskArtifactDownloadFailed, api.TaskSiblingFailed:
			if e.DisplayMessage != "" {
				return e.DisplayMessage
			}
		}
	}
	if n := len(t.Events); n > 0 {
		return t.Events[n-1].DisplayMessage
	}
	return ""
}

func address(a *api.AllocationListStub, label string) string {
	if a.AllocatedResources == nil {
		return ""
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		if p.Label == label {
			return fmt.Sprintf("%s:%d", p.HostIP, p.Value)
		}
	}
	return ""
}

// reasons say why a group cannot be placed, in the words of whoever can change it.
func reasons(g fleet.Group, m *api.AllocationMetric) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, "group "+g.Name+": "+fmt.Sprintf(format, args...)) }
	for _, c := range sorted(m.ConstraintFiltered) {
		if c == "missing devices" {
			say("%d of %d nodes have no %s", m.ConstraintFiltered[c], m.NodesEvaluated, need(g))
			continue
		}
		say("%d of %d nodes do not meet the constraint %s", m.ConstraintFiltered[c], m.NodesEvaluated, c)
	}
	for _, c := range sorted(m.ClassFiltered) {
		say("%d of %d nodes are of class %s", m.ClassFiltered[c], m.NodesEvaluated, c)
	}
	for _, d := range sorted(m.DimensionExhausted) {
		if strings.HasPrefix(d, "devices:") {
			say("%d of %d nodes have not enough free: %s (%s): wait for some, or stop or scale down what holds them", m.DimensionExhausted[d], m.NodesEvaluated, need(g), d)
			continue
		}
		say("%d of %d nodes have not enough of: %s", m.DimensionExhausted[d], m.NodesEvaluated, d)
	}
	for _, q := range m.QuotaExhausted {
		say("the quota is used up: %s", q)
	}
	if m.NodesEvaluated == 0 {
		say("no node is in pool %s, ready and eligible", cmp.Or(m.NodePool, "default"))
	}
	if len(out) == 0 {
		say("no node has room")
	}
	return out
}

// sentence joins those that say anything.
func sentence(reasons []string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}

// need is the GPUs that a replica takes, as nvidia-smi and the job file name them.
func need(g fleet.Group) string {
	kind := "GPU"
	if g.GPU.Kind != "" {
		kind = fmt.Sprintf("GPU of the kind %q", g.GPU.Kind)
	}
	return fmt.Sprintf("%d × %s", max(g.GPU.Count, 1), kind)
}

func sorted(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// changes are the lines of a diff that mean something.
func changes(d *api.JobDiff) []string {
	if d == nil || d.Type == "None" {
		return nil
	}
	var out []string
	field := func(where string, f *api.FieldDiff) {
		if f.Type == "None" || strings.HasPrefix(f.Name, "Meta["+metaJob) {
			return
		}
		out = append(out, fmt.Sprintf("%s%s: %q to %q", where, f.Name, f.Old, f.New))
	}
	if d.Type == "Added" {
		return []string{"register " + d.ID}
	}
	for _, f := range d.Fields {
		field("", f)
	}
	var object func(where string, o *api.ObjectDiff)
	object = func(where string, o *api.ObjectDiff) {
		if o.Type == "None" {
			return
		}
		for _, f := range o.Fields {
			field(where+o.Name+".", f)
		}
		for _, inner := range o.Objects {
			object(where+o.Name+".", inner)
		}
	}
	for _, o := range d.Objects {
		object("", o)
	}
	for _, g := range d.TaskGroups {
		if g.Type == "None" {
			continue
		}
		before := len(out)
		where := "group " + g.Name + ": "
		for _, f := range g.Fields {
			field(where, f)
		}
		for _, o := range g.Objects {
			object(where, o)
		}
		for _, t := range g.Tasks {
			for _, f := range t.Fields {
				field(where, f)
			}
			for _, o := range t.Objects {
				object(where, o)
			}
		}
		if len(out) == before {
			out = append(out, where+strings.ToLower(g.Type))
		}
	}
	if len(out) == 0 {
		out = append(out, strings.ToLower(d.Type)+" "+d.ID)
	}
	return out
}
