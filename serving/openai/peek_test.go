package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"
)

func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     Peek
	}{
		{"role only", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, Peek{}},
		{"null content", `{"choices":[{"delta":{"role":"assistant","content":null}}]}`, Peek{}},
		{"content", `{"choices":[{"delta":{"content":"a\"b"}}]}`, Peek{Tokens: 1, Answers: 1}},
		{"reasoning", `{"choices":[{"delta":{"reasoning":"x"}}]}`, Peek{Tokens: 1}},
		{"reasoning_content", `{"choices":[{"delta":{"reasoning_content":"x"}}]}`, Peek{Tokens: 1}},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, Peek{Tokens: 1, Answers: 1}},
		{"no tool call", `{"choices":[{"delta":{"tool_calls":[ ]}}]}`, Peek{}},
		{"refusal", `{"choices":[{"delta":{"refusal":"no"}}]}`, Peek{Tokens: 1, Answers: 1, Refused: true}},
		{"null refusal", `{"choices":[{"message":{"content":"a","refusal":null}}]}`, Peek{Tokens: 1, Answers: 1}},
		{"filter", `{"choices":[{"delta":{},"finish_reason":"content_filter"}]}`, Peek{Finish: "content_filter", Refused: true}},
		{"stop", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, Peek{Finish: "stop"}},
		{"completion", `{"choices":[{"text":"a"},{"text":""}]}`, Peek{Tokens: 1, Answers: 1}},
		{"usage", `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`, Peek{Usage: true, Prompt: 7, Output: 3, Cached: 4, Told: true, Bare: true}},
		{"null usage", `{"choices":[{"delta":{"content":"a"}}],"usage":null}`, Peek{Tokens: 1, Answers: 1}},
		{"error", `{"error":{"message":"x"}}`, Peek{Failed: true}},
		{"null error", `{"error":null,"choices":[]}`, Peek{}},
		{"words of ours in the text", `{"id":"\"usage\":{\"completion_tokens\":9}","choices":[{"delta":{"content":"\"finish_reason\":\"content_filter\""}}]}`, Peek{Tokens: 1, Answers: 1}},
		{"the same keys elsewhere", `{"x":{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}}`, Peek{}},
		{"escaped key", `{"choices":[{"delta":{"con\u0074ent":"a"}}]}`, Peek{Tokens: 1, Answers: 1}},
		{"spaces", " { \"choices\" : [ { \"delta\" : { \"content\" : \"a\" } } ] } ", Peek{Tokens: 1, Answers: 1}},
		{"not an object", `[1]`, Peek{}}, {"cut", `{"choices":[{"delta":{"content":"a`, Peek{}}, {"empty", ``, Peek{}},
		{"choices of another type", `{"choices":{"a":1},"usage":{"completion_tokens":1}}`, Peek{Usage: true, Output: 1, Bare: true}},
	} {
		var s Peek
		s.Look([]byte(tt.in))
		s.Text = 0
		if s != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, s, tt.want)
		}
	}
}

func TestLookDoesNotAllocate(t *testing.T) {
	in := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	var s Peek
	if n := testing.AllocsPerRun(100, func() { s.Look(in) }); n != 0 || s.Tokens != 101 {
		t.Errorf("Look allocates %v times, %d tokens", n, s.Tokens)
	}
}

func TestTextHashIgnoresChunking(t *testing.T) {
	hash := func(parts ...string) uint64 {
		var s Peek
		for _, p := range parts {
			q, _ := json.Marshal(p)
			s.Look([]byte(`{"choices":[{"delta":{"content":` + string(q) + `}}]}`))
		}
		return s.Text
	}
	if hash("hello world") != hash("hel", "lo", " world") || hash("a") == hash("b") || hash() != 0 {
		t.Error("the hash depends on how the text was cut, or on nothing")
	}
}

// value is a JSON value with its members in order, as the slow oracle needs
// it to treat duplicate keys the way a scanner does.
type value struct {
	raw  json.RawMessage
	keys []string
	vals []value
	kind byte
}

func parse(raw json.RawMessage) value {
	v := value{raw: raw, kind: raw[0]}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if v.kind != '{' && v.kind != '[' {
		return v
	}
	dec.Token()
	for dec.More() {
		if v.kind == '{' {
			k, _ := dec.Token()
			v.keys = append(v.keys, k.(string))
		}
		var m json.RawMessage
		dec.Decode(&m)
		v.vals = append(v.vals, parse(m))
	}
	return v
}

func (v value) each(key string, f func(value)) {
	if v.kind != '{' {
		return
	}
	for i, k := range v.keys {
		if k == key {
			f(v.vals[i])
		}
	}
}

func (v value) filled() bool {
	switch v.kind {
	case '"':
		return len(v.raw) > 2
	case '{', '[':
		return len(v.vals) > 0
	}
	return false
}

func (v value) count(to *int) bool {
	n, err := strconv.Atoi(string(v.raw))
	if err != nil || n < 0 || len(v.raw) > 15 || v.raw[0] == '-' {
		return false
	}
	*to = n
	return true
}

// slowLook is look, the obvious way.
func slowLook(s *Peek, data []byte) {
	v := parse(bytes.TrimSpace(data))
	token, answered, chose, counted := false, false, false, false
	v.each("choices", func(cs value) {
		if cs.kind != '[' {
			return
		}
		for _, c := range cs.vals {
			chose = true
			for _, part := range []string{"delta", "message"} {
				c.each(part, func(d value) {
					for _, k := range []string{"content", "tool_calls", "refusal"} {
						d.each(k, func(v value) { answered = answered || v.filled() })
					}
					for _, k := range []string{"reasoning", "reasoning_content"} {
						d.each(k, func(v value) { token = token || v.filled() })
					}
					d.each("refusal", func(r value) { s.Refused = s.Refused || r.filled() })
				})
			}
			c.each("text", func(v value) { answered = answered || v.filled() })
			c.each("finish_reason", func(f value) {
				if f.kind == '"' && f.filled() {
					s.Finish = string(f.raw[1 : len(f.raw)-1])
				}
				s.Refused = s.Refused || string(f.raw) == `"content_filter"`
			})
		}
	})
	v.each("error", func(e value) { s.Failed = s.Failed || e.filled() })
	v.each("usage", func(u value) {
		u.each("completion_tokens", func(n value) { counted = n.count(&s.Output) || counted })
		u.each("prompt_tokens", func(n value) { n.count(&s.Prompt) })
		u.each("prompt_tokens_details", func(d value) { d.each("cached_tokens", func(n value) { s.Told = n.count(&s.Cached) || s.Told }) })
	})
	if token || answered {
		s.Tokens++
	}
	if answered {
		s.Answers++
	}
	s.Usage = s.Usage || counted
	s.Bare = counted && !chose && !s.Failed
}

func FuzzLook(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{"content":"a","refusal":null},"finish_reason":"stop"}],"usage":{"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}`))
	f.Add([]byte(`{"choices":[{"text":"\\"},{"message":{"tool_calls":[{}]}}],"error":{"a":1},"usage":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var got, want Peek
		got.Look(in) // must not panic, whatever it is
		if !json.Valid(in) {
			return
		}
		slowLook(&want, in)
		got.Text = 0
		if got != want {
			t.Fatalf("%s: got %+v, want %+v", in, got, want)
		}
	})
}

func BenchmarkLook(b *testing.B) {
	in := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`)
	b.ReportAllocs()
	var s Peek
	for b.Loop() {
		s.Look(in)
	}
}
