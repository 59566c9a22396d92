package recorded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// alloc is a replica and, while it runs, its process.
type alloc struct {
	*api.AllocationListStub
	group  *api.TaskGroup
	job    *api.Job
	judged bool // healthy or not, in the deployment that is under way
	check  string
	filled bool          // without a process
	asked  bool          // to end
	ends   chan struct{} // closed when it is to end
	grace  time.Duration
	out    output
}

// output is what the task has written to standard output and error.
type output struct {
	mu           sync.Mutex // guards both
	stdout, errs bytes.Buffer
}

type writer struct {
	o    *output
	errs bool
}

func (w writer) Write(b []byte) (int, error) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.errs {
		return w.o.errs.Write(b)
	}
	return w.o.stdout.Write(b)
}

func event(kind, message string, details map[string]string) *api.TaskEvent {
	return &api.TaskEvent{Type: kind, Time: time.Now().UnixNano(), DisplayMessage: message, Details: details}
}

// newAlloc has a place on a node and ports, and has not begun.
func (s *Server) newAlloc(j *api.Job, g *api.TaskGroup, n *api.Node, number int) *alloc {
	i := s.touch("allocs")
	version := uint64(0)
	if j.Version != nil {
		version = *j.Version
	}
	a := &alloc{group: g, job: j, ends: make(chan struct{}), check: "pending", AllocationListStub: &api.AllocationListStub{
		ID: uuid(), EvalID: uuid(), Name: fmt.Sprintf("%s.%s[%d]", *j.ID, *g.Name, number), Namespace: "default", NodeID: n.ID, NodeName: n.Name, JobID: *j.ID, JobType: "service",
		JobVersion: version, TaskGroup: *g.Name, DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending, CreateIndex: i, ModifyIndex: i,
		CreateTime: time.Now().UnixNano(), ModifyTime: time.Now().UnixNano(),
		TaskStates:         map[string]*api.TaskState{},
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"main": {Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 256}}}},
	}}
	port := 20000 + number
	for _, network := range g.Networks {
		for _, p := range network.ReservedPorts {
			a.AllocatedResources.Shared.Ports = append(a.AllocatedResources.Shared.Ports, api.PortMapping{Label: p.Label, Value: p.Value, HostIP: "127.0.0.1"})
		}
		for _, p := range network.DynamicPorts {
			if free, err := freePort(); err == nil {
				port = free
			}
			a.AllocatedResources.Shared.Ports = append(a.AllocatedResources.Shared.Ports, api.PortMapping{Label: p.Label, Value: port, HostIP: "127.0.0.1"})
		}
	}
	if len(g.Networks) == 0 { // what Fill makes
		a.AllocatedResources.Shared.Ports = []api.PortMapping{{Label: "http", Value: port, HostIP: n.Meta["ip"]}}
	}
	s.allocs[a.ID] = a
	return a
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// note changes a replica, whose next event says so. The caller holds mu.
func (s *Server) noteAlloc(a *alloc) {
	a.ModifyIndex, a.ModifyTime = s.touch("allocs"), time.Now().UnixNano()
	s.tell(api.TopicAllocation, "AllocationUpdated", a.ID, []string{a.JobID, ""}, a.info())
}

// settle ends the deployment when all replicas are healthy.
func (s *Server) settle(id string) {
	j := s.jobs[id]
	if j == nil || !j.fresh || s.evals[id] != nil {
		return
	}
	for _, g := range j.TaskGroups {
		live := s.live(id, *g.Name)
		for _, a := range live {
			if a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil || !*a.DeploymentStatus.Healthy {
				return
			}
		}
		if len(live) < *g.Count {
			return
		}
	}
	j.fresh = false
	if d := s.deployments[id]; d != nil {
		d.Status, d.StatusDescription, d.ModifyIndex = "successful", "Deployment completed successfully", s.touch("deployment")
	}
}

// end asks the process to, and kills it after its grace.
func (a *alloc) end(grace time.Duration) {
	if !a.asked {
		a.asked, a.grace = true, grace
		close(a.ends)
	}
}

func (s *Server) stop(a *alloc) {
	a.DesiredStatus, a.DesiredDescription = api.AllocDesiredStatusStop, "alloc not needed due to job update"
	if a.filled {
		a.ClientStatus = api.AllocClientStatusComplete
	}
	if a.filled || a.ClientStatus == api.AllocClientStatusFailed {
		s.noteAlloc(a)
		return
	}
	a.end(*a.group.Tasks[0].KillTimeout)
	s.noteAlloc(a)
}

