package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/model"
)

// endPatience bounds the last write of a driver whose context has ended.
const endPatience = 5 * time.Second

// Drive runs the stages of a claimed run up to and including until ("" for
// all) and returns what the run's stages say together. A gate that does not
// pass ends the run and takes its candidate off the fleet. When the context
// ends the run is left stopped, for the next claim to go on. When somebody else
// takes the run the stage is broken off, nothing more is written and the error
// is ErrFenced.
func Drive(ctx context.Context, d Deps, j *Journal, until string) (evidence.Outcome, error) {
	if until != "" && !slices.ContainsFunc(d.Stages, func(s Stage) bool { return s.Name == until }) {
		return evidence.Inconclusive, fmt.Errorf("no stage is called %q", until)
	}
	j.d = d
	j.head.Until = until
	ctx, stop := j.fence(ctx)
	defer stop()
	out, err := walk(ctx, d, j, until)
	if err != nil && errors.Is(context.Cause(ctx), ErrFenced) {
		err = fmt.Errorf("run %s: %w", j.head.Run, ErrFenced)
	}
	return out, err
}

func walk(ctx context.Context, d Deps, j *Journal, until string) (evidence.Outcome, error) {
	spec, err := ReadSpec(ctx, d.Blobs, j.head)
	if err != nil {
		return evidence.Inconclusive, err
	}
	for _, s := range d.Stages {
		a := &Attempt{Deps: d, Spec: spec, Run: j.head.Run, Stage: s.Name, Opts: j.head.Options, j: j}
		outcome, err := attempt(ctx, a, s)
		if err != nil {
			return evidence.Inconclusive, leave(ctx, j, s.Name, err)
		}
		if outcome != evidence.Pass && !j.head.approved(s.Name) {
			return outcome, refuse(ctx, a, outcome)
		}
		if s.Name == until {
			return j.head.Outcome(), j.release(ctx, Waiting, "reached "+until)
		}
	}
	return j.head.Outcome(), j.release(ctx, Done, "all stages ran")
}

// attempt runs one stage, or finds that it need not run.
func attempt(ctx context.Context, a *Attempt, s Stage) (evidence.Outcome, error) {
	done := a.j.head.stage(s.Name)
	if done != nil && !s.World {
		// One that did not pass stays so: a driver that died while it took the
		// candidate off the fleet must not give it another chance.
		gone, err := missing(ctx, a, s)
		if err != nil {
			return 0, err
		}
		if gone == "" {
			a.emit(Event{Kind: Skipped, Text: "done earlier in this run"})
			return done.Outcome, nil
		}
		a.Note("%s is not on this machine, and is made again", gone)
	}
	// A world stage that is only brought back into its state leaves the head to
	// the stage that the run had reached.
	if done == nil && a.j.head.Stage != s.Name {
		a.j.head.Stage, a.j.head.Attempt = s.Name, nil
		if err := a.j.move(ctx); err != nil {
			return 0, err
		}
	}
	key := ""
	if s.Artefact {
		var err error
		if key, err = artefactKey(ctx, a, s); err != nil {
			return 0, err
		}
		if r, digest, err := artefact(ctx, a.Deps, key); err != nil {
			return 0, err
		} else if digest != "" && s.Kept(ctx, a, r) {
			a.emit(Event{Kind: Skipped, Text: "an earlier run did this with the same input", Verdict: &r.Verdict})
			return r.Verdict.Outcome, finish(ctx, a, r, digest, true)
		}
	}
	a.emit(Event{Kind: Started})
	r := Record{Stage: s.Name, Started: a.Deps.Now().UTC()}
	v, err := s.Run(ctx, a)
	if err != nil {
		return 0, err
	}
	r.Ended, r.Verdict = a.Deps.Now().UTC(), v
	if a.output != nil {
		if r.Output, err = json.Marshal(a.output); err != nil {
			return 0, fmt.Errorf("recording the result of %s: %w", s.Name, err)
		}
	}
	if s.Artefact && done != nil {
		if err := same(ctx, a, r); err != nil {
			return 0, err
		}
	}
	digest, err := putJSON(ctx, a.Deps.Blobs, r)
	if err != nil {
		return 0, fmt.Errorf("recording the result of %s: %w", s.Name, err)
	}
	if err := finish(ctx, a, r, digest, false); err != nil {
		return 0, err
	}
	if key != "" && v.Outcome == evidence.Pass {
		if err := remember(ctx, a.Deps, key, digest); err != nil {
			return 0, err
		}
	}
	a.emit(Event{Kind: Finished, Verdict: &v})
	return v.Outcome, nil
}

