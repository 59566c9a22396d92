package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"llmops/fleet"
)

const (
	jobPrefix     = "job/"
	replicaPrefix = "replica/"
	followEvery   = 100 * time.Millisecond
)

// Scheduler is the fleet.Scheduler of one machine. It only writes and reads
// documents: a [Supervisor] does the work.
type Scheduler struct {
	store fleet.Store
	dir   string
}

var _ fleet.Scheduler = (*Scheduler)(nil)

// NewScheduler returns the scheduler of the state directory dir, whose
// documents are in store.
func NewScheduler(store fleet.Store, dir string) *Scheduler { return &Scheduler{store, dir} }

func (s *Scheduler) job(ctx context.Context, name string) (fleet.Job, uint64, error) {
	d, err := s.store.Get(ctx, jobPrefix+name)
	if err != nil {
		return fleet.Job{}, 0, err
	}
	var j fleet.Job
	if err := json.Unmarshal(d.Body, &j); err != nil {
		return fleet.Job{}, 0, fmt.Errorf("reading job %s: %w", name, err)
	}
	return j, d.Rev, nil
}

func argv0(g fleet.Group) string {
	if len(g.Argv) == 0 {
		return ""
	}
	return g.Argv[0]
}

// Plan implements fleet.Scheduler.
func (s *Scheduler) Plan(ctx context.Context, j fleet.Job) (fleet.Plan, error) {
	p := fleet.Plan{Fits: true}
	old, _, err := s.job(ctx, j.Name)
	known := err == nil
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return p, err
	}
	for _, g := range j.Groups {
		if g.GPU.Count > 0 {
			p.Fits = false
			p.Reasons = append(p.Reasons, fmt.Sprintf("group %s wants %d GPUs of kind %s; this machine's scheduler places CPU replicas only", g.Name, g.GPU.Count, g.GPU.Kind))
		}
		// What is named by a path, or by what stands for one, is looked for when it starts.
		if name := argv0(g); name != "" && filepath.Base(name) == name && !strings.Contains(name, "${") {
			if _, err := exec.LookPath(name); err != nil {
				p.Fits = false
				p.Reasons = append(p.Reasons, fmt.Sprintf("group %s runs %s, which is not on PATH on this machine: install it, or name a cluster with --fleet", g.Name, name))
			}
		}
		if g.Addr != "" && g.Count > 1 {
			p.Fits = false
			p.Reasons = append(p.Reasons, fmt.Sprintf("group %s wants %d replicas on the one address %s", g.Name, g.Count, g.Addr))
		}
		if g.Addr != "" && !known {
			if l, err := net.Listen("tcp", g.Addr); err != nil {
				p.Fits = false
				p.Reasons = append(p.Reasons, fmt.Sprintf("address %s cannot be had: %v", g.Addr, err))
			} else {
				_ = l.Close()
			}
		}
		was := group(old, g.Name)
		switch {
		case was == nil:
			p.Changes = append(p.Changes, fmt.Sprintf("start %d of %s/%s", g.Count, j.Name, g.Name))
		case !sameProcess(*was, g):
			p.Changes = append(p.Changes, fmt.Sprintf("restart %d of %s/%s", was.Count, j.Name, g.Name))
		}
	}
	for _, g := range old.Groups {
		if group(j, g.Name) == nil {
			p.Changes = append(p.Changes, fmt.Sprintf("stop %d of %s/%s", g.Count, j.Name, g.Name))
		}
	}
	return p, nil
}

func group(j fleet.Job, name string) *fleet.Group {
	for i := range j.Groups {
		if j.Groups[i].Name == name {
			return &j.Groups[i]
		}
	}
	return nil
}

// sameProcess tells whether a replica of a may go on as one of b.
func sameProcess(a, b fleet.Group) bool { return specOf(a) == specOf(b) }

