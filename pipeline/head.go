package pipeline

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"llmops/evidence"
	"llmops/fleet"
)

const (
	// maxState bounds the state of a running stage within the head, in bytes.
	maxState = 32 << 10
	// maxReason bounds a reason within the head, in bytes; the journal has all of
	// it. At six bytes each, which is the most that JSON makes of one, the reasons
	// of an error and of an approval of every gate fit beside the state.
	maxReason = 300
)

// RunState is where a run stands.
type RunState string

// The states of a run. A stopped run goes on by itself when its host is there; a
// waiting one has reached the point it was asked to reach, a failed one met an
// error: both go on when a person says so. The others are over.
const (
	Running    RunState = "running"
	Stopped    RunState = "stopped"
	Waiting    RunState = "waiting"
	Failed     RunState = "failed"
	Done       RunState = "done"
	Refused    RunState = "refused" // a gate did not pass
	Superseded RunState = "superseded"
)

// HostWatch is the host of a run that was handed over to watch.
const HostWatch = "watch"

// Head is the state of a run: what resuming needs, in one document.
type Head struct {
	Run      string          `json:"run"`
	Alias    string          `json:"alias"`
	Spec     string          `json:"spec"` // digest of the Spec
	State    RunState        `json:"state"`
	Owner    string          `json:"owner"`
	Host     string          `json:"host,omitempty"` // HostWatch when handed over
	Epoch    uint64          `json:"epoch"`
	Seq      uint64          `json:"seq"`
	Last     string          `json:"last,omitempty"` // digest of the last journal entry
	Stage    string          `json:"stage,omitempty"`
	Until    string          `json:"until,omitempty"`
	Began    time.Time       `json:"began"`
	Updated  time.Time       `json:"updated"`
	Reason   string          `json:"reason,omitempty"`
	Stages   []StageHead     `json:"stages,omitempty"`
	Approved []Approval      `json:"approved,omitempty"`
	Attempt  json.RawMessage `json:"attempt,omitempty"` // the running stage's own state
	Options  Options         `json:"options"`
}

// Options are what the command line adds to the file, on record with the run.
type Options struct {
	RollbackOn []string `json:"rollback_on,omitempty"`
	Only       bool     `json:"only,omitempty"`
	Listen     string   `json:"listen,omitempty"`  // where the first router takes requests, when there is none yet; of a cluster, the port of all
	Routers    int      `json:"routers,omitempty"` // how many of them a fleet runs
	Again      bool     `json:"again,omitempty"`
}

// StageHead is a finished stage as the head shows it.
type StageHead struct {
	Name    string           `json:"name"`
	Outcome evidence.Outcome `json:"outcome"`
	Record  string           `json:"record"` // digest of the Record
	Began   time.Time        `json:"began"`
	Ended   time.Time        `json:"ended"`
	Reused  bool             `json:"reused,omitempty"`
}

