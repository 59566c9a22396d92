// Package openai holds the wire of the OpenAI-compatible API as vLLM and its
// peers speak it: the types of chat, completions and models, the error body,
// server-sent events in both directions, strict decoding for a server and a
// small client.
//
// Types are plain data. A Reader, a Writer and a request belong to one
// goroutine; a Client is safe for concurrent use. The package decides nothing:
// what an engine supports, how a prompt is rendered and where a request goes
// is the caller's, and nothing here retries.
package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Finish reasons of a choice.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishTools  = "tool_calls"
	FinishFilter = "content_filter"
)

// Sampling is what chat and completion requests share. Pointers tell "not
// sent" from zero, because an engine then takes the model's own default.
type Sampling struct {
	Model             string          `json:"model"`
	MaxTokens         *int            `json:"max_tokens,omitempty"`
	MinTokens         *int            `json:"min_tokens,omitempty"`
	Temperature       *float64        `json:"temperature,omitempty"`
	TopP              *float64        `json:"top_p,omitempty"`
	TopK              *int            `json:"top_k,omitempty"`
	MinP              *float64        `json:"min_p,omitempty"`
	RepetitionPenalty *float64        `json:"repetition_penalty,omitempty"`
	PresencePenalty   *float64        `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64        `json:"frequency_penalty,omitempty"`
	LogitBias         map[string]int  `json:"logit_bias,omitempty"`
	Seed              *int64          `json:"seed,omitempty"`
	N                 *int            `json:"n,omitempty"`
	Stop              Stop            `json:"stop,omitempty"`
	IgnoreEOS         bool            `json:"ignore_eos,omitempty"`
	CacheSalt         string          `json:"cache_salt,omitempty"`
	ReturnTokenIDs    bool            `json:"return_token_ids,omitempty"`
	Stream            bool            `json:"stream,omitempty"`
	StreamOptions     *StreamOptions  `json:"stream_options,omitempty"`
	ResponseFormat    json.RawMessage `json:"response_format,omitempty"`
	StructuredOutputs json.RawMessage `json:"structured_outputs,omitempty"`
	Priority          *int            `json:"priority,omitempty"`
	KVTransferParams  *KVTransfer     `json:"kv_transfer_params,omitempty"`
	User              string          `json:"user,omitempty"`
	Metadata          json.RawMessage `json:"metadata,omitempty"`
}

// KVTransfer is vLLM's kv_transfer_params: in a request to a prefill engine that
// the keys and values of the prompt are to be kept, in its response where they
// are, and that, word for word, in the request to a decode engine.
type KVTransfer struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	RemoteEngineID  *string `json:"remote_engine_id"`
	RemoteBlockIDs  []int32 `json:"remote_block_ids"`
	RemoteRequestID *string `json:"remote_request_id,omitempty"`
	RemoteHost      *string `json:"remote_host"`
	RemotePort      *int    `json:"remote_port"`
	TPSize          *int    `json:"tp_size,omitempty"`
}

// StreamOptions asks for usage at the end of a stream, or on every chunk.
type StreamOptions struct {
	IncludeUsage         bool `json:"include_usage,omitempty"`
	ContinuousUsageStats bool `json:"continuous_usage_stats,omitempty"`
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Sampling
	Messages            []Message       `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens,omitempty"`
	Logprobs            bool            `json:"logprobs,omitempty"`
	TopLogprobs         *int            `json:"top_logprobs,omitempty"`
	Tools               json.RawMessage `json:"tools,omitempty"`
	ToolChoice          json.RawMessage `json:"tool_choice,omitempty"`
	ChatTemplateKwargs  json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

// Limit is the output limit that was sent: max_completion_tokens, else the
// older max_tokens. ok is false when neither was.
func (r *ChatRequest) Limit() (n int, ok bool) {
	switch {
	case r.MaxCompletionTokens != nil:
		return *r.MaxCompletionTokens, true
	case r.MaxTokens != nil:
		return *r.MaxTokens, true
	}
	return 0, false
}

// Message is one turn, in a request or in a response.
type Message struct {
	Role             string          `json:"role"`
	Content          Content         `json:"content"`
	Name             string          `json:"name,omitempty"`
	Refusal          string          `json:"refusal,omitempty"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	ToolCalls        json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID       string          `json:"tool_call_id,omitempty"`
}

// Content is text, or parts as the client sent them. On the wire a string,
// null (the zero value with Null set) or a list of parts.
type Content struct {
	Text  string
	Parts []Part
	Null  bool
}

// Part is one part of a message's content; other kinds than text keep their
// type, so that an engine can name what it refuses.
type Part struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`
}

// Text makes a plain text content.
func Text(s string) Content { return Content{Text: s} }

// String is the text, or the text of all text parts joined.
func (c Content) String() string {
	if c.Parts == nil {
		return c.Text
	}
	var b strings.Builder
	for _, p := range c.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

func (c Content) MarshalJSON() ([]byte, error) {
	switch {
	case c.Null:
		return []byte("null"), nil
	case c.Parts != nil:
		return json.Marshal(c.Parts)
	}
	return json.Marshal(c.Text)
}

func (c *Content) UnmarshalJSON(b []byte) error {
	*c = Content{}
	switch kind(b) {
	case 'n':
		c.Null = true
		return nil
	case '"':
		return json.Unmarshal(b, &c.Text)
	case '[':
		c.Parts = []Part{}
		return json.Unmarshal(b, &c.Parts)
	}
	return errors.New("content must be a string, null or a list of parts")
}

// Stop is one stop string or several.
type Stop []string

func (s *Stop) UnmarshalJSON(b []byte) error {
	*s = nil
	switch kind(b) {
	case 'n':
		return nil
	case '"':
		var one string
		if err := json.Unmarshal(b, &one); err != nil {
			return err
		}
		*s = Stop{one}
		return nil
	case '[':
		return json.Unmarshal(b, (*[]string)(s))
	}
	return errors.New("stop must be a string or a list of strings")
}

// CompletionRequest is the body of POST /v1/completions. Unlike chat, echo
// returns the prompt, with its log probabilities when Logprobs is set: the
// shape that perplexity is measured with.
type CompletionRequest struct {
	Sampling
	Prompt           Prompt `json:"prompt"`
	Suffix           string `json:"suffix,omitempty"`
	Echo             bool   `json:"echo,omitempty"`
	Logprobs         *int   `json:"logprobs,omitempty"`
	BestOf           *int   `json:"best_of,omitempty"`
	AddSpecialTokens *bool  `json:"add_special_tokens,omitempty"`
}

// Prompt holds one prompt or several, as texts or as token ids, never both.
type Prompt struct {
	Texts  []string
	Tokens [][]int
}

// Len is the number of prompts.
func (p Prompt) Len() int { return len(p.Texts) + len(p.Tokens) }

func (p Prompt) MarshalJSON() ([]byte, error) {
	switch {
	case len(p.Texts) > 0 && len(p.Tokens) > 0:
		return nil, errors.New("prompt has texts and token ids")
	case len(p.Texts) == 1:
		return json.Marshal(p.Texts[0])
	case len(p.Tokens) == 1:
		return json.Marshal(p.Tokens[0])
	case len(p.Tokens) > 0:
		return json.Marshal(p.Tokens)
	}
	return json.Marshal(p.Texts)
}

func (p *Prompt) UnmarshalJSON(b []byte) error {
	*p = Prompt{}
	wrong := errors.New("prompt must be a string, a list of strings, a list of token ids or a list of such lists")
	switch kind(b) {
	case '"':
		p.Texts = []string{""}
		return json.Unmarshal(b, &p.Texts[0])
	case '[':
	default:
		return wrong
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("prompt is an empty list")
	}
	switch k := kind(list[0]); {
	case k == '"':
		return explain(json.Unmarshal(b, &p.Texts), wrong)
	case k == '[':
		if err := json.Unmarshal(b, &p.Tokens); err != nil {
			return explain(err, wrong)
		}
		for _, ids := range p.Tokens {
			if len(ids) == 0 {
				return errors.New("prompt is an empty list of token ids")
			}
		}
		return nil
	case k == '-' || k >= '0' && k <= '9':
		p.Tokens = [][]int{nil}
		return explain(json.Unmarshal(b, &p.Tokens[0]), wrong)
	}
	return wrong
}

func explain(err, as error) error {
	if err != nil {
		return fmt.Errorf("%w (%v)", as, err)
	}
	return nil
}

// kind is the first byte of a JSON value.
func kind(b []byte) byte {
	b = bytes.TrimLeft(b, " \t\r\n")
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// Usage counts tokens. A nil *Usage is unknown, never zero.
type Usage struct {
	PromptTokens        int            `json:"prompt_tokens"`
	CompletionTokens    int            `json:"completion_tokens"`
	TotalTokens         int            `json:"total_tokens"`
	PromptTokensDetails *PromptDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptDetails says how many prompt tokens came from the prefix cache.
type PromptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// ChatResponse is the answer of POST /v1/chat/completions without streaming,
// or what a Client put together from a stream.
type ChatResponse struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	SystemFingerprint string       `json:"system_fingerprint,omitempty"`
	Choices           []ChatChoice `json:"choices"`
	Usage             *Usage       `json:"usage,omitempty"`
	PromptTokenIDs    []int        `json:"prompt_token_ids,omitempty"`
	KVTransferParams  *KVTransfer  `json:"kv_transfer_params,omitempty"`
}

// ChatChoice is one answer of a ChatResponse.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      Message       `json:"message"`
	Logprobs     *ChatLogprobs `json:"logprobs,omitempty"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
	TokenIDs     []int         `json:"token_ids,omitempty"`
}

// ChatChunk is one event of a streamed chat answer.
type ChatChunk struct {
	ID                string        `json:"id"`
	Object            string        `json:"object"`
	Created           int64         `json:"created"`
	Model             string        `json:"model"`
	SystemFingerprint string        `json:"system_fingerprint,omitempty"`
	Choices           []ChunkChoice `json:"choices"`
	Usage             *Usage        `json:"usage,omitempty"`
	PromptTokenIDs    []int         `json:"prompt_token_ids,omitempty"`
}

// ChunkChoice is the change to one choice.
type ChunkChoice struct {
	Index        int           `json:"index"`
	Delta        Delta         `json:"delta"`
	Logprobs     *ChatLogprobs `json:"logprobs,omitempty"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
	TokenIDs     []int         `json:"token_ids,omitempty"`
}

// Delta is what a chunk adds. Reasoning has two names in the wild.
type Delta struct {
	Role             string          `json:"role,omitempty"`
	Content          string          `json:"content,omitempty"`
	Refusal          string          `json:"refusal,omitempty"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	Reasoning        string          `json:"reasoning,omitempty"`
	ToolCalls        json.RawMessage `json:"tool_calls,omitempty"`
}

// Token reports whether the delta bears output: text, reasoning, a refusal or
// a tool call. A role alone does not.
func (d *Delta) Token() bool {
	return d.Content != "" || d.ReasoningContent != "" || d.Reasoning != "" || d.Refusal != "" ||
		len(d.ToolCalls) > 0 && kind(d.ToolCalls) != 'n' && !bytes.Equal(d.ToolCalls, []byte("[]"))
}

// ChatLogprobs are the log probabilities of a chat answer's tokens.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is one token with the most likely ones at its place.
type TokenLogprob struct {
	Token       string         `json:"token"`
	Logprob     float64        `json:"logprob"`
	Bytes       []int          `json:"bytes"`
	TopLogprobs []TokenLogprob `json:"top_logprobs,omitempty"`
}

// CompletionResponse is the answer of POST /v1/completions, and each event of
// its stream.
type CompletionResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	SystemFingerprint string             `json:"system_fingerprint,omitempty"`
	Choices           []CompletionChoice `json:"choices"`
	Usage             *Usage             `json:"usage,omitempty"`
	KVTransferParams  *KVTransfer        `json:"kv_transfer_params,omitempty"`
}

// CompletionChoice is one answer of a completion; FinishReason is null until
// the last event of a stream.
type CompletionChoice struct {
	Index          int       `json:"index"`
	Text           string    `json:"text"`
	Logprobs       *Logprobs `json:"logprobs"`
	FinishReason   *string   `json:"finish_reason"`
	StopReason     any       `json:"stop_reason,omitempty"`
	TokenIDs       []int     `json:"token_ids,omitempty"`
	PromptTokenIDs []int     `json:"prompt_token_ids,omitempty"`
}

// Logprobs are the log probabilities of a completion, one entry a token. The
// first token of an echoed prompt has none: null on the wire, nil here.
type Logprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// Models is the answer of GET /v1/models.
type Models struct {
	Object string  `json:"object"`
	Data   []Model `json:"data"`
}

// MetaEstimate in a Model's Meta says that its answers are made up, and how its
// times are estimated: nothing may judge a model by them.
const MetaEstimate = "estimate"

// Model is one entry of Models.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root,omitempty"`
	Parent      string `json:"parent,omitempty"` // the base of an adapter
	MaxModelLen int    `json:"max_model_len,omitempty"`

	Quantisation string            `json:"quantisation,omitempty"` // "none", "fp8 channel", …
	Meta         map[string]string `json:"meta,omitempty"`
}
