package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"llmops/model/tokenizer"
	"llmops/serving/openai"
)

// maxTexts bounds the texts of a request, as OpenAI does.
const maxTexts = 2048

// begin reads a request and does what its faults ask for.
func (e *Encoder) begin(w http.ResponseWriter, r *http.Request, q any, model *string) bool {
	if !e.read(w, r, q) {
		return false
	}
	n := e.asked.Add(1)
	hit := e.o.Fault.hits(n)
	if f, ok := hit["crash"]; ok && n > uint64(f.after) {
		e.o.Crash()
	}
	if !(affliction{hit: hit}).begin(r.Context(), w) {
		return false
	}
	if *model != "" && *model != e.o.Name {
		openai.WriteError(w, http.StatusNotFound, &openai.Error{
			Message: fmt.Sprintf("the model %q does not exist here: this server has %s", *model, strconv.Quote(e.o.Name)), Type: openai.TypeNotFound, Param: "model", Code: "model_not_found",
		})
		return false
	}
	return true
}

func (e *Encoder) embeddings(w http.ResponseWriter, r *http.Request) {
	var q openai.EmbeddingRequest
	if !e.begin(w, r, &q, &q.Model) {
		return
	}
	in, api := e.embeddingInputs(&q)
	if api != nil {
		openai.WriteError(w, http.StatusBadRequest, api)
		return
	}
	vectors, err := e.batcher.compute(r.Context(), in)
	if err != nil {
		e.failed(w, r.Context(), err)
		return
	}
	out := openai.EmbeddingResponse{ID: newID("embd-"), Object: "list", Created: time.Now().Unix(), Model: e.o.Name, Data: make([]openai.Embedding, len(vectors)), Usage: tokensOf(in)}
	for i, v := range vectors {
		out.Data[i] = openai.Embedding{Object: "embedding", Index: i, Embedding: openai.Vector{Values: v, Base64: q.EncodingFormat == openai.FormatBase64}}
	}
	e.answer(w, out)
}

func (e *Encoder) embeddingInputs(q *openai.EmbeddingRequest) ([]tokenizer.Encoding, *openai.Error) {
	switch n := q.Input.Len(); {
	case e.model.Scores():
		return nil, openai.Invalid("model", "the model %q scores pairs of texts, it has no embeddings: use /v1/rerank or /v1/score", e.o.Name)
	case n == 0:
		return nil, openai.Invalid("input", "input is missing")
	case n > maxTexts:
		return nil, openai.Invalid("input", "input has %d texts: want at most %d", n, maxTexts)
	case q.EncodingFormat != "" && q.EncodingFormat != openai.FormatFloat && q.EncodingFormat != openai.FormatBase64:
		return nil, openai.Invalid("encoding_format", "encoding_format is %q: want float or base64", q.EncodingFormat)
	case q.Dimensions != nil && *q.Dimensions != e.model.Width():
		return nil, openai.Invalid("dimensions", "dimensions is %d: this model has %d, which cannot be changed", *q.Dimensions, e.model.Width())
	}
	cut, api := e.cut(q.TruncatePromptTokens)
	if api != nil {
		return nil, api
	}
	var in []tokenizer.Encoding
	for i, text := range q.Input.Texts {
		one, api := e.one("input", i, text, cut)
		if api != nil {
			return nil, api
		}
		in = append(in, one)
	}
	for i, ids := range q.Input.Tokens {
		if cut > 0 {
			ids = ids[:min(len(ids), cut)]
		}
		for _, id := range ids {
			if id < 0 || id >= e.shape.Vocab {
				return nil, openai.Invalid("input", "input %d has the token %d: want ids below %d", i, id, e.shape.Vocab)
			}
		}
		if len(ids) > e.o.MaxModelLen {
			return nil, e.tooLong("input", i, len(ids))
		}
		in = append(in, tokenizer.Encoding{IDs: ids, Types: make([]int, len(ids))})
	}
	return in, nil
}

// cut is how many tokens of an input are kept; 0 keeps all, and refuses too many.
func (e *Encoder) cut(asked *int) (int, *openai.Error) {
	switch {
	case asked == nil:
		return 0, nil
	case *asked == -1:
		return e.o.MaxModelLen, nil
	case *asked < 1 || *asked > e.o.MaxModelLen:
		return 0, openai.Invalid("truncate_prompt_tokens", "truncate_prompt_tokens is %d: want 1 to %d, or -1 for that", *asked, e.o.MaxModelLen)
	}
	return *asked, nil
}

func (e *Encoder) one(param string, i int, text string, cut int) (tokenizer.Encoding, *openai.Error) {
	in := e.tok.Single(text, cut)
	if len(in.IDs) > e.o.MaxModelLen {
		return in, e.tooLong(param, i, len(in.IDs))
	}
	if len(in.IDs) == 0 {
		return in, openai.Invalid(param, "%s %d has no tokens", param, i)
	}
	return in, nil
}

func (e *Encoder) tooLong(param string, i, n int) *openai.Error {
	err := openai.Invalid(param, "this model's maximum context length is %d tokens, %s %d has %d: shorten it, or send truncate_prompt_tokens", e.o.MaxModelLen, param, i, n)
	err.Code = "context_length_exceeded"
	return err
}

