package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// faults are what the harness that proves that any run survives them may ask of
// the process that drives one, by name of the variable: LLMOPS_KILL_AT=before:7
// kills it before its seventh intent is on record, after:canary:1 after the
// first of stage canary.
var faults = map[string]syscall.Signal{
	"LLMOPS_KILL_AT":      syscall.SIGKILL,
	"LLMOPS_INTERRUPT_AT": syscall.SIGINT,
}

// isFault tells whether a variable, "name=value", asks for a fault.
func isFault(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	_, ok := faults[name]
	return ok
}

// faultPoint is called at each intent and sends this process the signal that is
// due there; nil when none ever is.
func (e *env) faultPoint() func(when, stage, what string) {
	var points []func(when, stage string)
	for name, signal := range faults {
		if p := faultAt(e.getenv(name), func() { _ = syscall.Kill(os.Getpid(), signal) }); p != nil {
			points = append(points, p)
		}
	}
	if points == nil {
		return nil
	}
	return func(when, stage, _ string) {
		for _, p := range points {
			p(when, stage)
		}
	}
}

// faultAt counts intents up to the one that at names, and calls do there.
func faultAt(at string, do func()) func(when, stage string) {
	when, nth, ok := strings.Cut(at, ":")
	only, n, staged := strings.Cut(nth, ":")
	if !staged {
		only, n = "", nth
	}
	want, err := strconv.Atoi(n)
	if !ok || err != nil {
		return nil
	}
	seen := 0
	return func(now, stage string) {
		if staged && stage != only {
			return
		}
		if now == "before" {
			seen++
		}
		if now == when && seen == want {
			do()
		}
	}
}
