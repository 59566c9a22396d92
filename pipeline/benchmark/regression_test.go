package benchmark

import (
	"strings"
	"testing"
	"time"

	"llmops/evidence"
)

func TestRegress(t *testing.T) {
	noise := func(i int) time.Duration { return time.Duration(i*7919%31) * time.Millisecond }
	l := &Load{Shape: Poisson, Rate: 10, Seed: 1, Content: "chats"}
	on := System{Engine: "vllm", Version: "0.31.0", GPU: "h100-sxm", GPUs: 4, Replicas: 2, Weights: "bf16", Flags: "max_num_seqs 64"}
	was := &Sample{Name: "v1", System: on, Load: l, Results: results(120, 100*time.Millisecond, 100*time.Millisecond, noise)}
	same := Sample{Name: "v2", System: on, Load: l, Results: was.Results}
	edit := func(fn func(*Sample)) Sample {
		s := same
		fn(&s)
		return s
	}
	slower := results(120, 100*time.Millisecond, 130*time.Millisecond, noise)
	for _, c := range []struct {
		name   string
		was    *Sample
		is     Sample
		margin float64
		want   evidence.Outcome
		judged bool
		says   string // among why and warnings
	}{
		{"nothing before", nil, same, 0.1, 0, false, "the first of its kind"},
		{"the same", was, same, 0.1, evidence.Pass, true, "one run of each"},
		{"a third slower to begin", was, edit(func(s *Sample) { s.Results = slower }), 0.1, evidence.Fail, true, "one run of each"},
		{"a third slower, of which half is allowed", was, edit(func(s *Sample) { s.Results = slower }), 0.5, evidence.Pass, true, ""},
		{"too few to tell", was, edit(func(s *Sample) { s.Results = slower[:40] }), 0.1, evidence.Inconclusive, true, "50 of each are needed"},
		{"what the change is about", was, edit(func(s *Sample) {
			s.System.Weights, s.System.Version, s.System.Flags = "fp8", "0.32.0", "max_num_seqs 128"
		}), 0.1, evidence.Pass, true,
			"not the same system: weights: bf16 and fp8; engine version: 0.31.0 and 0.32.0; flags: max_num_seqs 64 and max_num_seqs 128"},
		{"of flags only what is another", was, edit(func(s *Sample) { s.System.Flags = "max_num_seqs 64, sleep true" }), 0.1, evidence.Pass, true, "system: flags: none and sleep true"},
		{"slower with other flags", was, edit(func(s *Sample) { s.System.Flags, s.Results = "eager true", slower }), 0.1, evidence.Fail, true, "flags: max_num_seqs 64 and eager true"},
		{"another engine", was, edit(func(s *Sample) { s.System.Engine = "sglang" }), 0.1, 0, false, "not held against v1, which cannot be compared (engine: vllm and sglang)"},
		{"another GPU, and fewer", was, edit(func(s *Sample) { s.System.GPU, s.System.GPUs = "l4", 2 }), 0.1, 0, false, "(GPU: h100-sxm and l4; number of GPUs: 4 and 2)"},
		{"fewer replicas", was, edit(func(s *Sample) { s.System.Replicas = 1 }), 0.1, 0, false, "number of replicas: 2 and 1"},
		{"another machine", &Sample{Name: "v1", System: System{Machine: "a"}, Load: l, Results: slower}, edit(func(s *Sample) { s.System = System{Machine: "b"} }), 0.1, 0, false, "machine: a and b"},
		{"another rate", was, edit(func(s *Sample) { s.Load = &Load{Shape: Poisson, Rate: 20, Content: "chats"} }), 0.1, 0, false, "load: 10 requests a second against 20"},
		{"other questions", was, edit(func(s *Sample) { s.Load = &Load{Shape: Poisson, Rate: 10, Content: "tales"} }), 0.1, 0, false, `load: "chats" against "tales"`},
		{"on record before results were", &Sample{Name: "v1", System: on, Load: l}, same, 0.1, 0, false, "of its single requests nothing is on record"},
		{"not to be judged", was, edit(func(s *Sample) { s.Results = slower }), 0, 0, false, "benchmark.regression is off: TTFT p50 is 145 ms, and was 115 ms"},
		{"not to be judged, and hardly seen", was, edit(func(s *Sample) { s.Results = slower[:3] }), 0, 0, false, "too few requests to say more"},
	} {
		r := Regress(c.was, c.is, c.margin)
		if judged := r.Verdict != nil; judged != c.judged || judged && r.Verdict.Outcome != c.want {
			t.Errorf("%s: %+v", c.name, r)
		}
		said := []string{r.Why}
		if r.Verdict != nil {
			said = append(said, r.Verdict.Warnings...)
		} else if r.Why == "" {
			t.Errorf("%s: nothing is said", c.name)
		}
		if all := strings.Join(said, "\n"); !strings.Contains(all, c.says) {
			t.Errorf("%s: it says\n%s\nwithout %q", c.name, all, c.says)
		}
	}
	// The parts say the figures.
	r := Regress(was, edit(func(s *Sample) { s.Results = slower }), 0.1)
	if got := r.Verdict.Parts[0].Claim; got != "TTFT p50: 145 ms, and 115 ms of v1" {
		t.Error(got)
	}
}