// specOf is a digest of all that a replica's process depends on.
func specOf(g fleet.Group) string {
	g.Count = 0
	b, err := json.Marshal(g)
	if err != nil {
		panic("local: encoding a group: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Apply implements fleet.Scheduler.
func (s *Scheduler) Apply(ctx context.Context, j fleet.Job, ifRev uint64) (uint64, error) {
	if len(j.Groups) == 0 {
		return 0, fmt.Errorf("job %s has no groups", j.Name)
	}
	if strings.Contains(j.Name, "/") {
		return 0, fmt.Errorf("job name %q holds a slash", j.Name)
	}
	old, _, err := s.job(ctx, j.Name)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return 0, err
	}
	groups := make([]fleet.Group, len(j.Groups))
	for i, g := range j.Groups {
		if len(g.Argv) == 0 || fleet.CheckName(g.Name) != nil || strings.Contains(g.Name, "/") {
			return 0, fmt.Errorf("group %q of job %s needs a plain name and a command", g.Name, j.Name)
		}
		if was := group(old, g.Name); was != nil {
			g.Count = was.Count
		}
		groups[i] = g
	}
	j.Groups = groups
	return s.put(ctx, j, ifRev)
}

func (s *Scheduler) put(ctx context.Context, j fleet.Job, ifRev uint64) (uint64, error) {
	b, err := json.Marshal(j)
	if err != nil {
		return 0, err
	}
	return s.store.Put(ctx, jobPrefix+j.Name, b, ifRev)
}

// Scale implements fleet.Scheduler.
func (s *Scheduler) Scale(ctx context.Context, job, name string, n int, ifRev uint64) (uint64, error) {
	j, _, err := s.job(ctx, job)
	if err != nil {
		return 0, err
	}
	g := group(j, name)
	if g == nil {
		return 0, fmt.Errorf("group %s of job %s: %w", name, job, fleet.ErrNotFound)
	}
	if n < 0 || g.Addr != "" && n > 1 {
		return 0, fmt.Errorf("group %s of job %s cannot have %d replicas", name, job, n)
	}
	g.Count = n
	return s.put(ctx, j, ifRev)
}

// Stop implements fleet.Scheduler.
func (s *Scheduler) Stop(ctx context.Context, job string) error {
	for {
		d, err := s.store.Get(ctx, jobPrefix+job)
		if errors.Is(err, fleet.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.store.Delete(ctx, d.Name, d.Rev); !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
	}
}

// Watch implements fleet.Scheduler.
func (s *Scheduler) Watch(ctx context.Context, prefix string, fn func(fleet.Status) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	docs := make(chan fleet.Doc)
	ended := make(chan error, 2)
	for _, p := range []string{jobPrefix + prefix, replicaPrefix + prefix} {
		go func() {
			ended <- s.store.Watch(ctx, p, func(d fleet.Doc) error {
				select {
				case docs <- d:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	defer func() { cancel(); <-ended; <-ended }()
	for {
		select {
		case d := <-docs:
			name := strings.TrimPrefix(d.Name, jobPrefix)
			if r, ok := strings.CutPrefix(d.Name, replicaPrefix); ok {
				name, _, _ = strings.Cut(r, "/")
			}
			st, err := s.Status(ctx, name)
			if err != nil {
				return err
			}
			if err := fn(st); err != nil {
				return err
			}
		case err := <-ended:
			ended <- err
			return err
		}
	}
}

// Status implements fleet.Scheduler. Replicas of an earlier form of the job are
// draining, whether or not the supervisor has seen the change yet.
func (s *Scheduler) Status(ctx context.Context, name string) (fleet.Status, error) {
	j, rev, err := s.job(ctx, name)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return fleet.Status{}, err
	}
	j.Name = name
	st := fleet.Status{Job: j, Rev: rev, Replicas: []fleet.Replica{}}
	docs, err := s.store.List(ctx, replicaPrefix+name+"/")
	if err != nil {
		return fleet.Status{}, err
	}
	for _, d := range docs {
		r, _, err := readReplica(ctx, s.store, strings.TrimPrefix(d.Name, replicaPrefix))
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return fleet.Status{}, err
		}
		if g := group(j, r.Group); g != nil && r.State == fleet.Healthy && r.Spec != specOf(*g) {
			r.State, r.Reason = fleet.Draining, "its job has changed"
		}
		st.Replicas = append(st.Replicas, r)
	}
	return st, nil
}

func readReplica(ctx context.Context, s fleet.Store, id string) (r fleet.Replica, rev uint64, err error) {
	d, err := s.Get(ctx, replicaPrefix+id)
	if err != nil {
		return r, 0, err
	}
	if err := json.Unmarshal(d.Body, &r); err != nil {
		return r, 0, fmt.Errorf("reading replica %s: %w", id, err)
	}
	return r, d.Rev, nil
}

// All implements fleet.Scheduler.
func (s *Scheduler) All(ctx context.Context, prefix string) ([]fleet.Status, error) {
	names := map[string]bool{}
	jobs, err := s.store.List(ctx, jobPrefix+prefix)
	if err != nil {
		return nil, err
	}
	for _, d := range jobs {
		names[strings.TrimPrefix(d.Name, jobPrefix)] = true
	}
	reps, err := s.store.List(ctx, replicaPrefix+prefix)
	if err != nil {
		return nil, err
	}
	for _, d := range reps {
		name := strings.TrimPrefix(d.Name, replicaPrefix)
		names[name[:max(0, strings.LastIndexByte(name, '/'))]] = true
	}
	var out []fleet.Status
	for _, name := range slices.Sorted(maps.Keys(names)) {
		st, err := s.Status(ctx, name)
		if err != nil {
			return nil, err
		}
		if st.Rev != 0 || len(st.Replicas) > 0 {
			out = append(out, st)
		}
	}
	return out, nil
}

// Nodes implements fleet.Scheduler.
func (s *Scheduler) Nodes(context.Context) ([]fleet.Node, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("naming this machine: %w", err)
	}
	return []fleet.Node{{ID: name, Ready: true, Eligible: true}}, nil
}

// Drain implements fleet.Scheduler. One machine has nowhere to move replicas
// to, so there is nothing it could do.
func (s *Scheduler) Drain(_ context.Context, node, _ string, _ time.Duration) error {
	return fmt.Errorf("draining %s: a fleet of one machine has nowhere to move its replicas; stop the jobs instead", node)
}

// Logs implements fleet.Scheduler.
func (s *Scheduler) Logs(ctx context.Context, replica string, follow bool) (io.ReadCloser, error) {
	f, err := os.Open(logFile(s.dir, replica))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("logs of replica %s: %w", replica, fleet.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening logs of replica %s: %w", replica, err)
	}
	if !follow {
		return f, nil
	}
	return &follower{ctx: ctx, f: f}, nil
}

func logFile(dir, replica string) string {
	return filepath.Join(dir, "logs", strings.ReplaceAll(replica, "/", ".")+".log")
}

// follower reads a file that grows until its context ends.
type follower struct {
	ctx context.Context
	f   *os.File
}

func (f *follower) Read(p []byte) (int, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		n, err := f.f.Read(p)
		if n > 0 || err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		select {
		case <-f.ctx.Done():
			return 0, io.EOF
		case <-tick.C:
		}
	}
}

func (f *follower) Close() error { return f.f.Close() }

// Jobs lists the registered jobs by name.
func (s *Scheduler) Jobs(ctx context.Context) ([]fleet.Job, error) {
	docs, err := s.store.List(ctx, jobPrefix)
	if err != nil {
		return nil, err
	}
	var out []fleet.Job
	for _, d := range docs {
		j, _, err := s.job(ctx, strings.TrimPrefix(d.Name, jobPrefix))
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}
