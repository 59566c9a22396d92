package pipeline

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"llmops/evidence"
	"llmops/model"
	"llmops/pipeline/eval"
	"llmops/serving/openai"
)

// testArm answers "0", "1", … with the same, but for every wrong-th, and counts.
func testArm(t *testing.T, wrong int, asked *atomic.Int64) (eval.Arm, Arm) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.NotFound(w, r)
			return
		}
		asked.Add(1)
		var req openai.ChatRequest
		if err := openai.Decode(r.Body, &req); err != nil {
			openai.WriteError(w, http.StatusBadRequest, &openai.Error{Message: err.Error()})
			return
		}
		text := req.Messages[0].Content.String()
		if n, err := strconv.Atoi(text); err == nil && wrong > 0 && n%wrong == 0 {
			text = "no"
		}
		_ = json.NewEncoder(w).Encode(openai.ChatResponse{Usage: &openai.Usage{PromptTokens: 1, CompletionTokens: 1},
			Choices: []openai.ChatChoice{{Message: openai.Message{Role: "assistant", Content: openai.Text(text)}, FinishReason: "stop"}}})
	}))
	t.Cleanup(s.Close)
	digest := string(model.DigestOf([]byte{byte(wrong)}))
	return eval.Arm{Name: "arm", Model: "m", Client: &openai.Client{BaseURL: s.URL}},
		Arm{Version: Version{Digest: digest}, Ready: nil}
}

func items(t *testing.T, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"%d","messages":[{"role":"user","content":"%d"}],"answer":"%d","kind":"number","max_tokens":4}`+"\n", i, i, i)
	}
	path := filepath.Join(t.TempDir(), "items.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// However a suite is asked again, what it said of a candidate stays said. Only
// more items may decide what was left open, once, and at a higher level.
func TestVerdictsAreSpent(t *testing.T) {
	d := testDeps(t)
	j, err := Claim(t.Context(), d, begin(t, d, "here"), "test")
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Deps: d, Spec: Spec{Name: "a.model", Engine: Engine{MaxNumSeqs: 8}, Eval: Eval{Confidence: 0.95}}, Stage: StageEval, j: j}
	var asked atomic.Int64
	parent, parentArm := testArm(t, 0, &asked)
	path := items(t, 600)
	ask := func(wrong int, s Suite) (EvalSuite, bool) {
		t.Helper()
		cand, candArm := testArm(t, wrong, &asked)
		before := asked.Load()
		es, err := evalSuite(t.Context(), a, DeployOutput{Parent: parentArm, Candidate: candArm}, s, parent, cand)
		if err != nil {
			t.Fatal(err)
		}
		return es, asked.Load() > before
	}
	copied := items(t, 600)
	const bad, good = 10, 0
	for _, c := range []struct {
		name  string
		wrong int
		s     Suite
		want  evidence.Outcome
		asked bool
		looks int
	}{
		{"bad", bad, Suite{Name: "s", Items: path, Margin: 0.03}, evidence.Fail, true, 1},
		{"bad again", bad, Suite{Name: "s", Items: path, Margin: 0.03}, evidence.Fail, false, 1},
		{"bad, fewer items", bad, Suite{Name: "s", Items: path, Limit: 9, Margin: 0.03}, evidence.Fail, false, 1},
		{"bad, another name", bad, Suite{Name: "t", Items: path, Margin: 0.03}, evidence.Fail, false, 1},
		{"bad, a copy of the items", bad, Suite{Name: "s", Items: copied, Margin: 0.03}, evidence.Fail, false, 1},
		{"bad, another margin", bad, Suite{Name: "s", Items: path, Margin: 0.2}, evidence.Pass, true, 1},
		{"too few", good, Suite{Name: "s", Items: path, Limit: 20, Margin: 0.03}, evidence.Inconclusive, true, 1},
		{"too few again", good, Suite{Name: "s", Items: path, Limit: 20, Margin: 0.03}, evidence.Inconclusive, false, 1},
		{"fewer", good, Suite{Name: "s", Items: path, Limit: 10, Margin: 0.03}, evidence.Inconclusive, false, 1},
		{"more", good, Suite{Name: "s", Items: path, Limit: 40, Margin: 0.03}, evidence.Inconclusive, true, 2},
		{"a third look", good, Suite{Name: "s", Items: path, Margin: 0.03}, evidence.Inconclusive, false, 2},
	} {
		es, was := ask(c.wrong, c.s)
		if es.Verdict.Outcome != c.want || was != c.asked || es.Looks != c.looks || es.Reused == was || es.Name != c.s.Name {
			t.Errorf("%s: %v, asked %v, %+v", c.name, es.Verdict.Outcome, was, es)
		}
	}
	docs, err := d.Store.List(t.Context(), "spent/")
	if err != nil || len(docs) != 3 {
		t.Errorf("%d verdicts on record, want 3: %v", len(docs), err)
	}
	// Of two at once the first on record counts.
	other := EvalSuite{Name: "s", N: 600, Looks: 1, Verdict: evidence.Verdict{Claim: "theirs", Outcome: evidence.Fail}}
	if es, err := record(t.Context(), a, "spent/x/y", 0, other); err != nil || es.Verdict.Claim != "theirs" {
		t.Errorf("%+v, %v", es, err)
	}
	if es, err := record(t.Context(), a, "spent/x/y", 0, EvalSuite{Name: "s", Verdict: evidence.Verdict{Outcome: evidence.Pass}}); err != nil || es.Verdict.Claim != "theirs" {
		t.Errorf("%+v, %v", es, err)
	}
}
