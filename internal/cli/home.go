package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/pipeline/download"
	"llmops/serving/embedded/ceiling"
	"llmops/serving/route"
)

// watchPatience bounds the wait for the background process to come up.
const watchPatience = 10 * time.Second

// home is a state directory with what is in it, and the fleet that models run on.
type home struct {
	dir       string
	local     *local.Store // of this machine alone
	store     fleet.Store
	blobs     fleet.Blobs
	bucket    string // that blobs are in; empty: a folder
	shared    *pipeline.Shared
	records   pipeline.Recording
	scheduler scheduler
	sources   download.Sources
	fleet     string   // the file that names the fleet; empty: this machine
	placing   *placing // on a cluster that a file describes
}

// scheduler is a fleet's that can be listed.
type scheduler interface {
	fleet.Scheduler
	Jobs(ctx context.Context) ([]fleet.Job, error)
}

// stateDir is $LLMOPS_HOME, else llmops below the XDG state directory.
func (e *env) stateDir() (string, error) {
	if d := e.getenv("LLMOPS_HOME"); d != "" {
		return filepath.Abs(d)
	}
	if d := e.getenv("XDG_STATE_HOME"); filepath.IsAbs(d) { // its standard says to ignore others
		return filepath.Join(d, "llmops"), nil
	}
	h := e.getenv("HOME")
	if h == "" {
		return "", errors.New("none of LLMOPS_HOME, XDG_STATE_HOME and HOME is set")
	}
	return filepath.Join(h, ".local", "state", "llmops"), nil
}

func (e *env) openHome() (*home, error) {
	dir, err := e.stateDir()
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return e.homeAt(dir)
}

// homeAt opens a state directory, with the fleet that the command line names.
func (e *env) homeAt(dir string) (*home, error) {
	h, err := openHome(dir)
	if err != nil {
		return h, unwritable(err)
	}
	h.sources = e.sources()
	return h, e.onFleet(h)
}

// unwritable says what to do when err comes of a state directory that this user
// cannot write to.
func unwritable(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) {
		return &exitError{exitUsage, fmt.Errorf("%w; set LLMOPS_HOME to a folder that you may write to", err)}
	}
	return err
}

func openHome(dir string) (*home, error) {
	store, err := local.OpenStore(dir)
	if err != nil {
		return nil, err
	}
	blobs, err := local.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"owners", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("opening state directory: %w", err)
		}
	}
	return &home{dir: dir, local: store, store: store, blobs: blobs, scheduler: local.NewScheduler(store, dir)}, nil
}

// routers are the jobs of the fleet's routers as they stand.
func (h *home) routers(ctx context.Context) ([]fleet.Status, error) {
	jobs, err := h.scheduler.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	var out []fleet.Status
	for _, j := range jobs {
		if j.Kind != fleet.Router {
			continue
		}
		st, err := h.scheduler.Status(ctx, j.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

// admins lists the routers of the fleet by name, for pushes.
func (h *home) admins(ctx context.Context) (map[string]*route.Admin, error) {
	all, err := h.routers(ctx)
	if err != nil {
		return nil, err
	}
	key, err := route.MakeKey(ctx, h.store)
	return pipeline.Admins(all, key), err
}

// deps wires a run to this home.
func (h *home) deps() pipeline.Deps {
	d := pipeline.Deps{
		Sources: h.sources,
		Store:   h.store, Blobs: h.blobs, Scheduler: h.scheduler, Dir: h.dir, Shared: h.shared, Records: h.records, Build: build(), Now: time.Now, Admins: h.admins,
		Stages: pipeline.Stages(), Abandon: pipeline.Abandon, Alive: h.alive,
	}
	if h.fleet != "" {
		d.Cluster = ownCluster
	} else {
		d.Ceilings = func() *ceiling.Ceilings {
			c, _ := ceilings(h.dir) // doctor tells what is wrong with them
			return c
		}
	}
	return d
}

// own marks this process as a live owner of runs until release is called or
// the process ends, however it ends.
func (h *home) own(name string) (owner string, release func(), err error) {
	owner = fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
	l := flock.New(filepath.Join(h.dir, "owners", owner), flock.SetPermissions(0o600))
	ok, err := l.TryLock()
	if err != nil || !ok {
		return "", nil, unwritable(fmt.Errorf("marking this process as owner: %w", err))
	}
	return owner, func() { _ = l.Close(); _ = os.Remove(l.Path()) }, nil
}

// alive tells whether the process behind an owner still runs.
func (h *home) alive(owner string) bool {
	if owner == "" || filepath.Base(owner) != owner {
		return false
	}
	path := filepath.Join(h.dir, "owners", owner)
	if _, err := os.Stat(path); err != nil {
		return false
	}
	l := flock.New(path)
	ok, err := l.TryRLock()
	_ = l.Close()
	if ok {
		_ = os.Remove(path)
	}
	return err == nil && !ok
}

// ensureWatch starts the background process that supervises the replicas,
// unless it runs. It runs from a copy of this program, so that a new build
// does not pull the floor from under it.
func (e *env) ensureWatch(ctx context.Context, h *home) error {
	if h.watched() {
		return nil
	}
	bin, err := h.copySelf()
	if err != nil {
		return unwritable(err)
	}
	log, err := os.OpenFile(filepath.Join(h.dir, "watch.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("starting watch: %w", err)
	}
	defer func() { _ = log.Close() }()
	args := []string{"watch"}
	if h.fleet != "" {
		args = append(args, "--fleet", h.fleet)
	}
	cmd := exec.Command(bin, args...)
	// A fault is asked of this process and not of those that come after it.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), isFault), "LLMOPS_HOME="+h.dir)
	cmd.Dir = h.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting watch: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(watchPatience)
	for !h.watched() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if h.watched() {
				return nil // another process was faster
			}
			return fmt.Errorf("watch ended at once: %w; see %s", err, log.Name())
		case <-deadline:
			return fmt.Errorf("watch did not come up within %v; see %s", watchPatience, log.Name())
		case <-tick.C:
		}
	}
	return h.removeCopies(bin)
}

// removeCopies removes the programs of earlier builds. Only a watch starts
// processes from them, and the one there is runs from keep.
func (h *home) removeCopies(keep string) error {
	old, err := filepath.Glob(filepath.Join(h.dir, "bin", "llmops-*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if path == keep {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an earlier build: %w", err)
		}
	}
	return nil
}

// watched tells whether a supervisor holds the state directory.
func (h *home) watched() bool { return local.Supervised(h.dir) }

// copySelf copies the running program into the state directory, once for each
// build.
func (h *home) copySelf() (path string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	in, err := os.Open(self)
	if err != nil {
		return "", fmt.Errorf("copying this program: %w", err)
	}
	defer func() { _ = in.Close() }()
	if path, err = h.copyPath(in); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".copy-")
	if err != nil {
		return "", fmt.Errorf("copying this program: %w", err)
	}
	_, err = io.Copy(tmp, in)
	if err = errors.Join(err, tmp.Chmod(0o700), tmp.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("copying this program: %w", err), os.Remove(tmp.Name()))
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", errors.Join(fmt.Errorf("copying this program: %w", err), os.Remove(tmp.Name()))
	}
	return path, nil
}

// copyPath is where the copy of a program belongs. Equal names are equal
// builds.
func (h *home) copyPath(program io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, program); err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	return filepath.Join(h.dir, "bin", "llmops-"+hex.EncodeToString(sum.Sum(nil))[:12]), nil
}
