package local

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"llmops/fleet"
)

const (
	defaultGrace    = 10 * time.Second
	defaultInterval = time.Second
	defaultTimeout  = 2 * time.Second
	// eagerInterval is how often a replica that has not answered yet is asked.
	eagerInterval = 50 * time.Millisecond
	firstPause    = 100 * time.Millisecond
	lastPause     = 10 * time.Second
	// settled is how long a process must live for its next failure to count as
	// the first again.
	settled = 30 * time.Second
	// pollAdopted is how often a process that is not our child is looked for.
	pollAdopted = 100 * time.Millisecond
	maxLog      = 16 << 20
	reasonLen   = 300
)

// errStopped ends a keeper and its child.
var errStopped = errors.New("job stopped")

// pause is how long to wait before the n-th start in a row (n ≥ 1) that
// follows a failure.
func pause(n int) time.Duration {
	d := firstPause
	for i := 1; i < n && d < lastPause; i++ {
		d *= 2
	}
	return min(d, lastPause)
}

// keeper looks after one replica: starts its process, checks it, writes its
// state down, starts it again. It belongs to one goroutine but for end and
// gone.
type keeper struct {
	s       *Supervisor
	id      string
	group   fleet.Group
	end     context.CancelCauseFunc
	gone    chan struct{} // closed when the replica has no process and no document of this keeper's
	rep     fleet.Replica
	written fleet.Replica // as the store has it
	rev     uint64
}

// process is a child of this supervisor, or one of an earlier supervisor.
type process struct {
	pid  int
	lock string       // the file whose lock it holds
	done <-chan error // closed, or an exit error, when it is gone
}

func (k *keeper) run(ctx context.Context) {
	var p *process
	if r, rev, err := readReplica(context.WithoutCancel(ctx), k.s.Store, k.id); err == nil {
		k.rep, k.written, k.rev = r, r, rev
		p = k.adopt(ctx, r)
	}
	_, name, _ := strings.Cut(k.id, "/")
	k.rep.ID, k.rep.Group = k.id, name[:max(0, strings.LastIndexByte(name, '-'))]
	k.rep.Node, _ = os.Hostname()
	if p != nil && ctx.Err() == nil && k.rep.Spec != specOf(k.group) {
		k.terminate(p)
		p = nil
	}
	for failures := 0; ; {
		if p == nil && ctx.Err() == nil {
			if failures > 0 && !waitFor(ctx, pause(failures)) {
				break
			}
			var err error
			if p, err = k.launch(); err != nil {
				failures++
				k.note(ctx, fleet.Failed, err.Error())
				continue
			}
		}
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		err := k.tend(ctx, p)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > settled {
			failures = 0
		}
		failures++
		k.note(ctx, fleet.Failed, k.reason(err))
		k.forget(p)
		p = nil
	}
	if errors.Is(context.Cause(ctx), errLeave) {
		return
	}
	k.stop(context.WithoutCancel(ctx), p)
}

func waitFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (k *keeper) nonceFile(nonce string) string { return filepath.Join(k.s.Dir, "nonces", nonce) }

// adopt finds the process that an earlier supervisor started, by its nonce.
func (k *keeper) adopt(ctx context.Context, r fleet.Replica) *process {
	if r.Nonce == "" || r.PID == 0 || !held(k.nonceFile(r.Nonce)) {
		return nil
	}
	done := make(chan error)
	path := k.nonceFile(r.Nonce)
	go func() {
		defer close(done)
		for held(path) && !errors.Is(context.Cause(ctx), errLeave) {
			waitFor(context.WithoutCancel(ctx), pollAdopted)
		}
	}()
	k.s.Log.Info("adopted", "replica", r.ID, "pid", r.PID)
	return &process{pid: r.PID, lock: path, done: done}
}

// held tells whether a process still holds the lock of the file at path.
func held(path string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	ok, err := l.TryRLock()
	_ = l.Close()
	return err == nil && !ok
}

const anyPort = "127.0.0.1:0"

