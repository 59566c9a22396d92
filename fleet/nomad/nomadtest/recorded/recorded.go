// Package recorded answers as a Nomad agent does, to exactly the requests that
// fleet/nomad makes, so that its tests also run where there is no nomad binary. It is
// for tests alone.
//
// What it says has the shape of what a real agent says: replies are the API's own
// types, job files are the real parser's work, recorded, and a test compares both
// wherever there is a binary. It is no scheduler: a replica goes to the node with the
// fewest, all replicas of a changed job are replaced together, and a group is healthy
// as soon as its checks answer. Replicas are real processes of this machine.
//
// A [Server] is safe for concurrent use.
package recorded

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is a client of the cluster. Without GPUs it has none.
type Node struct {
	Name, Zone, Rack, Pool string
	GPU                    string // their model
	GPUs                   int
	Attributes             map[string]string // beside those that all have
}

// Options are what a cluster is like.
type Options struct {
	Nodes      []Node   // none: one that is named test
	Version    string   // empty: 2.0.6
	Namespaces []string // beside default
}

// Server is one agent, server and clients in one.
type Server struct {
	http *httptest.Server
	o    Options
	runs sync.WaitGroup // the goroutines of tasks

	mu          sync.Mutex // guards what follows
	closed      bool
	index       uint64
	tables      map[string]uint64 // index of each table's last change
	changed     chan struct{}     // closed at the next change
	cut         chan struct{}     // closed to end the event streams
	vars        map[string]*api.Variable
	jobs        map[string]*job
	allocs      map[string]*alloc
	nodes       []*api.Node
	evals       map[string]*api.Evaluation // those that are blocked, by job
	deployments map[string]*api.Deployment // the latest, by job
	events      []record
	refused     []refusal
	asked       map[string]int // requests by method and first part of the path
}

// job is a registration. fresh says that its deployment is under way.
type job struct {
	*api.Job
	fresh bool
}

// record is an event as it goes over the wire.
type record struct {
	index uint64
	topic string
	text  []byte
}

type refusal struct {
	prefix, text string
	code         int
}

// Start begins to listen on a free port of this machine.
func Start(o Options) *Server {
	if o.Version == "" {
		o.Version = "2.0.6"
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []Node{{Name: "test"}}
	}
	s := &Server{
		o: o, index: 1, tables: map[string]uint64{}, changed: make(chan struct{}), cut: make(chan struct{}),
		vars: map[string]*api.Variable{}, jobs: map[string]*job{}, allocs: map[string]*alloc{},
		evals: map[string]*api.Evaluation{}, deployments: map[string]*api.Deployment{}, asked: map[string]int{},
	}
	s.http = httptest.NewServer(s.handler())
	for _, n := range o.Nodes {
		s.nodes = append(s.nodes, s.node(n))
	}
	return s
}

// Address is where it answers, as http://127.0.0.1:port.
func (s *Server) Address() string { return s.http.URL }

// Client asks it.
func (s *Server) Client() (*api.Client, error) {
	return api.NewClient(&api.Config{Address: s.http.URL})
}

// Close ends all tasks and the server.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, a := range s.allocs {
		a.end(0)
	}
	close(s.cut)
	s.cut = make(chan struct{})
	s.touch("")
	s.mu.Unlock()
	s.runs.Wait()
	s.http.CloseClientConnections()
	s.http.Close()
}

// Refuse answers requests whose method and path begin with prefix, as "GET /v1/job/",
// or with a space behind it are just that, with an error, until Allow.
func (s *Server) Refuse(prefix string, code int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, refusal{prefix, text, code})
}

// Allow ends all refusals.
func (s *Server) Allow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = nil
}

// CutStreams ends the event streams that are open and forgets the events so far, as a
// server does that its readers are too slow for.
func (s *Server) CutStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = nil
	close(s.cut)
	s.cut = make(chan struct{})
}

// Asked is how many requests there have been since the last call, by method and path,
// the latter without what it names.
func (s *Server) Asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = map[string]int{}
	return out
}

// FailDeployment is what happens when a job's progress deadline passes.
func (s *Server) FailDeployment(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.deployments[job]; d != nil {
		d.Status, d.StatusDescription = "failed", "Failed due to progress deadline"
		d.ModifyIndex = s.touch("deployment")
		s.jobs[job].fresh = false
		s.tellEval(job, s.newEval(job, "deployment-watcher", "complete"))
	}
}

