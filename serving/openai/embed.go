package openai

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
)

// Formats of an embedding on the wire.
const (
	FormatFloat  = "float"
	FormatBase64 = "base64"
)

// EmbeddingRequest is the body of POST /v1/embeddings.
type EmbeddingRequest struct {
	Model                string `json:"model"`
	Input                Input  `json:"input"`
	EncodingFormat       string `json:"encoding_format,omitempty"`
	Dimensions           *int   `json:"dimensions,omitempty"`
	TruncatePromptTokens *int   `json:"truncate_prompt_tokens,omitempty"`
	User                 string `json:"user,omitempty"`
}

// Input is a Prompt that a request calls input.
type Input struct{ Prompt }

func (i *Input) UnmarshalJSON(b []byte) error {
	if err := i.Prompt.UnmarshalJSON(b); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "prompt", "input"))
	}
	return nil
}

// EmbeddingResponse is the answer of POST /v1/embeddings.
type EmbeddingResponse struct {
	ID      string      `json:"id,omitempty"`
	Object  string      `json:"object"`
	Created int64       `json:"created,omitempty"`
	Model   string      `json:"model"`
	Data    []Embedding `json:"data"`
	Usage   *Usage      `json:"usage,omitempty"`
}

// Embedding is one vector of an EmbeddingResponse.
type Embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding Vector `json:"embedding"`
}

// Vector is a list of numbers on the wire, or the base64 of their little-endian
// float32 values.
type Vector struct {
	Values []float32
	Base64 bool
}

func (v Vector) MarshalJSON() ([]byte, error) {
	if !v.Base64 {
		return json.Marshal(v.Values)
	}
	b := make([]byte, 0, 4*len(v.Values))
	for _, f := range v.Values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return json.Marshal(b)
}

func (v *Vector) UnmarshalJSON(b []byte) error {
	*v = Vector{}
	if kind(b) != '"' {
		return json.Unmarshal(b, &v.Values)
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return fmt.Errorf("an embedding of %d characters is not the base64 of whole float32 values", len(text))
	}
	v.Base64, v.Values = true, make([]float32, len(raw)/4)
	for i := range v.Values {
		v.Values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return nil
}

// RerankRequest is the body of POST /v1/rerank, as Jina, Cohere and vLLM have it.
type RerankRequest struct {
	Model                string     `json:"model"`
	Query                string     `json:"query"`
	Documents            []Document `json:"documents"`
	TopN                 *int       `json:"top_n,omitempty"`
	ReturnDocuments      *bool      `json:"return_documents,omitempty"`
	TruncatePromptTokens *int       `json:"truncate_prompt_tokens,omitempty"`
	User                 string     `json:"user,omitempty"`
}

// Document is a text to rank, a string on the way there and an object on the way
// back; both are read.
type Document struct {
	Text string `json:"text"`
}

func (d *Document) UnmarshalJSON(b []byte) error {
	*d = Document{}
	switch kind(b) {
	case '"':
		return json.Unmarshal(b, &d.Text)
	case '{':
		var o struct {
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		if o.Text != nil {
			d.Text = *o.Text
			return nil
		}
	}
	return errors.New("documents must be strings, or objects with a text")
}

// RerankResponse is the answer of POST /v1/rerank, the most relevant first.
type RerankResponse struct {
	ID      string         `json:"id"`
	Model   string         `json:"model"`
	Usage   *Usage         `json:"usage,omitempty"`
	Results []RerankResult `json:"results"`
}

// RerankResult is one document of a RerankResponse.
type RerankResult struct {
	Index          int       `json:"index"`
	Document       *Document `json:"document,omitempty"`
	RelevanceScore float64   `json:"relevance_score"`
}

// ScoreRequest is the body of vLLM's POST /v1/score. One text of the first is
// compared with each of the second, otherwise they go in pairs.
type ScoreRequest struct {
	Model                string `json:"model"`
	Text1                Texts  `json:"text_1"`
	Text2                Texts  `json:"text_2"`
	TruncatePromptTokens *int   `json:"truncate_prompt_tokens,omitempty"`
	User                 string `json:"user,omitempty"`
}

// Texts is one text or several.
type Texts []string

func (t *Texts) UnmarshalJSON(b []byte) error {
	*t = nil
	switch kind(b) {
	case '"':
		*t = Texts{""}
		return json.Unmarshal(b, &(*t)[0])
	case '[':
		return json.Unmarshal(b, (*[]string)(t))
	}
	return errors.New("texts must be a string or a list of strings")
}

// ScoreResponse is the answer of POST /v1/score.
type ScoreResponse struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	Model   string  `json:"model"`
	Data    []Score `json:"data"`
	Usage   *Usage  `json:"usage,omitempty"`
}

// Score is one of a ScoreResponse.
type Score struct {
	Index  int     `json:"index"`
	Object string  `json:"object"`
	Score  float64 `json:"score"`
}

// Embeddings sends r. The header is nil when the server did not answer with success.
func (c *Client) Embeddings(ctx context.Context, r *EmbeddingRequest) (*EmbeddingResponse, http.Header, error) {
	out := new(EmbeddingResponse)
	h, err := c.do(ctx, http.MethodPost, "/v1/embeddings", r, out)
	return out, h, err
}

// Rerank sends r. The header is nil when the server did not answer with success.
func (c *Client) Rerank(ctx context.Context, r *RerankRequest) (*RerankResponse, http.Header, error) {
	out := new(RerankResponse)
	h, err := c.do(ctx, http.MethodPost, "/v1/rerank", r, out)
	return out, h, err
}
