package eval

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"llmops/evidence"
	"llmops/serving/openai"
)

// engine is a small server of the API: answer says what chat replies, logprob
// what a token of a prompt is worth.
type engine struct {
	meta    map[string]string // of its model
	answer  func(prompt string) string
	logprob func(i int) float64
	top     func(i int, lp float64) map[string]float64
	shift   bool // no null for the first token
	none    bool // no log-probabilities at all
	prompt  int
	busy    atomic.Int64
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		_ = json.NewEncoder(w).Encode(openai.Models{Data: []openai.Model{{ID: "m", Meta: e.meta}}})
		return
	}
	if e.busy.Add(-1) >= 0 {
		openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: "busy"})
		return
	}
	if strings.HasSuffix(r.URL.Path, "/chat/completions") {
		var req openai.ChatRequest
		if err := openai.Decode(r.Body, &req); err != nil {
			openai.WriteError(w, 400, &openai.Error{Message: err.Error()})
			return
		}
		if req.Temperature == nil || *req.Temperature != 0 || req.RepetitionPenalty == nil || req.TopP == nil || req.Seed == nil {
			openai.WriteError(w, 400, &openai.Error{Message: "sampling was left to the server"})
			return
		}
		text := e.answer(req.Messages[len(req.Messages)-1].Content.String())
		res := openai.ChatResponse{Choices: []openai.ChatChoice{{Message: openai.Message{Role: "assistant", Content: openai.Text(text)}, FinishReason: "stop", TokenIDs: []int{7, 8, 9}}},
			Usage: &openai.Usage{PromptTokens: 4 + e.prompt, CompletionTokens: 3}, PromptTokenIDs: []int{1, 2, 3, 4}}
		_ = json.NewEncoder(w).Encode(res)
		return
	}
	var req openai.CompletionRequest
	if err := openai.Decode(r.Body, &req); err != nil {
		openai.WriteError(w, 400, &openai.Error{Message: err.Error()})
		return
	}
	n := 20
	if len(req.Prompt.Tokens) > 0 {
		n = len(req.Prompt.Tokens[0])
	}
	l := &openai.Logprobs{}
	for i := range n + 1 {
		lp := e.logprob(i)
		p := &lp
		top := map[string]float64{"own": lp, "next": lp - 3}
		if e.top != nil {
			top = e.top(i, lp)
		}
		if i == 0 && !e.shift {
			p, top = nil, nil
		}
		l.TokenLogprobs = append(l.TokenLogprobs, p)
		l.TopLogprobs = append(l.TopLogprobs, top)
	}
	if e.none {
		l = nil
	}
	_ = json.NewEncoder(w).Encode(openai.CompletionResponse{Choices: []openai.CompletionChoice{{Logprobs: l}}, Usage: &openai.Usage{PromptTokens: n, CompletionTokens: 1}})
}

func (e *engine) arm(t *testing.T, name string) Arm {
	t.Helper()
	if e.answer == nil {
		e.answer = func(string) string { return "ok" }
	}
	if e.logprob == nil {
		e.logprob = func(int) float64 { return -0.5 }
	}
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return Arm{Name: name, Model: "m", Client: &openai.Client{BaseURL: s.URL}}
}

func questions(n int, kind string) []Item {
	var out []Item
	for i := range n {
		answer := fmt.Sprint(i)
		if kind == "json" {
			answer = fmt.Sprintf(`{"a":%d}`, i)
		}
		out = append(out, Item{ID: fmt.Sprint(i), Doc: fmt.Sprint(i / 4), Answer: answer, Kind: kind, MaxTokens: 8,
			Messages: []openai.Message{{Role: "user", Content: openai.Text(answer)}}})
	}
	return out
}

func nothing(int64, int64) {}

