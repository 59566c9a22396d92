package recorded

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/hashicorp/nomad/api"
)

func (s *Server) jobList(r *http.Request) (reply, error) {
	out := []*api.JobListStub{}
	for _, name := range sortedKeys(s.jobs) {
		j := s.jobs[name]
		if !strings.HasPrefix(name, r.URL.Query().Get("prefix")) {
			continue
		}
		stub := &api.JobListStub{
			ID: name, Name: *j.Name, Namespace: *j.Namespace, Datacenters: []string{"*"}, Type: *j.Type, Priority: 50, Stop: *j.Stop, Status: *j.Status,
			CreateIndex: *j.CreateIndex, ModifyIndex: *j.ModifyIndex, JobModifyIndex: *j.JobModifyIndex, SubmitTime: *j.SubmitTime,
			JobSummary: &api.JobSummary{JobID: name, Namespace: *j.Namespace, Summary: map[string]api.TaskGroupSummary{}, Children: &api.JobChildrenSummary{}},
		}
		if r.URL.Query().Get("meta") == "true" {
			stub.Meta = j.Meta
		}
		out = append(out, stub)
	}
	return reply{body: out, table: "jobs"}, nil
}

func (s *Server) jobInfo(r *http.Request) (reply, error) {
	j := s.jobs[r.PathValue("id")]
	if j == nil {
		return reply{table: "jobs"}, refusef(http.StatusNotFound, "job not found")
	}
	return reply{body: j.Job, table: "jobs"}, nil
}

const enforcing = "Enforcing job modify index"

func (s *Server) register(r *http.Request) (reply, error) {
	var req api.JobRegisterRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	id := *req.Job.ID
	if ns := r.URL.Query().Get("namespace"); ns != "" && ns != "default" && !contains(s.o.Namespaces, ns) {
		return reply{}, refusef(http.StatusInternalServerError, "1 error occurred:\n\t* job %q is in nonexistent namespace %q", id, ns)
	}
	now := s.jobs[id]
	if req.EnforceIndex {
		switch {
		case now == nil && req.JobModifyIndex != 0:
			return reply{}, refusef(http.StatusInternalServerError, "%s %d: job does not exist", enforcing, req.JobModifyIndex)
		case now != nil && req.JobModifyIndex == 0:
			return reply{}, refusef(http.StatusInternalServerError, "%s 0: job already exists", enforcing)
		case now != nil && *now.JobModifyIndex != req.JobModifyIndex:
			return reply{}, refusef(http.StatusInternalServerError, "%s %d: job exists with conflicting job modify index: %d", enforcing, req.JobModifyIndex, *now.JobModifyIndex)
		}
	}
	version := uint64(0)
	if now != nil {
		req.Job.CreateIndex, version = now.CreateIndex, *now.Version
		if req.PreserveCounts {
			for _, g := range req.Job.TaskGroups {
				if old := now.LookupTaskGroup(*g.Name); old != nil {
					g.Count = old.Count
				}
			}
		}
		if changed(now.Job, req.Job) {
			version++
		}
	}
	req.Job.Version = &version
	req.Job.Namespace = ptr("default")
	s.stamp(req.Job)
	s.jobs[id] = &job{Job: req.Job, fresh: true}
	eval := s.deploy(id, "job-register")
	return reply{body: &api.JobRegisterResponse{EvalID: eval.ID, EvalCreateIndex: eval.CreateIndex, JobModifyIndex: *req.Job.JobModifyIndex}}, nil
}

// deploy begins a deployment and finds places.
func (s *Server) deploy(id, trigger string) *api.Evaluation {
	j := s.jobs[id]
	s.tell(api.TopicJob, "JobRegistered", id, nil, j.Job)
	i := s.touch("deployment")
	s.deployments[id] = &api.Deployment{
		ID: uuid(), Namespace: "default", JobID: id, JobVersion: *j.Version, JobModifyIndex: *j.JobModifyIndex, JobSpecModifyIndex: *j.JobModifyIndex, JobCreateIndex: *j.CreateIndex,
		Status: "running", StatusDescription: "Deployment is running", CreateIndex: i, ModifyIndex: i,
	}
	eval := s.newEval(id, trigger, "complete")
	s.tellEval(id, eval)
	s.reconcile(id)
	return eval
}

