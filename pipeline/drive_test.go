package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet/local"
)

// world is what the stages of these tests change, apart from the run itself.
type world struct {
	ran     []string
	effects map[string]int
}

func testDeps(t *testing.T) Deps {
	t.Helper()
	dir := t.TempDir()
	store, err := local.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := local.OpenBlobs(dir + "/blobs")
	if err != nil {
		t.Fatal(err)
	}
	return Deps{Store: store, Blobs: blobs, Dir: dir, Now: time.Now}
}

// stages are an artefact, a stage that touches the world with two intents, and
// a gate with the given outcome.
func (w *world) stages(gate evidence.Outcome) []Stage {
	pass := evidence.Verdict{Claim: "ok", Outcome: evidence.Pass, N: 1}
	return []Stage{
		{Name: "make", Format: 1, Artefact: true,
			Input: func(_ context.Context, a *Attempt) (any, error) { return a.Spec.Source, nil },
			Kept:  func(context.Context, *Attempt, Record) bool { return true },
			Run: func(_ context.Context, a *Attempt) (evidence.Verdict, error) {
				w.ran = append(w.ran, "make")
				a.Output(map[string]string{"made": a.Spec.Source})
				return pass, nil
			}},
		{Name: "place", World: true, Run: func(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
			w.ran = append(w.ran, "place")
			for _, what := range []string{"one", "two"} {
				if err := a.Intent(ctx, what, nil); err != nil {
					return evidence.Verdict{}, err
				}
				w.effects[what]++
			}
			return pass, nil
		}},
		{Name: "judge", Run: func(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
			w.ran = append(w.ran, "judge")
			var got map[string]string
			if err := a.Result(ctx, "make", &got); err != nil || got["made"] != a.Spec.Source {
				return evidence.Verdict{}, fmt.Errorf("result of make is %v, %v", got, err)
			}
			n := 0
			if _, err := a.Load(&n); err != nil {
				return evidence.Verdict{}, err
			}
			if err := a.Save(ctx, n+1); err != nil {
				return evidence.Verdict{}, err
			}
			return evidence.Verdict{Claim: "judged", Outcome: gate, N: n + 1}, nil
		}},
	}
}