// listenAt is addr, with a free port in the place of port 0.
func listenAt(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// launch starts a new process under a new nonce.
func (k *keeper) launch() (*process, error) {
	k.rep.Starts++
	k.rep.Placed = time.Now().UTC()
	var raw [12]byte
	_, _ = rand.Read(raw[:])
	nonce := hex.EncodeToString(raw[:])
	addr, err := listenAt(cmp.Or(k.group.Addr, anyPort))
	if err != nil {
		return nil, err
	}
	admin := ""
	if k.group.Admin != "" {
		if admin, err = listenAt(k.group.Admin); err != nil {
			return nil, err
		}
	}
	log, err := openLog(logFile(k.s.Dir, k.id))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	token, err := os.OpenFile(k.nonceFile(nonce), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing nonce: %w", err)
	}
	defer func() { _ = token.Close() }()
	if err := syscall.Flock(int(token.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking nonce: %w", err)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	expand := strings.NewReplacer("${LLMOPS_ADDR}", addr, "${LLMOPS_HOST}", host, "${LLMOPS_PORT}", port, "${LLMOPS_ADMIN}", admin, "${LLMOPS_NONCE}", nonce, "${LLMOPS_DIR}", k.s.Dir, "${LLMOPS_BIN}", k.s.Bin).Replace
	argv := make([]string, len(k.group.Argv))
	for i, a := range k.group.Argv {
		argv[i] = expand(a)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = slices.Clone(k.s.Env)
	for _, name := range slices.Sorted(maps.Keys(k.group.Env)) {
		cmd.Env = append(cmd.Env, name+"="+expand(k.group.Env[name]))
	}
	cmd.Dir = k.s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{token}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", argv[0], err), os.Remove(token.Name()))
	}
	k.rep.Started = time.Now().UTC()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait(); close(done) }()
	// Should this supervisor die before the document is written, the next finds
	// the process by this.
	if _, err := fmt.Fprintln(token, cmd.Process.Pid); err != nil {
		k.s.Log.Error("writing nonce", "replica", k.id, "err", err)
	}
	k.rep.Nonce, k.rep.PID, k.rep.Addr, k.rep.Admin, k.rep.Spec = nonce, cmd.Process.Pid, addr, admin, specOf(k.group)
	k.note(context.Background(), fleet.Running, "")
	return &process{pid: cmd.Process.Pid, lock: token.Name(), done: done}, nil
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("turning over log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening log: %w", err)
	}
	return f, nil
}

// tend checks the process until it is gone or the keeper ends.
func (k *keeper) tend(ctx context.Context, p *process) error {
	c := k.group.Check
	client := &http.Client{Timeout: orDefault(c.Timeout, defaultTimeout)}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-p.done:
			return err
		case <-tick.C:
		}
		if c.Path == "" {
			k.note(ctx, fleet.Healthy, "")
			tick.Reset(time.Hour)
			continue
		}
		if err := probe(ctx, client, "http://"+k.rep.Addr+c.Path); err == nil {
			k.note(ctx, fleet.Healthy, "")
			tick.Reset(orDefault(c.Interval, defaultInterval))
		} else {
			if k.rep.State == fleet.Healthy {
				k.note(ctx, fleet.Running, "check fails: "+err.Error())
			}
			tick.Reset(eagerInterval)
		}
	}
}

func orDefault(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

func probe(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16))
	_ = res.Body.Close()
	if res.StatusCode >= 300 {
		return errors.New(res.Status)
	}
	return nil
}

// stop asks the process to end, kills it after its grace, and removes every
// trace of the replica.
func (k *keeper) stop(ctx context.Context, p *process) {
	if p != nil {
		k.note(ctx, fleet.Draining, "")
		k.terminate(p)
	}
	if k.rev == 0 {
		return
	}
	if err := k.s.Store.Delete(ctx, replicaPrefix+k.id, k.rev); err != nil && !errors.Is(err, fleet.ErrNotFound) {
		k.s.Log.Error("removing replica", "replica", k.id, "err", err)
	}
}

// terminate asks the process to end and kills it, with what it started, when
// its grace is over.
func (k *keeper) terminate(p *process) {
	t := time.NewTimer(orDefault(k.group.Grace, defaultGrace))
	defer t.Stop()
	select {
	case <-p.done: // its id may be another's by now
	default:
		_ = syscall.Kill(p.pid, syscall.SIGTERM)
	}
	select {
	case <-p.done:
	case <-t.C:
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.done
	}
	k.forget(p)
}

// forget clears up after a process that is gone. What it had started is in its
// process group and goes, too.
func (k *keeper) forget(p *process) {
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	_ = os.Remove(p.lock)
}

// note writes the replica's state down unless the store has it so. What could
// not be written is written by a later call.
func (k *keeper) note(ctx context.Context, s fleet.State, reason string) {
	k.rep.State, k.rep.Reason, k.rep.Since = s, reason, k.written.Since
	if k.rep == k.written {
		return
	}
	k.rep.Since = time.Now().UTC()
	b, err := json.Marshal(k.rep)
	if err != nil {
		k.s.Log.Error("writing replica", "replica", k.id, "err", err)
		return
	}
	rev, err := k.s.Store.Put(context.WithoutCancel(ctx), replicaPrefix+k.id, b, k.rev)
	if errors.Is(err, fleet.ErrConflict) {
		if _, now, e := readReplica(context.WithoutCancel(ctx), k.s.Store, k.id); e == nil || errors.Is(e, fleet.ErrNotFound) {
			rev, err = k.s.Store.Put(context.WithoutCancel(ctx), replicaPrefix+k.id, b, now)
		}
	}
	if err != nil {
		k.s.Log.Error("writing replica", "replica", k.id, "err", err)
		return
	}
	k.rev, k.written = rev, k.rep
}

// reason is why a process ended: its exit and the last line it wrote.
func (k *keeper) reason(err error) string {
	why := "ended"
	if err != nil {
		why = err.Error()
	}
	f, e := os.Open(logFile(k.s.Dir, k.id))
	if e != nil {
		return why
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-2*reasonLen), io.SeekStart)
	}
	b, _ := io.ReadAll(io.LimitReader(f, 4*reasonLen))
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	last := string(lines[len(lines)-1])
	if len(last) > reasonLen {
		last = last[:reasonLen]
	}
	if last == "" {
		return why
	}
	return strings.ToValidUTF8(why+": "+last, "?")
}