// A tighter margin takes more requests, and with so many a difference of half of the margin
// is decided.
func TestComparable(t *testing.T) {
	for margin, want := range map[float64]int{0: 0, 0.1: 441, 0.05: 1681, 0.25: 81, 4: fewest} {
		if got := Comparable(margin); got != want {
			t.Errorf("%v: %d, want %d", margin, got, want)
		}
	}
}

// Two runs that were asked the same at the same moments share what their queue did, and
// their comparison is the sharper for it.
func TestCompareInPairs(t *testing.T) {
	run := func(seed uint64, factor float64, gap time.Duration) Sample {
		out := results(200, gap, 100*time.Millisecond, func(i int) time.Duration { return time.Duration(i%40) * 10 * time.Millisecond }) // a queue that grows and empties
		for _, r := range out {
			d := time.Duration(float64(r.FirstToken-r.Scheduled) * factor)
			r.LastToken += r.Scheduled + d - r.FirstToken
			r.FirstToken = r.Scheduled + d
			r.End = r.LastToken
		}
		return Sample{Name: "x", Load: &Load{Shape: Poisson, Rate: 10, Seed: seed}, Results: out}
	}
	width := func(c Comparison) float64 { return c.Changes[0].Verdict.Hi - c.Changes[0].Verdict.Lo }
	a, b := run(1, 1, 100*time.Millisecond), run(1, 1.05, 100*time.Millisecond)
	pairs := Compare(a, b, Comparing{Margin: 0.1, Draws: 200})
	apart := Compare(a, run(2, 1.05, 100*time.Millisecond), Comparing{Margin: 0.1, Draws: 200})
	if !pairs.Paired || apart.Paired || width(pairs) > width(apart)/4 || pairs.Verdict.Outcome != evidence.Pass {
		t.Errorf("paired %v, %v wide: %v; unpaired %v wide: %v", pairs.Paired, width(pairs), pairs.Verdict.Outcome, width(apart), apart.Verdict.Outcome)
	}
	if c := Compare(a, run(1, 1, 101*time.Millisecond), Comparing{Draws: 50}); c.Paired {
		t.Error("requests that were due at other moments are pairs")
	}
	short := b
	short.Results = b.Results[:199]
	if Compare(a, short, Comparing{Draws: 50}).Paired {
		t.Error("runs of different lengths are pairs")
	}
	// What is not decided says about how many requests would be needed.
	for _, ch := range apart.Changes {
		if v := ch.Verdict; v.Outcome == evidence.Inconclusive && v.Estimate < 1.1 && v.Need <= v.N {
			t.Errorf("%s: %d needed of %d", ch.Name, v.Need, v.N)
		}
	}
}
