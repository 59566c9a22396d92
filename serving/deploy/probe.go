package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"llmops/serving/openai"
)

// tokenWait bounds the wait for one token.
const tokenWait = 60 * time.Second

// versionHeader is where an engine of ours says which version answered.
const versionHeader = "Llmops-Version"

// Task is what a model is for; the zero Task generates text.
type Task string

// The tasks of encoders.
const (
	Embedding Task = "embedding"
	Rerank    Task = "rerank"
)

// Path is where requests of the task go.
func (t Task) Path() string {
	switch t {
	case Embedding:
		return "/v1/embeddings"
	case Rerank:
		return "/v1/rerank"
	}
	return "/v1/chat/completions"
}

// Probe asks the server at addr for one token of alias, of an encoder for one
// vector or score, and refuses an answer that names another version. An empty
// version accepts any, and not every engine names one.
func Probe(ctx context.Context, addr, alias, version string, task Task) error {
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	c := &openai.Client{BaseURL: "http://" + addr}
	what, header, err := probe(ctx, c, alias, task)
	if err != nil {
		return fmt.Errorf("asking for a %s: %w", what, err)
	}
	if got := header.Get(versionHeader); version != "" && got != "" && got != version {
		return fmt.Errorf("asking for a %s: version %s answered instead of %s", what, got, version)
	}
	return nil
}

var errNone = errors.New("the answer has none")

func probe(ctx context.Context, c *openai.Client, alias string, task Task) (what string, header http.Header, err error) {
	switch task {
	case Embedding:
		res, header, err := c.Embeddings(ctx, &openai.EmbeddingRequest{Model: alias, Input: openai.Input{Prompt: openai.Prompt{Texts: []string{"1"}}}})
		if err == nil && (len(res.Data) != 1 || len(res.Data[0].Embedding.Values) == 0) {
			err = errNone
		}
		return "vector", header, err
	case Rerank:
		res, header, err := c.Rerank(ctx, &openai.RerankRequest{Model: alias, Query: "1", Documents: []openai.Document{{Text: "1"}}})
		if err == nil && len(res.Results) != 1 {
			err = errNone
		}
		return "score", header, err
	}
	res, header, err := c.Chat(ctx, request(alias, []openai.Message{{Role: "user", Content: openai.Text("1")}}), nil)
	if err == nil && (res.Usage == nil || res.Usage.CompletionTokens < 1) {
		err = errNone
	}
	return "token", header, err
}

func request(alias string, messages []openai.Message) *openai.ChatRequest {
	one, zero := 1, 0.0
	r := &openai.ChatRequest{Messages: messages}
	r.Model, r.MaxTokens, r.Temperature = alias, &one, &zero
	return r
}
