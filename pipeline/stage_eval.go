package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/model"
	"llmops/pipeline/eval"
)

// evalWidth is how many requests each arm has in flight, bounded by the engine.
const evalWidth = 8

// EvalOutput is what the eval stage leaves: for each suite the digest of its
// items and of the samples.
type EvalOutput struct {
	Suites   []EvalSuite   `json:"suites"`
	Canaries []eval.Canary `json:"canaries,omitempty"`
}

// EvalSuite is one suite's evidence.
type EvalSuite struct {
	Name    string           `json:"name"`
	Items   string           `json:"items"`
	Samples string           `json:"samples"`
	Flips   int              `json:"flips"`
	N       int              `json:"n"`
	Verdict evidence.Verdict `json:"verdict"`
	Reused  bool             `json:"reused,omitempty"`
}

func runEval(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var dep DeployOutput
	if err := a.Result(ctx, StageDeploy, &dep); err != nil {
		return evidence.Verdict{}, err
	}
	parent := eval.Arm{Name: "parent", Model: a.Spec.Name, Client: dep.Parent.client()}
	cand := eval.Arm{Name: "candidate", Model: a.Spec.Name, Client: dep.Candidate.client()}
	var out EvalOutput
	var parts []evidence.Verdict
	if err := evalLikelihood(ctx, a, parent, cand, &out, &parts); err != nil {
		return evidence.Verdict{}, err
	}
	for _, s := range a.Spec.Eval.Suites {
		es, err := evalSuite(ctx, a, dep, s, parent, cand)
		if err != nil {
			return evidence.Verdict{}, err
		}
		out.Suites = append(out.Suites, es)
		parts = append(parts, es.Verdict)
	}
	a.Output(out)
	return evidence.All("the candidate answers as well as the parent", parts...), nil
}

func evalLikelihood(ctx context.Context, a *Attempt, parent, cand eval.Arm, out *EvalOutput, parts *[]evidence.Verdict) error {
	e := a.Spec.Eval
	if e.Canaries != "" {
		prompts, _, err := eval.ReadItems(e.Canaries, 0)
		if err != nil {
			return err
		}
		v, cs, err := eval.Canaries(ctx, parent, cand, prompts, 2, func(d, n int64) { a.Progress("canaries", d, n) })
		if err != nil {
			return err
		}
		out.Canaries = cs
		*parts = append(*parts, v)
	}
	if e.Text != "" {
		texts, err := eval.ReadTexts(e.Text)
		if err != nil {
			return err
		}
		v, err := eval.Perplexity(ctx, parent, cand, texts, e.Perplexity, e.Confidence, 2, func(d, n int64) { a.Progress("perplexity", d, n) })
		if err != nil {
			return err
		}
		*parts = append(*parts, v)
	}
	return nil
}

// spentName is where the verdict of a candidate on a suite is written down for
// good, so that asking again cannot turn it.
func spentName(candidate string, suite string) string {
	return fmt.Sprintf("spent/%s/%s", model.Digest(candidate).Hex()[:32], suite)
}

// evalSuite asks a suite, or finds the verdict that this candidate already has
// on it.
func evalSuite(ctx context.Context, a *Attempt, dep DeployOutput, s Suite, parent, cand eval.Arm) (EvalSuite, error) {
	items, digest, err := eval.ReadItems(s.Items, s.Limit)
	if err != nil {
		return EvalSuite{}, err
	}
	key := model.DigestOf(mustJSON([]any{digest, s, a.Spec.Eval.Confidence, dep.Parent.Version.Digest})).Hex()[:32]
	name := spentName(dep.Candidate.Version.Digest, key)
	if old, err := spent(ctx, a, name); err != nil || old != nil {
		if old != nil {
			old.Reused = true
			a.Note("suite %s: this candidate already has its verdict on these items (%s)", s.Name, old.Verdict.Outcome)
			return *old, nil
		}
		return EvalSuite{}, err
	}
	samples, err := eval.Ask(ctx, parent, cand, items, min(evalWidth, a.Spec.Engine.MaxNumSeqs), func(d, n int64) { a.Progress(s.Name, d, n) })
	if err != nil {
		return EvalSuite{}, err
	}
	es := EvalSuite{Name: s.Name, Items: string(digest), N: len(samples),
		Verdict: eval.Judge(items, samples, eval.SuiteOptions{Name: s.Name, Margin: s.Margin, Confidence: a.Spec.Eval.Confidence})}
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, x := range samples {
		if x.Parent.Right != x.New.Right {
			es.Flips++
		}
		if err := enc.Encode(x); err != nil {
			return es, err
		}
	}
	if es.Samples, _, err = a.Deps.Blobs.Put(ctx, &lines); err != nil {
		return es, err
	}
	es.Verdict.Refs = []string{es.Samples}
	body, err := json.Marshal(es)
	if err != nil {
		return es, err
	}
	if _, err := a.Deps.Store.Put(ctx, name, body, 0); err != nil && !errors.Is(err, fleet.ErrConflict) {
		return es, fmt.Errorf("recording the verdict on suite %s: %w", s.Name, err)
	}
	return es, nil
}

func spent(ctx context.Context, a *Attempt, name string) (*EvalSuite, error) {
	d, err := a.Deps.Store.Get(ctx, name)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var es EvalSuite
	if err := json.Unmarshal(d.Body, &es); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return &es, nil
}
