package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"llmops/evidence"
	"llmops/serving/openai"
)

const (
	// hardMargin is how sure of its token, in nats, the parent must be for
	// another choice of the candidate to be more than a near tie.
	hardMargin = 1.0
	// canaryTokens is how far the parent's own answer is followed.
	canaryTokens = 48
	// topTokens is how many alternatives are asked for: with the best two the
	// parent's margin is known.
	topTokens = 5
)

// scored is the likelihood of one text: a log-probability a token, the first
// of which has none.
type scored struct {
	lp  []float64            // from the second token on
	top []map[string]float64 // likewise
}

// echo asks for the likelihood of a prompt and checks that the server computed
// it: one null, then one finite negative number a token.
func echo(ctx context.Context, arm Arm, p openai.Prompt) (s scored, err error) {
	top, no := topTokens, false
	req := &openai.CompletionRequest{Sampling: greedy(arm.Model, 1), Prompt: p, Echo: true, Logprobs: &top, AddSpecialTokens: &no}
	err = try(ctx, func(ctx context.Context) error {
		res, _, err := arm.Client.Complete(ctx, req, nil)
		if err != nil {
			return err
		}
		if len(res.Choices) != 1 || res.Choices[0].Logprobs == nil || res.Usage == nil {
			return errors.New("the answer carries no log-probabilities; this engine cannot be used for likelihoods")
		}
		l := res.Choices[0].Logprobs
		n := res.Usage.PromptTokens
		if len(l.TokenLogprobs) != n+1 || len(l.TopLogprobs) != n+1 || n < 2 {
			return fmt.Errorf("%d log-probabilities for %d prompt tokens and one more; this engine cannot be used for likelihoods", len(l.TokenLogprobs), n)
		}
		if l.TokenLogprobs[0] != nil {
			return errors.New("the first token has a log-probability, so the positions are shifted")
		}
		s = scored{}
		for i := 1; i < n; i++ {
			x := l.TokenLogprobs[i]
			if x == nil || math.IsNaN(*x) || *x > 0 || *x <= -9999 {
				return fmt.Errorf("token %d has no usable log-probability", i)
			}
			s.lp = append(s.lp, *x)
			s.top = append(s.top, l.TopLogprobs[i])
		}
		return nil
	})
	return s, err
}

// Perplexity compares the likelihood of the texts under both arms and says
// whether the candidate's perplexity is shown to be less than limit times the
// parent's.
func Perplexity(ctx context.Context, parent, candidate Arm, texts []Text, limit, confidence float64, width int, progress func(done, total int64)) (evidence.Verdict, error) {
	if err := Computed(ctx, parent, candidate); err != nil {
		return evidence.Verdict{}, err
	}
	docs := make([]evidence.Loss, len(texts))
	var done atomic.Int64
	err := each(ctx, len(texts), width, func(ctx context.Context, i int) error {
		p := openai.Prompt{Texts: []string{texts[i].Text}}
		a, err := echo(ctx, parent, p)
		if err != nil {
			return &ErrArm{parent.Name, "text " + texts[i].ID, err}
		}
		b, err := echo(ctx, candidate, p)
		if err != nil {
			return &ErrArm{candidate.Name, "text " + texts[i].ID, err}
		}
		if len(a.lp) != len(b.lp) {
			return fmt.Errorf("text %s has %d tokens for %s and %d for %s: their tokenizers differ", texts[i].ID, len(a.lp), parent.Name, len(b.lp), candidate.Name)
		}
		docs[i] = evidence.Loss{Tokens: len(a.lp), Base: -sum(a.lp), New: -sum(b.lp)}
		progress(done.Add(1), int64(len(texts)))
		return nil
	})
	claim := fmt.Sprintf("perplexity: less than %.4g times the parent's on held-out text", limit)
	if err != nil {
		return evidence.Verdict{Claim: claim}, err
	}
	return evidence.PerplexityRatio(claim, docs, limit, confidence), nil
}

func sum(xs []float64) (s float64) {
	for _, x := range xs {
		s += x
	}
	return s
}

// Canary is what one prompt showed.
type Canary struct {
	Prompt    string  `json:"prompt"`
	Tokens    int     `json:"tokens"`
	Agree     int     `json:"agree"` // positions where the candidate's best token is the parent's
	Worst     float64 `json:"worst"` // the parent's margin in nats at the surest token it disagreed on
	WorstAt   int     `json:"worst_at,omitempty"`
	WorstText string  `json:"worst_text,omitempty"`
}

