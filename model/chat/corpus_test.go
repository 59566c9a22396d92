package chat

import (
	"encoding/json"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	corpusFile  = flag.String("corpus", filepath.Join("testdata", "corpus.json"), "what bench/golden/chat.py wrote")
	templateDir = flag.String("templates", "testdata", "where its templates are")
)

func TestCorpus(t *testing.T) {
	b, err := os.ReadFile(*corpusFile)
	if err != nil {
		t.Fatal(err)
	}
	var corpus struct {
		Conversations []json.RawMessage
		Sums          map[string][]any
	}
	if err := json.Unmarshal(b, &corpus); err != nil {
		t.Fatal(err)
	}
	if len(corpus.Conversations) < 100 || len(corpus.Sums) == 0 {
		t.Fatalf("%d conversations and %d templates: the corpus is not whole", len(corpus.Conversations), len(corpus.Sums))
	}
	for name, sums := range corpus.Sums {
		t.Run(name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(*templateDir, name+".jinja"))
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := Parse(string(source), tokens)
			if err != nil {
				t.Fatal(err)
			}
			wrong := 0
			for i, c := range corpus.Conversations {
				got, err := tmpl.Render(conversation(t, c))
				if !same(sums[i], got, err) {
					if wrong++; wrong <= 3 {
						t.Errorf("conversation %d: got %.200q, %v; the reference has %v", i, got, err, sums[i])
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d conversations differ", wrong, len(corpus.Conversations))
			}
		})
	}
}

// conversation makes a request of what transformers was called with.
func conversation(t *testing.T, c json.RawMessage) Request {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal(c, &all); err != nil {
		t.Fatal(err)
	}
	r := Request{Messages: all["messages"], Tools: all["tools"], Prompt: string(all["add_generation_prompt"]) == "true", Now: now}
	delete(all, "messages")
	delete(all, "tools")
	delete(all, "add_generation_prompt")
	if len(all) > 0 {
		extra, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		r.Extra = extra
	}
	return r
}

// same compares with a checksum, the message of a refusal, or any other failure, in
// which Python's and the library's rules differ.
func same(want any, got string, err error) bool {
	switch want := want.(type) {
	case float64:
		return err == nil && float64(crc32.ChecksumIEEE([]byte(got))) == want
	case string:
		message, raised := strings.CutPrefix(want, "TemplateError: ")
		var refused *Refused
		return !raised || errors.As(err, &refused) && refused.Message == message
	}
	return true
}

func TestExpressions(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "expressions.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Variables   json.RawMessage
		Expressions [][2]*string
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	for _, e := range g.Expressions {
		if e[1] == nil {
			continue
		}
		tmpl, err := Parse("{{ "+*e[0]+" }}", nil)
		if err != nil {
			t.Errorf("%s: %v", *e[0], err)
			continue
		}
		got, err := tmpl.Render(Request{Messages: json.RawMessage(`[]`), Extra: g.Variables})
		if err != nil || got != *e[1] {
			t.Errorf("%s: got %q, %v; want %q", *e[0], got, err, *e[1])
		}
	}
}
