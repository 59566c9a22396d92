package pipeline

import (
	"context"
	"encoding/json"
	"fmt"

	"llmops/fleet"
)

// Attempt is one go of a driver at one stage. It belongs to the goroutine of
// the stage.
type Attempt struct {
	Deps   Deps
	Spec   Spec
	Run    string
	Stage  string
	Opts   Options
	j      *Journal
	output any
}

// Intent records what the stage is about to do to the world: a change of a
// job, of a route, of a file outside the blobs, or a notification. It returns
// ErrFenced when somebody else has claimed the run; the effect must then not
// happen.
func (a *Attempt) Intent(ctx context.Context, what string, detail any) error {
	a.point("before", what)
	b, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("recording intent %q: %w", what, err)
	}
	if err := a.j.append(ctx, Entry{Kind: "intent", Stage: a.Stage, What: what, Detail: b}); err != nil {
		return fmt.Errorf("recording intent %q: %w", what, err)
	}
	a.point("after", what)
	return nil
}

func (a *Attempt) point(when, what string) {
	if a.Deps.Point != nil {
		a.Deps.Point(when, a.Stage, what)
	}
}

// Save moves the head with the stage's own state and adds no blob. A world stage
// has none: the head keeps that of the stage which the run has reached.
func (a *Attempt) Save(ctx context.Context, state any) error {
	b, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("saving the state of %s: %w", a.Stage, err)
	}
	if len(b) > maxState {
		return fmt.Errorf("saving the state of %s: %d bytes are more than %d", a.Stage, len(b), maxState)
	}
	if a.j.head.Stage != a.Stage {
		return fmt.Errorf("saving the state of %s: the run is at %s", a.Stage, a.j.head.Stage)
	}
	old := a.j.head.Attempt
	a.j.head.Attempt = b
	if err := a.j.move(ctx); err != nil {
		a.j.head.Attempt = old
		return err
	}
	return nil
}

// Load reads what an earlier attempt at this stage saved. It reports whether
// there was anything.
func (a *Attempt) Load(state any) (bool, error) {
	if len(a.j.head.Attempt) == 0 || a.j.head.Stage != a.Stage {
		return false, nil
	}
	if err := json.Unmarshal(a.j.head.Attempt, state); err != nil {
		return false, fmt.Errorf("reading the saved state of %s: %w", a.Stage, err)
	}
	return true, nil
}

// Output sets what later stages and the report read of this one.
func (a *Attempt) Output(v any) { a.output = v }

// Result reads the output of an earlier stage of the run.
func (a *Attempt) Result(ctx context.Context, stage string, v any) error {
	s := a.j.head.stage(stage)
	if s == nil {
		return fmt.Errorf("%s needs the result of %s: %w", a.Stage, stage, fleet.ErrNotFound)
	}
	var r Record
	if err := getJSON(ctx, a.Deps.Blobs, s.Record, &r); err != nil {
		return fmt.Errorf("reading the result of %s: %w", stage, err)
	}
	if err := json.Unmarshal(r.Output, v); err != nil {
		return fmt.Errorf("reading the result of %s: %w", stage, err)
	}
	return nil
}

// Progress reports that done of total is done; total 0 means unknown.
func (a *Attempt) Progress(text string, done, total int64) {
	a.emit(Event{Kind: Progress, Text: text, Done: done, Total: total})
}

// Note reports something that a reader of the run should know.
func (a *Attempt) Note(format string, args ...any) {
	a.emit(Event{Kind: Note, Text: fmt.Sprintf(format, args...)})
}

func (a *Attempt) emit(e Event) {
	if a.Deps.Emit == nil {
		return
	}
	e.At, e.Run, e.Stage = a.Deps.Now().UTC(), a.Run, a.Stage
	a.Deps.Emit(e)
}
