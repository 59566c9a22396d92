package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"

	"llmops/fleet"
	"llmops/fleet/fleettest"
)

// TestMain lets the test binary be the replicas' program: LLMOPS_TEST_SERVE is
// the address to serve, LLMOPS_TEST_LOCK a file to lock for good, LLMOPS_TEST_END
// ends it at once.
func TestMain(m *testing.M) {
	if addr := os.Getenv("LLMOPS_TEST_SERVE"); addr != "" {
		serve(addr)
	}
	if path := os.Getenv("LLMOPS_TEST_LOCK"); path != "" {
		l := flock.New(path)
		if err := l.Lock(); err != nil {
			os.Exit(1)
		}
		_ = os.WriteFile(path+".held", nil, 0o600)
		select {}
	}
	if os.Getenv("LLMOPS_TEST_END") != "" {
		fmt.Println("no weights here")
		os.Exit(7)
	}
	os.Exit(m.Run())
}

func serve(addr string) {
	if os.Getenv("LLMOPS_TEST_DEAF") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("serving", addr)
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }))
	os.Exit(1)
}

func serving(name string) fleet.Group {
	return fleet.Group{Name: name, Count: 1, Argv: []string{"${LLMOPS_BIN}"}, Env: map[string]string{"LLMOPS_TEST_SERVE": "${LLMOPS_ADDR}"},
		Check: fleet.Check{Path: "/health"}, Grace: 5 * time.Second}
}

func ending(name string) fleet.Group {
	return fleet.Group{Name: name, Count: 1, Argv: []string{"${LLMOPS_BIN}"}, Env: map[string]string{"LLMOPS_TEST_END": "1"}, Check: fleet.Check{Path: "/health"}}
}

// machine is a state directory with a supervisor that the test may end.
func machine(t *testing.T, dir string) (s *Scheduler, end func()) {
	t.Helper()
	store, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	sup := &Supervisor{Store: store, Dir: dir, Bin: bin, Env: os.Environ()}
	go func() { done <- sup.Run(ctx) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("supervisor ended with %v", err)
		}
	}
	t.Cleanup(end)
	return NewScheduler(store, dir), end
}

func TestScheduler(t *testing.T) {
	s, _ := machine(t, t.TempDir())
	fleettest.Scheduler(t, s, serving, ending)
}

func TestReasonIsTheLastLine(t *testing.T) {
	s, _ := machine(t, t.TempDir())
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{ending("main")}}, 0); err != nil {
		t.Fatal(err)
	}
	st := fleettest.Await(t, s, "j", func(st fleet.Status) bool { return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Failed })
	if got := st.Replicas[0].Reason; !strings.Contains(got, "exit status 7") || !strings.Contains(got, "no weights here") {
		t.Errorf("reason %q", got)
	}
	stopAll(t, s, "j")
}

func stopAll(t *testing.T, s *Scheduler, job string) {
	t.Helper()
	if err := s.Stop(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, job, func(st fleet.Status) bool { return len(st.Replicas) == 0 })
}

func one(st fleet.Status) bool {
	return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Healthy
}

