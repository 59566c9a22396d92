package evidence

import (
	"encoding/json"
	"testing"
)

func TestAll(t *testing.T) {
	pass, fail, open := Verdict{Outcome: Pass}, Verdict{Outcome: Fail}, Verdict{}
	for _, c := range []struct {
		parts []Verdict
		want  Outcome
	}{
		{nil, Inconclusive},
		{[]Verdict{pass}, Pass},
		{[]Verdict{pass, open}, Inconclusive},
		{[]Verdict{open, fail, pass}, Fail},
		{[]Verdict{fail, open}, Fail},
	} {
		if got := All("x", c.parts...).Outcome; got != c.want {
			t.Errorf("All(%v) = %v, want %v", c.parts, got, c.want)
		}
	}
}

func TestCheckWithoutDataIsNoPass(t *testing.T) {
	if got := Check("x", true, 0).Outcome; got != Inconclusive {
		t.Errorf("a check of nothing is %v", got)
	}
}

func TestDecidingNamesTheLeaves(t *testing.T) {
	v := All("all",
		All("tasks", Verdict{Claim: "a", Outcome: Pass}, Verdict{Claim: "b", Outcome: Fail}),
		Verdict{Claim: "c"})
	d := v.Deciding()
	if len(d) != 1 || d[0].Claim != "b" {
		t.Errorf("Deciding = %v, want b", d)
	}
}

func TestOutcomeJSON(t *testing.T) {
	b, _ := json.Marshal(Verdict{Claim: "x", Outcome: Fail})
	var v Verdict
	if err := json.Unmarshal(b, &v); err != nil || v.Outcome != Fail {
		t.Errorf("%s reads back as %v, %v", b, v.Outcome, err)
	}
	if err := json.Unmarshal([]byte(`{"outcome":"maybe"}`), &v); err == nil {
		t.Error("an unknown outcome was accepted")
	}
}
