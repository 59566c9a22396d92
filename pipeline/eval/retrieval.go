package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"llmops/evidence"
	"llmops/model"
	"llmops/serving/openai"
)

// Corpus is what an encoder is asked to find things in.
type Corpus struct {
	Passages []Passage
	Queries  []Query
}

// Passage is a text that can be found.
type Passage struct {
	ID   string
	Text string
}

// Query is what is looked for, and the passages that answer it. Among narrows the
// passages down to some, as a first stage of retrieval would have; empty: all.
// Queries of one Doc are one cluster.
type Query struct {
	ID       string
	Text     string
	Relevant []string
	Among    []string
	Doc      string
}

// entry is a line of a corpus, of either kind.
type entry struct {
	Kind     string   `json:"kind"` // passage or query
	ID       string   `json:"id"`
	Text     string   `json:"text"`
	Relevant []string `json:"relevant,omitempty"` // of a query
	Among    []string `json:"among,omitempty"`
	Doc      string   `json:"doc,omitempty"`
}

// ReadCorpus reads passages and queries from the JSON Lines file at path, at most
// limit queries when that is not 0, and returns the digest of the whole file.
func ReadCorpus(path string, limit int) (Corpus, model.Digest, error) {
	var c Corpus
	known, asked := map[string]bool{}, map[string]bool{}
	digest, err := readLines(path, func(_ int, b []byte) error {
		var l entry
		if err := strict(b, &l); err != nil {
			return err
		}
		switch l.Kind {
		case "passage":
			if l.ID == "" || l.Text == "" || known[l.ID] || l.Relevant != nil || l.Among != nil {
				return fmt.Errorf("passage %q needs an id of its own and a text, and nothing else", l.ID)
			}
			known[l.ID] = true
			c.Passages = append(c.Passages, Passage{l.ID, l.Text})
		case "query":
			if l.ID == "" || l.Text == "" || len(l.Relevant) == 0 || asked[l.ID] {
				return fmt.Errorf("query %q needs an id of its own, a text and something relevant", l.ID)
			}
			asked[l.ID] = true
			c.Queries = append(c.Queries, Query{l.ID, l.Text, l.Relevant, l.Among, l.Doc})
		default:
			return fmt.Errorf("kind %q is not one of passage, query", l.Kind)
		}
		return nil
	})
	if err != nil {
		return c, "", err
	}
	if len(c.Passages) == 0 || len(c.Queries) == 0 {
		return c, "", fmt.Errorf("%s holds %d passages and %d queries: want some of both", path, len(c.Passages), len(c.Queries))
	}
	for _, q := range c.Queries {
		for _, id := range slices.Concat(q.Relevant, q.Among) {
			if !known[id] {
				return c, "", fmt.Errorf("%s: query %s names passage %q, which is not there", path, q.ID, id)
			}
		}
		for _, id := range q.Relevant {
			if len(q.Among) > 0 && !slices.Contains(q.Among, id) {
				return c, "", fmt.Errorf("%s: query %s can never find %q: it is not among its passages", path, q.ID, id)
			}
		}
	}
	if limit > 0 {
		c.Queries = c.Queries[:min(limit, len(c.Queries))]
	}
	return c, digest, nil
}

// Found is one query under both arms.
type Found struct {
	ID     string  `json:"id"`
	Doc    string  `json:"doc,omitempty"`
	Parent Ranking `json:"parent"`
	New    Ranking `json:"new"`
}

// Ranking is what one arm found first, and how good that is: recall is the share
// of the relevant that is there, nDCG (Järvelin and Kekäläinen, 2002, with gains of
// 0 and 1) also counts how far up.
type Ranking struct {
	Top    []string `json:"top"`
	Recall float64  `json:"recall"`
	NDCG   float64  `json:"ndcg"`
}

// embedBatch is how many texts one request carries.
const embedBatch = 16

