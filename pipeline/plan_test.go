package pipeline

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/pipeline/canary"
	"llmops/serving/slo"
)

// 20 requests a second: 10 % for 10 s are 20 requests of the candidate, 50 % for
// 15 s another 150, and up to four bakes of the last step 450 more.
func TestPlanOfACanary(t *testing.T) {
	a := &Attempt{Spec: Spec{Traffic: Traffic{Rate: 20},
		SLO: slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: time.Second}, ErrorRate: 0.02, RefusalRate: 0.0001},
		Canary: Canary{Max: 4, Harm: 1.25, RollbackOn: canary.Names[:],
			Steps: []Step{{Weight: 0.1, Bake: 10 * time.Second}, {Weight: 0.5, Bake: 15 * time.Second}}}}}
	for range 20 {
		var out PlanOutput
		var v evidence.Verdict
		planCanary(a, &out, &v)
		var names []string
		for _, c := range out.Canary {
			names = append(names, c.Guard)
			if c.Expect != 170 || c.AtMost != 620 {
				t.Errorf("%+v", c)
			}
			// Behind the first step ten come a second.
			if want := (10 + float64(c.Need-20)/10) / 60; c.Minutes < want-0.06 || c.Minutes > want+0.06 {
				t.Errorf("%s: %d requests in %g minutes, want %g", c.Guard, c.Need, c.Minutes, want)
			}
		}
		if want := []string{"ttft", "errors", "refusals"}; !slices.Equal(names, want) {
			t.Fatalf("guards %v, want %v in this order", names, want)
		}
		if len(v.Warnings) != 1 { // refusals cannot be decided
			t.Errorf("%v", v.Warnings)
		}
	}
}

// What is replayed in the place of clients is read before hours of work, and held
// against the traffic that is planned for.
func TestPlanReadsTheTraffic(t *testing.T) {
	line := func(at int) string {
		return fmt.Sprintf(`{"at": %d, "messages": [{"role": "user", "content": "q"}], "max_tokens": 4}`+"\n", at)
	}
	path := filepath.Join(t.TempDir(), "traffic.jsonl")
	for _, c := range []struct {
		name, body string
		rate       float64
		wrong      string
		warnings   int
	}{
		{"as planned", line(0) + line(1) + line(2), 1, "", 0},
		{"slower", line(0) + line(1) + line(2), 20, "", 1},
		{"broken", line(0) + "{", 1, "traffic.jsonl: reading traffic: line 2", 0},
		{"empty", "", 1, "no requests", 0},
	} {
		if err := os.WriteFile(path, []byte(c.body), 0o600); err != nil {
			t.Fatal(err)
		}
		var v evidence.Verdict
		err := planTraffic(&Attempt{Spec: Spec{Traffic: Traffic{Rate: c.rate, Replay: path}}}, &v)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) || len(v.Warnings) != c.warnings {
			t.Errorf("%s: %v, %v", c.name, err, v.Warnings)
		}
	}
	if err := planTraffic(&Attempt{}, nil); err != nil {
		t.Error(err)
	}
}

// A load that is too short for its margin is told before it is offered.
func TestPlanOfTheBenchmark(t *testing.T) {
	for _, c := range []struct {
		rate, margin float64
		want         string
	}{
		{20, 0.1, ""},
		{20, 0, ""},
		{0.1, 0, ""},
		{1, 0.25, ""},
		{0.1, 0.1, "ends after 60 requests at the planned 0.1/s, and to tell that no figure is 10% worse takes about 441"}, // 600 s
	} {
		a := &Attempt{Spec: Spec{Traffic: Traffic{Rate: c.rate}, Benchmark: Benchmark{Regression: c.margin}}}
		var v evidence.Verdict
		planBenchmark(a, &v)
		if got := strings.Join(v.Warnings, "\n"); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%g/s, %g: %q", c.rate, c.margin, got)
		}
	}
}
