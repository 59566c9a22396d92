package router

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	for _, tt := range []struct {
		name, in, model, opening, err string
		stream                        bool
	}{
		{"chat", `{"messages":[{"role":"system","content":"s"},{"content":"hi","role":"user"},{"role":"assistant"}],"model":"m","stream":true}`,
			"m", `[{"role":"system","content":"s"},{"content":"hi","role":"user"}`, "", true},
		{"completion", `{"model":"m","prompt":"abc","stream":false}`, "m", `"abc"`, "", false},
		{"a model in the text", `{"messages":[{"role":"user","content":"\"model\":\"x\""}],"model":"m"}`, "m", `[{"role":"user","content":"\"model\":\"x\""}`, "", false},
		{"a model further in", `{"metadata":{"model":"x"},"model":"m"}`, "m", "", "", false},
		{"no user", `{"model":"m","messages":[{"role":"system"}]}`, "m", `[{"role":"system"}]`, "", false},
		{"escaped", `{"mod\u0065l":"a\/b"}`, "a/b", "", "", false},
		{"no model", `{"messages":[]}`, "", "", "model is missing", false},
		{"two models", `{"model":"a","model":"b"}`, "", "", "sent twice", false},
		{"number", `{"model":5}`, "", "", "non-empty string", false},
		{"empty", `{"model":""}`, "", "", "non-empty string", false},
		{"list", `[]`, "", "", "not a JSON object", false},
		{"nothing", ``, "", "", "not a JSON object", false},
		{"cut", `{"model":"m","messages":[{"role":"us`, "", "", "not valid JSON", false},
		{"trailing", `{"model":"m"} x`, "", "", "after the JSON object", false},
	} {
		w, err := scan([]byte(tt.in))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Message, tt.err) {
				t.Errorf("%s: error %v", tt.name, err)
			}
			continue
		}
		if err != nil || string(w.model) != tt.model || string(w.opening) != tt.opening || w.stream != tt.stream {
			t.Errorf("%s: got model %q, opening %q, stream %v, error %v", tt.name, w.model, w.opening, w.stream, err)
		}
		if got := tt.in[w.at:w.end]; tt.name != "escaped" && got != `"`+tt.model+`"` {
			t.Errorf("%s: the model stands at %q", tt.name, got)
		}
	}
}

func TestConversation(t *testing.T) {
	turn := func(msgs string) *wish {
		w, err := scan([]byte(`{"model":"m","messages":[` + msgs + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return &w
	}
	first := turn(`{"role":"user","content":"a"}`)
	second := turn(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}`)
	other := turn(`{"role":"user","content":"b"}`)
	if conversation("", 1, first) != conversation("", 1, second) {
		t.Error("the second turn is another conversation")
	}
	if conversation("", 1, first) == conversation("", 2, first) || conversation("", 1, first) == conversation("", 1, other) {
		t.Error("tenants or questions share a conversation")
	}
	if conversation("x", 1, first) != conversation("x", 2, other) || conversation("x", 1, first) == conversation("y", 1, first) {
		t.Error("the header does not decide")
	}
}

// Questions on one document share a prefix, documents behind one system
// prompt do not.
func TestPrefix(t *testing.T) {
	long := strings.Repeat("bill of lading ", 40)
	prefix := func(doc, q string) string {
		w, err := scan([]byte(`{"model":"m","messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":"` + doc + long + q + `"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return string(w.prefix)
	}
	if prefix("A", "who?") != prefix("A", "what?") || prefix("A", "who?") == prefix("B", "who?") {
		t.Error("the prefix does not follow the document")
	}
}

func TestPromptTokens(t *testing.T) {
	for in, want := range map[string]int{`[1,2,3]`: 3, `[[1,2],[3]]`: 3, `"abcdefghijkl"`: 3, `["abcdefgh"]`: 3} {
		if got := promptTokens([]byte(in)); got != want {
			t.Errorf("%s: %d tokens, want %d", in, got, want)
		}
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("x", 32<<10) + `"},{"role":"user","content":"hi"}],"stream":true}`)
	if n := testing.AllocsPerRun(100, func() { scan(body) }); n != 0 {
		t.Errorf("scan allocates %v times", n)
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"model":"m","stream":true}`))
	f.Add([]byte(`{"model":"a","prompt":[[1,2]]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		w, err := scan(in)
		if !json.Valid(in) {
			return
		}
		// The model members of the top level, in order, as encoding/json finds
		// them.
		var models []json.RawMessage
		dec := json.NewDecoder(bytes.NewReader(in))
		tok, _ := dec.Token()
		for tok == json.Delim('{') && dec.More() {
			key, _ := dec.Token()
			var v json.RawMessage
			if dec.Decode(&v); key == "model" {
				models = append(models, v)
			}
		}
		good := tok == json.Delim('{') && len(models) == 1 && models[0][0] == '"' && len(models[0]) > 2
		if (err == nil) != good {
			t.Fatalf("%s: error %v", in, err)
		}
		if err != nil {
			return
		}
		var model string
		if json.Unmarshal(models[0], &model) != nil || !bytes.Contains(models[0], []byte(`\`)) {
			model = string(models[0][1 : len(models[0])-1])
		}
		if string(w.model) != model || string(in[w.at:w.end]) != string(models[0]) {
			t.Fatalf("%s: model %q at %q, want %q", in, w.model, in[w.at:w.end], model)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for name, n := range map[string]int{"32KiB": 32 << 10, "1MiB": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			text, _ := json.Marshal(strings.Repeat("The quick brown fox, \"quoted\"\n", n/30))
			body := []byte(`{"model":"m","messages":[{"role":"user","content":` + string(text) + `}],"stream":true}`)
			b.ReportAllocs()
			for b.Loop() {
				w, _ := scan(body)
				conversation("", 1, &w)
			}
		})
	}
}
