package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func serve(t *testing.T, h http.HandlerFunc) *Client {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &Client{BaseURL: srv.URL, Header: http.Header{"Authorization": {"Bearer k"}}}
}

func TestChat(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req ChatRequest
		if err := Decode(r.Body, &req); err != nil || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer k" {
			WriteError(w, 400, err.(*Error))
			return
		}
		if !req.Stream {
			io.WriteString(w, `{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`)
			return
		}
		w.Header().Set("X-Served", "yes")
		s := NewWriter(w)
		stop := FinishStop
		for _, d := range []Delta{{Role: "assistant"}, {ReasoningContent: "hm"}, {Content: "hel"}, {Content: "lo"}} {
			s.Send(ChatChunk{ID: "1", Choices: []ChunkChoice{{Delta: d}}})
		}
		s.Send(ChatChunk{ID: "1", Choices: []ChunkChoice{{FinishReason: &stop}}})
		s.Send(ChatChunk{ID: "1", Choices: []ChunkChoice{}, Usage: &Usage{CompletionTokens: 2}})
		s.Done()
	})
	req := &ChatRequest{Messages: []Message{{Role: "user", Content: Text("hi")}}}
	chunks := 0
	got, h, err := c.Chat(t.Context(), req, func(*ChatChunk) error { chunks++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	m := got.Choices[0]
	if chunks != 6 || m.Message.Content.Text != "hello" || m.Message.ReasoningContent != "hm" || m.FinishReason != "stop" || got.Usage.CompletionTokens != 2 || h.Get("X-Served") != "yes" {
		t.Errorf("%d chunks, %+v, %v", chunks, got, h)
	}
	got, _, err = c.Chat(t.Context(), req, nil)
	if err != nil || got.Choices[0].Message.Content.String() != "hello" || got.Usage.PromptTokensDetails.CachedTokens != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if req.Stream {
		t.Error("the caller's request was changed")
	}
	stop := errors.New("enough")
	if _, _, err := c.Chat(t.Context(), req, func(*ChatChunk) error { return stop }); err != stop {
		t.Errorf("error %v", err)
	}
}

func TestComplete(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req CompletionRequest
		if err := Decode(r.Body, &req); err != nil {
			WriteError(w, 400, err.(*Error))
			return
		}
		if !req.Stream {
			io.WriteString(w, `{"choices":[{"text":"ab","finish_reason":"length","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-0.5],"top_logprobs":[null,{"b":-0.5}],"text_offset":[0,1]}}]}`)
			return
		}
		s := NewWriter(w)
		s.Send(CompletionResponse{Choices: []CompletionChoice{{Text: "a"}}})
		length := FinishLength
		s.Send(CompletionResponse{Choices: []CompletionChoice{{Text: "b", FinishReason: &length}}})
		s.Done()
	})
	got, _, err := c.Complete(t.Context(), &CompletionRequest{Prompt: Prompt{Tokens: [][]int{{1, 2}}}, Echo: true}, nil)
	if err != nil || got.Choices[0].Logprobs.TokenLogprobs[0] != nil || *got.Choices[0].Logprobs.TokenLogprobs[1] != -0.5 {
		t.Errorf("%+v, %v", got, err)
	}
	got, _, err = c.Complete(t.Context(), &CompletionRequest{Prompt: Prompt{Texts: []string{"x"}}}, func(*CompletionResponse) error { return nil })
	if err != nil || got.Choices[0].Text != "ab" || *got.Choices[0].FinishReason != "length" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestClientErrors(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"busy": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "2")
			WriteError(w, 429, &Error{Message: "too many", Type: TypeRateLimit, Code: "queue_full"})
		},
		"html": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(502)
			io.WriteString(w, strings.Repeat("<p>", 1000))
		},
		"cut":    func(w http.ResponseWriter, r *http.Request) { NewWriter(w).Send(ChatChunk{}) },
		"inside": func(w http.ResponseWriter, r *http.Request) { NewWriter(w).Error(&Error{Message: "out of memory"}) },
		"junk":   func(w http.ResponseWriter, r *http.Request) { NewWriter(w).Send("x") },
	}
	chat := func(t *testing.T, name string) error {
		c := serve(t, answers[name])
		c.BaseURL = strings.Replace(c.BaseURL, "http://", "http://user:secret@", 1) + "/v1/"
		_, _, err := c.Chat(t.Context(), &ChatRequest{}, func(*ChatChunk) error { return nil })
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Fatalf("error %v", err)
		}
		return err
	}
	var se *StatusError
	if err := chat(t, "busy"); !errors.As(err, &se) || se.Status != 429 || se.RetryAfter != 2*time.Second || !se.Temporary() || se.API.Code != "queue_full" {
		t.Errorf("busy: %#v", err)
	}
	if err := chat(t, "html"); !errors.As(err, &se) || se.API != nil || len(se.Body) != 512 {
		t.Errorf("html: %#v", err)
	}
	if err := chat(t, "cut"); !errors.Is(err, ErrTruncated) {
		t.Errorf("cut: %v", err)
	}
	var api *Error
	if err := chat(t, "inside"); !errors.As(err, &api) || api.Message != "out of memory" {
		t.Errorf("inside: %v", err)
	}
	if err := chat(t, "junk"); !strings.Contains(err.Error(), "decoding a chunk") {
		t.Errorf("junk: %v", err)
	}
}

func TestModelsAndHealth(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","max_model_len":2048}]}`)
		case "/health":
		default:
			w.WriteHeader(404)
		}
	})
	m, err := c.Models(t.Context())
	if err != nil || len(m.Data) != 1 || m.Data[0].MaxModelLen != 2048 {
		t.Errorf("%+v, %v", m, err)
	}
	if err := c.Health(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Health(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "0.5": 500 * time.Millisecond, "-1": 0, "x": 0, "1e300": 0, "NaN": 0,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}