// Approval is a person's recorded decision to go on past a gate.
type Approval struct {
	Gate   string    `json:"gate"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

// Over tells whether the run has ended.
func (h *Head) Over() bool { return h.State == Done || h.State == Refused || h.State == Superseded }

// Outcome is the worst of the finished stages' outcomes, a person's approvals
// taken into account.
func (h *Head) Outcome() evidence.Outcome {
	if len(h.Stages) == 0 {
		return evidence.Inconclusive
	}
	out := evidence.Pass
	for _, s := range h.Stages {
		if h.approved(s.Name) {
			continue
		}
		switch {
		case s.Outcome == evidence.Fail:
			return evidence.Fail
		case s.Outcome == evidence.Inconclusive:
			out = evidence.Inconclusive
		}
	}
	return out
}

func (h *Head) approved(gate string) bool {
	return slices.ContainsFunc(h.Approved, func(a Approval) bool { return a.Gate == gate })
}

func (h *Head) stage(name string) *StageHead {
	for i := range h.Stages {
		if h.Stages[i].Name == name {
			return &h.Stages[i]
		}
	}
	return nil
}

// setStage records a finished stage in the place of an earlier record of it.
func (h *Head) setStage(s StageHead) {
	if old := h.stage(s.Name); old != nil {
		*old = s
		return
	}
	h.Stages = append(h.Stages, s)
}

func headName(run string) string   { return "run/" + run }
func lastName(alias string) string { return "index/run/" + fleet.Escape(alias) }

// Create writes the head of a new run of spec and makes it the alias's latest.
// An earlier run of the alias must be over.
func Create(ctx context.Context, d Deps, s Spec, opts Options) (run string, err error) {
	digest, err := putJSON(ctx, d.Blobs, s)
	if err != nil {
		return "", fmt.Errorf("storing the spec: %w", err)
	}
	var salt [2]byte
	_, _ = rand.Read(salt[:])
	now := d.Now().UTC()
	run = fmt.Sprintf("%s-%s-%s", fleet.Escape(s.Name), now.Format("0102-150405"), hex.EncodeToString(salt[:]))
	h := Head{Run: run, Alias: s.Name, Spec: digest, State: Stopped, Began: now, Updated: now, Options: opts}
	last, err := d.Store.Get(ctx, lastName(s.Name))
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return "", err
	}
	if last.Rev != 0 {
		if old, err := Read(ctx, d.Store, string(last.Body)); err == nil && !old.Over() {
			return "", fmt.Errorf("run %s of %s is not over: %w", old.Run, s.Name, ErrBusy)
		} else if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return "", err
		}
	}
	body, err := json.Marshal(h)
	if err != nil {
		return "", err
	}
	if err := clearHalf(ctx, d, s.Name, string(last.Body)); err != nil {
		return "", err
	}
	rev, err := d.Store.Put(ctx, headName(run), body, 0)
	if err != nil {
		return "", fmt.Errorf("writing run %s: %w", run, err)
	}
	if _, err := d.Store.Put(ctx, lastName(s.Name), []byte(run), last.Rev); err != nil {
		return "", errors.Join(fmt.Errorf("starting run %s: %w", run, err), d.Store.Delete(context.WithoutCancel(ctx), headName(run), rev))
	}
	return run, nil
}

// creation bounds the time between the two writes of Create.
const creation = time.Minute

// clearHalf removes the heads of the alias that were never claimed nor made its
// latest run, since whoever created them died in between.
func clearHalf(ctx context.Context, d Deps, alias, last string) error {
	docs, err := d.Store.List(ctx, headName(fleet.Escape(alias)+"-"))
	if err != nil {
		return err
	}
	for _, doc := range docs {
		// One that cannot be read was not half created, and is for a person to see to.
		h, rev, err := read(ctx, d.Store, strings.TrimPrefix(doc.Name, headName("")))
		if err != nil || h.Alias != alias || h.Run == last || h.Seq > 0 || d.Now().Sub(h.Began) < creation {
			continue
		}
		if err := d.Store.Delete(ctx, headName(h.Run), rev); err != nil && !errors.Is(err, fleet.ErrConflict) && !errors.Is(err, fleet.ErrNotFound) {
			return fmt.Errorf("clearing up run %s: %w", h.Run, err)
		}
	}
	return nil
}

// Last returns the alias's latest run; ErrNotFound when there is none.
func Last(ctx context.Context, s fleet.Store, alias string) (Head, error) {
	d, err := s.Get(ctx, lastName(alias))
	if err != nil {
		return Head{}, err
	}
	return Read(ctx, s, string(d.Body))
}

// Read returns the head of a run.
func Read(ctx context.Context, s fleet.Store, run string) (Head, error) {
	h, _, err := read(ctx, s, run)
	return h, err
}

func read(ctx context.Context, s fleet.Store, run string) (Head, uint64, error) {
	d, err := s.Get(ctx, headName(run))
	if err != nil {
		return Head{}, 0, err
	}
	var h Head
	if err := json.Unmarshal(d.Body, &h); err != nil {
		return Head{}, 0, fmt.Errorf("reading run %s: %w", run, err)
	}
	return h, d.Rev, nil
}

// Runs returns the heads of all runs, the latest first.
func Runs(ctx context.Context, s fleet.Store) ([]Head, error) {
	docs, err := s.List(ctx, "run/")
	if err != nil {
		return nil, err
	}
	out := make([]Head, 0, len(docs))
	for _, d := range docs {
		h, err := Read(ctx, s, strings.TrimPrefix(d.Name, "run/"))
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Head) int { return cmp.Or(b.Began.Compare(a.Began), strings.Compare(a.Run, b.Run)) })
	return out, nil
}

// change applies fn to the head under compare-and-set, as a person may who
// does not drive the run.
func change(ctx context.Context, s fleet.Store, run string, fn func(*Head) error) error {
	for {
		h, rev, err := read(ctx, s, run)
		if err != nil {
			return err
		}
		if err := fn(&h); err != nil {
			return err
		}
		body, err := json.Marshal(h)
		if err != nil {
			return err
		}
		if _, err = s.Put(ctx, headName(run), body, rev); !errors.Is(err, fleet.ErrConflict) {
			return err
		}
	}
}

// Approve records that by lets the run go on past a gate that did not pass.
// The run can then be driven again. It must be the alias's latest: two runs would
// move the same traffic.
func Approve(ctx context.Context, d Deps, run, gate, by, reason string) error {
	return change(ctx, d.Store, run, func(h *Head) error {
		last, err := d.Store.Get(ctx, lastName(h.Alias))
		if err != nil {
			return err
		}
		s := h.stage(gate)
		switch {
		case reason == "":
			return errors.New("an approval needs a reason")
		case len(reason) > maxReason:
			return fmt.Errorf("the reason has %d bytes, want at most %d", len(reason), maxReason)
		case string(last.Body) != run:
			return fmt.Errorf("run %s of %s is newer: approve that one, or onboard the model file of this one again", last.Body, h.Alias)
		case s == nil:
			return fmt.Errorf("run %s has no verdict of %s to override", run, gate)
		case s.Outcome == evidence.Pass:
			return fmt.Errorf("%s of run %s passed: there is nothing to override", gate, run)
		case h.State != Refused:
			return fmt.Errorf("run %s is %s, not refused", run, h.State)
		}
		h.Approved = append(h.Approved, Approval{Gate: gate, Reason: reason, By: by, At: d.Now().UTC()})
		h.State, h.Reason = Stopped, "approved past "+gate
		h.Epoch++
		return nil
	})
}

// HandOver asks watch to drive the run up to until from now on; its driver is
// fenced.
func HandOver(ctx context.Context, s fleet.Store, run, until string) error {
	return change(ctx, s, run, func(h *Head) error {
		if h.Over() {
			return fmt.Errorf("run %s is over", run)
		}
		h.Until = until
		h.Host, h.Owner, h.State = HostWatch, "", Stopped
		h.Epoch++
		return nil
	})
}

// TakeBack fences whoever drives the run, so that the caller can claim it.
func TakeBack(ctx context.Context, s fleet.Store, run string) error {
	return change(ctx, s, run, func(h *Head) error {
		if h.Over() {
			return fmt.Errorf("run %s is over", run)
		}
		h.Host, h.Owner, h.State = "", "", Stopped
		h.Epoch++
		return nil
	})
}

// Discard ends a run that nobody drives, so that another can begin, and takes
// its candidate off the fleet. Its records may be elsewhere, or lost.
func Discard(ctx context.Context, d Deps, run, owner, reason string) error {
	j, err := claim(ctx, d, run, owner)
	if err != nil {
		return err
	}
	spec, err := ReadSpec(ctx, d.Blobs, j.head)
	if errors.Is(err, fleet.ErrNotFound) {
		spec, err = Spec{Name: j.head.Alias}, nil // of which nothing else is needed here
	}
	if err != nil {
		return err
	}
	a := &Attempt{Deps: d, Spec: spec, Run: run, Stage: j.head.Stage, Opts: j.head.Options, j: j}
	if err := d.Abandon(ctx, a); err != nil {
		return leave(ctx, j, j.head.Stage, err)
	}
	return j.release(ctx, Superseded, reason)
}

// Rewind forgets the verdicts of the stage called from and of all after it, so
// that they are reached anew.
func Rewind(ctx context.Context, d Deps, run, from string) error {
	at := slices.IndexFunc(d.Stages, func(s Stage) bool { return s.Name == from })
	if at < 0 {
		return fmt.Errorf("no stage is called %q", from)
	}
	return change(ctx, d.Store, run, func(h *Head) error {
		h.Stages = slices.DeleteFunc(h.Stages, func(s StageHead) bool {
			return slices.IndexFunc(d.Stages, func(x Stage) bool { return x.Name == s.Name }) >= at
		})
		// What was approved are those verdicts, not the ones to come.
		h.Approved = slices.DeleteFunc(h.Approved, func(p Approval) bool { return h.stage(p.Gate) == nil })
		h.Stage, h.Attempt = "", nil
		h.Epoch++
		return nil
	})
}

// Amend changes what the command line asked of the run.
func Amend(ctx context.Context, s fleet.Store, run string, o Options) error {
	return change(ctx, s, run, func(h *Head) error { h.Options = o; return nil })
}

// ReadSpec returns the spec of a run.
func ReadSpec(ctx context.Context, b fleet.Blobs, h Head) (s Spec, err error) {
	if err := getJSON(ctx, b, h.Spec, &s); err != nil {
		return s, fmt.Errorf("reading the spec of run %s: %w", h.Run, err)
	}
	return s, nil
}

// Records returns what the finished stages of a run left, in order.
func Records(ctx context.Context, b fleet.Blobs, h Head) ([]Record, error) {
	out := make([]Record, 0, len(h.Stages))
	for _, s := range h.Stages {
		var r Record
		if err := getJSON(ctx, b, s.Record, &r); err != nil {
			return nil, fmt.Errorf("reading the record of %s: %w", s.Name, err)
		}
		out = append(out, r)
	}
	return out, nil
}