func (e *Encoder) rerank(w http.ResponseWriter, r *http.Request) {
	var q openai.RerankRequest
	if !e.begin(w, r, &q, &q.Model) {
		return
	}
	texts := make([]string, len(q.Documents))
	for i, d := range q.Documents {
		texts[i] = d.Text
	}
	top := len(texts)
	if q.TopN != nil {
		if *q.TopN < 1 {
			openai.WriteError(w, http.StatusBadRequest, openai.Invalid("top_n", "top_n is %d: want at least 1", *q.TopN))
			return
		}
		top = min(top, *q.TopN)
	}
	scores, usage, ok := e.compare(w, r, []string{q.Query}, texts, [2]string{"query", "documents"}, q.TruncatePromptTokens)
	if !ok {
		return
	}
	out := openai.RerankResponse{ID: newID("rerank-"), Model: e.o.Name, Usage: usage, Results: make([]openai.RerankResult, len(texts))}
	for i, s := range scores {
		out.Results[i] = openai.RerankResult{Index: i, RelevanceScore: s}
		if q.ReturnDocuments == nil || *q.ReturnDocuments {
			out.Results[i].Document = &q.Documents[i]
		}
	}
	slices.SortStableFunc(out.Results, func(a, b openai.RerankResult) int { return cmp.Compare(b.RelevanceScore, a.RelevanceScore) })
	out.Results = out.Results[:top]
	e.answer(w, out)
}

func (e *Encoder) score(w http.ResponseWriter, r *http.Request) {
	var q openai.ScoreRequest
	if !e.begin(w, r, &q, &q.Model) {
		return
	}
	scores, usage, ok := e.compare(w, r, q.Text1, q.Text2, [2]string{"text_1", "text_2"}, q.TruncatePromptTokens)
	if !ok {
		return
	}
	out := openai.ScoreResponse{ID: newID("score-"), Object: "list", Created: time.Now().Unix(), Model: e.o.Name, Data: make([]openai.Score, len(scores)), Usage: usage}
	for i, s := range scores {
		out.Data[i] = openai.Score{Index: i, Object: "score", Score: s}
	}
	e.answer(w, out)
}

// compare scores each second text against its first one, or against the only one. A
// cross-encoder reads both together; of embeddings it is the cosine. It is false
// when it has answered.
func (e *Encoder) compare(w http.ResponseWriter, r *http.Request, first, second []string, params [2]string, truncate *int) ([]float64, *openai.Usage, bool) {
	scores, usage, api, err := e.compared(r.Context(), first, second, params, truncate)
	switch {
	case api != nil:
		openai.WriteError(w, http.StatusBadRequest, api)
	case err != nil:
		e.failed(w, r.Context(), err)
	default:
		return scores, usage, true
	}
	return nil, nil, false
}

func (e *Encoder) compared(ctx context.Context, first, second []string, params [2]string, truncate *int) ([]float64, *openai.Usage, *openai.Error, error) {
	for i, n := range []int{len(first), len(second)} {
		if n == 0 || n > maxTexts {
			return nil, nil, openai.Invalid(params[i], "%s has %d texts: want 1 to %d", params[i], n, maxTexts), nil
		}
	}
	if len(first) != 1 && len(first) != len(second) {
		return nil, nil, openai.Invalid(params[0], "%s has %d texts and %s %d: want as many, or one", params[0], len(first), params[1], len(second)), nil
	}
	cut, api := e.cut(truncate)
	if api != nil {
		return nil, nil, api, nil
	}
	in, api := e.comparison(first, second, params, cut)
	if api != nil {
		return nil, nil, api, nil
	}
	rows, err := e.batcher.compute(ctx, in)
	if err != nil {
		return nil, nil, nil, err
	}
	scores := make([]float64, len(second))
	for i := range scores {
		if e.model.Scores() {
			scores[i] = float64(rows[i][0])
		} else {
			scores[i] = cosine(rows[min(i, len(first)-1)], rows[len(first)+i])
		}
	}
	return scores, tokensOf(in), nil, nil
}

// comparison makes the inputs: pairs, or all first texts and then all second ones.
func (e *Encoder) comparison(first, second []string, params [2]string, cut int) ([]tokenizer.Encoding, *openai.Error) {
	var in []tokenizer.Encoding
	if !e.model.Scores() {
		for p, texts := range [][]string{first, second} {
			for i, text := range texts {
				one, api := e.one(params[p], i, text, cut)
				if api != nil {
					return nil, api
				}
				in = append(in, one)
			}
		}
		return in, nil
	}
	for i, text := range second {
		pair, err := e.tok.Pair(first[min(i, len(first)-1)], text, cut)
		if err != nil {
			return nil, openai.Invalid(params[1], "%v", err)
		}
		if len(pair.IDs) > e.o.MaxModelLen {
			return nil, e.tooLong(params[1], i, len(pair.IDs))
		}
		in = append(in, pair)
	}
	return in, nil
}

// failed answers for the batcher.
func (e *Encoder) failed(w http.ResponseWriter, ctx context.Context, err error) {
	if errors.Is(err, errFull) {
		openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: err.Error(), Type: openai.TypeUnavailable, Code: "queue_full"})
		return
	}
	e.fail(w, ctx, err)
}

func tokensOf(in []tokenizer.Encoding) *openai.Usage {
	n := 0
	for _, one := range in {
		n += len(one.IDs)
	}
	return &openai.Usage{PromptTokens: n, TotalTokens: n}
}
