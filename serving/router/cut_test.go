package router

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const (
	word  = `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	used  = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}` + "\n\n"
	ended = "data: [DONE]\n\n"
)

// cut sends a stream through a cutter in pieces of n bytes.
func cut(in string, n int) (out string, e *events) {
	var c cutter
	e = &events{}
	var b strings.Builder
	for len(in) > 0 {
		k := min(n, len(in))
		b.Write(c.feed(e, []byte(in[:k])))
		in = in[k:]
	}
	b.Write(c.end(e))
	return b.String(), e
}

func TestCut(t *testing.T) {
	crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	for name, c := range map[string]struct{ in, want string }{
		"at the end":            {word + word + used + ended, word + word + ended},
		"without [DONE]":        {word + used, word},
		"first":                 {used + word, word},
		"alone":                 {used, ""},
		"with CRLF":             {crlf(word + used + ended), crlf(word + ended)},
		"a comment before":      {": ping\n\n" + word + used + ended, ": ping\n\n" + word + ended},
		"blank lines":           {"\n\n" + word + "\n" + used + "\n" + ended, "\n\n" + word + "\n" + "\n" + ended},
		"in two data lines":     {"data: {\"choices\":[],\ndata: \"usage\":{\"completion_tokens\":2}}\n\n" + ended, ended},
		"an error beside it":    {`data: {"error":{"message":"x"},"choices":[],"usage":{"completion_tokens":2}}` + "\n\n", `data: {"error":{"message":"x"},"choices":[],"usage":{"completion_tokens":2}}` + "\n\n"},
		"beside a choice":       {`data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":2}}` + "\n\n" + ended, `data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":2}}` + "\n\n" + ended},
		"null":                  {`data: {"choices":[],"usage":null}` + "\n\n", `data: {"choices":[],"usage":null}` + "\n\n"},
		"filters and no usage":  {`data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + word, `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + word},
		"an end that is cut":    {word + "data: [DONE]\n", word + "data: [DONE]\n"},
		"an event that is cut":  {word + `data: {"cho`, word + `data: {"cho`},
		"lone carriage returns": {strings.ReplaceAll(word+used, "\n", "\r"), strings.ReplaceAll(word+used, "\n", "\r")},
	} {
		for n := 1; n <= len(c.in); n++ {
			got, e := cut(c.in, n)
			if got != c.want {
				t.Fatalf("%s, in pieces of %d:\n%q, want\n%q", name, n, got, c.want)
			}
			if strings.Contains(c.in, `"prompt_tokens":7`) && e.Prompt != 7 {
				t.Fatalf("%s, in pieces of %d: the usage was not seen: %+v", name, n, e.Peek)
			}
		}
	}
}

func TestCutDoesNotAllocate(t *testing.T) {
	var c cutter
	var e events
	p := []byte(word + word)
	c.feed(&e, p[:20])
	c.feed(&e, p[20:])
	if n := testing.AllocsPerRun(100, func() { c.feed(&e, p); c.feed(&e, p[:20]); c.feed(&e, p[20:]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A large event is held once and not gone through again with each piece.
func TestCutOversized(t *testing.T) {
	big := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", maxSniff) + `"}}]}` + "\n\n"
	if got, _ := cut(word+big+ended, 8<<10); got != word+big+ended {
		t.Error("an event over the limit was changed")
	}
	big = big[:len(big)-maxSniff/2] + `"}}]}` + "\n\n"
	if got, _ := cut(word+big+used+ended, 8<<10); got != word+big+ended {
		t.Error("an event under the limit was changed, or the usage behind it not cut")
	}
}

// FuzzCut holds the cutter to a slow one that has the whole stream.
func FuzzCut(f *testing.F) {
	f.Add([]byte(word+word+used+ended), 7)
	f.Add([]byte(": c\r\n\r\n"+word+"\r\n"+used), 1)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		got, e := cut(string(in), max(1, n&0x1f))
		if loneCR(in) {
			return
		}
		var want []byte
		for rest := in; len(rest) > 0; {
			end, _ := eventEnd(rest, 0)
			if end == 0 {
				want = append(want, rest...)
				break
			}
			var one events
			one.feed(bytes.Clone(rest[:end]))
			if !one.Bare {
				want = append(want, rest[:end]...)
			}
			rest = rest[end:]
		}
		if got != string(want) {
			t.Fatalf("%q\n%q, want\n%q", in, got, want)
		}
		var whole events
		whole.feed(in)
		if whole.Tokens != e.Tokens || whole.Output != e.Output || whole.done != e.done {
			t.Fatalf("%q: saw %+v, want %+v", in, e.Peek, whole.Peek)
		}
	})
}

func TestAskUsage(t *testing.T) {
	const want = `{"include_usage":true}`
	for name, c := range map[string]struct{ options, want string }{
		"none":               {``, want},
		"null":               {`,"stream_options": null`, want},
		"empty":              {`,"stream_options":{ }`, want},
		"not asked":          {`,"stream_options":{"include_usage" : false}`, want},
		"asked nothing":      {`,"stream_options":{"include_usage":null}`, want},
		"others":             {`,"stream_options":{"a":{"b":[1]}}`, `{"include_usage":true,"a":{"b":[1]}}`},
		"others and not":     {`,"stream_options":{"a":1,"include_usage":false,"c":2}`, `{"a":1,"include_usage":true,"c":2}`},
		"asked":              {`,"stream_options":{"include_usage":true}`, ""},
		"in each event":      {`,"stream_options":{"continuous_usage_stats":true}`, ""},
		"for an error":       {`,"stream_options":{"include_usage":"yes"}`, ""},
		"no object":          {`,"stream_options":5`, ""},
		"twice":              {`,"stream_options":{},"stream_options":{}`, ""},
		"not streamed":       {`,"stream":false`, ""},
		"not streamed, null": {`,"stream":false,"stream_options":null`, ""},
	} {
		for _, around := range [][2]string{{`{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}]`, "}"}, {"{ \"stream\" :true , \"model\": \"m\"", ",\"x\":[{}]  }\n"}} {
			in := []byte(around[0] + c.options + around[1])
			w, e := scan(in)
			if e != nil {
				t.Fatal(name, e)
			}
			before := string(in)
			text := string(w.text)
			out, ok := w.askUsage(in[:len(in):len(in)])
			if ok != (c.want != "") || string(w.text) != text {
				t.Errorf("%s: asked %v", name, ok)
			}
			if !ok {
				if string(out) != before {
					t.Errorf("%s: it is %s now", name, out)
				}
				continue
			}
			var old, got map[string]json.RawMessage
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%s: %s: %v", name, out, err)
			}
			if err := json.Unmarshal([]byte(before), &old); err != nil {
				t.Fatal(err)
			}
			options := strings.ReplaceAll(string(got["stream_options"]), " ", "")
			delete(got, "stream_options")
			delete(old, "stream_options")
			a, _ := json.Marshal(old)
			b, _ := json.Marshal(got)
			if options != c.want || string(a) != string(b) {
				t.Errorf("%s: %s", name, out)
			}
		}
	}
}

func BenchmarkCut(b *testing.B) {
	in := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	b.ReportAllocs()
	var e events
	var c cutter
	for b.Loop() {
		c.feed(&e, in)
	}
}
