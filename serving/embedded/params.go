package embedded

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// maxLogprobs and maxChoices bound what one request may ask for, as vLLM does.
const maxLogprobs, maxChoices = 20, 64

// defaults are the sampling of a checkpoint's generation_config.json, which holds
// for what a request does not send.
type defaults struct {
	temperature, topP, minP, repetition float64
	topK, maxNew                        int
	stop                                []int
}

func loadDefaults(dir string, s model.Shape) (defaults, error) {
	d := defaults{temperature: 1, topP: 1, repetition: 1, stop: s.EOS}
	b, err := os.ReadFile(filepath.Join(dir, "generation_config.json"))
	if os.IsNotExist(err) {
		return d, nil
	}
	if err != nil {
		return d, fmt.Errorf("reading sampling defaults: %w", err)
	}
	var c struct {
		DoSample    *bool           `json:"do_sample"`
		Temperature *float64        `json:"temperature"`
		TopP        *float64        `json:"top_p"`
		TopK        *int            `json:"top_k"`
		MinP        *float64        `json:"min_p"`
		Repetition  *float64        `json:"repetition_penalty"`
		MaxNew      *int            `json:"max_new_tokens"`
		EOS         json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return d, fmt.Errorf("parsing generation_config.json in %s: %w", dir, err)
	}
	set(&d.temperature, c.Temperature)
	set(&d.topP, c.TopP)
	set(&d.minP, c.MinP)
	set(&d.repetition, c.Repetition)
	set(&d.topK, c.TopK)
	set(&d.maxNew, c.MaxNew)
	if c.DoSample != nil && !*c.DoSample {
		d.temperature = 0 // the checkpoint says that it is greedy, which vLLM overlooks
	}
	var one int
	var many []int
	switch {
	case json.Unmarshal(c.EOS, &many) == nil && len(many) > 0:
		d.stop = many
	case json.Unmarshal(c.EOS, &one) == nil && len(c.EOS) > 0 && string(c.EOS) != "null":
		d.stop = []int{one}
	}
	return d, nil
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}

// prompt is one text to go on from.
type prompt struct {
	ids  []int
	text string // as it is echoed
}

// sampling checks what a request says about choosing tokens, and how many answers
// it wants.
func (s *Server) sampling(q *openai.Sampling) (p core.Sampling, n int, err *openai.Error) {
	d := s.defaults
	temperature, topP, topK, minP, repetition := d.temperature, d.topP, d.topK, d.minP, d.repetition
	var presence, frequency float64
	n = 1
	set(&temperature, q.Temperature)
	set(&topP, q.TopP)
	set(&topK, q.TopK)
	set(&minP, q.MinP)
	set(&repetition, q.RepetitionPenalty)
	set(&presence, q.PresencePenalty)
	set(&frequency, q.FrequencyPenalty)
	set(&n, q.N)
	for _, f := range []struct {
		param    string
		v        float64
		from, to float64
	}{
		{"temperature", temperature, 0, 100}, {"min_p", minP, 0, 1}, {"presence_penalty", presence, -2, 2}, {"frequency_penalty", frequency, -2, 2},
		{"repetition_penalty", repetition, math.SmallestNonzeroFloat64, 10}, {"top_p", topP, math.SmallestNonzeroFloat64, 1},
		{"n", float64(n), 1, maxChoices}, {"top_k", float64(topK), -1, math.MaxInt32},
	} {
		if !(f.v >= f.from && f.v <= f.to) {
			return p, 0, openai.Invalid(f.param, "%s is %g: want %.4g to %g", f.param, f.v, f.from, f.to)
		}
	}
	switch {
	case n > 1 && temperature < core.MinTemperature:
		return p, 0, openai.Invalid("n", "n is %d with a temperature of %g: greedy answers would all be the same", n, temperature)
	case q.StreamOptions != nil && !q.Stream:
		return p, 0, openai.Invalid("stream_options", "stream_options is sent without stream")
	}
	p = core.Sampling{
		Temperature: temperature, TopP: topP, TopK: max(topK, 0), MinP: minP,
		Repetition: repetition, Presence: presence, Frequency: frequency, Seed: rand.Uint64(), Top: -1,
	}
	if q.Seed != nil && *q.Seed >= 0 {
		p.Seed = uint64(*q.Seed)
	}
	if len(q.LogitBias) > 0 {
		p.Bias = make(map[int]float64, len(q.LogitBias))
	}
	for key, b := range q.LogitBias {
		id, err := strconv.Atoi(key)
		if err != nil || id < 0 || id >= s.shape.Vocab || b < -100 || b > 100 {
			return p, 0, openai.Invalid("logit_bias", "logit_bias has %d for %q: want -100 to 100 for an id below %d", b, key, s.shape.Vocab)
		}
		p.Bias[id] = float64(b)
	}
	set(&p.Min, q.MinTokens)
	return p, n, nil
}