// Fill registers jobs with so many replicas each that run nowhere and are healthy. meta
// is that of job i.
func (s *Server) Fill(jobs, replicas int, meta func(i int) (name string, meta map[string]string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range jobs {
		name, m := meta(i)
		group := &api.TaskGroup{Name: ptr("main"), Count: ptr(replicas), Tasks: []*api.Task{{Name: "main", Driver: "raw_exec"}}}
		j := &api.Job{ID: &name, Name: &name, Namespace: ptr("default"), NodePool: ptr("default"), Version: ptr(uint64(0)), Type: ptr("service"), Meta: m, TaskGroups: []*api.TaskGroup{group}}
		s.stamp(j)
		s.jobs[name] = &job{Job: j}
		for n := range replicas {
			node := s.nodes[(i*replicas+n)%len(s.nodes)]
			a := s.newAlloc(j, group, node, n)
			a.ClientStatus, a.filled = api.AllocClientStatusRunning, true
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: ptr(true), Timestamp: time.Now()}
			a.TaskStates = map[string]*api.TaskState{"main": {State: "running", StartedAt: time.Now(), Events: []*api.TaskEvent{
				event("Received", "Task received by client", nil), event("Task Setup", "Building Task Directory", nil), event("Started", "Task started by client", nil),
			}}}
		}
	}
}

// touch is one more change of a table. The caller holds mu.
func (s *Server) touch(table string) uint64 {
	s.index++
	s.tables[table] = s.index
	close(s.changed)
	s.changed = make(chan struct{})
	return s.index
}

// tell puts an event into the stream. The caller holds mu.
func (s *Server) tell(topic api.Topic, kind, key string, filter []string, payload any) {
	text, err := json.Marshal(api.Events{Index: s.index, Events: []api.Event{{
		Topic: topic, Type: kind, Key: key, FilterKeys: filter, Index: s.index, Payload: map[string]any{string(topic): payload},
	}}})
	if err != nil {
		panic("recorded: " + err.Error())
	}
	s.events = append(s.events, record{s.index, string(topic), text})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) node(n Node) *api.Node {
	meta := map[string]string{}
	for k, v := range map[string]string{"zone": n.Zone, "rack": n.Rack} {
		if v != "" {
			meta[k] = v
		}
	}
	out := &api.Node{
		ID: uuid(), Name: n.Name, Datacenter: "dc1", HTTPAddr: s.http.Listener.Addr().String(), Meta: meta, NodePool: n.Pool, Status: api.NodeStatusReady,
		SchedulingEligibility: api.NodeSchedulingEligible, Attributes: map[string]string{"nomad.version": s.o.Version, "kernel.name": "linux"},
		Drivers:       map[string]*api.DriverInfo{"raw_exec": {Attributes: map[string]string{"driver.raw_exec": "true"}, Detected: true, Healthy: true, HealthDescription: "Healthy", UpdateTime: time.Now()}},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 4890, TotalCpuCores: 2}, Memory: api.NodeMemoryResources{MemoryMB: 24105}, Disk: api.NodeDiskResources{DiskMB: 258019}},
	}
	maps.Copy(out.Attributes, n.Attributes)
	if out.NodePool == "" {
		out.NodePool = "default"
	}
	if n.GPUs > 0 {
		d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: n.GPU, Attributes: map[string]*api.Attribute{"memory": {IntVal: ptr(int64(81559)), Unit: "MiB"}}}
		for range n.GPUs {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: "GPU-" + uuid(), Healthy: true, Locality: &api.NodeDeviceLocality{}})
		}
		out.NodeResources.Devices = append(out.NodeResources.Devices, d)
	}
	out.CreateIndex = s.touch("nodes")
	out.ModifyIndex = out.CreateIndex
	return out
}

// stamp gives a job the indexes of a registration.
func (s *Server) stamp(j *api.Job) {
	i := s.touch("jobs")
	j.ModifyIndex, j.JobModifyIndex = &i, ptr(i)
	if j.CreateIndex == nil {
		j.CreateIndex = ptr(i)
	}
	j.SubmitTime, j.Stop, j.Status = ptr(time.Now().UnixNano()), ptr(false), ptr("running")
}

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func ptr[T any](v T) *T { return &v }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
