package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"llmops/fleet/nomad/nomadtest"
)

// bin is the folder of the program under test.
var bin string

// patience is how long all scripts may take: one that waits for what never comes
// shall end before the test binary is killed, and show where it stood.
const patience = 4 * time.Minute

// TestMain builds the program once, plainly, as users build it.
func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if bin, err = os.MkdirTemp("", "llmops-script-"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "llmops"), ".")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("building llmops: %w", err)
	}
	return m.Run(), nil
}

// The first word of a script's file name is the command that it is about.
func TestScript(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The example's folder may hold the weights that scripts onboard; another
	// folder with the same files can stand in for it.
	freight := os.Getenv("LLMOPS_TEST_FREIGHT")
	if freight == "" {
		freight = filepath.Join(root, "examples", "freight", "weights")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Deadline:            time.Now().Add(patience),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("LLMOPS_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("ROOT", root)
			e.Setenv("FREIGHT", freight)
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "freight" {
				_, err := os.Stat(filepath.Join(freight, "model.safetensors"))
				return err == nil, nil
			}
			if cond == "nomad" {
				_, err := exec.LookPath("nomad")
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"llmops":     runLLMOps,
			"checkpoint": copyCheckpoint,
			"overwrite":  overwrite,
			"truncate":   truncate,
			"replace":    replace,
			"nomad":      nomad,
			"hub":        hub, "site": site, "bucket": bucket,
			"engine": engine, "quicken": quicken,
			"router": router, "ask": ask, "stop-router": stopRouter,
		},
	})
}

// runLLMOps is "llmops CODE ARG...": it runs the program and holds it to its
// exit code.
func runLLMOps(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: llmops CODE ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec("llmops", args[1:]...)
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		got = ee.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("llmops %v exits %d, want %d", args[1:], got, want)
	}
}

// nomad starts an agent for the script and writes its address into FILE, a fleet.yaml,
// in the place of ADDRESS: "nomad FILE".
func nomad(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nomad FILE")
	}
	bin, err := exec.LookPath("nomad")
	ts.Check(err)
	client, stop, err := nomadtest.Start(bin)
	ts.Check(err)
	ts.Defer(stop)
	replace(ts, false, []string{args[0], "ADDRESS", client.Address()})
}

// replace is "replace FILE OLD NEW": it replaces text that must be in the file.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o644))
}

// copyCheckpoint is "checkpoint NAME DIR": it copies one of the tiny checkpoints
// of the embedded engine's tests.
func copyCheckpoint(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: checkpoint NAME DIR")
	}
	from := filepath.Join(ts.Getenv("ROOT"), "serving", "embedded", "llama", "testdata", args[0])
	to := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(to, 0o755))
	for _, f := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
		b, err := os.ReadFile(filepath.Join(from, f))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		ts.Check(err)
		ts.Check(os.WriteFile(filepath.Join(to, f), b, 0o644))
	}
}

// overwrite is "overwrite FILE AT BYTE N": N bytes from AT on, which counts from
// the end when it is negative.
func overwrite(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: overwrite FILE AT BYTE N")
	}
	at, err1 := strconv.Atoi(args[1])
	with, err2 := strconv.ParseUint(args[2], 0, 8)
	n, err3 := strconv.Atoi(args[3])
	ts.Check(errors.Join(err1, err2, err3))
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	if at < 0 {
		at += len(b)
	}
	copy(b[at:], slices.Repeat([]byte{byte(with)}, n))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o644))
}

// truncate is "truncate FILE N": it takes the last N bytes off.
func truncate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: truncate FILE N")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b[:len(b)-n], 0o644))
}
