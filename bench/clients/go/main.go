// Clients calls every endpoint of the embedded engine with openai-go. It is a
// module of its own, so that the product does not depend on the client.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func check(name string, ok bool, seen any) {
	if !ok {
		fmt.Printf("FAIL go %s: %v\n", name, seen)
		os.Exit(1)
	}
	fmt.Println("ok   go", name)
}

func main() {
	ctx := context.Background()
	c := openai.NewClient(option.WithBaseURL(os.Getenv("LLMOPS_GENERATE")+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	enc := openai.NewClient(option.WithBaseURL(os.Getenv("LLMOPS_ENCODE")+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))

	models, err := c.Models.List(ctx)
	check("models", err == nil && len(models.Data) == 1 && models.Data[0].ID == "freight", err)

	params := openai.ChatCompletionNewParams{
		Model:       "freight",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Seal AB104422, port of loading Gdansk.\nWhat is the port of loading?")},
		Temperature: openai.Float(0), MaxCompletionTokens: openai.Int(12),
	}
	chat, err := c.Chat.Completions.New(ctx, params)
	check("chat", err == nil && chat.Choices[0].Message.Content != "" && chat.Usage.CompletionTokens > 0, err)

	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(ctx, params)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	check("chat stream", stream.Err() == nil && acc.Choices[0].Message.Content == chat.Choices[0].Message.Content && acc.Usage.TotalTokens == chat.Usage.TotalTokens, stream.Err())

	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	params.MaxCompletionTokens = openai.Int(80)
	params.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{
		JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "answer", Schema: map[string]any{
			"type": "object", "properties": map[string]any{"port": map[string]any{"enum": []string{"Gdansk", "Riga"}}}, "required": []string{"port"}, "additionalProperties": false,
		}},
	}}
	form, err := c.Chat.Completions.New(ctx, params)
	check("chat json schema", err == nil && strings.HasPrefix(form.Choices[0].Message.Content, `{"port":`) && form.Choices[0].FinishReason == "stop", err)

	done, err := c.Completions.New(ctx, openai.CompletionNewParams{
		Model: "freight", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Gross weight")}, MaxTokens: openai.Int(4), Temperature: openai.Float(0),
	})
	check("completions", err == nil && done.Usage.CompletionTokens > 0, err)

	params.Model = "other"
	_, err = c.Chat.Completions.New(ctx, params)
	var api *openai.Error
	check("unknown model", errors.As(err, &api) && api.StatusCode == 404 && api.Code == "model_not_found", err)

	vectors, err := enc.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: "encoder", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"port of loading", "gross weight"}},
	})
	check("embeddings", err == nil && len(vectors.Data) == 2 && len(vectors.Data[0].Embedding) > 0, err)
}
