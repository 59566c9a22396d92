// Package engine knows how each engine is started: one file an engine, each a
// pure function from what shall be served to the group of processes that
// serves it. Flags, check path and grace are the engine's own; where it runs is
// not decided here. Only the embedded engine is here so far.
package engine

import (
	"fmt"
	"strconv"
	"time"

	"llmops/fleet"
)

// Serve is what one engine shall serve.
type Serve struct {
	Kind        string // which engine
	Alias       string // what clients put in "model"
	Version     string // what the engine must say it is
	Dir         string // the model's folder
	MaxModelLen int    // tokens
	MaxNumSeqs  int
	Fault       string // a fault to rehearse, in the engine's own words; empty: none
	Replicas    int
	Need        fleet.Need
}

// Group returns the processes that serve s.
func Group(s Serve) (fleet.Group, error) {
	switch s.Kind {
	case "embedded":
		return embedded(s), nil
	}
	return fleet.Group{}, fmt.Errorf("engine %q is not one of: embedded", s.Kind)
}

func embedded(s Serve) fleet.Group {
	argv := []string{
		"${LLMOPS_BIN}", "engine", "serve",
		"--listen", "${LLMOPS_ADDR}",
		"--model", s.Dir,
		"--name", s.Alias,
		"--version-name", s.Version,
		"--max-model-len", strconv.Itoa(s.MaxModelLen),
		"--max-num-seqs", strconv.Itoa(s.MaxNumSeqs),
	}
	if s.Fault != "" {
		argv = append(argv, "--fault", s.Fault)
	}
	return fleet.Group{
		Name: "main", Count: s.Replicas, Argv: argv, GPU: s.Need,
		Check: fleet.Check{Path: "/health", Interval: time.Second, Timeout: 2 * time.Second},
		Grace: 10 * time.Second,
	}
}
