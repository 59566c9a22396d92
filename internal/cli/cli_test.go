package cli

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
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
