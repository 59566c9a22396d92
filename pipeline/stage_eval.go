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
	"llmops/serving/deploy"
)

// evalWidth is how many requests each arm has in flight, bounded by the engine.
const evalWidth = 8

// width is how many requests each arm has in flight.
func (a *Attempt) width() int {
	if n := a.Spec.Engine.MaxNumSeqs; n > 0 {
		return min(evalWidth, n)
	}
	return evalWidth
}

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
	Looks   int              `json:"looks"`
	Reused  bool             `json:"reused,omitempty"`
}

func runEval(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var dep DeployOutput
	if err := a.Result(ctx, StageDeploy, &dep); err != nil {
		return evidence.Verdict{}, err
	}
	dep.Parent = dep.reference()
	if dep.Parent.addr() == "" {
		return evidence.Verdict{Claim: "the candidate answers as well as what is live",
			Warnings: []string{"version " + dep.Parent.Version.Name + " is live and has no replica to be compared with"}}, nil
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
	v := evidence.All("the candidate answers as well as the parent", parts...)
	if dep.Parent.Version.Name == dep.Candidate.Version.Name {
		v.Warnings = append(v.Warnings, "the candidate is the source as it is, and the first version: it was compared with itself")
	}
	return v, nil
}

// reference is what the candidate must answer as: the parent. Where the candidate is
// the parent, the source under another engine or other options, it is what is live.
func (d DeployOutput) reference() Arm {
	if d.Parent.Version.Name == d.Candidate.Version.Name {
		return d.Stable
	}
	return d.Parent
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

// laterLook is the part of α that a second look has: Pocock's level for two looks
// over that for one. The first look has all of it, since nobody knew of a second:
// the two together pass a candidate at the margin with at most 1.6 α.
const laterLook = 0.0294 / 0.05

// looks is how many there may be.
const looks = 2

// trial is a suite's items ready to be asked.
type trial struct {
	digest model.Digest
	n      int
	about  any // what beside the items decides the verdict
	// run asks both arms. It returns a line of evidence for each item and how many
	// differ, and what judges them at a confidence.
	run func(ctx context.Context) (lines []any, flips int, judge func(confidence float64) evidence.Verdict, err error)
}

// questions are items with right answers.
func questions(a *Attempt, s Suite, parent, cand eval.Arm) (trial, error) {
	items, digest, err := eval.ReadItems(s.Items, s.Limit)
	return trial{digest, len(items), nil, func(ctx context.Context) (lines []any, flips int, judge func(float64) evidence.Verdict, err error) {
		samples, err := eval.Ask(ctx, parent, cand, items, a.width(), func(d, n int64) { a.Progress(s.Name, d, n) })
		for _, x := range samples {
			if x.Parent.Right != x.New.Right {
				flips++
			}
			lines = append(lines, x)
		}
		return lines, flips, func(c float64) evidence.Verdict {
			return eval.Judge(items, samples, eval.SuiteOptions{Name: s.Name, Margin: s.Margin, Confidence: c})
		}, err
	}}, err
}

// retrieval is a corpus that an encoder finds passages in.
func retrieval(a *Attempt, s Suite, parent, cand eval.Arm) (trial, error) {
	corpus, digest, err := eval.ReadCorpus(s.Items, s.Limit)
	find := eval.Embed
	if a.Spec.Task == deploy.Rerank {
		find = eval.Rerank
	}
	return trial{digest, len(corpus.Queries), s.At, func(ctx context.Context) (lines []any, flips int, judge func(float64) evidence.Verdict, err error) {
		found, err := find(ctx, parent, cand, corpus, s.At, a.width(), func(d, n int64) { a.Progress(s.Name, d, n) })
		for _, x := range found {
			if x.Parent.Recall != x.New.Recall {
				flips++
			}
			lines = append(lines, x)
		}
		return lines, flips, func(c float64) evidence.Verdict {
			return eval.JudgeFound(found, s.At, eval.SuiteOptions{Name: s.Name, Margin: s.Margin, Confidence: c})
		}, err
	}}, err
}

// evalSuite asks a suite, or finds the verdict that this candidate already has
// on its items. That one stands, whatever the suite is called and however many of
// the items are asked for now; only what was inconclusive is looked at once more,
// when there are more of them.
func evalSuite(ctx context.Context, a *Attempt, dep DeployOutput, s Suite, parent, cand eval.Arm) (EvalSuite, error) {
	open := questions
	if a.Spec.Task != "" {
		open = retrieval
	}
	t, err := open(a, s, parent, cand)
	if err != nil {
		return EvalSuite{}, err
	}
	confidence := a.Spec.Eval.Confidence
	about := []any{t.digest, s.Margin, confidence, dep.Parent.Version.Digest}
	if t.about != nil {
		about = append(about, t.about)
	}
	key := model.DigestOf(mustJSON(about)).Hex()[:32]
	name := spentName(dep.Candidate.Version.Digest, key)
	old, rev, err := spent(ctx, a, name)
	if err != nil {
		return EvalSuite{}, err
	}
	if rev != 0 {
		if old.Verdict.Outcome != evidence.Inconclusive || old.Looks >= looks || t.n <= old.N {
			old.Name, old.Reused = s.Name, true
			a.Note("suite %s: this candidate has its verdict on these items (%s, on %d, look %d of %d); new items may give it another", s.Name, old.Verdict.Outcome, old.N, old.Looks, looks)
			return old, nil
		}
		confidence = 1 - (1-confidence)*laterLook
	}
	evidenceLines, flips, judge, err := t.run(ctx)
	if err != nil {
		return EvalSuite{}, err
	}
	es := EvalSuite{Name: s.Name, Items: string(t.digest), N: len(evidenceLines), Flips: flips, Looks: old.Looks + 1, Verdict: judge(confidence)}
	if es.Looks > 1 {
		es.Verdict.Warnings = append(es.Verdict.Warnings, fmt.Sprintf("a second look, after one at %d items that decided nothing: judged at a confidence of %.4g", old.N, confidence))
	}
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, x := range evidenceLines {
		if err := enc.Encode(x); err != nil {
			return es, err
		}
	}
	if es.Samples, _, err = a.Deps.Blobs.Put(ctx, &lines); err != nil {
		return es, err
	}
	es.Verdict.Refs = []string{es.Samples}
	return record(ctx, a, name, rev, es)
}

// record writes a verdict down in the place of the one at revision rev. Where
// somebody was faster theirs counts.
func record(ctx context.Context, a *Attempt, name string, rev uint64, es EvalSuite) (EvalSuite, error) {
	_, err := a.Deps.Store.Put(ctx, name, mustJSON(es), rev)
	if errors.Is(err, fleet.ErrConflict) {
		es, _, err = spent(ctx, a, name)
		es.Reused = true
	}
	if err != nil {
		return es, fmt.Errorf("recording the verdict on suite %s: %w", es.Name, err)
	}
	return es, nil
}

// spent reads the verdict on record and its revision, 0 when there is none.
func spent(ctx context.Context, a *Attempt, name string) (es EvalSuite, rev uint64, err error) {
	d, err := a.Deps.Store.Get(ctx, name)
	if errors.Is(err, fleet.ErrNotFound) {
		return es, 0, nil
	}
	if err != nil {
		return es, 0, err
	}
	if err := json.Unmarshal(d.Body, &es); err != nil {
		return es, 0, fmt.Errorf("reading %s: %w", name, err)
	}
	return es, d.Rev, nil
}