// A supervisor that ends leaves its child running; the next one knows it again
// by its nonce, tends it and can stop it. A child whose job went away in
// between is ended, and so is one whose job has changed.
func TestTakeOver(t *testing.T) {
	dir := t.TempDir()
	s, end := machine(t, dir)
	revs := map[string]uint64{}
	for _, name := range []string{"keep", "gone", "changed"} {
		rev, err := s.Apply(t.Context(), fleet.Job{Name: name, Groups: []fleet.Group{serving("main")}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		revs[name] = rev
	}
	before := map[string]fleet.Replica{}
	for name := range revs {
		before[name] = fleettest.Await(t, s, name, one).Replicas[0]
	}
	end()
	if err := s.Stop(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	g := serving("main")
	g.Env["EXTRA"] = "1"
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "changed", Groups: []fleet.Group{g}}, revs["changed"]); err != nil {
		t.Fatal(err)
	}
	if !held(filepath.Join(dir, "nonces", before["gone"].Nonce)) {
		t.Error("the child ended with its supervisor")
	}

	s, _ = machine(t, dir)
	fleettest.Await(t, s, "gone", func(st fleet.Status) bool { return len(st.Replicas) == 0 })
	if held(filepath.Join(dir, "nonces", before["gone"].Nonce)) {
		t.Error("the child of a job that is gone still runs")
	}
	st := fleettest.Await(t, s, "changed", func(st fleet.Status) bool { return one(st) && st.Replicas[0].Nonce != before["changed"].Nonce })
	if held(filepath.Join(dir, "nonces", before["changed"].Nonce)) {
		t.Errorf("the child of the old job still runs beside %+v", st)
	}
	st = fleettest.Await(t, s, "keep", one)
	if got := st.Replicas[0]; got.Nonce != before["keep"].Nonce || got.Starts != 1 {
		t.Errorf("replica %+v was not adopted from %+v", got, before["keep"])
	}
	// An adopted child that dies is started anew.
	if err := syscall.Kill(before["keep"].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "keep", func(st fleet.Status) bool { return one(st) && st.Replicas[0].Starts == 2 })
	stopAll(t, s, "keep")
	stopAll(t, s, "changed")
	left, _ := filepath.Glob(filepath.Join(dir, "nonces", "*"))
	if len(left) > 0 {
		t.Errorf("nonces left: %v", left)
	}
}

// A supervisor that is killed right after it started a child has not written
// down whose it is: the next one ends it, since it may sit on the replica's
// address, and clears away what else was left.
func TestChildThatNobodyWroteDown(t *testing.T) {
	dir := t.TempDir()
	s, end := machine(t, dir)
	g := serving("main")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.Addr = l.Addr().String()
	_ = l.Close()
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{g}}, 0); err != nil {
		t.Fatal(err)
	}
	before := fleettest.Await(t, s, "j", one).Replicas[0]
	end()
	doc, err := s.store.Get(t.Context(), replicaPrefix+before.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Delete(t.Context(), doc.Name, doc.Rev); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(dir, "nonces", "0123456789abcdef")
	if err := os.WriteFile(stale, []byte("1\n"), 0o600); err != nil { // of a child that is gone
		t.Fatal(err)
	}
	s, _ = machine(t, dir)
	now := fleettest.Await(t, s, "j", one).Replicas[0]
	if now.Starts != 1 || now.Nonce == before.Nonce {
		t.Errorf("replica %+v after %+v", now, before)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "nonces", "*")); len(left) != 1 || filepath.Base(left[0]) != now.Nonce {
		t.Errorf("nonces left: %v", left)
	}
	stopAll(t, s, "j")
}

// What a replica's process started ends with it.
func TestNothingOutlivesItsReplica(t *testing.T) {
	dir := t.TempDir()
	s, _ := machine(t, dir)
	path := filepath.Join(dir, "worker")
	g := fleet.Group{Name: "main", Count: 1, Env: map[string]string{"LLMOPS_TEST_LOCK": path},
		Argv: []string{"/bin/sh", "-c", `"$0" & while [ ! -e "$LLMOPS_TEST_LOCK.held" ]; do :; done; exit 1`, "${LLMOPS_BIN}"}}
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{g}}, 0); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "j", func(st fleet.Status) bool { return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Failed })
	stopAll(t, s, "j")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if ok, err := flock.New(path).TryLockContext(ctx, lockEvery); !ok {
		t.Errorf("the worker is still there: %v", err)
	}
}

// However often a job changes, each replica has one process and its document.
func TestChangesInARow(t *testing.T) {
	dir := t.TempDir()
	s, _ := machine(t, dir)
	rev, nonces := uint64(0), map[string]bool{}
	for i := range 4 {
		g := serving("main")
		g.Env["ROUND"] = fmt.Sprint(i)
		var err error
		if rev, err = s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{g}}, rev); err != nil {
			t.Fatal(err)
		}
		r := fleettest.Await(t, s, "j", one).Replicas[0]
		if nonces[r.Nonce] {
			t.Fatalf("round %d was given the replica of the one before, %+v", i, r)
		}
		nonces[r.Nonce] = true
	}
	left, _ := filepath.Glob(filepath.Join(dir, "nonces", "*"))
	if st, err := s.Status(t.Context(), "j"); err != nil || !one(st) || len(left) != 1 || filepath.Base(left[0]) != st.Replicas[0].Nonce {
		t.Errorf("status %+v, %v; nonces %v", st, err, left)
	}
	stopAll(t, s, "j")
}

// A program that cannot be started counts as a start, so that whoever waits for
// it can give up.
func TestStartsThatFailCount(t *testing.T) {
	s, _ := machine(t, t.TempDir())
	g := serving("main")
	g.Argv = []string{"/no/such/program"}
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{g}}, 0); err != nil {
		t.Fatal(err)
	}
	st := fleettest.Await(t, s, "j", func(st fleet.Status) bool { return len(st.Replicas) == 1 && st.Replicas[0].Starts >= 3 })
	if r := st.Replicas[0]; r.State != fleet.Failed || !strings.Contains(r.Reason, "/no/such/program") {
		t.Errorf("replica %+v", r)
	}
	stopAll(t, s, "j")
}

