package pipeline

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
)

// A stage that waits without writing is broken off when somebody else takes the
// run, and leaves the run to them.
func TestFencedStageIsBrokenOff(t *testing.T) {
	d := testDeps(t)
	waits := make(chan bool)
	d.Stages = []Stage{{Name: "wait", Run: func(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
		close(waits)
		<-ctx.Done()
		return evidence.Verdict{}, ctx.Err()
	}}}
	run := begin(t, d, "here")
	j, err := Claim(t.Context(), d, run, "first")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := Drive(t.Context(), d, j, "")
		ended <- err
	}()
	<-waits
	if err := TakeBack(t.Context(), d.Store, run); err != nil {
		t.Fatal(err)
	}
	second, err := Claim(t.Context(), d, run, "second")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrFenced) {
		t.Errorf("the fenced driver ended with %v", err)
	}
	if h, err := Read(t.Context(), d.Store, run); err != nil || h.State != Running || h.Owner != "second" || h.Seq != second.Head().Seq {
		t.Errorf("head %+v, %v", h, err)
	}
}

// A driver that dies between a gate's verdict and the end of the run does not
// give the candidate another chance.
func TestRefusalSurvivesItsDriver(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Fail)
	abandoned := 0
	d.Abandon = func(context.Context, *Attempt) error {
		if abandoned++; abandoned == 1 {
			panic(killed{})
		}
		return nil
	}
	run := begin(t, d, "here")
	func() {
		defer func() { _ = recover().(killed) }()
		_, _ = drive(t, d, run, "")
	}()
	w.ran = nil
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Fail || abandoned != 2 {
		t.Fatalf("%v, %v, abandoned %d times", out, err, abandoned)
	}
	if len(w.ran) != 1 || w.ran[0] != "place" {
		t.Errorf("ran %v again", w.ran)
	}
	if h, err := Read(t.Context(), d.Store, run); err != nil || h.State != Refused {
		t.Errorf("head %+v, %v", h, err)
	}
}

// World stages are brought back into their state on the way; what the stage
// that was under way had saved is still there for it.
func TestStateSurvivesReconciling(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	judge := &d.Stages[2]
	judged := judge.Run
	judge.Run = func(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
		if err := a.Save(ctx, 41); err != nil {
			return evidence.Verdict{}, err
		}
		panic(killed{})
	}
	func() {
		defer func() { _ = recover().(killed) }()
		_, _ = drive(t, d, run, "")
	}()
	judge.Run = judged
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Pass {
		t.Fatalf("resumed to %v, %v", out, err)
	}
	h, err := Read(t.Context(), d.Store, run)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := Records(t.Context(), d.Blobs, h)
	if err != nil || rs[2].Verdict.N != 42 {
		t.Errorf("judged from %d, %v", rs[2].Verdict.N-1, err)
	}
}

// A process that dies while it creates a run leaves a head that is nobody's latest
// run. It is not one that waits, and goes when the next is created.
func TestHalfCreatedRunIsCleared(t *testing.T) {
	d := testDeps(t)
	now := time.Now()
	d.Now = func() time.Time { return now.Add(-time.Hour) }
	half := begin(t, d, "here")
	if err := d.Store.Delete(t.Context(), lastName("a.model"), mustRev(t, d, lastName("a.model"))); err != nil {
		t.Fatal(err)
	}
	d.Now = func() time.Time { return now }
	run := begin(t, d, "here")
	if _, err := Read(t.Context(), d.Store, half); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("%s is still there: %v", half, err)
	}
	// One that another process may be creating at this moment stays, and so do
	// runs that were driven.
	if err := d.Store.Delete(t.Context(), lastName("a.model"), mustRev(t, d, lastName("a.model"))); err != nil {
		t.Fatal(err)
	}
	begin(t, d, "elsewhere")
	if _, err := Read(t.Context(), d.Store, run); err != nil {
		t.Error(err)
	}
}

func mustRev(t *testing.T, d Deps, name string) uint64 {
	t.Helper()
	doc, err := d.Store.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Rev
}

// A run that goes on where its artefacts are not makes them again, and not others.
func TestArtefactThatIsNotHere(t *testing.T) {
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	dir, digest := filepath.Join(t.TempDir(), "weights"), "sha256:"+strings.Repeat("a", 64)
	d.Stages[0].Run = func(_ context.Context, a *Attempt) (evidence.Verdict, error) {
		w.ran = append(w.ran, "make")
		a.Output(Weights{Dir: dir, Digest: digest})
		return evidence.Verdict{Outcome: evidence.Pass}, os.MkdirAll(dir, 0o700)
	}
	d.Stages[0].Kept = func(context.Context, *Attempt, Record) bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	run := begin(t, d, "here")
	goOn := func(until string) error {
		w.ran = nil
		_, err := drive(t, d, run, until)
		return err
	}
	if err := goOn("make"); err != nil || len(w.ran) != 1 {
		t.Fatalf("%v, %v", w.ran, err)
	}
	if err := goOn("make"); err != nil || len(w.ran) != 0 {
		t.Fatalf("with its folder: %v, %v", w.ran, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := goOn("make"); err != nil || len(w.ran) != 1 {
		t.Fatalf("without: %v, %v", w.ran, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	digest = "sha256:" + strings.Repeat("b", 64)
	if err := goOn(""); err == nil || !strings.Contains(err.Error(), "its source has changed") {
		t.Errorf("another in its place: %v", err)
	}
}
