package benchmark

import (
	"bytes"
	"encoding/json"
	"strings"

	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
)

// One of every so many answers is counted, of the first so many that are: a server that
// counts otherwise does so always, and reading each event twice would be felt in the times.
const sampleEvery, sampleMost = 4, 250

// Sampled has some of the answers to a source's requests kept, to be counted; none where
// there is no tokenizer.
func Sampled(source load.Source, tok *tokenizer.Tokenizer) load.Source {
	if tok == nil {
		return source
	}
	return func(i int) (*load.Request, error) {
		r, err := source(i)
		if r != nil && r.Stream && i%sampleEvery == 0 && i < sampleEvery*sampleMost {
			r.Keep = true
		}
		return r, err
	}
}

// recount counts what was kept of an answer, and keeps it no longer.
func recount(r *load.Result, tok *tokenizer.Tokenizer) {
	if kept := r.Kept; kept != nil {
		r.Kept = nil
		if text, ok := said(kept); ok && tok != nil && r.OK() {
			r.Own = len(tok.Encode(text, false))
		}
	}
}

// said is the text of a chat's or a completion's events, reasoning first; ok is false where
// something else was said, as calls of tools are.
func said(events []byte) (text string, ok bool) {
	var thought, out strings.Builder
	for line := range bytes.Lines(events) {
		var e struct {
			Choices []struct {
				Index int          `json:"index"`
				Delta openai.Delta `json:"delta"`
				Text  string       `json:"text"`
			} `json:"choices"`
		}
		if json.Unmarshal(line, &e) != nil {
			return "", false
		}
		for _, c := range e.Choices {
			d := c.Delta
			if c.Index > 0 || len(d.ToolCalls) > 0 && string(d.ToolCalls) != "null" && string(d.ToolCalls) != "[]" {
				return "", false
			}
			// The two names of reasoning are one text.
			if d.ReasoningContent != "" {
				d.Reasoning = ""
			}
			thought.WriteString(d.ReasoningContent + d.Reasoning)
			out.WriteString(d.Content + d.Refusal + c.Text)
		}
	}
	return thought.String() + out.String(), true
}
