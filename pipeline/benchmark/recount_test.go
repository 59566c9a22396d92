package benchmark

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
)

func TestSaid(t *testing.T) {
	for _, c := range []struct {
		name, events, want string
		ok                 bool
	}{
		{"a chat", `{"choices":[{"delta":{"content":"a b"}}]}` + "\n" + `{"choices":[{"delta":{"content":" c"}}]}` + "\n", "a b c", true},
		{"a completion", `{"choices":[{"text":"a"}]}`, "a", true},
		{"reasoning under both of its names", `{"choices":[{"delta":{"reasoning":"x","reasoning_content":"x"}}]}` + "\n" + `{"choices":[{"delta":{"content":"y","tool_calls":[]}}]}`, "xy", true},
		{"a refusal", `{"choices":[{"delta":{"refusal":"no"}}]}`, "no", true},
		{"a call of a tool", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, "", false},
		{"a second choice", `{"choices":[{"index":1,"delta":{"content":"b"}}]}`, "", false},
		{"what is cut", `{"choices":[{"delta":`, "", false},
		{"nothing", "", "", true},
	} {
		if got, ok := said([]byte(c.events)); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v", c.name, got, ok)
		}
	}
}

// words is the tokenizer of the example.
func words(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	dir := "../../examples/freight/weights"
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Skip("the example has no weights here")
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// One in four answers is counted, and what was kept of it is gone before anybody is given
// the result.
func TestAnswersAreCounted(t *testing.T) {
	tok := words(t)
	n := len(tok.Encode("Give the shipper.", false))
	synctest.Test(t, func(t *testing.T) {
		var kept atomic.Int64
		tells := func(ctx context.Context, q *load.Request, now func() time.Duration, res *load.Result) {
			steady(ctx, q, now, res)
			res.Output, res.Finish = n+1, "stop"
			if q.Keep {
				kept.Add(1)
				res.Kept = []byte(`{"choices":[{"delta":{"content":"Give the shipper."}}]}` + "\n")
			}
		}
		counted := 0
		p, _, err := Measure(t.Context(), tells, Sampled(one, tok), Load{Shape: Constant, Rate: 10, Requests: 40, For: time.Minute}, Measuring{Tokenizer: tok, Emit: func(r *load.Result) {
			if r.Own == n && r.Kept == nil {
				counted++
			}
		}})
		if err != nil || kept.Load() != 10 || counted != 10 {
			t.Fatalf("%d kept, %d counted, %v", kept.Load(), counted, err)
		}
		found := false
		for _, c := range p.Summary.Checks {
			found = found || c.Name == "own count" && c.OK
		}
		if !found {
			t.Errorf("%+v", p.Summary.Checks)
		}
	})
	if r, _ := Sampled(one, nil)(0); r.Keep {
		t.Error("kept without a tokenizer to count by")
	}
}
