package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Client calls one server. Its zero value needs only BaseURL.
type Client struct {
	BaseURL string       // http://host:port, with or without /v1
	HTTP    *http.Client // nil: http.DefaultClient
	Header  http.Header  // added to each request
}

// maxBody bounds an answer that is not a stream.
const maxBody = 256 << 20

// Chat sends r. With fn it streams and calls fn for each chunk, in order; an
// error of fn ends the request and is returned. The response is complete in
// both cases, but for streamed tool calls and their fragments, which fn has
// seen. The header is nil when the server did not answer with success.
func (c *Client) Chat(ctx context.Context, r *ChatRequest, fn func(*ChatChunk) error) (*ChatResponse, http.Header, error) {
	req := *r
	req.Stream = fn != nil
	if fn == nil {
		req.StreamOptions = nil
		out := new(ChatResponse)
		h, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", &req, out)
		return out, h, err
	}
	var out ChatResponse
	h, err := c.stream(ctx, "/v1/chat/completions", &req, func(data []byte) error {
		var ch ChatChunk
		if err := json.Unmarshal(data, &ch); err != nil {
			return fmt.Errorf("decoding a chunk: %w", err)
		}
		out.add(&ch)
		return fn(&ch)
	})
	return &out, h, err
}

func (r *ChatResponse) add(ch *ChatChunk) {
	if r.ID == "" {
		r.ID, r.Object, r.Created, r.Model = ch.ID, "chat.completion", ch.Created, ch.Model
		r.SystemFingerprint = ch.SystemFingerprint
	}
	if ch.Usage != nil {
		r.Usage = ch.Usage
	}
	if ch.PromptTokenIDs != nil {
		r.PromptTokenIDs = ch.PromptTokenIDs
	}
	for i := range ch.Choices {
		d := &ch.Choices[i]
		at := slices.IndexFunc(r.Choices, func(c ChatChoice) bool { return c.Index == d.Index })
		if at < 0 {
			at = len(r.Choices)
			r.Choices = append(r.Choices, ChatChoice{Index: d.Index, Message: Message{Role: "assistant"}})
		}
		c := &r.Choices[at]
		c.Message.Content.Text += d.Delta.Content
		c.Message.Refusal += d.Delta.Refusal
		c.Message.ReasoningContent += d.Delta.ReasoningContent + d.Delta.Reasoning
		c.TokenIDs = append(c.TokenIDs, d.TokenIDs...)
		if d.Logprobs != nil {
			if c.Logprobs == nil {
				c.Logprobs = new(ChatLogprobs)
			}
			c.Logprobs.Content = append(c.Logprobs.Content, d.Logprobs.Content...)
		}
		if d.FinishReason != nil {
			c.FinishReason, c.StopReason = *d.FinishReason, d.StopReason
		}
	}
}

// Complete sends r. With fn it streams, and the response has the text of the
// whole answer without its log probabilities, which fn has seen.
func (c *Client) Complete(ctx context.Context, r *CompletionRequest, fn func(*CompletionResponse) error) (*CompletionResponse, http.Header, error) {
	req := *r
	req.Stream = fn != nil
	if fn == nil {
		req.StreamOptions = nil
		out := new(CompletionResponse)
		h, err := c.do(ctx, http.MethodPost, "/v1/completions", &req, out)
		return out, h, err
	}
	var out CompletionResponse
	h, err := c.stream(ctx, "/v1/completions", &req, func(data []byte) error {
		var ch CompletionResponse
		if err := json.Unmarshal(data, &ch); err != nil {
			return fmt.Errorf("decoding a chunk: %w", err)
		}
		out.add(&ch)
		return fn(&ch)
	})
	return &out, h, err
}