// limit is the number of tokens to generate: what was asked for, bounded by what
// fits after the prompt.
func (s *Server) limit(param string, asked int, given bool, minimum, promptLen int) (int, *openai.Error) {
	room := s.o.MaxModelLen - promptLen
	if s.defaults.maxNew > 0 && !given {
		asked = min(s.defaults.maxNew, room)
	} else if !given {
		asked = min(asked, room)
	}
	switch {
	case room < 1 && !(asked == 0 && given && room == 0):
		return 0, s.tooLong(param, promptLen, max(asked, 1))
	case asked > room:
		return 0, s.tooLong(param, promptLen, asked)
	case minimum < 0 || minimum > asked:
		return 0, openai.Invalid("min_tokens", "min_tokens is %d: want 0 to max_tokens, which is %d", minimum, asked)
	}
	return asked, nil
}

func (s *Server) tooLong(param string, promptLen, asked int) *openai.Error {
	e := openai.Invalid(param, "this model's maximum context length is %d tokens, the request has %d (%d in the prompt, %d to generate): shorten one of them",
		s.o.MaxModelLen, promptLen+asked, promptLen, asked)
	e.Code = "context_length_exceeded"
	return e
}

// tokens makes prompts of what a completion request sends.
func (s *Server) tokens(q *openai.CompletionRequest) ([]prompt, *openai.Error) {
	special := q.AddSpecialTokens == nil || *q.AddSpecialTokens
	var out []prompt
	for _, text := range q.Prompt.Texts {
		out = append(out, prompt{s.tok.Encode(text, special), text})
	}
	for _, ids := range q.Prompt.Tokens {
		for _, id := range ids {
			if id < 0 || id >= s.shape.Vocab {
				return nil, openai.Invalid("prompt", "token id %d is outside the vocabulary of %d", id, s.shape.Vocab)
			}
		}
		text := ""
		if q.Echo {
			text = s.tok.Decode(ids, false)
		}
		out = append(out, prompt{ids, text})
	}
	for _, p := range out {
		if len(p.ids) == 0 {
			return nil, openai.Invalid("prompt", "the prompt has no tokens")
		}
	}
	return out, nil
}

// conversation is the JSON that the chat template gets: text parts joined, as
// templates for text models want strings.
func conversation(messages []openai.Message) (json.RawMessage, *openai.Error) {
	if len(messages) == 0 {
		return nil, openai.Invalid("messages", "messages is empty")
	}
	out := make([]map[string]any, len(messages))
	for i, m := range messages {
		if m.Role == "" {
			return nil, openai.Invalid("messages", "message %d has no role", i)
		}
		var texts []string
		for _, p := range m.Content.Parts {
			if p.Type != "text" {
				return nil, openai.Invalid("messages", "message %d has a part of type %q: this model reads text only", i, p.Type)
			}
			texts = append(texts, p.Text)
		}
		content := m.Content.Text
		if m.Content.Parts != nil {
			content = strings.Join(texts, "\n")
		}
		o := map[string]any{"role": m.Role, "content": content}
		for key, v := range map[string]string{"name": m.Name, "tool_call_id": m.ToolCallID, "reasoning_content": m.ReasoningContent} {
			if v != "" {
				o[key] = v
			}
		}
		if len(m.ToolCalls) > 0 {
			calls, err := objectArguments(m.ToolCalls)
			if err != nil {
				return nil, openai.Invalid("messages", "message %d has tool calls that cannot be read: %v", i, err)
			}
			o["tool_calls"] = calls
		}
		out[i] = o
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, openai.Invalid("messages", "messages cannot be written: %v", err)
	}
	return b, nil
}

// objectArguments turns the arguments of tool calls, which the API has as a string
// of JSON, into the object that templates write out.
func objectArguments(raw json.RawMessage) (json.RawMessage, error) {
	var calls []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &calls); err != nil {
		return nil, err
	}
	for _, c := range calls {
		var f map[string]json.RawMessage
		var text string
		if json.Unmarshal(c["function"], &f) != nil || json.Unmarshal(f["arguments"], &text) != nil || !json.Valid([]byte(text)) {
			continue
		}
		f["arguments"] = json.RawMessage(text)
		b, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		c["function"] = b
	}
	return json.Marshal(calls)
}
