package embedded

import (
	"net/http"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// defaultCompletion is the API's number of tokens when none is asked for.
const defaultCompletion = 16

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var q openai.CompletionRequest
	if !s.read(w, r, &q) {
		return
	}
	hit := s.afflict()
	if !hit.begin(r.Context(), w) {
		return
	}
	j, status, err := s.completionJob(&q, hit)
	if err != nil {
		openai.WriteError(w, status, err)
		return
	}
	head := openai.CompletionResponse{
		ID: newID("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: s.o.Name, SystemFingerprint: s.fingerprint,
	}
	choices := make([]choice, len(j.requests))
	if j.stream {
		s.streamCompletion(w, r, j, head, choices)
		return
	}
	kv, failed := s.answered(r.Context(), j, choices)
	if failed != nil {
		s.fail(w, r.Context(), failed)
		return
	}
	head.KVTransferParams = kv
	for i := range choices {
		head.Choices = append(head.Choices, s.completionChoice(j, i, &choices[i]))
	}
	head.Usage = usage(j, choices)
	s.answer(w, head)
}

func (s *Server) completionJob(q *openai.CompletionRequest, hit affliction) (*job, int, *openai.Error) {
	a, status, err := s.wants(&q.Sampling)
	if err != nil {
		return nil, status, err
	}
	bad := func(err *openai.Error) (*job, int, *openai.Error) { return nil, http.StatusBadRequest, err }
	switch {
	case q.Suffix != "":
		return bad(openai.Invalid("suffix", "suffix is not supported"))
	case q.BestOf != nil && *q.BestOf != a.n:
		return bad(openai.Invalid("best_of", "best_of is %d and n is %d: choosing among answers is not supported", *q.BestOf, a.n))
	case q.Logprobs != nil && (*q.Logprobs < 0 || *q.Logprobs > maxLogprobs):
		return bad(openai.Invalid("logprobs", "logprobs is %d: want 0 to %d", *q.Logprobs, maxLogprobs))
	case q.Stream && q.Echo && q.Logprobs != nil:
		return bad(openai.Invalid("logprobs", "log probabilities of an echoed prompt cannot be streamed"))
	case q.Prompt.Len() == 0:
		return bad(openai.Invalid("prompt", "prompt is missing"))
	case q.Prompt.Len() > 1024:
		return bad(openai.Invalid("prompt", "prompt has %d entries: want at most 1024", q.Prompt.Len()))
	}
	j := &job{n: a.n, stream: q.Stream, hit: hit, ids: q.ReturnTokenIDs, echo: q.Echo, top: -1}
	if o := q.StreamOptions; o != nil {
		j.usage, j.running = o.IncludeUsage, o.ContinuousUsageStats
	}
	if q.Logprobs != nil {
		a.sampling.Top, j.top = *q.Logprobs, *q.Logprobs
	}
	if j.prompts, err = s.tokens(q); err != nil {
		return bad(err)
	}
	// vLLM generates one token and drops it; here a prompt can be scored by itself.
	asked, score := defaultCompletion, q.Echo && q.Logprobs != nil
	set(&asked, q.MaxTokens)
	if asked < 1 && !(asked == 0 && q.Echo) {
		return bad(openai.Invalid("max_tokens", "max_tokens is %d: want at least 1, or 0 with echo", asked))
	}
	var limits []int
	for _, pr := range j.prompts {
		limit, err := s.limit("prompt", asked, q.MaxTokens != nil, a.sampling.Min, len(pr.ids))
		if err != nil {
			return bad(err)
		}
		limits = append(limits, limit)
	}
	if a.transfer != nil && (score || len(j.prompts) > 1) {
		return bad(openai.Invalid("kv_transfer_params", "kv_transfer_params: want one prompt and no scores of it"))
	}
	if asked == 0 && !score {
		score = true // nothing to generate nor to report: still the prompt is computed
	}
	s.requestsFor(j, a, limits, score)
	return j, 0, nil
}

func (s *Server) completionChoice(j *job, i int, c *choice) openai.CompletionChoice {
	p := j.prompts[i/j.n]
	out := openai.CompletionChoice{Index: i, Text: c.text.String(), FinishReason: &c.finish, StopReason: c.reason}
	if j.echo {
		out.Text = p.text + out.Text
	}
	if j.top >= 0 {
		lp := &openai.Logprobs{}
		offset := 0
		if j.echo {
			s.promptLogprobs(lp, p, c.prompt, &offset)
		}
		s.appendLogprobs(lp, c.tokens, &offset)
		out.Logprobs = lp
	}
	if j.ids {
		out.PromptTokenIDs, out.TokenIDs = p.ids, idsOf(c.tokens)
	}
	return out
}

func (s *Server) streamCompletion(w http.ResponseWriter, r *http.Request, j *job, head openai.CompletionResponse, choices []choice) {
	events := &sse{s: s, w: w}
	begun := make([]bool, len(choices))
	err := s.run(r.Context(), j, choices, func(u update) error {
		c := &choices[u.index]
		out := openai.CompletionChoice{Index: u.index, Text: u.text}
		if u.token != nil {
			if j.top >= 0 {
				out.Logprobs = &openai.Logprobs{}
				s.appendLogprobs(out.Logprobs, []core.Token{*u.token}, &c.offset)
			}
			if j.ids {
				out.TokenIDs = []int{u.token.ID}
			}
		}
		first := !begun[u.index]
		if first {
			p := j.prompts[u.index/j.n]
			if j.echo {
				out.Text = p.text + out.Text
			}
			if j.ids {
				out.PromptTokenIDs = p.ids
			}
		}
		if u.finish != "" {
			out.FinishReason, out.StopReason = &u.finish, u.reason
		}
		if out.Text == "" && out.FinishReason == nil && out.Logprobs == nil && out.TokenIDs == nil && !j.running {
			return nil // held back; the next chunk brings it
		}
		begun[u.index] = true
		chunk := head
		chunk.Choices = []openai.CompletionChoice{out}
		if j.running {
			chunk.Usage = usage(j, choices)
		}
		return events.send(chunk)
	})
	if err == nil && j.usage {
		last := head
		last.Choices, last.Usage = []openai.CompletionChoice{}, usage(j, choices)
		err = events.send(last)
	}
	events.end(r.Context(), err)
}
