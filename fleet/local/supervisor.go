package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"llmops/fleet"
)

// ErrSupervised reports that another process supervises the directory.
var ErrSupervised = errors.New("another process supervises this state directory")

// supervisePatience bounds the wait for the directory's lock.
const supervisePatience = 100 * time.Millisecond

// errLeave ends keepers without ending their children.
var errLeave = errors.New("supervisor ends")

// Supervisor runs the jobs of one state directory as child processes.
type Supervisor struct {
	Store fleet.Store
	Dir   string
	Bin   string       // what ${LLMOPS_BIN} stands for
	Env   []string     // what children inherit, "name=value"
	Log   *slog.Logger // nil: discard
}

// Run adopts the children of an earlier supervisor, then keeps the processes
// in line with the jobs until the context ends. The children go on without it.
func (s *Supervisor) Run(ctx context.Context) error {
	for _, sub := range []string{"logs", "nonces"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, sub), 0o700); err != nil {
			return fmt.Errorf("preparing state directory: %w", err)
		}
	}
	l := flock.New(lockFile(s.Dir), flock.SetPermissions(0o600))
	if err := s.lock(ctx, l); err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	k := &keepers{s: s, all: map[string]*keeper{}, ending: map[string]*keeper{}}
	defer k.leave()
	if err := errors.Join(s.strays(ctx), k.orphans(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	docs, ended := make(chan fleet.Doc), make(chan error, 1)
	go func() {
		ended <- s.Store.Watch(ctx, jobPrefix, func(d fleet.Doc) error {
			select {
			case docs <- d:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var blind error
	for {
		select {
		case d := <-docs:
			k.follow(ctx, d)
		case <-tick.C:
			// A directory that somebody removed has no jobs any more, and nobody could find
			// this process by it again: it goes when the last replica is gone.
			mine, err := s.holds(l)
			switch removed := err == nil && !mine; {
			case removed && k.idle():
				return fmt.Errorf("%s: %w", s.Dir, ErrRemoved)
			case !removed && blind != nil:
				return blind
			}
			if err := k.sweep(ctx); err != nil && ctx.Err() == nil {
				s.Log.Error("looking for replicas without a job", "err", err)
			}
		case err := <-ended:
			if ctx.Err() != nil {
				return err
			}
			// The watch may have read a directory that is being removed: the next look tells.
			blind = err
		}
	}
}

// lock takes the directory for this process and leaves its id in the lock's
// file. Whoever asks whether the lock is held holds it for a moment himself,
// hence the patience.
func (s *Supervisor) lock(ctx context.Context, l *flock.Flock) error {
	ctx, cancel := context.WithTimeout(ctx, supervisePatience)
	defer cancel()
	_, err := l.TryLockContext(ctx, lockEvery)
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrSupervised
	}
	if err != nil {
		return fmt.Errorf("locking state directory: %w", err)
	}
	f, err := os.OpenFile(l.Path(), os.O_WRONLY, 0)
	if err == nil {
		// In one write of one width: whoever reads meanwhile sees the old or the new.
		_, err = fmt.Fprintf(f, "%10d\n", os.Getpid())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("locking state directory: %w", err), l.Close())
	}
	return nil
}

// ErrRemoved reports a state directory that was taken away.
var ErrRemoved = errors.New("the state directory was removed")

// holds tells whether the lock that is held is still the directory's.
func (s *Supervisor) holds(l *flock.Flock) (bool, error) {
	have, err := l.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(lockFile(s.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(have, there), err
}

func lockFile(dir string) string { return filepath.Join(dir, "supervisor.lock") }

// Supervised tells whether a supervisor runs for the state directory dir.
func Supervised(dir string) bool { return held(lockFile(dir)) }

// SupervisorPID is the process id of the last supervisor of the state directory
// dir, which may have ended.
func SupervisorPID(dir string) (int, error) {
	b, err := os.ReadFile(lockFile(dir))
	if err != nil {
		return 0, fmt.Errorf("finding the supervisor: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("finding the supervisor: %s holds %q instead of a process id", lockFile(dir), b)
	}
	return pid, nil
}

// sweepEvery is how often replicas are held against the jobs there are. A watch
// tells of a job that goes away only when it had told of it before.
const sweepEvery = 2 * time.Second

// keepers are the goroutines that each look after one replica. Only the
// supervisor's own goroutine uses the maps.
type keepers struct {
	s      *Supervisor
	all    map[string]*keeper
	ending map[string]*keeper // the last that was ended of each replica
	wg     sync.WaitGroup
}

// follow brings one job up to date.
func (k *keepers) follow(ctx context.Context, d fleet.Doc) {
	j := fleet.Job{Name: strings.TrimPrefix(d.Name, jobPrefix)}
	if d.Body != nil {
		if err := json.Unmarshal(d.Body, &j); err != nil {
			k.s.Log.Error("reading job", "name", d.Name, "err", err)
			return
		}
	}
	k.reconcile(ctx, j)
}

// sweep ends what belongs to no job.
func (k *keepers) sweep(ctx context.Context) error {
	for id := range k.all {
		job, _, _ := strings.Cut(id, "/")
		if _, err := k.s.Store.Get(ctx, jobPrefix+job); errors.Is(err, fleet.ErrNotFound) {
			k.reconcile(ctx, fleet.Job{Name: job})
		} else if err != nil {
			return err
		}
	}
	return k.orphans(ctx)
}

// reconcile brings the keepers of one job in line with it.
func (k *keepers) reconcile(ctx context.Context, j fleet.Job) {
	want := map[string]fleet.Group{}
	for _, g := range j.Groups {
		for i := range g.Count {
			want[fmt.Sprintf("%s/%s-%d", j.Name, g.Name, i)] = g
		}
	}
	for id, kp := range k.all {
		if job, _, _ := strings.Cut(id, "/"); job != j.Name {
			continue
		}
		if g, ok := want[id]; !ok || !sameProcess(g, kp.group) {
			kp.end(errStopped)
			delete(k.all, id)
			k.ending[id] = kp
		}
	}
	for id, g := range want {
		if k.all[id] == nil {
			k.start(ctx, id, g)
		}
	}
	k.reap()
}

// start begins to look after a replica once the keeper before is done with it:
// two at a time would end each other's processes and documents.
func (k *keepers) start(ctx context.Context, id string, g fleet.Group) {
	kctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	kp := &keeper{s: k.s, id: id, group: g, end: end, gone: make(chan struct{})}
	k.all[id] = kp
	k.tend(kctx, kp)
}

func (k *keepers) tend(ctx context.Context, kp *keeper) {
	before := k.ending[kp.id]
	delete(k.ending, kp.id)
	k.wg.Go(func() {
		defer close(kp.gone)
		if before != nil {
			<-before.gone
		}
		kp.run(ctx)
	})
}

func (k *keepers) leave() {
	for _, kp := range k.all {
		kp.end(errLeave)
	}
	k.wg.Wait()
}

// reap forgets the keepers that have ended.
func (k *keepers) reap() {
	maps.DeleteFunc(k.ending, func(_ string, kp *keeper) bool {
		select {
		case <-kp.gone:
			return true
		default:
			return false
		}
	})
}

// idle tells whether no replica is kept, nor about to end.
func (k *keepers) idle() bool {
	k.reap()
	return len(k.all)+len(k.ending) == 0
}

// orphans ends the children of replicas whose job is gone.
func (k *keepers) orphans(ctx context.Context) error {
	docs, err := k.s.Store.List(ctx, replicaPrefix)
	if err != nil {
		return err
	}
	for _, d := range docs {
		id := strings.TrimPrefix(d.Name, replicaPrefix)
		if k.all[id] != nil || k.ending[id] != nil {
			continue
		}
		if keeps, err := k.s.wanted(ctx, id); err != nil {
			return err
		} else if keeps {
			continue
		}
		// Its keeper is at its end before it begins: it has nothing to start.
		kctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
		end(errStopped)
		kp := &keeper{s: k.s, id: id, group: fleet.Group{Grace: defaultGrace}, end: end, gone: make(chan struct{})}
		k.tend(kctx, kp)
		k.ending[id] = kp
	}
	return nil
}

// strays ends the children that no document names, because a supervisor died
// between starting them and writing them down, and removes the nonces of
// children that are gone. Nobody was told of a stray, so it serves nobody.
func (s *Supervisor) strays(ctx context.Context) error {
	files, err := os.ReadDir(filepath.Join(s.Dir, "nonces"))
	if err != nil {
		return fmt.Errorf("looking for what was left running: %w", err)
	}
	named := map[string]bool{}
	docs, err := s.Store.List(ctx, replicaPrefix)
	if err != nil {
		return err
	}
	for _, d := range docs {
		r, _, err := readReplica(ctx, s.Store, strings.TrimPrefix(d.Name, replicaPrefix))
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
		named[r.Nonce] = true
	}
	for _, f := range files {
		path := filepath.Join(s.Dir, "nonces", f.Name())
		if held(path) {
			if named[f.Name()] {
				continue
			}
			if err := s.kill(ctx, path); err != nil {
				s.Log.Error("ending what nobody wrote down", "nonce", f.Name(), "err", err)
				continue
			}
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("clearing up: %w", err)
		}
	}
	return nil
}

// kill ends the process that holds the nonce at path, and what it started.
func (s *Supervisor) kill(ctx context.Context, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return fmt.Errorf("%s names no process", path)
	}
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	s.Log.Warn("ended what nobody wrote down", "pid", pid)
	for deadline := time.Now().Add(defaultGrace); held(path); {
		if time.Now().After(deadline) || !waitFor(ctx, eagerInterval) {
			return fmt.Errorf("process %d does not end", pid)
		}
	}
	return nil
}

// wanted tells whether a replica belongs to a job that is there.
func (s *Supervisor) wanted(ctx context.Context, id string) (bool, error) {
	job, rest, _ := strings.Cut(id, "/")
	j, _, err := NewScheduler(s.Store, s.Dir).job(ctx, job)
	if errors.Is(err, fleet.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, g := range j.Groups {
		for i := range g.Count {
			if rest == fmt.Sprintf("%s-%d", g.Name, i) {
				return true, nil
			}
		}
	}
	return false, nil
}