// start runs the task until it is to end, or fails too often.
func (s *Server) start(a *alloc) {
	a.TaskStates["main"] = &api.TaskState{State: "pending", Events: []*api.TaskEvent{event("Received", "Task received by client", nil), event("Task Setup", "Building Task Directory", map[string]string{"message": "Building Task Directory"})}}
	s.noteAlloc(a)
	s.runs.Go(func() { s.run(a) })
}

func (s *Server) run(a *alloc) {
	policy := a.group.RestartPolicy
	for {
		ok := s.once(a)
		s.mu.Lock()
		task := a.TaskStates["main"]
		switch {
		case a.asked:
			task.State, task.FinishedAt, a.ClientStatus, a.ClientDescription = "dead", time.Now(), api.AllocClientStatusComplete, "All tasks have completed"
			task.Events = append(task.Events, event("Killed", "Task successfully killed", nil))
		case !ok && int(task.Restarts) >= *policy.Attempts:
			task.State, task.Failed, task.FinishedAt = "dead", true, time.Now()
			task.Events = append(task.Events, event("Not Restarting", "Exceeded allowed attempts", map[string]string{"fails_task": "true"}))
			a.ClientStatus, a.ClientDescription = api.AllocClientStatusFailed, "Failed tasks"
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: ptr(false), Timestamp: time.Now()}
		default:
			task.State, task.LastRestart = "pending", time.Now()
			task.Restarts++
			task.Events = append(task.Events, event("Restarting", fmt.Sprintf("Task restarting in %v", *policy.Delay), nil))
		}
		s.noteAlloc(a)
		over := task.State == "dead"
		if over {
			s.drained(s.nodeOf(a.NodeID))
			s.reconcileAll()
		}
		s.mu.Unlock()
		if over {
			if a.ClientStatus == api.AllocClientStatusFailed {
				s.reschedule(a)
			}
			return
		}
		select {
		case <-time.After(*policy.Delay):
		case <-a.ends:
		}
	}
}

// reschedule puts another in the place of one that failed, after the policy's delay.
func (s *Server) reschedule(a *alloc) {
	select {
	case <-time.After(*a.group.ReschedulePolicy.Delay):
	case <-a.ends:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[a.JobID]
	if s.closed || j == nil || *j.Stop || a.DesiredStatus != api.AllocDesiredStatusRun {
		return
	}
	node, _ := s.choose(j.Job, a.group, nil)
	if node == nil {
		return
	}
	next := s.newAlloc(j.Job, a.group, node, 0)
	tracker := &api.RescheduleTracker{}
	if a.RescheduleTracker != nil {
		tracker.Events = append(tracker.Events, a.RescheduleTracker.Events...)
	}
	tracker.Events = append(tracker.Events, &api.RescheduleEvent{RescheduleTime: time.Now().UnixNano(), PrevAllocID: a.ID, PrevNodeID: a.NodeID})
	next.RescheduleTracker, a.NextAllocation = tracker, next.ID
	s.noteAlloc(a)
	s.start(next)
}

// once runs the process to its end and tells whether that was well.
func (s *Server) once(a *alloc) bool {
	task := a.group.Tasks[0]
	argv, env := a.command(task)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = writer{&a.out, false}, writer{&a.out, true}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	err := cmd.Start()
	s.mu.Lock()
	st := a.TaskStates["main"]
	if err != nil {
		st.Events = append(st.Events, event("Driver Failure", fmt.Sprintf("failed to launch command with executor: rpc error: code = Unknown desc = binary %q could not be found", argv[0]), map[string]string{"driver_error": err.Error()}))
		s.mu.Unlock()
		return false
	}
	st.State, st.StartedAt, a.ClientStatus, a.ClientDescription = "running", time.Now(), api.AllocClientStatusRunning, "Tasks are running"
	st.Events = append(st.Events, event("Started", "Task started by client", nil))
	s.noteAlloc(a)
	s.mu.Unlock()

	dead := make(chan error, 1)
	go func() { dead <- cmd.Wait() }()
	probe := time.NewTicker(100 * time.Millisecond)
	defer probe.Stop()
	ends, kill := a.ends, (<-chan time.Time)(nil)
	for {
		select {
		case <-ends:
			ends = nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
			kill = time.After(a.grace)
		case <-kill:
			_ = cmd.Process.Kill()
		case <-probe.C:
			s.probe(a)
		case err := <-dead:
			code := 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			}
			s.mu.Lock()
			st.Events = append(st.Events, event("Terminated", fmt.Sprintf("Exit Code: %d", code), map[string]string{"exit_code": fmt.Sprint(code)}))
			a.check = "pending"
			s.mu.Unlock()
			return false // a service that ends has failed, whatever it says
		}
	}
}

