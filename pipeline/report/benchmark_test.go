package report

import (
	"html/template"
	"strings"
	"testing"

	"llmops/evidence"
)

func TestHTMLShowsTheBenchmark(t *testing.T) {
	r := example()
	worse := Change{"TTFT p50", "10 ms", "13 ms", evidence.Verdict{Unit: "ratio", N: 64, Outcome: evidence.Fail, Estimate: 1.3, Lo: 1.2, Hi: 1.4}}
	r.Load = &Benchmark{
		Rates:  []Rate{{Offered: 10, Answered: 10.5, TTFT50: 4.22, TTFT95: 12.5, Good: 1, Attempted: 16}, {Offered: 20, Planned: true, Attempted: 64, Failed: 3}},
		Curves: []template.HTML{"<figure>curve</figure>"}, Planned: []template.HTML{"<figure>cdf</figure>"}, Roofline: "<figure>roofline</figure>", Roofs: []string{"decode: <half>"},
		Against: "v1", Changes: []Change{worse}, Judged: true,
	}
	page := func() string {
		b, err := HTML(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	s := page()
	for want, n := range map[string]int{
		`<h2>Benchmark</h2>`: 1, `<tr class="planned"`: 1, "20, planned": 1, `<td class="n">4.22<td class="n">12.5<td class="n">–`: 1, "<h3>Against v1</h3>": 1, "<td>TTFT p50": 1, `<td class="n">1.3<`: 1,
		"1.2 to 1.4": 1, `class="bar"`: 3, "<figure>curve</figure>": 1, "<figure>cdf</figure>": 1, "<figure>roofline</figure>": 1, "decode: &lt;half&gt;": 1, "not judged": 0, "prefers-color-scheme:dark": 2, "ZgotmplZ": 0,
	} {
		if got := strings.Count(s, want); got != n {
			t.Errorf("%d of %q, want %d", got, want, n)
		}
	}
	// Nothing to hold it against, nothing known of the machine, and results elsewhere.
	r.Load = &Benchmark{Why: "the first of its kind", Missing: "single results are elsewhere"}
	s = page()
	for _, want := range []string{"<h3>Against the version before</h3>", "the first of its kind", "single results are elsewhere", "llmops doctor --measure has not measured"} {
		if !strings.Contains(s, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	r.Load = &Benchmark{Against: "v1", Changes: []Change{worse}, Why: "off"}
	if s = page(); !strings.Contains(s, "<td>not judged") || strings.Contains(s, `<td><span class="pill fail`) {
		t.Error("what is not judged has a verdict")
	}
}
