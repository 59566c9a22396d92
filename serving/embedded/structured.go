package embedded

import (
	"encoding/json"
	"strings"

	"llmops/serving/embedded/core"
	"llmops/serving/embedded/guide"
	"llmops/serving/openai"
)

// structured makes the guide of a request: of response_format, or of vLLM's
// structured_outputs. It is nil for an answer that is free.
func (s *Server) structured(q *openai.Sampling) (func() core.Guide, *openai.Error) {
	param, wish, err := structure(q)
	if err != nil || wish == nil {
		return nil, err
	}
	switch {
	case s.o.Estimate != nil:
		return nil, openai.Invalid(param, "%s: this engine makes tokens up, it cannot hold to a form", param)
	case q.IgnoreEOS:
		return nil, openai.Invalid("ignore_eos", "ignore_eos contradicts %s: what is complete must be able to end", param)
	case q.MinTokens != nil && *q.MinTokens > 0:
		return nil, openai.Invalid("min_tokens", "min_tokens contradicts %s: what is complete must be able to end", param)
	}
	vocab, failed := s.vocabulary()
	if failed != nil {
		return nil, openai.Invalid(param, "%s: %v", param, failed)
	}
	grammar, failed := wish(vocab)
	if failed != nil {
		return nil, openai.Invalid(param, "%s: %v", param, failed)
	}
	return func() core.Guide { return grammar.New() }, nil
}

type compile = func(*guide.Vocabulary) (*guide.Grammar, error)

// structure reads what form is wanted, and which field wants it.
func structure(q *openai.Sampling) (param string, wish compile, err *openai.Error) {
	sent := func(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
	if sent(q.ResponseFormat) {
		param = "response_format"
		if wish, err = responseFormat(q.ResponseFormat); err != nil {
			return param, nil, err
		}
	}
	if !sent(q.StructuredOutputs) {
		return param, wish, nil
	}
	if wish != nil {
		return param, nil, openai.Invalid("structured_outputs", "structured_outputs and response_format are both sent: send one")
	}
	wish, err = structuredOutputs(q.StructuredOutputs)
	return "structured_outputs", wish, err
}

func schema(b []byte) compile {
	return func(v *guide.Vocabulary) (*guide.Grammar, error) { return guide.Compile(b, v) }
}

func responseFormat(raw json.RawMessage) (compile, *openai.Error) {
	var f struct {
		Type   string
		Schema *struct {
			Name        string
			Description string
			Strict      *bool
			Schema      json.RawMessage
		} `json:"json_schema"`
	}
	if err := strict(raw, &f); err != nil {
		return nil, openai.Invalid("response_format", "response_format: %v", err)
	}
	switch {
	case f.Type == "text" && f.Schema == nil:
		return nil, nil
	case f.Type == "json_object" && f.Schema == nil:
		return guide.JSONObject, nil
	case f.Type == "json_schema" && f.Schema != nil && len(f.Schema.Schema) > 0:
		return schema(f.Schema.Schema), nil
	}
	return nil, openai.Invalid("response_format", "response_format: want the type text, json_object, or json_schema with a json_schema that has a schema")
}

func structuredOutputs(raw json.RawMessage) (compile, *openai.Error) {
	var f struct {
		JSON       json.RawMessage
		Regex      *string
		Choice     []string
		JSONObject *bool `json:"json_object"`
	}
	if err := strict(raw, &f); err != nil {
		return nil, openai.Invalid("structured_outputs", "structured_outputs: %v", err)
	}
	var all []compile
	if len(f.JSON) > 0 && string(f.JSON) != "null" {
		text := f.JSON
		var quoted string
		if json.Unmarshal(f.JSON, &quoted) == nil {
			text = []byte(quoted)
		}
		all = append(all, schema(text))
	}
	if f.Regex != nil {
		all = append(all, func(v *guide.Vocabulary) (*guide.Grammar, error) { return guide.Regex(*f.Regex, v) })
	}
	if f.Choice != nil {
		all = append(all, func(v *guide.Vocabulary) (*guide.Grammar, error) { return guide.Choice(f.Choice, v) })
	}
	if f.JSONObject != nil && *f.JSONObject {
		all = append(all, guide.JSONObject)
	}
	if len(all) != 1 {
		return nil, openai.Invalid("structured_outputs", "structured_outputs has %d forms: want one of json, regex, choice and json_object", len(all))
	}
	return all[0], nil
}

// strict refuses fields that are not known, which would otherwise be a promise that
// nobody keeps.
func strict(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