// missing is the folder of an artefact that the run has made and that is not here: the run
// goes on on another machine, or somebody took it away. Whole is not asked: it would be
// to read all of it.
func missing(ctx context.Context, a *Attempt, s Stage) (string, error) {
	if !s.Artefact || s.Kept == nil || a.j.head.stage(s.Name).Outcome != evidence.Pass {
		return "", nil
	}
	var w Weights
	if err := a.Result(ctx, s.Name, &w); err != nil || w.Dir == "" {
		return "", err
	}
	if _, err := os.Stat(w.Dir); !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return w.Dir, nil
}

// same is an error when an artefact that was made again is another: what was found out
// of the first does not hold for it.
func same(ctx context.Context, a *Attempt, r Record) error {
	var was, is Weights
	if err := errors.Join(a.Result(ctx, r.Stage, &was), unmarshal(r.Output, &is)); err != nil {
		return err
	}
	if was.Digest != is.Digest {
		return fmt.Errorf("the run began with %s and this is %s: its source has changed; begin a new run with llmops onboard --again", model.Digest(was.Digest).Short(), model.Digest(is.Digest).Short())
	}
	return nil
}

// finish puts the stage's record into the head.
func finish(ctx context.Context, a *Attempt, r Record, digest string, reused bool) error {
	a.j.head.setStage(StageHead{Name: r.Stage, Outcome: r.Verdict.Outcome, Record: digest, Began: r.Started, Ended: r.Ended, Reused: reused})
	if a.j.head.Stage == r.Stage {
		a.j.head.Attempt = nil
	}
	return a.j.append(ctx, Entry{Kind: "stage", Stage: r.Stage, What: r.Verdict.Outcome.String(), Detail: mustJSON(digest)})
}

// refuse ends a run whose gate did not pass.
func refuse(ctx context.Context, a *Attempt, o evidence.Outcome) error {
	if a.Deps.Abandon != nil {
		if err := a.Deps.Abandon(ctx, a); err != nil {
			return leave(ctx, a.j, a.Stage, fmt.Errorf("taking the candidate off the fleet: %w", err))
		}
	}
	return a.j.release(ctx, Refused, fmt.Sprintf("%s: %s", a.Stage, o))
}

// leave lets go of a run whose stage ended with an error, and returns it.
func leave(ctx context.Context, j *Journal, stage string, err error) error {
	if errors.Is(err, ErrFenced) || errors.Is(context.Cause(ctx), ErrFenced) {
		return err
	}
	err = fmt.Errorf("%s: %w", stage, err)
	state := Failed
	if ctx.Err() != nil {
		state = Stopped
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	if e := j.release(ctx, state, err.Error()); e != nil && !errors.Is(e, ErrFenced) {
		return fmt.Errorf("%w; nor could that be put on record: %w", err, e)
	}
	return err
}

// artefactKey is the digest of all that the stage's output depends on.
func artefactKey(ctx context.Context, a *Attempt, s Stage) (string, error) {
	in, err := s.Input(ctx, a)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(struct {
		Stage  string
		Format int
		Input  any
	}{s.Name, s.Format, in})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "index/" + s.Name + "/" + hex.EncodeToString(sum[:16]), nil
}

// artefact looks for the record of an earlier run under key.
func artefact(ctx context.Context, d Deps, key string) (r Record, digest string, err error) {
	doc, err := d.Store.Get(ctx, key)
	if errors.Is(err, fleet.ErrNotFound) {
		return r, "", nil
	}
	if err != nil {
		return r, "", err
	}
	err = getJSON(ctx, d.Blobs, string(doc.Body), &r)
	if errors.Is(err, fleet.ErrNotFound) {
		return r, "", nil
	}
	return r, string(doc.Body), err
}

func remember(ctx context.Context, d Deps, key, digest string) error {
	doc, err := d.Store.Get(ctx, key)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if _, err := d.Store.Put(ctx, key, []byte(digest), doc.Rev); err != nil && !errors.Is(err, fleet.ErrConflict) {
		return err
	}
	return nil
}
