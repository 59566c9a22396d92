package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"

	"llmops/evidence"
	"llmops/fleet"
)

// refused is a run whose gate, judge, said no.
func refused(t *testing.T, d Deps) string {
	t.Helper()
	run := begin(t, d, "here")
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Fail {
		t.Fatalf("%v, %v", out, err)
	}
	return run
}

func refusing(t *testing.T) Deps {
	t.Helper()
	d, w := testDeps(t), &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Fail)
	d.Abandon = func(context.Context, *Attempt) error { return nil }
	return d
}

// Approving an older run would have two runs move one alias's traffic.
func TestOnlyTheLatestRunCanBeApproved(t *testing.T) {
	d := refusing(t)
	old := refused(t, d)
	latest := begin(t, d, "elsewhere")
	err := Approve(t.Context(), d, old, "judge", "me", "why not")
	if err == nil || !strings.Contains(err.Error(), latest) {
		t.Errorf("approved beside %s: %v", latest, err)
	}
	if h, err := Read(t.Context(), d.Store, old); err != nil || h.State != Refused || len(h.Approved) > 0 {
		t.Errorf("head %+v, %v", h, err)
	}
}

// An approval is of one verdict: when the gate's verdict is reached anew, it
// takes a new approval.
func TestRewindForgetsApprovals(t *testing.T) {
	d := refusing(t)
	run := refused(t, d)
	if err := Approve(t.Context(), d, run, "judge", "me", "known flake"); err != nil {
		t.Fatal(err)
	}
	if err := Rewind(t.Context(), d, run, "judge"); err != nil {
		t.Fatal(err)
	}
	if out, err := drive(t, d, run, ""); err != nil || out != evidence.Fail {
		t.Errorf("an old approval let %v through, %v", out, err)
	}
}

// A head must fit its document whatever an error or a person says.
func TestLongReasonsFitTheHead(t *testing.T) {
	d := refusing(t)
	long := strings.Repeat("<é>", fleet.MaxBody)
	d.Stages[2].Run = func(context.Context, *Attempt) (evidence.Verdict, error) {
		return evidence.Verdict{}, errors.New(long)
	}
	run := begin(t, d, "here")
	if _, err := drive(t, d, run, ""); err == nil || !strings.Contains(err.Error(), long) {
		t.Errorf("the error was cut: %.80v", err)
	}
	h, err := Read(t.Context(), d.Store, run)
	if err != nil || h.State != Failed || !strings.HasPrefix(h.Reason, "judge: <é>") {
		t.Errorf("run is %s, %.80s, %v", h.State, h.Reason, err)
	}
	d = refusing(t)
	run = refused(t, d)
	if err := Approve(t.Context(), d, run, "judge", "me", long); err == nil {
		t.Error("a reason that does not fit was taken")
	}
}