// Embed lets both arms rank by the cosine of their vectors. progress gets texts
// done by both arms and may be called from several goroutines.
func Embed(ctx context.Context, parent, candidate Arm, c Corpus, at, width int, progress func(done, total int64)) ([]Found, error) {
	total := int64(len(c.Passages) + len(c.Queries))
	return both(ctx, parent, candidate, c, at, func(ctx context.Context, arm Arm, done func(n int64)) ([][]float64, error) {
		texts := make([]string, 0, total)
		for _, p := range c.Passages {
			texts = append(texts, p.Text)
		}
		for _, q := range c.Queries {
			texts = append(texts, q.Text)
		}
		vectors := make([][]float32, len(texts))
		err := each(ctx, (len(texts)+embedBatch-1)/embedBatch, width, func(ctx context.Context, i int) error {
			from := i * embedBatch
			part := texts[from:min(from+embedBatch, len(texts))]
			if err := embed(ctx, arm, part, vectors[from:]); err != nil {
				return &ErrArm{arm.Name, fmt.Sprintf("texts %d to %d", from+1, from+len(part)), err}
			}
			done(int64(len(part)))
			return nil
		})
		if err != nil {
			return nil, err
		}
		scores := make([][]float64, len(c.Queries))
		for i := range c.Queries {
			scores[i] = make([]float64, len(c.Passages))
			for j := range c.Passages {
				scores[i][j] = cosine(vectors[len(c.Passages)+i], vectors[j])
			}
		}
		return scores, nil
	}, func(n int64) { progress(n/2, total) })
}

