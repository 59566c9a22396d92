package eval

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"llmops/evidence"
	"llmops/serving/openai"
)

// fewestRight is the share of items on which the parent must be right for a
// suite to be able to show that nothing was lost.
const fewestRight = 0.25

// Sample is one item under both arms.
type Sample struct {
	ID     string `json:"id"`
	Doc    string `json:"doc,omitempty"`
	Want   string `json:"want"`
	Parent Answer `json:"parent"`
	New    Answer `json:"new"`
}

// Answer is what one arm said.
type Answer struct {
	Text   string `json:"text"`
	Finish string `json:"finish"`
	Right  bool   `json:"right"`
	Valid  bool   `json:"valid"`
	Prompt int    `json:"prompt"` // tokens, as the server counted them
	Output int    `json:"output"`
}

// SuiteOptions say how a suite's samples are judged.
type SuiteOptions struct {
	Name       string
	Margin     float64 // of the score
	Confidence float64
}

// Ask asks both arms every item and returns the samples in order. progress
// gets items done by both arms and may be called from several goroutines.
func Ask(ctx context.Context, parent, candidate Arm, items []Item, width int, progress func(done, total int64)) ([]Sample, error) {
	if err := Computed(ctx, parent, candidate); err != nil {
		return nil, err
	}
	out := make([]Sample, len(items))
	var answers atomic.Int64
	ask := func(arm Arm, pick func(*Sample) *Answer) error {
		return each(ctx, len(items), width, func(ctx context.Context, i int) error {
			a, err := answer(ctx, arm, items[i])
			if err != nil {
				return &ErrArm{arm.Name, "item " + items[i].ID, err}
			}
			*pick(&out[i]) = a
			progress(answers.Add(1)/2, int64(len(items)))
			return nil
		})
	}
	for i, it := range items {
		out[i].ID, out[i].Doc, out[i].Want = it.ID, it.Doc, it.Answer
	}
	second := make(chan error, 1)
	go func() { second <- ask(candidate, func(s *Sample) *Answer { return &s.New }) }()
	first := ask(parent, func(s *Sample) *Answer { return &s.Parent })
	return out, errors.Join(first, <-second)
}

func answer(ctx context.Context, arm Arm, it Item) (a Answer, err error) {
	req := &openai.ChatRequest{Sampling: greedy(arm.Model, it.MaxTokens), Messages: it.Messages}
	err = try(ctx, func(ctx context.Context) error {
		res, _, err := arm.Client.Chat(ctx, req, nil)
		if err != nil {
			return err
		}
		if len(res.Choices) != 1 || res.Usage == nil {
			return fmt.Errorf("the answer has %d choices and usage %v", len(res.Choices), res.Usage)
		}
		c := res.Choices[0]
		a = Answer{Text: c.Message.Content.String(), Finish: c.FinishReason, Prompt: res.Usage.PromptTokens, Output: res.Usage.CompletionTokens}
		return nil
	})
	a.Right, a.Valid = score(it, a.Text)
	return a, err
}

// Judge says whether the samples show that the candidate loses less than the
// margin, and for items that must be JSON that it still writes JSON.
func Judge(items []Item, samples []Sample, o SuiteOptions) evidence.Verdict {
	pairs := make([]evidence.Pair, len(samples))
	var formed []evidence.Pair
	right, flips, cut, longer := 0, 0, 0, 0
	for i, s := range samples {
		pairs[i] = evidence.Pair{Cluster: s.Doc, Base: bit(s.Parent.Right), New: bit(s.New.Right)}
		if items[i].Kind == "json" {
			formed = append(formed, evidence.Pair{Cluster: s.Doc, Base: bit(s.Parent.Valid), New: bit(s.New.Valid)})
		}
		right += int(bit(s.Parent.Right))
		if s.Parent.Right != s.New.Right {
			flips++
		}
		if s.New.Finish == openai.FinishLength && s.Parent.Finish != openai.FinishLength {
			cut++
		}
		if s.Parent.Prompt != s.New.Prompt {
			longer++
		}
	}
	n := len(samples)
	claim := fmt.Sprintf("%s: the candidate scores less than %.3g points below the parent", o.Name, 100*o.Margin)
	v := evidence.NonInferior(claim, pairs, o.Margin, o.Confidence)
	v.Warnings = append(v.Warnings, fmt.Sprintf("parent %.1f%% right, %d of %d items flipped", 100*float64(right)/float64(max(1, n)), flips, n))
	if cut > 0 {
		v.Warnings = append(v.Warnings, fmt.Sprintf("the candidate alone was cut off on %d items", cut))
	}
	if share := float64(right) / float64(max(1, n)); share < fewestRight && v.Outcome == evidence.Pass {
		v.Outcome = evidence.Inconclusive
		v.Warnings = append(v.Warnings, fmt.Sprintf("the parent itself is right on less than %.4g%%: a candidate that knows nothing would lose as little", 100*fewestRight))
	}
	parts := []evidence.Verdict{v}
	if len(formed) > 0 {
		parts = append(parts, evidence.NonInferior(fmt.Sprintf("%s: valid JSON less than %.3g points rarer", o.Name, 100*o.Margin), formed, o.Margin, o.Confidence))
	}
	if longer > 0 {
		parts = append(parts, evidence.Verdict{Claim: fmt.Sprintf("%s: both arms saw the same prompts", o.Name), Outcome: evidence.Fail, N: n,
			Warnings: []string{fmt.Sprintf("on %d items the arms counted different prompt tokens: template or tokenizer differ", longer)}})
	}
	if len(parts) == 1 {
		return v
	}
	return evidence.All(o.Name, parts...)
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
