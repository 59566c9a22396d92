package nomadtest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sweep ends what agents leave behind when they end: a client keeps its tasks running,
// and their folders mounted, for the agent that comes after it.
func sweep(dir string) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		args, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if !within(cwd, dir) && !bytes.Contains(args, []byte(dir+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var at []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && within(f[4], dir) {
			at = append(at, f[4])
		}
	}
	slices.Reverse(at) // what was mounted last lies innermost
	for _, m := range at {
		_ = unix.Unmount(m, unix.MNT_DETACH)
	}
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