func TestGraceEndsInAKill(t *testing.T) {
	s, _ := machine(t, t.TempDir())
	g := serving("main")
	g.Env["LLMOPS_TEST_DEAF"] = "1"
	g.Grace = 200 * time.Millisecond
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "deaf", Groups: []fleet.Group{g}}, 0); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "deaf", one)
	stopAll(t, s, "deaf")
}

func TestOneSupervisor(t *testing.T) {
	dir := t.TempDir()
	s, _ := machine(t, dir)
	if _, err := s.Apply(t.Context(), fleet.Job{Name: "j", Groups: []fleet.Group{serving("main")}}, 0); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "j", one)
	if err := (&Supervisor{Store: s.store, Dir: dir}).Run(t.Context()); !errors.Is(err, ErrSupervised) {
		t.Errorf("a second supervisor: %v", err)
	}
	if pid, err := SupervisorPID(dir); err != nil || pid != os.Getpid() || !Supervised(dir) {
		t.Errorf("the supervisor is %d, %v", pid, err)
	}
	stopAll(t, s, "j")
}

func TestPlanSeesAPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s, _ := machine(t, t.TempDir())
	g := serving("main")
	g.Addr = l.Addr().String()
	p, err := s.Plan(t.Context(), fleet.Job{Name: "r", Groups: []fleet.Group{g}})
	if err != nil || p.Fits || !strings.Contains(strings.Join(p.Reasons, ""), g.Addr) {
		t.Errorf("Plan = %+v, %v", p, err)
	}
}

func TestFollowedLogsGrow(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := logFile(dir, "j/main-0")
	if err := os.WriteFile(path, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := NewScheduler(nil, dir).Logs(ctx, "j/main-0", true)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		if n, err := r.Read(b); err != nil || string(b[:n]) != "one\n" {
			t.Fatalf("%q, %v", b[:n], err)
		}
		time.AfterFunc(time.Second, func() {
			f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			_, _ = f.WriteString("two\n")
			_ = f.Close()
		})
		if n, err := r.Read(b); err != nil || string(b[:n]) != "two\n" {
			t.Fatalf("%q, %v", b[:n], err)
		}
		cancel()
		if n, err := r.Read(b); n != 0 || err == nil {
			t.Errorf("after the end: %d, %v", n, err)
		}
		_ = r.Close()
	})
}

func TestPauseGrowsToABound(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond, 50: lastPause} {
		if got := pause(n); got != want {
			t.Errorf("pause(%d) = %v, want %v", n, got, want)
		}
	}
}

// brokenWatch is a store whose watch ends with an error once told to.
type brokenWatch struct {
	fleet.Store
	told chan struct{}
	err  error
}

func (b *brokenWatch) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-b.told:
			cancel(b.err)
		case <-ctx.Done():
		}
	}()
	_ = b.Store.Watch(ctx, prefix, fn)
	return context.Cause(ctx)
}

// Without its directory nobody could stop a supervisor and what it keeps: they
// go, also when its watch was the first to stumble over the removal.
func TestDirectoryThatIsRemoved(t *testing.T) {
	stumbled := errors.New("stumbled")
	for _, tc := range []struct {
		name            string
		removed, broken bool
		want            error
	}{
		{"removed", true, false, ErrRemoved},
		{"removed under the watch", true, true, ErrRemoved},
		{"watch alone", false, true, stumbled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "state")
			store, err := OpenStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			bin, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan error, 1)
			broken := &brokenWatch{Store: store, told: make(chan struct{}), err: stumbled}
			sup := &Supervisor{Store: broken, Dir: dir, Bin: bin, Env: os.Environ()}
			go func() { done <- sup.Run(ctx) }()
			s := NewScheduler(store, dir)
			if _, err := s.Apply(ctx, fleet.Job{Name: "j", Groups: []fleet.Group{serving("main")}}, 0); err != nil {
				t.Fatal(err)
			}
			r := fleettest.Await(t, s, "j", one).Replicas[0]
			if tc.broken {
				close(broken.told)
			}
			if tc.removed {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; !errors.Is(err, tc.want) {
				t.Errorf("it ended with %v", err)
			}
			c, err := net.Dial("tcp", r.Addr)
			if err == nil {
				_ = c.Close()
			}
			if tc.removed && err == nil {
				t.Errorf("the replica still answers at %s", r.Addr)
			}
			if !tc.removed {
				if err != nil {
					t.Errorf("the replica went with its supervisor: %v", err)
				}
				_ = syscall.Kill(r.PID, syscall.SIGKILL)
			}
		})
	}
}