func embed(ctx context.Context, arm Arm, texts []string, into [][]float32) error {
	return try(ctx, func(ctx context.Context) error {
		res, _, err := arm.Client.Embeddings(ctx, &openai.EmbeddingRequest{
			Model: arm.Model, Input: openai.Input{Prompt: openai.Prompt{Texts: texts}}, EncodingFormat: openai.FormatBase64,
		})
		if err != nil {
			return err
		}
		if len(res.Data) != len(texts) {
			return fmt.Errorf("%d vectors for %d texts", len(res.Data), len(texts))
		}
		for _, d := range res.Data {
			if d.Index < 0 || d.Index >= len(texts) || len(d.Embedding.Values) == 0 || len(d.Embedding.Values) != len(res.Data[0].Embedding.Values) {
				return fmt.Errorf("vector %d of %d has %d numbers", d.Index, len(texts), len(d.Embedding.Values))
			}
			into[d.Index] = d.Embedding.Values
		}
		return nil
	})
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// Rerank lets both arms score each query's passages. progress gets queries done.
func Rerank(ctx context.Context, parent, candidate Arm, c Corpus, at, width int, progress func(done, total int64)) ([]Found, error) {
	place := make(map[string]int, len(c.Passages))
	for i, p := range c.Passages {
		place[p.ID] = i
	}
	return both(ctx, parent, candidate, c, at, func(ctx context.Context, arm Arm, done func(n int64)) ([][]float64, error) {
		scores := make([][]float64, len(c.Queries))
		return scores, each(ctx, len(c.Queries), width, func(ctx context.Context, i int) error {
			q := c.Queries[i]
			among := make([]int, 0, len(c.Passages))
			for j, p := range c.Passages {
				if len(q.Among) == 0 {
					among = append(among, j)
				} else if slices.Contains(q.Among, p.ID) {
					among = append(among, place[p.ID])
				}
			}
			s, err := rerank(ctx, arm, c, q, among)
			if err != nil {
				return &ErrArm{arm.Name, "query " + q.ID, err}
			}
			scores[i] = s
			done(1)
			return nil
		})
	}, func(n int64) { progress(n/2, int64(len(c.Queries))) })
}

func rerank(ctx context.Context, arm Arm, c Corpus, q Query, among []int) ([]float64, error) {
	req := &openai.RerankRequest{Model: arm.Model, Query: q.Text}
	for _, j := range among {
		req.Documents = append(req.Documents, openai.Document{Text: c.Passages[j].Text})
	}
	scores := make([]float64, len(c.Passages))
	err := try(ctx, func(ctx context.Context) error {
		res, _, err := arm.Client.Rerank(ctx, req)
		if err != nil {
			return err
		}
		seen := map[int]bool{}
		for _, r := range res.Results {
			if r.Index < 0 || r.Index >= len(among) || seen[r.Index] {
				return fmt.Errorf("the answer scores document %d of %d, or twice", r.Index, len(among))
			}
			seen[r.Index] = true
			scores[among[r.Index]] = r.RelevanceScore
		}
		if len(seen) != len(among) {
			return fmt.Errorf("%d scores for %d documents", len(seen), len(among))
		}
		return nil
	})
	return scores, err
}

// both scores with both arms at once and ranks.
func both(ctx context.Context, parent, candidate Arm, c Corpus, at int, score func(context.Context, Arm, func(int64)) ([][]float64, error), progress func(done int64)) ([]Found, error) {
	if err := Computed(ctx, parent, candidate); err != nil {
		return nil, err
	}
	var n atomic.Int64
	done := func(k int64) { progress(n.Add(k)) }
	var news [][]float64
	second := make(chan error, 1)
	go func() {
		var err error
		news, err = score(ctx, candidate, done)
		second <- err
	}()
	olds, err := score(ctx, parent, done)
	if err := errors.Join(err, <-second); err != nil {
		return nil, err
	}
	out := make([]Found, len(c.Queries))
	for i, q := range c.Queries {
		out[i] = Found{ID: q.ID, Doc: q.Doc, Parent: rank(c, q, olds[i], at), New: rank(c, q, news[i], at)}
	}
	return out, nil
}

// rank sorts the passages of q by their scores, ties by their order in the corpus.
// A score that is no number comes last.
func rank(c Corpus, q Query, scores []float64, at int) Ranking {
	var order []int
	for j, p := range c.Passages {
		if len(q.Among) == 0 || slices.Contains(q.Among, p.ID) {
			order = append(order, j)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	var r Ranking
	hits, gain, ideal := 0, 0.0, 0.0
	for i, j := range order[:min(at, len(order))] {
		id := c.Passages[j].ID
		r.Top = append(r.Top, id)
		if slices.Contains(q.Relevant, id) {
			hits++
			gain += 1 / math.Log2(float64(i)+2)
		}
	}
	for i := range min(at, len(q.Relevant)) {
		ideal += 1 / math.Log2(float64(i)+2)
	}
	r.Recall, r.NDCG = float64(hits)/float64(len(q.Relevant)), gain/ideal
	return r
}

// JudgeFound says whether the rankings show that the candidate loses less than the
// margin of recall and of nDCG.
func JudgeFound(found []Found, at int, o SuiteOptions) evidence.Verdict {
	recall, ndcg := make([]evidence.Pair, len(found)), make([]evidence.Pair, len(found))
	var parent, lost float64
	for i, f := range found {
		recall[i] = evidence.Pair{Cluster: f.Doc, Base: f.Parent.Recall, New: f.New.Recall}
		ndcg[i] = evidence.Pair{Cluster: f.Doc, Base: f.Parent.NDCG, New: f.New.NDCG}
		parent += f.Parent.Recall
		if f.Parent.Recall != f.New.Recall {
			lost++
		}
	}
	n := float64(max(1, len(found)))
	claim := func(what string) string {
		return fmt.Sprintf("%s: %s@%d is less than %.3g points below the parent's", o.Name, what, at, 100*o.Margin)
	}
	r := evidence.NonInferior(claim("recall"), recall, o.Margin, o.Confidence)
	r.Warnings = append(r.Warnings, fmt.Sprintf("parent's recall@%d is %.1f%%; it differs on %.0f of %d queries", at, 100*parent/n, lost, len(found)))
	if parent/n < fewestRight && r.Outcome == evidence.Pass {
		r.Outcome = evidence.Inconclusive
		r.Warnings = append(r.Warnings, fmt.Sprintf("the parent itself finds less than %.4g%%: a candidate that knows nothing would lose as little", 100*fewestRight))
	}
	v := evidence.All(o.Name, r, evidence.NonInferior(claim("nDCG"), ndcg, o.Margin, o.Confidence))
	v.N = len(found)
	return v
}