func ask(t *testing.T, parent, candidate *engine, items []Item) []Sample {
	t.Helper()
	s, err := Ask(t.Context(), parent.arm(t, "parent"), candidate.arm(t, "candidate"), items, 8, nothing)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) {
	right := func(p string) string { return " " + p + "\n" }
	wrongAt := func(every int) func(string) string {
		return func(p string) string {
			var i int
			if _, err := fmt.Sscan(strings.Trim(p, `{"a:}`), &i); err == nil && i%every == 0 {
				return "nonsense"
			}
			return p
		}
	}
	o := SuiteOptions{Name: "s", Margin: 0.03, Confidence: 0.95}
	for _, c := range []struct {
		name string
		n    int
		kind string
		cand func(string) string
		want evidence.Outcome
	}{
		{"same", 400, "field", right, evidence.Pass},
		{"few items", 20, "field", right, evidence.Inconclusive},
		{"a tenth worse", 400, "number", wrongAt(10), evidence.Fail},
		{"one in a hundred", 400, "json", wrongAt(100), evidence.Pass},
	} {
		items := questions(c.n, c.kind)
		v := Judge(items, ask(t, &engine{answer: right}, &engine{answer: c.cand}, items), o)
		if v.Outcome != c.want {
			t.Errorf("%s: %v, %+v", c.name, v.Outcome, v)
		}
		if (len(v.Parts) > 0) != (c.kind == "json") {
			t.Errorf("%s: parts %v", c.name, v.Parts)
		}
	}
}

// A parent that is never right has nothing to lose, so losing nothing shows
// nothing.
func TestSuiteOfAParentThatKnowsNothing(t *testing.T) {
	items := questions(400, "field")
	no := func(string) string { return "no" }
	if v := Judge(items, ask(t, &engine{answer: no}, &engine{answer: no}, items), SuiteOptions{Name: "s", Margin: 0.03, Confidence: 0.95}); v.Outcome != evidence.Inconclusive {
		t.Errorf("%+v", v)
	}
}

func TestSuiteSeesDifferentPrompts(t *testing.T) {
	items := questions(400, "field")
	echoes := func(p string) string { return p }
	s := ask(t, &engine{answer: echoes}, &engine{answer: echoes, prompt: 1}, items)
	if v := Judge(items, s, SuiteOptions{Name: "s", Margin: 0.03, Confidence: 0.95}); v.Outcome != evidence.Fail {
		t.Errorf("a second BOS token went unseen: %+v", v)
	}
}

func TestBusyEnginesAreAskedAgain(t *testing.T) {
	items := questions(20, "field")
	e := &engine{answer: func(p string) string { return p }}
	e.busy.Store(2)
	if s := ask(t, e, &engine{answer: func(p string) string { return p }}, items); !s[0].Parent.Right || !s[19].Parent.Right {
		t.Errorf("%+v", s)
	}
}

func TestBrokenArmIsNamed(t *testing.T) {
	bad := &engine{}
	arm := bad.arm(t, "candidate")
	arm.Client.BaseURL += "/nowhere\x00"
	_, err := Ask(t.Context(), (&engine{}).arm(t, "parent"), arm, questions(4, "field"), 2, nothing)
	if err == nil || !strings.Contains(err.Error(), "candidate") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(ctx, (&engine{}).arm(t, "parent"), (&engine{}).arm(t, "candidate"), questions(4, "field"), 2, nothing); err == nil {
		t.Error("a cancelled suite has no error")
	}
}

type hung struct{}

func (hung) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// An engine that hangs does not hold up a run for ever.
func TestHungEngineIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arm := Arm{Name: "candidate", Model: "m", Client: &openai.Client{BaseURL: "http://x", HTTP: &http.Client{Transport: hung{}}}}
		_, err := Ask(t.Context(), arm, arm, questions(4, "field"), 2, nothing)
		if err == nil || !strings.Contains(err.Error(), "candidate") || !strings.Contains(err.Error(), patience.String()) {
			t.Errorf("%v", err)
		}
		if _, err := Perplexity(t.Context(), arm, arm, texts(1), 1.01, 0.95, 1, nothing); err == nil || !strings.Contains(err.Error(), patience.String()) {
			t.Errorf("%v", err)
		}
	})
}

