package load

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOwnCount(t *testing.T) {
	answers := func(finish string, n, told, own int) (out []*Result) {
		for range n {
			out = append(out, &Result{Stream: true, Finish: finish, Output: told, Own: own, Count: CountUsage})
		}
		return out
	}
	for _, c := range []struct {
		name string
		rs   []*Result
		ok   bool
		note string
	}{
		{"ended by themselves", answers("stop", 5, 20, 19), true, "100 output tokens told of 5 answers, 100 by the tokenizer"},
		{"a token an event, of which each had two", answers("stop", 5, 10, 19), false, "of the 5 that were ended by the model 50 and 100"},
		{"told twice", answers("stop", 5, 40, 19), false, "want 0.9 to 1.1"},
		{"held to their length over an end", answers("length", 5, 20, 14), true, ""},
		{"held to their length, told thrice", answers("length", 5, 60, 19), false, "held to a length 300 and 95, want 0.5 to 1.1"},
		{"one kind wrong", append(answers("stop", 50, 20, 19), answers("length", 1, 10, 20)...), false, "of the 1 that were held"},
	} {
		got := ownCount(c.rs)
		if got.OK != c.ok || got.Name == "" || !strings.Contains(got.Note, c.note) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if got := ownCount(answers("stop", 5, 20, 0)); got.Name != "" {
		t.Errorf("nothing was counted: %+v", got)
	}
}

// What the events with tokens say is kept where it is asked for.
func TestKept(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, d := range []string{`{"choices":[{"delta":{"role":"assistant"}}]}`, `{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"b"}}]}`, `{"choices":[],"usage":{"completion_tokens":2}}`, "[DONE]"} {
			_, _ = w.Write([]byte("data: " + d + "\n\n"))
		}
	}))
	defer srv.Close()
	c := NewClient()
	defer c.Close()
	target := c.Target(srv.URL, nil)
	for _, keep := range []bool{true, false} {
		var got *Result
		source := func(int) (*Request, error) {
			return &Request{Path: PathChat, Body: []byte("{}"), Stream: true, Keep: keep}, nil
		}
		if _, err := Run(t.Context(), target, Limit(Constant(100), 1, 0), source, Options{}, func(r *Result) { got = r }); err != nil {
			t.Fatal(err)
		}
		want := ""
		if keep {
			want = `{"choices":[{"delta":{"content":"a"}}]}` + "\n" + `{"choices":[{"delta":{"content":"b"}}]}` + "\n"
		}
		if !got.OK() || string(got.Kept) != want {
			t.Errorf("keep %v: %q, %+v", keep, got.Kept, got)
		}
	}
}
