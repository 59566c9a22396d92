package bert

import (
	"bufio"
	"cmp"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"llmops/model/tokenizer"
)

// What examples/freight/train/encoder.py measured of the shipped weights.
const freightRecall, freightNDCG = 1.0, 0.9886

// The shipped encoder finds here what it found where it was trained.
func TestFreightEncoder(t *testing.T) {
	if testing.Short() {
		t.Skip("embeds 750 texts")
	}
	freight := filepath.Join("..", "..", "..", "examples", "freight")
	e, err := Load(filepath.Join(freight, "encoder"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(freight, "evals", "retrieval.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type entry struct {
		Kind, ID, Text string
		Relevant       []string
	}
	var entries []entry
	var in []tokenizer.Encoding
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var one entry
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, one)
		in = append(in, e.Tokenizer().Single(one.Text, e.Length()))
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	vectors, err := e.Embed(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	var recall, ndcg, queries float64
	for i, q := range entries {
		if q.Kind != "query" {
			continue
		}
		type hit struct {
			id    string
			score float64
		}
		var hits []hit
		for j, p := range entries {
			if p.Kind == "passage" {
				var s float64
				for k, x := range vectors[i] {
					s += float64(x) * float64(vectors[j][k])
				}
				hits = append(hits, hit{p.ID, s})
			}
		}
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) })
		var found, gain, ideal float64
		for rank, h := range hits[:10] {
			if slices.Contains(q.Relevant, h.id) {
				found++
				gain += 1 / math.Log2(float64(rank+2))
			}
			if rank < len(q.Relevant) {
				ideal += 1 / math.Log2(float64(rank+2))
			}
		}
		queries++
		recall += found / float64(len(q.Relevant))
		ndcg += gain / ideal
	}
	recall, ndcg = recall/queries, ndcg/queries
	t.Logf("recall@10 %.4f, nDCG@10 %.4f over %g queries", recall, ndcg, queries)
	// Rounding may swap neighbours: two queries of 250.
	if math.Abs(recall-freightRecall) > 0.008 || math.Abs(ndcg-freightNDCG) > 0.008 {
		t.Errorf("recall@10 %.4f and nDCG@10 %.4f, want %.4f and %.4f", recall, ndcg, freightRecall, freightNDCG)
	}
}
