package pipeline

import (
	"context"
	"errors"
	"testing"

	"llmops/evidence"
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
