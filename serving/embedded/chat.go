package embedded

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"llmops/model/chat"
	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	var q openai.ChatRequest
	if !s.read(w, r, &q) {
		return
	}
	hit := s.afflict()
	if !hit.begin(r.Context(), w) {
		return
	}
	j, status, err := s.chatJob(&q, hit)
	if err != nil {
		openai.WriteError(w, status, err)
		return
	}
	id, created := newID("chatcmpl-"), time.Now().Unix()
	choices := make([]choice, len(j.requests))
	if j.stream {
		head := openai.ChatChunk{ID: id, Object: "chat.completion.chunk", Created: created, Model: s.o.Name, SystemFingerprint: s.fingerprint}
		s.streamChat(w, r, j, head, choices)
		return
	}
	kv, failed := s.answered(r.Context(), j, choices)
	if failed != nil {
		s.fail(w, r.Context(), failed)
		return
	}
	out := openai.ChatResponse{ID: id, Object: "chat.completion", Created: created, Model: s.o.Name, SystemFingerprint: s.fingerprint, Usage: usage(j, choices), KVTransferParams: kv}
	for i := range choices {
		c := &choices[i]
		one := openai.ChatChoice{
			Index: i, Message: openai.Message{Role: "assistant", Content: openai.Text(c.text.String())}, FinishReason: c.finish, StopReason: c.reason,
		}
		if j.top >= 0 {
			one.Logprobs = s.chatLogprobs(c.tokens)
		}
		if j.ids {
			one.TokenIDs = idsOf(c.tokens)
		}
		out.Choices = append(out.Choices, one)
	}
	if j.ids {
		out.PromptTokenIDs = j.prompts[0].ids
	}
	s.answer(w, out)
}

func (s *Server) chatJob(q *openai.ChatRequest, hit affliction) (*job, int, *openai.Error) {
	a, status, err := s.wants(&q.Sampling)
	if err != nil {
		return nil, status, err
	}
	bad := func(err *openai.Error) (*job, int, *openai.Error) { return nil, http.StatusBadRequest, err }
	j := &job{n: a.n, stream: q.Stream, hit: hit, ids: q.ReturnTokenIDs, top: -1}
	if o := q.StreamOptions; o != nil {
		j.usage, j.running = o.IncludeUsage, o.ContinuousUsageStats
	}
	top := 0
	set(&top, q.TopLogprobs)
	switch {
	case !q.Logprobs && top > 0:
		return bad(openai.Invalid("top_logprobs", "top_logprobs is sent without logprobs"))
	case top < 0 || top > maxLogprobs:
		return bad(openai.Invalid("top_logprobs", "top_logprobs is %d: want 0 to %d", top, maxLogprobs))
	case q.MaxTokens != nil && q.MaxCompletionTokens != nil && *q.MaxTokens != *q.MaxCompletionTokens:
		return bad(openai.Invalid("max_tokens", "max_tokens is %d and max_completion_tokens %d: send one", *q.MaxTokens, *q.MaxCompletionTokens))
	case s.tmpl == nil:
		return bad(&openai.Error{Message: s.noTemplate.Error() + ": use /v1/completions", Type: openai.TypeInvalid, Code: "no_chat_template"})
	}
	if q.Logprobs {
		a.sampling.Top, j.top = top, top
	}
	tools, err := toolsOf(q)
	if err != nil {
		return bad(err)
	}
	messages, err := conversation(q.Messages)
	if err != nil {
		return bad(err)
	}
	text, failed := s.tmpl.Render(chat.Request{Messages: messages, Tools: tools, Prompt: true, Extra: q.ChatTemplateKwargs, Now: time.Now()})
	var refused *chat.Refused
	if errors.As(failed, &refused) {
		return bad(openai.Invalid("messages", "%v", refused))
	} else if failed != nil {
		return bad(openai.Invalid("messages", "%v", failed))
	}
	// The template has written every special token that the model wants.
	pr := prompt{ids: s.tok.Encode(text, false), text: text}
	if len(pr.ids) == 0 {
		return bad(openai.Invalid("messages", "the conversation has no tokens"))
	}
	asked, given := q.Limit()
	if given && asked < 1 {
		return bad(openai.Invalid("max_tokens", "max_tokens is %d: want at least 1", asked))
	}
	if !given {
		asked = max(1, s.o.MaxModelLen-len(pr.ids))
	}
	limit, err := s.limit("messages", asked, given, a.sampling.Min, len(pr.ids))
	if err != nil {
		return bad(err)
	}
	j.prompts = []prompt{pr}
	s.requestsFor(j, a, []int{limit}, false)
	return j, 0, nil
}

// toolsOf gives the tools that the template shall write out. Calls in the answer
// are left as text, so that a caller may not insist on one.
func toolsOf(q *openai.ChatRequest) (json.RawMessage, *openai.Error) {
	var choice string
	if len(q.ToolChoice) > 0 && json.Unmarshal(q.ToolChoice, &choice) != nil {
		choice = "a function"
	}
	switch choice {
	case "none":
		return nil, nil
	case "", "auto":
		if string(q.Tools) == "null" {
			return nil, nil
		}
		return q.Tools, nil
	}
	return nil, openai.Invalid("tool_choice", "tool_choice %s is not supported: this engine cannot force a call", q.ToolChoice)
}

func (s *Server) streamChat(w http.ResponseWriter, r *http.Request, j *job, head openai.ChatChunk, choices []choice) {
	events := &sse{s: s, w: w}
	begun := make([]bool, len(choices))
	send := func(c openai.ChunkChoice, ids []int) error {
		chunk := head
		chunk.Choices, chunk.PromptTokenIDs = []openai.ChunkChoice{c}, ids
		if j.running {
			chunk.Usage = usage(j, choices)
		}
		return events.send(chunk)
	}
	err := s.run(r.Context(), j, choices, func(u update) error {
		if !begun[u.index] {
			begun[u.index] = true
			var ids []int
			if j.ids {
				ids = j.prompts[0].ids
			}
			if err := send(openai.ChunkChoice{Index: u.index, Delta: openai.Delta{Role: "assistant"}}, ids); err != nil {
				return err
			}
		}
		out := openai.ChunkChoice{Index: u.index, Delta: openai.Delta{Content: u.text}}
		if u.token != nil {
			if j.top >= 0 {
				out.Logprobs = s.chatLogprobs([]core.Token{*u.token})
			}
			if j.ids {
				out.TokenIDs = []int{u.token.ID}
			}
		}
		if u.finish != "" {
			out.FinishReason, out.StopReason = &u.finish, u.reason
		}
		if u.text == "" && u.finish == "" && out.Logprobs == nil && out.TokenIDs == nil && !j.running {
			return nil // held back; the next chunk brings it
		}
		return send(out, nil)
	})
	if err == nil && j.usage {
		last := head
		last.Choices, last.Usage = []openai.ChunkChoice{}, usage(j, choices)
		err = events.send(last)
	}
	events.end(r.Context(), err)
}