func begin(t *testing.T, d Deps, source string) string {
	t.Helper()
	run, err := Create(t.Context(), d, Spec{Name: "a.model", Source: source}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func drive(t *testing.T, d Deps, run, until string) (evidence.Outcome, error) {
	t.Helper()
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	return Drive(t.Context(), d, j, until)
}

func TestDriveWalksTheStages(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	if out, err := drive(t, d, run, "place"); err != nil || out != evidence.Pass {
		t.Fatalf("until place: %v, %v", out, err)
	}
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Pass {
		t.Fatalf("to the end: %v, %v", out, err)
	}
	if want := []string{"make", "place", "place", "judge"}; !slices.Equal(w.ran, want) {
		t.Errorf("ran %v, want %v", w.ran, want)
	}
	h, err := Last(t.Context(), d.Store, "a.model")
	if err != nil || h.State != Done || len(h.Stages) != 3 {
		t.Errorf("head %+v, %v", h, err)
	}
	if _, err := Claim(t.Context(), d, run, "test"); err == nil {
		t.Error("a run that is over was claimed")
	}
	entries, err := Entries(t.Context(), d.Blobs, h)
	if err != nil || uint64(len(entries)) != h.Seq || entries[0].Kind != "claim" || entries[len(entries)-1].Kind != "end" {
		t.Errorf("journal %v, %v", entries, err)
	}
	for _, e := range entries {
		if e.Owner != "test" {
			t.Errorf("nobody is on record for %+v", e)
		}
	}

	// A later run with the same source finds the artefact.
	w.ran = nil
	if _, err := drive(t, d, begin(t, d, "here"), ""); err != nil || slices.Contains(w.ran, "make") {
		t.Errorf("ran %v, %v: the artefact was made again", w.ran, err)
	}
	w.ran = nil
	if _, err := drive(t, d, begin(t, d, "elsewhere"), "make"); err != nil || !slices.Contains(w.ran, "make") {
		t.Errorf("ran %v, %v: another source took an old artefact", w.ran, err)
	}
}

func TestGateThatDoesNotPassEndsTheRun(t *testing.T) {
	for _, o := range []evidence.Outcome{evidence.Fail, evidence.Inconclusive} {
		d, w := testDeps(t), &world{effects: map[string]int{}}
		d.Stages = w.stages(o)
		abandoned := 0
		d.Abandon = func(context.Context, *Attempt) error { abandoned++; return nil }
		run := begin(t, d, "here")
		if out, err := drive(t, d, run, ""); err != nil || out != o || abandoned != 1 {
			t.Fatalf("%v, %v, abandoned %d times", out, err, abandoned)
		}
		if h, _ := Read(t.Context(), d.Store, run); h.State != Refused || h.Outcome() != o {
			t.Errorf("head is %s, %v", h.State, h.Outcome())
		}
		if err := Approve(t.Context(), d, run, "judge", "me", ""); err == nil {
			t.Error("an approval without a reason was taken")
		}
		if err := Approve(t.Context(), d, run, "make", "me", "why not"); err == nil {
			t.Error("a gate that passed was overridden")
		}
		if err := Approve(t.Context(), d, run, "judge", "me", "known flake"); err != nil {
			t.Fatal(err)
		}
		if out, err := drive(t, d, run, ""); err != nil || out != evidence.Pass {
			t.Errorf("after approval: %v, %v", out, err)
		}
	}
}

func TestFencing(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	old, err := Claim(t.Context(), d, run, "first")
	if err != nil {
		t.Fatal(err)
	}
	d.Alive = func(owner string) bool { return owner == "first" }
	if _, err := Claim(t.Context(), d, run, "second"); !errors.Is(err, ErrBusy) {
		t.Fatalf("claimed from a live owner: %v", err)
	}
	if _, err := Create(t.Context(), d, Spec{Name: "a.model"}, Options{}); !errors.Is(err, ErrBusy) {
		t.Fatalf("second run of the alias: %v", err)
	}
	d.Alive = func(string) bool { return false }
	j, err := Claim(t.Context(), d, run, "second")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Drive(t.Context(), d, old, ""); !errors.Is(err, ErrFenced) {
		t.Errorf("the fenced driver ended with %v", err)
	}
	if len(w.effects) > 0 {
		t.Errorf("the fenced driver had effects: %v", w.effects)
	}
	if _, err := Drive(t.Context(), d, j, ""); err != nil {
		t.Error(err)
	}
}

type killed struct{}

// The driver is killed before and after each intent in turn; the next claim
// goes on and ends like an undisturbed run, without making the artefact again.
func TestResumeAfterAKillAtEachPoint(t *testing.T) {
	for at := range 4 {
		d, w := testDeps(t), &world{effects: map[string]int{}}
		d.Stages = w.stages(evidence.Pass)
		run := begin(t, d, "here")
		points := 0
		d.Point = func(string, string, string) {
			if points == at {
				points++
				panic(killed{})
			}
			points++
		}
		func() {
			defer func() {
				if _, ok := recover().(killed); !ok {
					t.Errorf("point %d was not reached", at)
				}
			}()
			_, _ = drive(t, d, run, "")
		}()
		d.Point = nil
		if out, err := drive(t, d, run, ""); err != nil || out != evidence.Pass {
			t.Fatalf("point %d: resumed to %v, %v", at, out, err)
		}
		if made := slices.DeleteFunc(slices.Clone(w.ran), func(s string) bool { return s != "make" }); len(made) != 1 {
			t.Errorf("point %d: ran %v", at, w.ran)
		}
		if w.effects["two"] == 0 || w.effects["one"] == 0 {
			t.Errorf("point %d: effects %v", at, w.effects)
		}
	}
}

func TestInterruptedRunGoesOn(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.Point = func(when, _, what string) {
		if when == "after" && what == "one" {
			cancel()
		}
	}
	if _, err := Drive(ctx, d, j, ""); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	h, err := Read(t.Context(), d.Store, run)
	if err != nil || h.State != Stopped || h.Owner != "" {
		t.Fatalf("head %+v, %v", h, err)
	}
	d.Point = nil
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Pass {
		t.Errorf("resumed to %v, %v", out, err)
	}
}

func TestStateBound(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	j, err := Claim(t.Context(), d, begin(t, d, "here"), "test")
	if err != nil {
		t.Fatal(err)
	}
	j.head.Stage = "judge"
	a := &Attempt{Deps: d, j: j, Stage: "judge"}
	if err := a.Save(t.Context(), make([]byte, maxState)); err == nil {
		t.Error("a state over the bound was saved")
	}
	if err := a.Save(t.Context(), "small"); err != nil {
		t.Error(err)
	}
}

// What the chain holds cannot be changed unseen.
func TestJournalIsTamperEvident(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	if _, err := drive(t, d, run, ""); err != nil {
		t.Fatal(err)
	}
	h, err := Read(t.Context(), d.Store, run)
	if err != nil {
		t.Fatal(err)
	}
	for what, digest := range map[string]string{"entry": h.Last, "record": h.Stages[2].Record} {
		hex := strings.TrimPrefix(digest, "sha256:")
		path := filepath.Join(d.Dir, "blobs", hex[:2], hex)
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(was, []byte(`"o`), []byte(`"p`), 1)
		if bytes.Equal(was, changed) {
			t.Fatalf("nothing to change in %s", was)
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err1 := Entries(t.Context(), d.Blobs, h)
		_, err2 := Records(t.Context(), d.Blobs, h)
		if err := errors.Join(err1, err2); err == nil || !strings.Contains(err.Error(), digest) {
			t.Errorf("a changed %s was read: %v", what, err)
		}
		if err := os.WriteFile(path, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
