package router

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"llmops/serving/openai"
)

func TestFeedDoesNotAllocate(t *testing.T) {
	stream := []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n")
	var e events
	e.feed(stream[:50])
	e.feed(stream[50:])
	if n := testing.AllocsPerRun(100, func() { e.feed(stream); e.feed(stream[:50]); e.feed(stream[50:]) }); n != 0 || e.Tokens != 1+2*101 {
		t.Errorf("feed allocates %v times, %d tokens", n, e.Tokens)
	}
}

func TestFeedOversized(t *testing.T) {
	var e events
	big := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", maxSniff) + "\"}}]}\n\n"
	for i := 0; i < len(big); i += 30_000 {
		e.feed([]byte(big[i:min(i+30_000, len(big))]))
	}
	e.feed([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"))
	if e.Tokens != 1 || !e.done || cap(e.line) > 2*maxSniff {
		t.Errorf("%d tokens, done %v, %d bytes kept", e.Tokens, e.done, cap(e.line))
	}
}

func FuzzFeed(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"), 3)
	f.Add([]byte(": x\r\ndata: {\"choices\":\r\ndata: [{\"text\":\"a\"}]}\r\n\r\nevent: y\rdata\r\r"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		if bytes.HasPrefix(in, []byte("\xef")) {
			return // a byte order mark, which no engine sends
		}
		var want openai.Peek
		done := false
		for r := openai.NewReader(bytes.NewReader(in), 0); ; {
			ev, err := r.Next()
			if err != nil {
				break
			}
			if ev.Done() {
				done = true
				continue
			}
			if !json.Valid(ev.Data) {
				return
			}
			want.Look(ev.Data)
		}
		cut = max(1, cut&0xf)
		var whole, pieces events
		whole.feed(in)
		whole.end()
		for i := 0; i < len(in); i += cut {
			pieces.feed(in[i:min(i+cut, len(in))])
		}
		pieces.end()
		if whole.Peek != pieces.Peek || whole.done != pieces.done {
			t.Fatalf("%q in pieces of %d: %+v, whole %+v", in, cut, pieces.Peek, whole.Peek)
		}
		if whole.Peek != want || whole.done != done {
			t.Fatalf("%q: got %+v, want %+v", in, whole.Peek, want)
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
