package router

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"llmops/serving/openai"
)

func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     seen
	}{
		{"role only", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, seen{}},
		{"null content", `{"choices":[{"delta":{"role":"assistant","content":null}}]}`, seen{}},
		{"content", `{"choices":[{"delta":{"content":"a\"b"}}]}`, seen{tokens: 1}},
		{"reasoning", `{"choices":[{"delta":{"reasoning":"x"}}]}`, seen{tokens: 1}},
		{"reasoning_content", `{"choices":[{"delta":{"reasoning_content":"x"}}]}`, seen{tokens: 1}},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, seen{tokens: 1}},
		{"no tool call", `{"choices":[{"delta":{"tool_calls":[ ]}}]}`, seen{}},
		{"refusal", `{"choices":[{"delta":{"refusal":"no"}}]}`, seen{tokens: 1, refused: true}},
		{"null refusal", `{"choices":[{"message":{"content":"a","refusal":null}}]}`, seen{tokens: 1}},
		{"filter", `{"choices":[{"delta":{},"finish_reason":"content_filter"}]}`, seen{finish: true, refused: true}},
		{"stop", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, seen{finish: true}},
		{"completion", `{"choices":[{"text":"a"},{"text":""}]}`, seen{tokens: 1}},
		{"usage", `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`, seen{usage: true, prompt: 7, output: 3, cached: 4}},
		{"null usage", `{"choices":[{"delta":{"content":"a"}}],"usage":null}`, seen{tokens: 1}},
		{"error", `{"error":{"message":"x"}}`, seen{failed: true}},
		{"null error", `{"error":null,"choices":[]}`, seen{}},
		{"words of ours in the text", `{"id":"\"usage\":{\"completion_tokens\":9}","choices":[{"delta":{"content":"\"finish_reason\":\"content_filter\""}}]}`, seen{tokens: 1}},
		{"the same keys elsewhere", `{"x":{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}}`, seen{}},
		{"escaped key", `{"choices":[{"delta":{"con\u0074ent":"a"}}]}`, seen{tokens: 1}},
		{"spaces", " { \"choices\" : [ { \"delta\" : { \"content\" : \"a\" } } ] } ", seen{tokens: 1}},
		{"not an object", `[1]`, seen{}}, {"cut", `{"choices":[{"delta":{"content":"a`, seen{}}, {"empty", ``, seen{}},
		{"choices of another type", `{"choices":{"a":1},"usage":{"completion_tokens":1}}`, seen{usage: true, output: 1}},
	} {
		var s seen
		s.look([]byte(tt.in))
		s.text = 0
		if s != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, s, tt.want)
		}
	}
}

func TestLookDoesNotAllocate(t *testing.T) {
	in := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	var s seen
	if n := testing.AllocsPerRun(100, func() { s.look(in) }); n != 0 {
		t.Errorf("look allocates %v times", n)
	}
	stream := []byte("data: " + string(in) + "\n\n")
	var e events
	e.feed(stream[:50])
	e.feed(stream[50:])
	if n := testing.AllocsPerRun(100, func() { e.feed(stream); e.feed(stream[:50]); e.feed(stream[50:]) }); n != 0 {
		t.Errorf("feed allocates %v times", n)
	}
	if s.tokens != 101 || e.tokens != 1+3*101-101 {
		t.Errorf("%d and %d tokens", s.tokens, e.tokens)
	}
}

func TestTextHashIgnoresChunking(t *testing.T) {
	hash := func(parts ...string) uint64 {
		var s seen
		for _, p := range parts {
			q, _ := json.Marshal(p)
			s.look([]byte(`{"choices":[{"delta":{"content":` + string(q) + `}}]}`))
		}
		return s.text
	}
	if hash("hello world") != hash("hel", "lo", " world") || hash("a") == hash("b") || hash() != 0 {
		t.Error("the hash depends on how the text was cut, or on nothing")
	}
}

func TestFeedOversized(t *testing.T) {
	var e events
	big := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", maxSniff) + "\"}}]}\n\n"
	for i := 0; i < len(big); i += 30_000 {
		e.feed([]byte(big[i:min(i+30_000, len(big))]))
	}
	e.feed([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"))
	if e.tokens != 1 || !e.done || cap(e.line) > 2*maxSniff {
		t.Errorf("%d tokens, done %v, %d bytes kept", e.tokens, e.done, cap(e.line))
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
func slowLook(s *seen, data []byte) {
	v := parse(bytes.TrimSpace(data))
	token := false
	mark := func(v value) { token = token || v.filled() }
	v.each("choices", func(cs value) {
		if cs.kind != '[' {
			return
		}
		for _, c := range cs.vals {
			for _, part := range []string{"delta", "message"} {
				c.each(part, func(d value) {
					for _, k := range []string{"content", "reasoning", "reasoning_content", "tool_calls", "refusal"} {
						d.each(k, mark)
					}
					d.each("refusal", func(r value) { s.refused = s.refused || r.filled() })
				})
			}
			c.each("text", mark)
			c.each("finish_reason", func(f value) {
				s.finish = s.finish || f.filled()
				s.refused = s.refused || string(f.raw) == `"content_filter"`
			})
		}
	})
	v.each("error", func(e value) { s.failed = s.failed || e.filled() })
	v.each("usage", func(u value) {
		u.each("completion_tokens", func(n value) { s.usage = n.count(&s.output) || s.usage })
		u.each("prompt_tokens", func(n value) { n.count(&s.prompt) })
		u.each("prompt_tokens_details", func(d value) { d.each("cached_tokens", func(n value) { n.count(&s.cached) }) })
	})
	if token {
		s.tokens++
	}
}

func FuzzLook(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{"content":"a","refusal":null},"finish_reason":"stop"}],"usage":{"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}`))
	f.Add([]byte(`{"choices":[{"text":"\\"},{"message":{"tool_calls":[{}]}}],"error":{"a":1},"usage":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var got, want seen
		got.look(in) // must not panic, whatever it is
		if !json.Valid(in) {
			return
		}
		slowLook(&want, in)
		got.text = 0
		if got != want {
			t.Fatalf("%s: got %+v, want %+v", in, got, want)
		}
	})
}

func FuzzFeed(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"), 3)
	f.Add([]byte(": x\r\ndata: {\"choices\":\r\ndata: [{\"text\":\"a\"}]}\r\n\r\nevent: y\rdata\r\r"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		if bytes.HasPrefix(in, []byte("\xef")) {
			return // a byte order mark, which no engine sends
		}
		var want seen
		for r := openai.NewReader(bytes.NewReader(in), 0); ; {
			ev, err := r.Next()
			if err != nil {
				break
			}
			if ev.Done() {
				want.done = true
				continue
			}
			if !json.Valid(ev.Data) {
				return
			}
			slowLook(&want, ev.Data)
		}
		cut = max(1, cut&0xf)
		var whole, pieces events
		whole.feed(in)
		whole.end()
		for i := 0; i < len(in); i += cut {
			pieces.feed(in[i:min(i+cut, len(in))])
		}
		pieces.end()
		if whole.seen != pieces.seen {
			t.Fatalf("%q in pieces of %d: %+v, whole %+v", in, cut, pieces.seen, whole.seen)
		}
		whole.text = 0
		if whole.seen != want {
			t.Fatalf("%q: got %+v, want %+v", in, whole.seen, want)
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	in := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	b.ReportAllocs()
	var e events
	for b.Loop() {
		e.feed(in)
	}
}
