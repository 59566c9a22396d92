// Package fleet says where models run: jobs made of groups of replicas, the
// nodes that hold them, and the two stores in which everything else is
// written down.
//
// A [Scheduler] turns a [Job] into [Replica]s and reports what became of
// them; it knows processes, devices and HTTP checks, and nothing of models or
// APIs. A [Store] holds small documents under compare-and-set, and [Blobs]
// hold everything large by digest. Those are the only places where llmops
// keeps state, so that any machine with access to them can take over from any
// other.
//
// Each interface has a conformance suite in fleettest; the implementation for
// one machine is fleet/local. Values of this package are plain data and may
// be copied. Implementations are safe for concurrent use.
package fleet

import (
	"context"
	"errors"
	"io"
	"time"
)

// MaxBody is the largest document body in bytes. It keeps a document within
// what a Nomad variable can hold.
const MaxBody = 60 << 10

var (
	// ErrNotFound reports a document, blob, job or replica that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrConflict reports that a compare-and-set lost: the document is no
	// longer at the revision that the caller had read.
	ErrConflict = errors.New("changed by somebody else")
)

// Doc is one document: a name, the revision of its last change and a body of
// UTF-8 text. A nil Body in a watch means that the document was deleted.
type Doc struct {
	Name string
	Rev  uint64
	Body []byte
}

// Store holds documents of at most [MaxBody] bytes under compare-and-set.
//
// Revisions grow with every change of any document and are never used again.
type Store interface {
	// Get returns the document, or an error that is ErrNotFound.
	Get(ctx context.Context, name string) (Doc, error)
	// List returns the documents whose names begin with prefix, ordered by
	// name and without bodies.
	List(ctx context.Context, prefix string) ([]Doc, error)
	// Put writes body if the document is still at revision ifRev, or does not
	// exist when ifRev is 0, and returns the new revision. Otherwise the error
	// is ErrConflict.
	Put(ctx context.Context, name string, body []byte, ifRev uint64) (uint64, error)
	// Delete removes the document if it is still at revision ifRev.
	Delete(ctx context.Context, name string, ifRev uint64) error
	// Watch calls fn from the calling goroutine, first with each document
	// under prefix, then with the latest state of each that changes. Revisions
	// in between may be missed. It returns fn's error, or the context's.
	Watch(ctx context.Context, prefix string, fn func(Doc) error) error
}

// Blobs holds immutable byte strings under their digest, "sha256:" and 64
// hexadecimal digits.
type Blobs interface {
	// Put stores what r yields and returns its digest and size in bytes.
	// Nothing is visible under the digest until all of it is on disk.
	Put(ctx context.Context, r io.Reader) (digest string, size int64, err error)
	// Open returns the blob's bytes. The caller closes it.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
	// Has tells whether the blob is there.
	Has(ctx context.Context, digest string) (bool, error)
}

// Scheduler places jobs. Implementations are safe for concurrent use.
type Scheduler interface {
	// Plan tells what Apply would change, and why the job does not fit.
	Plan(ctx context.Context, j Job) (Plan, error)
	// Apply registers the job if it is still at revision ifRev (0: not
	// registered) and returns its new revision. Counts of groups that are
	// already known are kept.
	Apply(ctx context.Context, j Job, ifRev uint64) (uint64, error)
	// Scale changes the count of one group.
	Scale(ctx context.Context, job, group string, n int, ifRev uint64) (uint64, error)
	// Stop removes the job; its replicas are asked to drain within their
	// grace, then killed. Stopping a job that is not there is no error.
	Stop(ctx context.Context, job string) error
	// Status reads one job as it stands. A job that is not registered has
	// revision 0; its replicas may still be draining.
	Status(ctx context.Context, job string) (Status, error)
	// All reads every job whose name begins with prefix, ordered by name, and those
	// that are gone and of which replicas still drain.
	All(ctx context.Context, prefix string) ([]Status, error)
	// Watch calls fn from the calling goroutine with the status of each job
	// whose name begins with prefix, at first and after each change.
	Watch(ctx context.Context, prefix string, fn func(Status) error) error
	// Nodes lists the machines.
	Nodes(ctx context.Context) ([]Node, error)
	// Drain moves replicas off a node and keeps new ones away; a deadline of
	// 0 ends the drain.
	Drain(ctx context.Context, node, reason string, deadline time.Duration) error
	// Logs returns the replica's output; with follow it goes on until the
	// context ends. The caller closes it.
	Logs(ctx context.Context, replica string, follow bool) (io.ReadCloser, error)
}

// Kind is what a job's replicas are.
type Kind string

// The kinds of jobs.
const (
	Engine  Kind = "engine"
	Router  Kind = "router"
	Traffic Kind = "traffic"
)

// Job is a named set of groups that are started, changed and stopped together.
// Name follows the rules of document names. Meta is read by others: the keys
// alias, version and role tell a router what a replica serves.
type Job struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Pool    string            `json:"pool,omitempty"`
	Zone    string            `json:"zone,omitempty"`
	Kind    Kind              `json:"kind"`
	Groups  []Group           `json:"groups"`
	Meta    map[string]string `json:"meta,omitempty"`
}

