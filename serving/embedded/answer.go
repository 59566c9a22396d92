package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// job is one call to the API: its prompts, each with the same number of choices.
type job struct {
	prompts  []prompt
	n        int // choices a prompt
	requests []*request
	call     *call
	stream   bool
	usage    bool // at the end of a stream
	running  bool // on every chunk
	ids      bool // return token ids
	hit      affliction
	transfer *openai.KVTransfer
	echo     bool
	top      int // alternatives to report; below 0: no log probabilities
}

// choice is an answer as it grows.
type choice struct {
	text      strings.Builder
	tokens    []core.Token // generated
	prompt    []core.Token // scored
	generated int
	cached    int
	finish    string
	reason    any
	offset    int // characters of the text that log probabilities have gone over
}

// requestsFor makes the sequences of a job.
func (s *Server) requestsFor(j *job, a wants, max []int, score bool) {
	j.call, j.transfer = newCall(), a.transfer
	for i, pr := range j.prompts {
		for k := range j.n {
			sampling := a.sampling
			sampling.Seed += uint64(k) // several answers to one prompt must differ
			j.requests = append(j.requests, &request{
				call: j.call, index: i*j.n + k, stop: a.texts, text: s.tok.Stream(true),
				seq: &core.Sequence{
					Guide: j.hit.guide(a.guide), Hold: j.holds(),
					Prompt: pr.ids, Salt: a.salt, Adapter: a.adapter, Priority: a.priority, Max: max[i], Stop: a.stop, Score: score, Sampling: sampling,
				},
			})
		}
	}
}

// holds tells whether keys and values are kept for another engine.
func (j *job) holds() bool { return j.transfer != nil && j.transfer.DoRemoteDecode }

// answered runs j, for an answer in one piece, and settles what is handed over.
func (s *Server) answered(ctx context.Context, j *job, choices []choice) (*openai.KVTransfer, error) {
	err := s.run(ctx, j, choices, func(update) error { return nil })
	if err == nil {
		var kv *openai.KVTransfer
		if kv, err = s.settle(j); err == nil {
			return kv, nil
		}
	}
	if j.holds() {
		s.release(j.requests[0].seq)
	}
	return nil, err
}

// run submits j and calls each with every update until all choices have ended.
func (s *Server) run(ctx context.Context, j *job, choices []choice, each func(update) error) error {
	if j.transfer != nil && j.transfer.DoRemotePrefill {
		s.fetch(ctx, j, j.transfer)
	}
	if err := s.loop.submit(j.requests); err != nil {
		return err
	}
	defer s.loop.cancel(j.requests)
	for left := len(choices); left > 0; {
		updates, err := j.call.next(ctx)
		if err != nil {
			return err
		}
		for _, u := range updates {
			if u.err != nil {
				return u.err
			}
			c := &choices[u.index]
			if c.finish != "" {
				continue // a fault has ended it
			}
			c.cached = u.cached
			c.prompt = append(c.prompt, u.prompt...)
			if u.token != nil {
				c.tokens = append(c.tokens, *u.token)
				c.generated++
			}
			if !j.hit.alter(&u, c.generated) {
				continue
			}
			c.text.WriteString(u.text)
			if u.finish != "" {
				c.finish, c.reason = u.finish, u.reason
				left--
			}
			if err := each(u); err != nil {
				return err
			}
		}
	}
	return nil
}

func usage(j *job, choices []choice) *openai.Usage {
	u := &openai.Usage{PromptTokensDetails: &openai.PromptDetails{}}
	for i, p := range j.prompts {
		u.PromptTokens += len(p.ids)
		u.PromptTokensDetails.CachedTokens += choices[i*j.n].cached
	}
	for i := range choices {
		u.CompletionTokens += choices[i].generated
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

func idsOf(tokens []core.Token) []int {
	ids := make([]int, len(tokens))
	for i, t := range tokens {
		ids[i] = t.ID
	}
	return ids
}

// spelling is a token as log probabilities name it: its text, or its bytes when
// they are no text by themselves, so that different tokens keep different names.
func (s *Server) spelling(id int) string {
	b := s.tok.Bytes(id)
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.WriteString("bytes:")
	for _, c := range b {
		fmt.Fprintf(&out, `\x%02x`, c)
	}
	return out.String()
}

// floor is vLLM's: JSON has no infinity.
func floor(logprob float32) float64 { return max(float64(logprob), -9999) }

// appendLogprobs adds tokens to lp as /v1/completions has them. The map of
// alternatives holds the token itself too, so that its rank shows: it is the most
// likely one when nothing in the map is larger.
func (s *Server) appendLogprobs(lp *openai.Logprobs, tokens []core.Token, offset *int) {
	for _, t := range tokens {
		name, p := s.spelling(t.ID), floor(t.Logprob)
		top := make(map[string]float64, len(t.Top)+1)
		for _, r := range t.Top {
			top[s.spelling(r.ID)] = floor(r.Logprob)
		}
		top[name] = p
		lp.Tokens = append(lp.Tokens, name)
		lp.TokenLogprobs = append(lp.TokenLogprobs, &p)
		lp.TopLogprobs = append(lp.TopLogprobs, top)
		lp.TextOffset = append(lp.TextOffset, *offset)
		*offset += utf8.RuneCount(s.tok.Bytes(t.ID))
	}
}

// promptLogprobs are those of an echoed prompt, whose first token has none.
func (s *Server) promptLogprobs(lp *openai.Logprobs, p prompt, scores []core.Token, offset *int) {
	lp.Tokens = append(lp.Tokens, s.spelling(p.ids[0]))
	lp.TokenLogprobs = append(lp.TokenLogprobs, nil)
	lp.TopLogprobs = append(lp.TopLogprobs, nil)
	lp.TextOffset = append(lp.TextOffset, *offset)
	*offset += utf8.RuneCount(s.tok.Bytes(p.ids[0]))
	s.appendLogprobs(lp, scores, offset)
}

// chatLogprobs are tokens as /v1/chat/completions has them.
func (s *Server) chatLogprobs(tokens []core.Token) *openai.ChatLogprobs {
	one := func(id int, p float32) openai.TokenLogprob {
		t := openai.TokenLogprob{Token: s.spelling(id), Logprob: floor(p), Bytes: []int{}}
		for _, b := range s.tok.Bytes(id) {
			t.Bytes = append(t.Bytes, int(b))
		}
		return t
	}
	lp := &openai.ChatLogprobs{Content: []openai.TokenLogprob{}}
	for _, t := range tokens {
		c := one(t.ID, t.Logprob)
		for _, r := range t.Top {
			c.TopLogprobs = append(c.TopLogprobs, one(r.ID, r.Logprob))
		}
		lp.Content = append(lp.Content, c)
	}
	return lp
}

// sse sends a stream whose status is sent with the first event, so that what fails
// before it is still a proper error.
type sse struct {
	s   *Server
	w   http.ResponseWriter
	out *openai.Writer
}

func (e *sse) send(v any) error {
	if e.out == nil {
		e.out = openai.NewWriter(e.w)
	}
	return e.out.Send(v)
}

// end finishes the stream: with [DONE], or with an error event and without it.
func (e *sse) end(ctx context.Context, err error) {
	switch {
	case e.out == nil:
		if err == nil {
			err = errors.New("the answer has no events")
		}
		e.s.fail(e.w, ctx, err)
	case ctx.Err() != nil:
	case err != nil:
		// The client may have left, which is what the error may be about.
		_ = e.out.Error(&openai.Error{Message: err.Error(), Type: openai.TypeServer})
	default:
		_ = e.out.Done()
	}
}
