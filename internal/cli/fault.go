package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// faultPoint kills this process at one intent, for the harness that proves that
// any run survives it: LLMOPS_KILL_AT=before:7 is before the seventh intent of
// this process is on record.
func (e *env) faultPoint() func(when, stage, what string) {
	when, nth, ok := strings.Cut(e.getenv("LLMOPS_KILL_AT"), ":")
	n, err := strconv.Atoi(nth)
	if !ok || err != nil {
		return nil
	}
	seen := 0
	return func(now, _, _ string) {
		if now == "before" {
			seen++
		}
		if now == when && seen == n {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
}
