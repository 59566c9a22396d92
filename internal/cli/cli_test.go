package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gofrs/flock"
)

// TestMain lets the test binary be llmops itself, for commands that start it
// in the background or that must run as another user.
func TestMain(m *testing.M) {
	if os.Getenv("LLMOPS_TEST_MAIN") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// result is what a command left.
type result struct {
	code     int
	out, err string
}

// run runs one command line over the state directory home, without a terminal.
func run(t *testing.T, home string, args ...string) result {
	t.Helper()
	var out, errw bytes.Buffer
	env := map[string]string{"LLMOPS_HOME": home, "USER": "tester"}
	code := Main(t.Context(), args, strings.NewReader(""), &out, &errw, func(k string) string { return env[k] })
	return result{code, out.String(), errw.String()}
}

// hold locks a file as another process would.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	l := flock.New(path)
	if ok, err := l.TryLock(); !ok || err != nil {
		t.Fatalf("locking %s: %v, %v", path, ok, err)
	}
	return func() { _ = l.Close() }
}

// startProgram runs a program until the test ends and returns its process id.
func startProgram(t *testing.T, name string, args ...string) (pid string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

// startWatch starts the background process of h as commands do, and stops it
// when the test ends.
func startWatch(t *testing.T, h *home) {
	t.Helper()
	t.Setenv("LLMOPS_TEST_MAIN", "1")
	e := &env{err: t.Output()}
	if err := e.ensureWatch(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(h.dir, "supervisor.lock")
	pid, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(lock, pid, 0o600); err != nil {
			t.Error(err)
		}
		if err := h.stopWatch(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