// Group is a number of equal replicas. In Argv and Env the scheduler replaces
// ${LLMOPS_ADDR} by the address the replica must listen on, ${LLMOPS_HOST} and
// ${LLMOPS_PORT} by its two parts, as the process sees them, ${LLMOPS_NONCE} by the
// replica's nonce, ${LLMOPS_ADMIN} by its second address, ${LLMOPS_DIR} by a
// folder that it may write to and ${LLMOPS_BIN} by the path of this program.
type Group struct {
	Name  string            `json:"name"`
	Near  string            `json:"near,omitempty"`
	Count int               `json:"count"`
	Image string            `json:"image,omitempty"`
	Argv  []string          `json:"argv"`
	Env   map[string]string `json:"env,omitempty"`
	GPU   Need              `json:"gpu"`
	Check Check             `json:"check"`
	Grace time.Duration     `json:"grace"`
	// Addr fixes the address of the only replica, or of all replicas the port where
	// each has a node of its own; empty: the scheduler picks. Admin asks for a second
	// address, for those who control the replica, and fixes it likewise; with port 0
	// the scheduler picks.
	Addr  string `json:"addr,omitempty"`
	Admin string `json:"admin,omitempty"`
	// Fetch runs on a node before a replica is started there, and brings what the
	// replica reads; nil: it is there. A scheduler of one machine runs none.
	Fetch []string `json:"fetch,omitempty"`
}

// Need is the accelerators one replica takes. The zero Need is a CPU replica.
type Need struct {
	Kind  string `json:"kind,omitempty"`
	Count int    `json:"count,omitempty"`
}

// Check is the HTTP probe by which a scheduler tells that a process answers.
// A zero Path means that there is nothing to probe.
type Check struct {
	Path     string        `json:"path,omitempty"`
	Interval time.Duration `json:"interval,omitempty"`
	Timeout  time.Duration `json:"timeout,omitempty"`
}

// State is where a replica is in its life.
type State string

// The states of a replica. Running means that the process lives, Healthy that
// its check answered; whether it produces tokens is for serving/deploy to see.
// Unknown is a replica whose node is silent: it may live and serve, and counts for
// nothing until the node is heard of again.
const (
	Pending  State = "pending"
	Running  State = "running"
	Healthy  State = "healthy"
	Draining State = "draining"
	Failed   State = "failed"
	Stopped  State = "stopped"
	Unknown  State = "unknown"
)

// Replica is one process of a group. Nonce is new with each start of the
// process and is how a supervisor knows its own child again.
type Replica struct {
	ID     string    `json:"id"`
	Group  string    `json:"group"`
	Node   string    `json:"node"`
	Addr   string    `json:"addr,omitempty"`
	Admin  string    `json:"admin,omitempty"`
	Nonce  string    `json:"nonce,omitempty"`
	Reason string    `json:"reason,omitempty"`
	State  State     `json:"state"`
	Since  time.Time `json:"since"`
	// NoRoom tells of a replica without a place that one more node of its pool would
	// take: those there are are full, or there are none.
	NoRoom bool `json:"no_room,omitempty"`
	// Placed is when it got its place, Started when its process began; zero: not known.
	Placed  time.Time `json:"placed,omitzero"`
	Started time.Time `json:"started,omitzero"`
	// PID and Starts are for people: nothing is decided by a process id.
	PID    int `json:"pid,omitempty"`
	Starts int `json:"starts,omitempty"`
	// Spec is the digest of the group as which the process was started.
	Spec string `json:"spec,omitempty"`
}

// Status is a job as it stands.
type Status struct {
	Job Job    `json:"job"`
	Rev uint64 `json:"rev"`
	// Pool is that of the nodes it is placed on, by their own name for it, where Job.Pool
	// is that of a model's file; empty where there is one machine.
	Pool     string    `json:"pool,omitempty"`
	Replicas []Replica `json:"replicas"`
}

// Plan is what applying a job would do. Fits is false when it cannot run, and
// Reasons then says which constraint is in the way.
type Plan struct {
	Fits    bool
	Changes []string
	Reasons []string
}

// GPU is one accelerator of a node.
type GPU struct {
	Kind   string `json:"kind"`
	Memory int64  `json:"memory"`
}

// Node is a machine of the fleet.
type Node struct {
	ID       string            `json:"id"`
	Zone     string            `json:"zone,omitempty"`
	Rack     string            `json:"rack,omitempty"`
	Pool     string            `json:"pool,omitempty"`
	Reason   string            `json:"reason,omitempty"`
	GPUs     []GPU             `json:"gpus,omitempty"`
	Ready    bool              `json:"ready"`
	Eligible bool              `json:"eligible"`
	Draining bool              `json:"draining"`
	Labels   map[string]string `json:"labels,omitempty"`
}