// changed tells whether replicas must be replaced: a different task, or other meta,
// which is part of its environment.
func changed(was, is *api.Job) bool {
	for _, g := range is.TaskGroups {
		old := was.LookupTaskGroup(*g.Name)
		if old == nil || !reflect.DeepEqual(clone(old.Tasks[0]), clone(g.Tasks[0])) || !reflect.DeepEqual(clone(old).Networks, clone(g).Networks) {
			return true
		}
	}
	return !reflect.DeepEqual(was.Meta, is.Meta)
}

func (s *Server) scale(r *http.Request) (reply, error) {
	var req api.ScalingRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	j := s.jobs[r.PathValue("id")]
	if j == nil || *j.Stop {
		return reply{}, refusef(http.StatusNotFound, "job %q not found", r.PathValue("id"))
	}
	if j.fresh {
		return reply{}, refusef(http.StatusBadRequest, "job scaling blocked due to active deployment")
	}
	g := j.LookupTaskGroup(req.Target["Group"])
	if g == nil {
		return reply{}, refusef(http.StatusBadRequest, "task group %q specified for scaling does not exist in job", req.Target["Group"])
	}
	if req.JobModifyIndex > 0 && req.JobModifyIndex != *j.JobModifyIndex {
		return reply{}, refusef(http.StatusInternalServerError, "%s %d: job exists with conflicting job modify index: %d", enforcing, req.JobModifyIndex, *j.JobModifyIndex)
	}
	more := int(*req.Count) > *g.Count
	g.Count = ptr(int(*req.Count))
	s.stamp(j.Job)
	if j.fresh = more; more {
		// The replicas that are there are judged anew, although nothing happens to them.
		for _, a := range s.live(*j.ID, *g.Name) {
			a.DeploymentStatus, a.judged = nil, false
			a.ModifyIndex = s.touch("allocs")
		}
	}
	eval := s.deploy(*j.ID, "job-scaling")
	return reply{body: &api.JobRegisterResponse{EvalID: eval.ID, EvalCreateIndex: eval.CreateIndex, JobModifyIndex: *j.JobModifyIndex}}, nil
}

func (s *Server) deregister(r *http.Request) (reply, error) {
	id := r.PathValue("id")
	j := s.jobs[id]
	if j == nil {
		return reply{body: &api.JobDeregisterResponse{}}, nil
	}
	s.stamp(j.Job)
	j.Stop, j.fresh = ptr(true), false
	j.Status = ptr("dead")
	delete(s.evals, id)
	s.tell(api.TopicJob, "JobDeregistered", id, nil, j.Job)
	eval := s.newEval(id, "job-deregister", "complete")
	s.tellEval(id, eval)
	s.reconcile(id)
	if r.URL.Query().Get("purge") == "true" {
		delete(s.jobs, id)
	}
	return reply{body: &api.JobDeregisterResponse{EvalID: eval.ID, EvalCreateIndex: eval.CreateIndex, JobModifyIndex: *j.JobModifyIndex}}, nil
}

func (s *Server) plan(r *http.Request) (reply, error) {
	var req api.JobPlanRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	id := *req.Job.ID
	out := &api.JobPlanResponse{Diff: s.diff(req.Job), FailedTGAllocs: map[string]*api.AllocationMetric{}}
	used := map[string]int{}
	for _, g := range req.Job.TaskGroups {
		for range *g.Count - len(s.live(id, *g.Name)) {
			if n, why := s.choose(req.Job, g, used); n != nil {
				used[n.ID]++
			} else {
				add(out.FailedTGAllocs, *g.Name, why)
			}
		}
	}
	if now := s.jobs[id]; now != nil {
		out.JobModifyIndex = *now.JobModifyIndex
	}
	return reply{body: out}, nil
}