func TestScore(t *testing.T) {
	for _, c := range []struct {
		kind, want, got string
		right, valid    bool
	}{
		{"field", "Gdansk", " Gdansk\n", true, true},
		{"field", "Gdansk", "gdansk", false, true},
		{"number", "12450.5", "12450.50", true, true},
		{"number", "12450.5", "12,450.5", false, false},
		{"number", "1", "NaN", false, false},
		{"json", `{"a":1,"b":"x"}`, `{"b": "x", "a": 1}`, true, true},
		{"json", `{"a":1}`, `{"a":"1"}`, false, true},
		{"json", `{"a":1}`, `{"a":1} {"a":1}`, false, false},
		{"json", `{"a":1}`, `{"a":1`, false, false},
		{"json", `{"a":1}`, `{"a":1}}`, false, false},
		{"json", `[1]`, `[1]]`, false, false},
		{"json", `{"a":1}`, `{"a":1},`, false, false},
	} {
		right, valid := score(Item{Kind: c.kind, Answer: c.want}, c.got)
		if right != c.right || valid != c.valid {
			t.Errorf("%s %q against %q: %v, %v", c.kind, c.got, c.want, right, valid)
		}
	}
}

func texts(n int) []Text {
	var out []Text
	for i := range n {
		out = append(out, Text{ID: fmt.Sprint(i), Text: "some text"})
	}
	return out
}

func TestPerplexity(t *testing.T) {
	for _, c := range []struct {
		name string
		lp   float64
		want evidence.Outcome
	}{{"same", -0.5, evidence.Pass}, {"worse", -0.52, evidence.Fail}, {"better", -0.4, evidence.Pass}} {
		v, err := Perplexity(t.Context(), (&engine{}).arm(t, "parent"), (&engine{logprob: func(int) float64 { return c.lp }}).arm(t, "candidate"), texts(20), 1.01, 0.95, 4, nothing)
		if err != nil || v.Outcome != c.want {
			t.Errorf("%s: %v, %+v", c.name, err, v)
		}
	}
	if v, err := Perplexity(t.Context(), (&engine{}).arm(t, "p"), (&engine{}).arm(t, "c"), nil, 1.01, 0.95, 4, nothing); err != nil || v.Outcome != evidence.Inconclusive {
		t.Errorf("of no texts: %v, %+v", err, v)
	}
}

