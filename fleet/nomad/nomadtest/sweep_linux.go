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
		if !uses(p, dir) {
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

// uses tells whether the process works in dir, was told of it, or has a file of it open.
func uses(proc, dir string) bool {
	if args, _ := os.ReadFile(filepath.Join(proc, "cmdline")); bytes.Contains(args, []byte(dir+"/")) {
		return true
	}
	open, _ := filepath.Glob(filepath.Join(proc, "fd", "*"))
	return slices.ContainsFunc(append(open, filepath.Join(proc, "cwd")), func(link string) bool {
		to, _ := os.Readlink(link)
		return within(to, dir)
	})
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