// add is one more replica that finds no place.
func add(all map[string]*api.AllocationMetric, group string, why *api.AllocationMetric) {
	if was := all[group]; was != nil {
		was.CoalescedFailures++
		return
	}
	all[group] = why
}

// diff tells of counts and environments; of all else only that it differs.
func (s *Server) diff(is *api.Job) *api.JobDiff {
	out := &api.JobDiff{Type: "None", ID: *is.ID}
	now := s.jobs[*is.ID]
	if now == nil || *now.Stop {
		out.Type = "Added"
		return out
	}
	field := func(name string, was, is any) []*api.FieldDiff {
		if reflect.DeepEqual(was, is) {
			return nil
		}
		out.Type = "Edited"
		return []*api.FieldDiff{{Type: "Edited", Name: name, Old: fmt.Sprint(was), New: fmt.Sprint(is)}}
	}
	for _, k := range sortedKeys(is.Meta) {
		out.Fields = append(out.Fields, field("Meta["+k+"]", now.Meta[k], is.Meta[k])...)
	}
	for _, g := range is.TaskGroups {
		d := &api.TaskGroupDiff{Type: "None", Name: *g.Name}
		old := now.LookupTaskGroup(*g.Name)
		if old == nil {
			out.Type, d.Type = "Edited", "Added"
			out.TaskGroups = append(out.TaskGroups, d)
			continue
		}
		d.Fields = field("Count", *old.Count, *g.Count)
		was, is := clone(old.Tasks[0]), clone(g.Tasks[0])
		task := &api.TaskDiff{Type: "Edited", Name: is.Name}
		for _, k := range sortedKeys(is.Env) {
			if _, ok := was.Env[k]; !ok {
				was.Env[k] = ""
			}
			task.Fields = append(task.Fields, field("Env["+k+"]", was.Env[k], is.Env[k])...)
		}
		task.Fields = append(task.Fields, field("Config", was.Config, is.Config)...)
		if len(d.Fields)+len(task.Fields) > 0 {
			d.Type, d.Tasks = "Edited", []*api.TaskDiff{task}
		}
		out.TaskGroups = append(out.TaskGroups, d)
	}
	return out
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func (s *Server) newEval(job, trigger, status string) *api.Evaluation {
	i := s.touch("evals")
	e := &api.Evaluation{ID: uuid(), Priority: 50, Type: "service", TriggeredBy: trigger, Namespace: "default", JobID: job, Status: status, CreateIndex: i, ModifyIndex: i}
	if j := s.jobs[job]; j != nil {
		e.JobModifyIndex = *j.JobModifyIndex
	}
	return e
}

func (s *Server) tellEval(job string, e *api.Evaluation) {
	s.tell(api.TopicEvaluation, "EvaluationUpdated", e.ID, []string{job, ""}, e)
}

func (s *Server) evalList(r *http.Request) (reply, error) {
	out := []*api.Evaluation{}
	for _, name := range sortedKeys(s.evals) {
		e := s.evals[name]
		ok, err := chosen(r.URL.Query().Get("filter"), map[string]string{"Status": e.Status, "JobID": e.JobID})
		if err != nil {
			return reply{}, err
		}
		if ok {
			out = append(out, e)
		}
	}
	return reply{body: out, table: "evals"}, nil
}

func (s *Server) deploymentList(r *http.Request) (reply, error) {
	out := []*api.Deployment{}
	for _, name := range sortedKeys(s.deployments) {
		d := s.deployments[name]
		ok, err := chosen(r.URL.Query().Get("filter"), map[string]string{"Status": d.Status, "JobID": d.JobID})
		if err != nil {
			return reply{}, err
		}
		if ok {
			out = append(out, d)
		}
	}
	return reply{body: out, table: "deployment"}, nil
}