// Canaries lets the parent answer each prompt greedily and looks, along that
// answer, whether the candidate would choose the same tokens. Where it would
// not, the parent's margin between its best two tells a near tie from a hard
// divergence, of which there may be none.
func Canaries(ctx context.Context, parent, candidate Arm, prompts []Item, width int, progress func(done, total int64)) (evidence.Verdict, []Canary, error) {
	if err := Computed(ctx, parent, candidate); err != nil {
		return evidence.Verdict{}, nil, err
	}
	out := make([]Canary, len(prompts))
	var done atomic.Int64
	err := each(ctx, len(prompts), width, func(ctx context.Context, i int) error {
		c, err := canary(ctx, parent, candidate, prompts[i])
		out[i] = c
		progress(done.Add(1), int64(len(prompts)))
		return err
	})
	v := evidence.Verdict{Claim: fmt.Sprintf("canaries: no token that the parent was sure of by more than %g nat is chosen otherwise", hardMargin)}
	if err != nil {
		return v, out, err
	}
	hard, agree := 0, 0
	for _, c := range out {
		v.N += c.Tokens
		agree += c.Agree
		if c.Worst > hardMargin {
			hard++
			v.Warnings = append(v.Warnings, fmt.Sprintf("prompt %s, token %d (%q): the parent was sure by %.2f nat", c.Prompt, c.WorstAt, c.WorstText, c.Worst))
		}
	}
	if v.N > 0 {
		v.Outcome = evidence.Pass
		v.Warnings = append(v.Warnings, fmt.Sprintf("best tokens agree at %d of %d positions", agree, v.N))
	}
	if hard > 0 {
		v.Outcome = evidence.Fail
	}
	return v, out, nil
}

func canary(ctx context.Context, parent, candidate Arm, it Item) (Canary, error) {
	c := Canary{Prompt: it.ID}
	req := &openai.ChatRequest{Sampling: greedy(parent.Model, canaryTokens), Messages: it.Messages}
	req.ReturnTokenIDs = true
	var ids []int
	var from int
	if err := try(ctx, func(ctx context.Context) error {
		res, _, err := parent.Client.Chat(ctx, req, nil)
		if err != nil {
			return err
		}
		if len(res.Choices) != 1 || len(res.PromptTokenIDs) == 0 || len(res.Choices[0].TokenIDs) == 0 {
			return errors.New("the answer carries no token ids")
		}
		from = len(res.PromptTokenIDs)
		ids = append(append([]int(nil), res.PromptTokenIDs...), res.Choices[0].TokenIDs...)
		return nil
	}); err != nil {
		return c, &ErrArm{parent.Name, "canary " + it.ID, err}
	}
	p := openai.Prompt{Tokens: [][]int{ids}}
	a, err := echo(ctx, parent, p)
	if err != nil {
		return c, &ErrArm{parent.Name, "canary " + it.ID, err}
	}
	b, err := echo(ctx, candidate, p)
	if err != nil {
		return c, &ErrArm{candidate.Name, "canary " + it.ID, err}
	}
	if len(a.lp) != len(b.lp) || len(a.lp) != len(ids)-1 {
		return c, fmt.Errorf("canary %s: arms scored %d and %d of %d tokens", it.ID, len(a.lp), len(b.lp), len(ids)-1)
	}
	c.Tokens = len(ids) - from
	for i := from - 1; i < len(a.lp); i++ {
		if isBest(b.lp[i], b.top[i]) {
			c.Agree++
			continue
		}
		if m := margin(a.lp[i], a.top[i]); m > c.Worst {
			c.Worst, c.WorstAt, c.WorstText = m, i-from+2, bestText(a.top[i])
		}
	}
	return c, nil
}

// isBest tells whether no listed alternative is likelier.
func isBest(lp float64, top map[string]float64) bool {
	for _, x := range top {
		if x > lp {
			return false
		}
	}
	return true
}

// margin is how much likelier the parent's token is than the next; 0 when the
// token was not its best, as at a position where rounding moved a tie.
func margin(lp float64, top map[string]float64) float64 {
	next, own := math.Inf(-1), false
	for _, x := range top {
		switch {
		case x > lp:
			return 0
		case x == lp && !own:
			own = true
		default:
			next = max(next, x)
		}
	}
	if math.IsInf(next, -1) {
		return 0
	}
	return lp - next
}

func bestText(top map[string]float64) string {
	best, text := math.Inf(-1), ""
	for t, x := range top {
		if x > best || x == best && t < text {
			best, text = x, t
		}
	}
	return text
}
