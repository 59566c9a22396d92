package report

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
)

func example() Run {
	eval := evidence.All("answers <b>as well</b> | as",
		evidence.Verdict{Claim: "tasks", Unit: "score", Outcome: evidence.Fail, Estimate: -0.04, Lo: -0.06, Hi: -0.02, N: 400, Confidence: 0.95},
		evidence.Verdict{Claim: "text", Unit: "ratio", Outcome: evidence.Pass, Estimate: 1.001, Lo: 1, Hi: 1.002, N: 64},
		evidence.Verdict{Claim: "long", N: 3, Need: 90})
	return Run{
		ID: "freight-1", Alias: "freight", State: "refused", Reason: "eval: fail", Outcome: evidence.Fail, Began: time.Unix(0, 0),
		Facts:    []Fact{{"source", "./weights"}},
		Stages:   []Stage{{Name: "plan", Verdict: evidence.Check("fits", true, 1, "few items")}, {Name: "eval", Took: 1234 * time.Millisecond, Verdict: eval}},
		Approved: []Approval{{"eval", "me", "<script>alert(1)</script>"}},
		Canary: &Canary{Guards: []string{"ttft", "errors"}, Level: 1.9, Points: []Point{
			{At: time.Second, Weight: 0.1, Harm: []float64{0, -1}, Safe: []float64{0.2, 0.1}},
			{At: 9 * time.Second, Weight: 0.5, Harm: []float64{-9, 30}, Safe: []float64{3, 2}}}},
		Deciders: []Decider{{time.Unix(1, 0), "onboard-1", "eval", "intent"}},
	}
}

func TestHTMLIsOnePageThatLoadsNothing(t *testing.T) {
	b, err := HTML(example())
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for _, want := range []string{"freight-1", "-4.00 pt [-6.00 pt, -2.00 pt]", "1.0010 [1.0000, 1.0020]", "90 would do", "few items", "<svg", "&lt;script&gt;"} {
		if !strings.Contains(s, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src=", "NaN", "ZgotmplZ"} {
		if strings.Contains(s, bad) {
			t.Errorf("page holds %q", bad)
		}
	}
	if strings.Count(s, `<path d="M`) != 4 {
		t.Errorf("%d lines of evidence, want 2 guards in 2 charts", strings.Count(s, `<path d="M`))
	}
}

func TestHTMLOfAnEmptyRun(t *testing.T) {
	if _, err := HTML(Run{}); err != nil {
		t.Error(err)
	}
}

func TestJUnitCountsWhatDidNotPass(t *testing.T) {
	b, err := JUnit(example())
	if err != nil {
		t.Fatal(err)
	}
	var s suites
	if err := xml.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if e := s.Suites[1]; e.Tests != 3 || e.Failures != 1 || e.Errors != 1 {
		t.Errorf("eval has %d tests, %d failures, %d errors", e.Tests, e.Failures, e.Errors)
	}
	// A verdict without figures says in words why it failed.
	lost := Run{Stages: []Stage{{Name: "canary", Verdict: evidence.Check("the run kept the route", false, 1, "somebody rolled back")}}}
	if b, err = JUnit(lost); err != nil || !strings.Contains(string(b), `message="somebody rolled back"`) {
		t.Errorf("%s, %v", b, err)
	}
	gaveUp := Run{Stages: []Stage{{Name: "canary", Verdict: evidence.Verdict{Claim: "ran out of time", Parts: []evidence.Verdict{{Outcome: evidence.Pass}}}}}}
	if b, err = JUnit(gaveUp); err != nil || !strings.Contains(string(b), `errors="1"`) {
		t.Errorf("a canary that gave up with every part passing has no error: %s, %v", b, err)
	}
}

func TestMarkdownIsOneTable(t *testing.T) {
	s := Markdown(example())
	for line := range strings.Lines(s) {
		if strings.HasPrefix(line, "|") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 6 {
			t.Errorf("row has another number of cells: %q", line)
		}
	}
	r := example()
	r.Reason = "deploy: starting\n| a | <script> |"
	if s := Markdown(r); !strings.Contains(s, "deploy: starting \\| a \\| &lt;script> \\|") {
		t.Errorf("the reason is\n%s", s[:120])
	}
	if !strings.Contains(s, "**eval**") || strings.Contains(s, "<b>") {
		t.Errorf("markdown is\n%s", s)
	}
}

func FuzzReport(f *testing.F) {
	f.Add("claim", "unit", 0.1, -1.0, 1.0)
	f.Fuzz(func(t *testing.T, claim, unit string, est, lo, hi float64) {
		r := Run{Alias: claim, Stages: []Stage{{Verdict: evidence.Verdict{Claim: claim, Unit: unit, Estimate: est, Lo: lo, Hi: hi, N: 1}}}}
		if _, err := HTML(r); err != nil {
			t.Error(err)
		}
		b, err := JUnit(r)
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(strings.NewReader(string(b)))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, b)
			}
		}
	})
}