func (r *CompletionResponse) add(ch *CompletionResponse) {
	if r.ID == "" {
		r.ID, r.Object, r.Created, r.Model = ch.ID, ch.Object, ch.Created, ch.Model
		r.SystemFingerprint = ch.SystemFingerprint
	}
	if ch.Usage != nil {
		r.Usage = ch.Usage
	}
	for i := range ch.Choices {
		d := &ch.Choices[i]
		at := slices.IndexFunc(r.Choices, func(c CompletionChoice) bool { return c.Index == d.Index })
		if at < 0 {
			at = len(r.Choices)
			r.Choices = append(r.Choices, CompletionChoice{Index: d.Index})
		}
		c := &r.Choices[at]
		c.Text += d.Text
		c.TokenIDs = append(c.TokenIDs, d.TokenIDs...)
		if d.FinishReason != nil {
			c.FinishReason, c.StopReason = d.FinishReason, d.StopReason
		}
	}
}

// Models lists what the server serves.
func (c *Client) Models(ctx context.Context) (*Models, error) {
	out := new(Models)
	_, err := c.do(ctx, http.MethodGet, "/v1/models", nil, out)
	return out, err
}

// Health is nil when GET /health answers 200.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, "/health", nil, nil)
	return err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	res, err := c.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body := io.LimitReader(res.Body, maxBody)
	if out == nil {
		_, err := io.Copy(io.Discard, body)
		return res.Header, err
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return res.Header, fmt.Errorf("decoding the answer of %s %s: %w", method, Redact(res.Request.URL), err)
	}
	return res.Header, nil
}

func (c *Client) stream(ctx context.Context, path string, in any, fn func([]byte) error) (http.Header, error) {
	res, err := c.send(ctx, http.MethodPost, path, in)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	events := NewReader(res.Body, 0)
	for {
		ev, err := events.Next()
		switch {
		case err == io.EOF:
			return res.Header, fmt.Errorf("reading %s: %w", Redact(res.Request.URL), ErrTruncated)
		case err != nil:
			return res.Header, fmt.Errorf("reading %s: %w", Redact(res.Request.URL), err)
		case ev.Done():
			return res.Header, nil
		}
		if api := decodeError(ev.Data); api != nil {
			return res.Header, fmt.Errorf("reading %s: error in the stream: %w", Redact(res.Request.URL), api)
		}
		if err := fn(ev.Data); err != nil {
			return res.Header, err
		}
	}
}

func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	base := strings.TrimSuffix(strings.TrimSuffix(c.BaseURL, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range c.Header {
		req.Header[k] = v
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer res.Body.Close()
		return nil, NewStatusError(res)
	}
	return res, nil
}

// NewStatusError reads what res says about its failure. It leaves closing the
// body to the caller.
func NewStatusError(res *http.Response) *StatusError {
	const prefix = 512
	// The error body is decoded whole, the message shows its beginning.
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	e := &StatusError{
		Status:     res.StatusCode,
		Method:     res.Request.Method,
		URL:        Redact(res.Request.URL),
		Body:       string(body[:min(len(body), prefix)]),
		API:        decodeError(body),
		RetryAfter: retryAfter(res.Header.Get("Retry-After"), time.Now()),
	}
	return e
}

// decodeError returns the API error in b, or nil.
func decodeError(b []byte) *Error {
	if !bytes.Contains(b, []byte(`"error"`)) {
		return nil
	}
	var env struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(b, &env) != nil || len(env.Error) == 0 {
		return nil
	}
	switch kind(env.Error) {
	case '{':
		e := new(Error)
		if json.Unmarshal(env.Error, e) != nil {
			return nil
		}
		return e
	case '"':
		var msg string
		if json.Unmarshal(env.Error, &msg) != nil {
			return nil
		}
		return &Error{Message: msg}
	}
	return nil
}

// Redact is u without user, password, query and fragment.
func Redact(u *url.URL) string {
	r := *u
	r.User, r.RawQuery, r.Fragment, r.RawFragment, r.ForceQuery = nil, "", "", "", false
	return r.String()
}

func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil && s >= 0 && s < 1e9 {
		return time.Duration(s * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}
