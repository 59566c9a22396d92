package eval

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"llmops/evidence"
	"llmops/serving/openai"
)

// encoder is a server whose vectors count words; blind ones hash the whole text.
type encoder struct {
	blind func(text string) bool
	drop  bool // leaves a result out
}

func (e encoder) vector(text string) []float32 {
	v := make([]float32, 64)
	words := strings.Fields(text)
	if e.blind != nil && e.blind(text) {
		words = []string{text}
	}
	for _, w := range words {
		h := fnv.New32a()
		h.Write([]byte(w))
		v[h.Sum32()%64]++
	}
	return v
}

func (e encoder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/embeddings":
		var q openai.EmbeddingRequest
		if err := openai.Decode(r.Body, &q); err != nil {
			openai.WriteError(w, 400, &openai.Error{Message: err.Error()})
			return
		}
		res := openai.EmbeddingResponse{Object: "list"}
		for i, text := range q.Input.Texts {
			res.Data = append(res.Data, openai.Embedding{Index: i, Embedding: openai.Vector{Values: e.vector(text)}})
		}
		if e.drop {
			res.Data = res.Data[1:]
		}
		slices.Reverse(res.Data) // the index says whose a vector is
		_ = json.NewEncoder(w).Encode(res)
	case "/v1/rerank":
		var q openai.RerankRequest
		if err := openai.Decode(r.Body, &q); err != nil {
			openai.WriteError(w, 400, &openai.Error{Message: err.Error()})
			return
		}
		res := openai.RerankResponse{}
		for i, d := range q.Documents {
			res.Results = append(res.Results, openai.RerankResult{Index: i, RelevanceScore: cosine(e.vector(q.Query), e.vector(d.Text))})
		}
		if e.drop {
			res.Results = res.Results[1:]
		}
		slices.Reverse(res.Results)
		_ = json.NewEncoder(w).Encode(res)
	default:
		http.NotFound(w, r)
	}
}

func (e encoder) arm(t *testing.T, name string) Arm {
	t.Helper()
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return Arm{Name: name, Model: "m", Client: &openai.Client{BaseURL: s.URL}}
}

func corpus(n int) Corpus {
	var c Corpus
	for i := range n {
		id := fmt.Sprint("p", i)
		c.Passages = append(c.Passages, Passage{ID: id, Text: fmt.Sprintf("vessel%d sails from port%d with cargo%d", i, i*7%n, i*3%n)})
		c.Queries = append(c.Queries, Query{ID: fmt.Sprint("q", i), Text: fmt.Sprintf("vessel%d cargo%d", i, i*3%n), Relevant: []string{id}, Doc: fmt.Sprint(i / 3)})
	}
	return c
}

// A candidate that is the same passes, one that is blind to a third fails, and with
// few queries nothing is known.
func TestRetrieval(t *testing.T) {
	good := encoder{}
	poor := encoder{blind: func(s string) bool { h := fnv.New32a(); h.Write([]byte(s)); return h.Sum32()%3 == 0 }}
	for name, find := range map[string]func(a, b Arm, c Corpus) ([]Found, error){
		"embed":  func(a, b Arm, c Corpus) ([]Found, error) { return Embed(t.Context(), a, b, c, 5, 4, nothing) },
		"rerank": func(a, b Arm, c Corpus) ([]Found, error) { return Rerank(t.Context(), a, b, c, 5, 4, nothing) },
	} {
		for _, tt := range []struct {
			n    int
			arm  encoder
			want evidence.Outcome
		}{{240, good, evidence.Pass}, {240, poor, evidence.Fail}, {9, good, evidence.Inconclusive}} {
			found, err := find(good.arm(t, "parent"), tt.arm.arm(t, "candidate"), corpus(tt.n))
			if err != nil {
				t.Fatal(err)
			}
			v := JudgeFound(found, 5, SuiteOptions{Name: "cargo", Margin: 0.03, Confidence: 0.95})
			if v.Outcome != tt.want || len(v.Parts) != 2 || v.N != tt.n {
				t.Errorf("%s of %d: %v, %+v", name, tt.n, v.Outcome, v)
			}
		}
		if _, err := find(good.arm(t, "parent"), encoder{drop: true}.arm(t, "candidate"), corpus(20)); err == nil || !strings.Contains(err.Error(), "candidate") {
			t.Errorf("%s: an answer that lacks one: %v", name, err)
		}
		blind := encoder{blind: func(string) bool { return true }}
		found, err := find(blind.arm(t, "parent"), blind.arm(t, "candidate"), corpus(240))
		if err != nil {
			t.Fatal(err)
		}
		if v := JudgeFound(found, 5, SuiteOptions{Name: "cargo", Margin: 0.03, Confidence: 0.95}); v.Outcome != evidence.Inconclusive {
			t.Errorf("%s: two that find nothing are %v", name, v.Outcome)
		}
	}
}

func TestRank(t *testing.T) {
	c := Corpus{Passages: []Passage{{"a", "x"}, {"b", "x"}, {"c", "x"}, {"d", "x"}}}
	for _, tt := range []struct {
		relevant, among []string
		scores          []float64
		want            Ranking
	}{
		{[]string{"b"}, nil, []float64{1, 3, 2, 0}, Ranking{[]string{"b", "c"}, 1, 1}},
		{[]string{"c"}, nil, []float64{1, 3, 2, 0}, Ranking{[]string{"b", "c"}, 1, 1 / math.Log2(3)}},
		{[]string{"d", "b", "a"}, nil, []float64{1, 3, 2, 0}, Ranking{[]string{"b", "c"}, 1.0 / 3, 1 / (1 + 1/math.Log2(3))}},
		{[]string{"a"}, []string{"a", "d"}, []float64{1, 3, 2, math.NaN()}, Ranking{[]string{"a", "d"}, 1, 1}},
		{[]string{"d"}, nil, []float64{1, 1, 1, 1}, Ranking{[]string{"a", "b"}, 0, 0}},
	} {
		if got := rank(c, Query{Relevant: tt.relevant, Among: tt.among}, tt.scores, 2); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v: %+v, want %+v", tt.relevant, got, tt.want)
		}
	}
}

func TestReadCorpus(t *testing.T) {
	write := func(s string) string {
		path := filepath.Join(t.TempDir(), "c.jsonl")
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const passage, query = `{"kind":"passage","id":"p","text":"x"}` + "\n", `{"kind":"query","id":"q","text":"y","relevant":["p"]}` + "\n"
	c, digest, err := ReadCorpus(write(passage+query+`{"kind":"query","id":"r","text":"z","relevant":["p"],"among":["p"]}`), 1)
	if err != nil || digest == "" || len(c.Passages) != 1 || len(c.Queries) != 1 || c.Queries[0].Relevant[0] != "p" {
		t.Errorf("%+v, %v", c, err)
	}
	for in, want := range map[string]string{
		passage:                   "1 passages and 0 queries",
		passage + passage + query: "of its own",
		passage + query + query:   "of its own",
		passage + `{"kind":"query","id":"q","text":"y"}`:                  "something relevant",
		passage + `{"kind":"both","id":"b"}`:                              "not one of passage, query",
		passage + `{"kind":"query","id":"q","text":"y","relevant":["x"]}`: `"x", which is not there`,
		passage + `{"kind":"passage","id":"o","text":"x"}` + "\n" + `{"kind":"query","id":"q","text":"y","relevant":["p"],"among":["o"]}`: "never find",
		passage + query + `{"kind":"query","id":"r","question":"z"}`:                                                                      ":3:",
	} {
		if _, _, err := ReadCorpus(write(in), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", in, err, want)
		}
	}
}
