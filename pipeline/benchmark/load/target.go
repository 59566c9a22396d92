package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"llmops/serving/openai"
)

// Where requests go.
const (
	PathChat     = "/v1/chat/completions"
	PathComplete = "/v1/completions"
	PathEmbed    = "/v1/embeddings"
	PathRerank   = "/v1/rerank"
)

// idleClosed ends the error of net/http for a kept connection that the server closed
// before the request was written, and stale is how many of these a request may meet.
const (
	idleClosed = "http: server closed idle connection"
	stale      = 5
)

// maxAnswer bounds an answer that is not a stream.
const maxAnswer = 64 << 20

// Chat makes a streamed chat request that asks for usage at the end, or with each
// on every event, which not every server knows.
func Chat(r openai.ChatRequest, each bool) (*Request, error) {
	r.Stream, r.StreamOptions = true, &openai.StreamOptions{IncludeUsage: true, ContinuousUsageStats: each}
	b, err := json.Marshal(r)
	return &Request{Path: PathChat, Body: b, Stream: true}, err
}

// Complete makes a streamed completion request that asks for usage as Chat does.
func Complete(r openai.CompletionRequest, each bool) (*Request, error) {
	r.Stream, r.StreamOptions = true, &openai.StreamOptions{IncludeUsage: true, ContinuousUsageStats: each}
	b, err := json.Marshal(r)
	return &Request{Path: PathComplete, Body: b, Stream: true}, err
}

// Embed asks for the vectors of texts.
func Embed(model string, texts ...string) (*Request, error) {
	b, err := json.Marshal(openai.EmbeddingRequest{Model: model, Input: openai.Input{Prompt: openai.Prompt{Texts: texts}}, EncodingFormat: openai.FormatBase64})
	return &Request{Path: PathEmbed, Body: b, Encode: true}, err
}

// Rerank asks for the scores of documents.
func Rerank(model, query string, documents []string) (*Request, error) {
	r := openai.RerankRequest{Model: model, Query: query}
	for _, d := range documents {
		r.Documents = append(r.Documents, openai.Document{Text: d})
	}
	b, err := json.Marshal(r)
	return &Request{Path: PathRerank, Body: b, Encode: true}, err
}

// NewClient is an HTTP client for many streams to one server. Its connections
// are kept, since a handshake for each request is no load that a router sends.
func NewClient() *http.Client {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialContext: d.DialContext, DisableCompression: true,
		MaxIdleConns: DefaultMaxOpen, MaxIdleConnsPerHost: DefaultMaxOpen, IdleConnTimeout: 30 * time.Second,
		// A chunk of a stream is some 200 bytes; large buffers only cost memory
		// at ten thousand of them.
		ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
	}}
}

// HTTP sends to the server at base, http://host:port, with header on each
// request.
func HTTP(base string, client *http.Client, header http.Header) Target {
	base = strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1")
	return func(ctx context.Context, r *Request, now func() time.Duration, res *Result) {
		var ans *http.Response
		for range stale {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+r.Path, bytes.NewReader(r.Body))
			if err != nil {
				res.fail(KindConnect, err)
				return
			}
			for k, v := range header {
				req.Header[k] = v
			}
			req.Header.Set("Content-Type", "application/json")
			if r.Conversation != "" {
				req.Header.Set("X-Conversation-Id", r.Conversation)
			}
			if res.Sent == 0 {
				res.Sent = now()
			}
			if ans, err = client.Do(req); err == nil {
				res.Kind, res.Error = "", ""
				break
			}
			res.fail(KindConnect, err)
			// The server closed a kept connection while it was idle, and has not seen
			// the request. That is no failure of its, and takes the time that it takes.
			if !strings.HasSuffix(err.Error(), idleClosed) {
				return
			}
		}
		if ans == nil {
			return
		}
		defer ans.Body.Close()
		var err error
		res.FirstByte, res.Status, res.Version = now(), ans.StatusCode, ans.Header.Get("Llmops-Version")
		var p openai.Peek
		switch {
		case ans.StatusCode != http.StatusOK:
			res.fail(KindStatus, openai.NewStatusError(ans))
			return
		case strings.HasPrefix(ans.Header.Get("Content-Type"), "text/event-stream"):
			err = stream(ans.Body, now, res, &p)
		case r.Stream:
			err = fmt.Errorf("asked for a stream, got %q", ans.Header.Get("Content-Type"))
		default:
			if err = whole(ans.Body, &p); err == nil && r.Encode {
				res.FirstToken = now()
				res.LastToken = res.FirstToken
			}
			// Encoders count what they read and nothing else.
			p.Usage = p.Usage || r.Encode && p.Prompt > 0
		}
		if p.Usage {
			res.Count, res.Input, res.Cached, res.Output = CountUsage, p.Prompt, p.Cached, p.Output
		}
		res.Finish, res.Refused, res.Events = p.Finish, p.Refused, p.Tokens
		if err != nil {
			res.fail(KindStream, err)
		}
	}
}

func stream(body io.Reader, now func() time.Duration, res *Result, p *openai.Peek) error {
	events := openai.NewReader(body, 0)
	for {
		ev, err := events.Next()
		at := now()
		if err == io.EOF && p.Finish != "" {
			// Some servers end with the connection and no [DONE]. A finish reason
			// and a body that ended as HTTP says are no broken answer.
			res.Unended = true
			return nil
		}
		if err == io.EOF {
			return openai.ErrTruncated
		}
		if err != nil {
			return err
		}
		if ev.Done() {
			return nil
		}
		tokens, answers, before := p.Tokens, p.Answers, p.Output
		p.Look(ev.Data)
		if p.Failed {
			return fmt.Errorf("error in the stream: %s", ev.Data[:min(len(ev.Data), 512)])
		}
		if p.Tokens == tokens {
			continue
		}
		if res.FirstToken == 0 {
			res.FirstToken = at
			if p.Usage {
				res.FirstTokens = p.Output
			}
		} else {
			res.Gaps = append(res.Gaps, at-res.LastToken)
			if res.FirstTokens > 0 && p.Output > before {
				res.Steps = append(res.Steps, p.Output-before)
			}
		}
		res.LastToken = at
		if p.Answers > answers && res.FirstAnswer == 0 {
			res.FirstAnswer = at
		}
	}
}

func whole(body io.Reader, p *openai.Peek) error {
	b, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("answer exceeds %d bytes", maxAnswer)
	}
	if !json.Valid(b) {
		return errors.New("answer is not valid JSON")
	}
	if p.Look(b); p.Failed {
		return fmt.Errorf("error in the answer: %s", b[:min(len(b), 512)])
	}
	return nil
}
