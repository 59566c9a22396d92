package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// engine serves the example's checkpoint for the script, by the program itself, and
// sets NAME to its address: "engine NAME ARG...".
func engine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: engine NAME ARG...")
	}
	argv := append([]string{"engine", "serve", "--listen", "127.0.0.1:0"}, args[1:]...)
	c := exec.Command(filepath.Join(bin, "llmops"), argv...)
	log, err := c.StderrPipe()
	ts.Check(err)
	ts.Check(c.Start())
	ts.Defer(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
	})
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "serving on "); ok {
			ts.Setenv(args[0], url)
			return
		}
	}
	ts.Fatalf("the engine ended before it served")
}
