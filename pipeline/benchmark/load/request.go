package load

import (
	"encoding/json"

	"llmops/serving/openai"
)

// Where requests go.
const (
	PathChat     = "/v1/chat/completions"
	PathComplete = "/v1/completions"
	PathEmbed    = "/v1/embeddings"
	PathRerank   = "/v1/rerank"
)

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