// Each of these engines was shipped once: they give a score without having
// computed one.
func TestEnginesThatCannotScoreAreRefused(t *testing.T) {
	for name, e := range map[string]*engine{
		"no log-probabilities": {none: true},
		"shifted":              {shift: true},
		"floored":              {logprob: func(i int) float64 { return -9999 }},
		"positive":             {logprob: func(i int) float64 { return 0.1 }},
	} {
		if v, err := Perplexity(t.Context(), (&engine{}).arm(t, "parent"), e.arm(t, "candidate"), texts(20), 1.01, 0.95, 4, nothing); err == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestCanaries(t *testing.T) {
	prompts := questions(4, "field")
	other := func(at int, by float64) *engine {
		return &engine{top: func(i int, lp float64) map[string]float64 {
			if i == at {
				return map[string]float64{"own": lp, "other": lp + by}
			}
			return map[string]float64{"own": lp, "next": lp - 3}
		}}
	}
	for _, c := range []struct {
		name   string
		parent *engine
		cand   *engine
		want   evidence.Outcome
	}{
		{"same", &engine{}, &engine{}, evidence.Pass},
		{"hard", &engine{}, other(5, 0.1), evidence.Fail},
		{"in the prompt", &engine{}, other(2, 0.1), evidence.Pass},
		{"near tie", &engine{top: func(_ int, lp float64) map[string]float64 { return map[string]float64{"own": lp, "next": lp - 0.05} }}, other(5, 0.1), evidence.Pass},
	} {
		v, out, err := Canaries(t.Context(), c.parent.arm(t, "parent"), c.cand.arm(t, "candidate"), prompts, 2, nothing)
		if err != nil || v.Outcome != c.want || v.N != 12 {
			t.Errorf("%s: %v, %+v, %+v", c.name, err, v, out)
		}
	}
	if v, _, err := Canaries(t.Context(), (&engine{}).arm(t, "p"), (&engine{}).arm(t, "c"), nil, 2, nothing); err != nil || v.Outcome != evidence.Inconclusive {
		t.Errorf("of no prompts: %v, %+v", err, v)
	}
}

func TestMargin(t *testing.T) {
	for _, c := range []struct {
		lp   float64
		top  map[string]float64
		want float64
	}{
		{-0.1, map[string]float64{"a": -0.1, "b": -2.1}, 2},
		{-0.1, map[string]float64{"a": -0.1, "b": -0.1}, 0},
		{-2, map[string]float64{"a": -0.1, "b": -2}, 0},
		{-0.1, map[string]float64{"a": -0.1}, 0},
	} {
		if got := margin(c.lp, c.top); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("margin(%v, %v) = %v, want %v", c.lp, c.top, got, c.want)
		}
	}
}

func TestReadItemsNamesTheLine(t *testing.T) {
	good := `{"id":"1","messages":[{"role":"user","content":"q"}],"answer":"1","kind":"number","max_tokens":4}`
	for name, line := range map[string]string{
		"unknown key":       `{"id":"2","question":"q"}`,
		"same id":           good,
		"no messages":       `{"id":"2","answer":"1","kind":"number","max_tokens":4}`,
		"unknown kind":      `{"id":"2","messages":[{"role":"user","content":"q"}],"answer":"1","kind":"poem","max_tokens":4}`,
		"impossible answer": `{"id":"2","messages":[{"role":"user","content":"q"}],"answer":"one","kind":"number","max_tokens":4}`,
		"not json":          `{"id":`,
		"two in a line":     strings.Replace(good, `"1"`, `"2"`, 1) + `}`,
	} {
		path := filepath.Join(t.TempDir(), "items.jsonl")
		if err := os.WriteFile(path, []byte(good+"\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadItems(path, 0); err == nil || !strings.Contains(err.Error(), "items.jsonl:2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "items.jsonl")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadItems(path, 0); err == nil {
		t.Error("an empty file has items")
	}
}

func FuzzScore(f *testing.F) {
	f.Add("json", `{"a":[1,2.0,null]}`)
	f.Add("number", "1e400")
	f.Fuzz(func(t *testing.T, kind, s string) {
		if right, valid := score(Item{Kind: kind, Answer: s}, s); right && !valid {
			t.Errorf("%s %q is right and not valid", kind, s)
		}
	})
}

// What only estimates times is no arm of any comparison.
func TestEstimatesAreRefused(t *testing.T) {
	real := (&engine{}).arm(t, "parent")
	made := (&engine{meta: map[string]string{openai.MetaEstimate: "estimate, not computed"}}).arm(t, "candidate")
	_, ask := Ask(t.Context(), real, made, questions(4, "exact"), 2, nothing)
	_, ppl := Perplexity(t.Context(), made, real, []Text{{ID: "t", Text: "a b"}}, 1.01, 0.95, 1, nothing)
	_, _, can := Canaries(t.Context(), real, made, questions(1, "exact"), 1, nothing)
	for name, err := range map[string]error{"suite": ask, "perplexity": ppl, "canaries": can} {
		if err == nil || !strings.Contains(err.Error(), "not computed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Computed(t.Context(), real); err != nil {
		t.Error(err)
	}
}
