// Package pipeline is how a model becomes live: a run of stages, each with a
// verdict, that any process may resume after any other died.
//
// A run is described by a [Spec] and lives in one document, its [Head], and a
// chain of blobs, its journal. Whoever moves the head must have read it
// ([Claim] raises its epoch), so that lock, fencing and resume are the same
// compare-and-set. A stage writes an intent before each effect on the world
// ([Attempt.Intent]) and its small state as often as it likes
// ([Attempt.Save]); every effect can be repeated. [Drive] walks the stages:
// artefacts are found again by the digest of their inputs, stages that touch
// the world are run again and reconcile by looking, and a gate that does not
// pass ends the run.
//
// The stages themselves are adapters over the libraries in the folders below,
// which know nothing of runs. The package prints nothing and reads no
// environment; progress goes to [Deps].Emit. A [Journal] and its attempts
// belong to one goroutine.
package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline/download"
	"llmops/serving/embedded/ceiling"
	"llmops/serving/route"
)

var (
	// ErrFenced reports that somebody else has claimed the run since.
	ErrFenced = errors.New("the run was taken over")
	// ErrBusy reports that a live process drives the run.
	ErrBusy = errors.New("the run is being driven by another process")
	// ErrElsewhere reports a run of a shared fleet whose records this machine does not
	// have: it was begun on another.
	ErrElsewhere = errors.New("the run's records are on the machine where it was begun")
)

// Deps is what runs need from outside. All fields but Ceilings, Build, Emit, Point and
// Alive must be set.
type Deps struct {
	Store     fleet.Store
	Blobs     fleet.Blobs
	Scheduler fleet.Scheduler
	Sources   download.Sources                                       // where models come from
	Dir       string                                                 // where artefacts are laid out as files
	Shared    *Shared                                                // how nodes get weights; nil: they see Dir
	Records   Recording                                              // that routers write
	Cluster   string                                                 // by what name a task finds the cluster that it is part of; empty: the fleet is this machine
	Ceilings  func() *ceiling.Ceilings                               // of the machine that replicas without a GPU run on, as measured; nil: not
	Build     string                                                 // of this program, which is the embedded engine's version too
	Now       func() time.Time                                       // the wall clock, for records
	Admins    func(context.Context) (map[string]*route.Admin, error) // the routers there are, by name
	Stages    []Stage                                                // in order
	Abandon   func(context.Context, *Attempt) error                  // takes a candidate off the fleet after a gate said no
	Emit      func(Event)                                            // called from Drive's goroutine; must not block
	Alive     func(owner string) bool                                // whether the process that claimed a run still runs
	// Point is called at each intent, before ("before") and after ("after") it
	// is on record: where the harness kills the driver.
	Point func(when, stage, what string)
}

// Stage is one step of a run.
type Stage struct {
	Name string
	// Format counts changes of what the stage writes; a change makes earlier
	// artefacts of it unusable.
	Format int
	// Artefact stages yield the same output for the same input and are skipped
	// when an earlier run did the work.
	Artefact bool
	// World stages bring the fleet into a state and are run again on resume.
	World bool
	// Input names what an artefact depends on; nil otherwise.
	Input func(context.Context, *Attempt) (any, error)
	// Kept tells whether what an earlier run wrote is still in its place.
	Kept func(context.Context, *Attempt, Record) bool
	Run  func(context.Context, *Attempt) (evidence.Verdict, error)
}

// Event is one piece of progress.
type Event struct {
	At      time.Time
	Run     string
	Stage   string
	Kind    EventKind
	Text    string
	Done    int64
	Total   int64
	Verdict *evidence.Verdict
}

// EventKind tells events apart.
type EventKind string

// The kinds of events.
const (
	Started  EventKind = "started"
	Skipped  EventKind = "skipped"
	Progress EventKind = "progress"
	Note     EventKind = "note"
	Finished EventKind = "finished"
)

// Record is what a finished stage leaves: its verdict and its output, which
// later stages and the report read.
type Record struct {
	Stage   string           `json:"stage"`
	Started time.Time        `json:"started"`
	Ended   time.Time        `json:"ended"`
	Verdict evidence.Verdict `json:"verdict"`
	Output  json.RawMessage  `json:"output,omitempty"`
}