// probe asks the replica as its check does. Without a check it is healthy by running.
func (s *Server) probe(a *alloc) {
	checks := a.group.Services[0].Checks
	result := "success"
	if len(checks) > 0 {
		client := http.Client{Timeout: checks[0].Timeout}
		res, err := client.Get("http://" + a.port("http") + checks[0].Path)
		if err != nil || res.StatusCode >= 300 {
			result = "failure"
		}
		if err == nil {
			_ = res.Body.Close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.check = result
	if result == "success" && !a.judged && a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning {
		a.judged = true
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: ptr(true), Timestamp: time.Now(), ModifyIndex: s.index}
		s.noteAlloc(a)
		s.settle(a.JobID)
	}
}

func (a *alloc) port(label string) string {
	for _, p := range a.AllocatedResources.Shared.Ports {
		if p.Label == label {
			return fmt.Sprintf("%s:%d", p.HostIP, p.Value)
		}
	}
	return ""
}

func (s *Server) allocList(r *http.Request) (reply, error) {
	out := []*api.AllocationListStub{}
	for _, id := range sortedKeys(s.allocs) {
		a := s.allocs[id]
		ok, err := chosen(r.URL.Query().Get("filter"), map[string]string{"JobID": a.JobID})
		if err != nil {
			return reply{}, err
		}
		if !ok {
			continue
		}
		stub := *a.AllocationListStub
		if r.URL.Query().Get("resources") != "true" {
			stub.AllocatedResources = nil
		}
		out = append(out, &stub)
	}
	return reply{body: out, table: "allocs"}, nil
}

func (s *Server) find(id string) (*alloc, error) {
	if len(id) != 36 {
		return nil, refusef(http.StatusBadRequest, "failed to read allocation: UUID must be 36 characters")
	}
	a := s.allocs[id]
	if a == nil {
		return nil, refusef(http.StatusNotFound, "alloc not found")
	}
	return a, nil
}

func (a *alloc) info() *api.Allocation {
	return &api.Allocation{
		ID: a.ID, EvalID: a.EvalID, Name: a.Name, Namespace: a.Namespace, NodeID: a.NodeID, NodeName: a.NodeName, JobID: a.JobID, TaskGroup: a.TaskGroup, AllocatedResources: a.AllocatedResources,
		DesiredStatus: a.DesiredStatus, DesiredDescription: a.DesiredDescription, ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, TaskStates: a.TaskStates,
		DeploymentStatus: a.DeploymentStatus, NextAllocation: a.NextAllocation, RescheduleTracker: a.RescheduleTracker, CreateIndex: a.CreateIndex, ModifyIndex: a.ModifyIndex, CreateTime: a.CreateTime, ModifyTime: a.ModifyTime,
	}
}

func (s *Server) allocInfo(r *http.Request) (reply, error) {
	a, err := s.find(r.PathValue("id"))
	if err != nil {
		return reply{table: "allocs"}, err
	}
	out := a.info()
	out.Job = a.job
	return reply{body: out, table: "allocs"}, nil
}

func (s *Server) checks(r *http.Request) (reply, error) {
	a, err := s.find(r.PathValue("id"))
	if err != nil {
		return reply{}, err
	}
	out := api.AllocCheckStatuses{}
	if a.group.Services != nil {
		for _, c := range a.group.Services[0].Checks {
			out["check"] = api.AllocCheckStatus{ID: "check", Check: c.Name, Group: a.Name, Mode: "healthiness", Service: a.group.Services[0].Name, Status: a.check, StatusCode: 200, Timestamp: time.Now().Unix()}
		}
	}
	return reply{body: out, plain: true}, nil
}

// logs sends what has been written so far and, to those who follow, what comes.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	a, err := s.find(r.PathValue("id"))
	s.mu.Unlock()
	if err != nil {
		fail(w, err)
		return
	}
	sent := 0
	more := time.NewTicker(50 * time.Millisecond)
	defer more.Stop()
	for {
		a.out.mu.Lock()
		from := &a.out.stdout
		if r.URL.Query().Get("type") == "stderr" {
			from = &a.out.errs
		}
		data := bytes.Clone(from.Bytes()[sent:])
		a.out.mu.Unlock()
		if len(data) > 0 {
			sent += len(data)
			if json.NewEncoder(w).Encode(api.StreamFrame{Offset: int64(sent), Data: data, File: "alloc/logs/main." + r.URL.Query().Get("type") + ".0"}) != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Query().Get("follow") != "true" {
			return
		}
		select {
		case <-more.C:
		case <-r.Context().Done():
			return
		}
	}
}
