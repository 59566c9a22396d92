package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/model"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/bert"
	"llmops/serving/openai"
)

func encoderDir(name string) string { return filepath.Join("bert", "testdata", name) }

func serveEncoder(t testing.TB, name string, o Options) (*Encoder, *openai.Client) {
	t.Helper()
	o.ModelDir, o.Name = encoderDir(name), "tiny"
	e, err := NewEncoder(o)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(e)
	t.Cleanup(func() {
		h.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, &openai.Client{BaseURL: h.URL}
}

// alone computes texts without a server, one by one.
func alone(t testing.TB, name string, texts ...string) [][]float32 {
	t.Helper()
	m, err := bert.Load(encoderDir(name), bert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out [][]float32
	for _, text := range texts {
		v, err := m.Embed(t.Context(), []tokenizer.Encoding{m.Tokenizer().Single(text, 0)})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v[0])
	}
	return out
}

func TestEmbeddings(t *testing.T) {
	_, c := serveEncoder(t, "mean", Options{Version: "v1"})
	texts := []string{"the vessel", "", "Gross weight: 18,420.5 kg", "the vessel"}
	want := alone(t, "mean", texts...)
	for _, format := range []string{"", openai.FormatFloat, openai.FormatBase64} {
		got, header, err := c.Embeddings(t.Context(), &openai.EmbeddingRequest{Model: "tiny", Input: openai.Input{Prompt: openai.Prompt{Texts: texts}}, EncodingFormat: format})
		if err != nil {
			t.Fatal(err)
		}
		if header.Get(VersionHeader) != "v1" || got.Object != "list" || got.Model != "tiny" || len(got.Data) != len(texts) || got.Usage.PromptTokens < 10 || got.Usage.TotalTokens != got.Usage.PromptTokens {
			t.Errorf("%s: header %v, %+v", format, header, got)
		}
		for i, d := range got.Data {
			if d.Index != i || d.Object != "embedding" || d.Embedding.Base64 != (format == openai.FormatBase64) || !slices.Equal(d.Embedding.Values, want[i]) {
				t.Errorf("%q in format %q: %+v, want %v", texts[i], format, d, want[i])
			}
		}
	}
	tok, err := tokenizer.Load(encoderDir("mean"))
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode("the vessel", true)
	got, _, err := c.Embeddings(t.Context(), &openai.EmbeddingRequest{Input: openai.Input{Prompt: openai.Prompt{Tokens: [][]int{ids}}}})
	if err != nil || !slices.Equal(got.Data[0].Embedding.Values, want[0]) || got.Usage.PromptTokens != len(ids) {
		t.Errorf("by token ids: %+v, %v", got, err)
	}
	long := strings.Repeat("the vessel ", 100)
	cut := 10
	got, _, err = c.Embeddings(t.Context(), &openai.EmbeddingRequest{Input: openai.Input{Prompt: openai.Prompt{Texts: []string{long}}}, TruncatePromptTokens: &cut})
	if err != nil || got.Usage.PromptTokens != 10 {
		t.Errorf("cut: %+v, %v", got, err)
	}
}

func TestRerankAndScore(t *testing.T) {
	m, err := bert.Load(encoderDir("cross"), bert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	query, docs := "weight of the cargo", []string{"they've signed", "Gross weight: 18,420.5 kg", "", "the port of loading", "the port of loading"}
	var want []float64
	for _, d := range docs {
		pair, err := m.Tokenizer().Pair(query, d, 0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.Score(t.Context(), []tokenizer.Encoding{pair})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, float64(s[0]))
	}
	_, c := serveEncoder(t, "cross", Options{})
	q := &openai.RerankRequest{Model: "tiny", Query: query}
	for _, d := range docs {
		q.Documents = append(q.Documents, openai.Document{Text: d})
	}
	got, _, err := c.Rerank(t.Context(), q)
	if err != nil || len(got.Results) != len(docs) || got.Usage.TotalTokens == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, r := range got.Results {
		if r.RelevanceScore != want[r.Index] || r.Document == nil || r.Document.Text != docs[r.Index] {
			t.Errorf("result %d: %+v, want %g", i, r, want[r.Index])
		}
		if i > 0 && (got.Results[i-1].RelevanceScore < r.RelevanceScore || got.Results[i-1].RelevanceScore == r.RelevanceScore && got.Results[i-1].Index > r.Index) {
			t.Errorf("result %d is out of order", i)
		}
	}
	two, no := 2, false
	q.TopN, q.ReturnDocuments = &two, &no
	short, _, err := c.Rerank(t.Context(), q)
	if err != nil || len(short.Results) != 2 || short.Results[0].Index != got.Results[0].Index || short.Results[0].Document != nil {
		t.Errorf("two of them: %+v, %v", short, err)
	}
	scores := ask[openai.ScoreResponse](t, c.BaseURL+"/v1/score", `{"model":"tiny","text_1":"weight of the cargo","text_2":["they've signed","the port of loading"]}`)
	if len(scores.Data) != 2 || scores.Data[0].Score != want[0] || scores.Data[1].Score != want[3] || scores.Data[1].Index != 1 {
		t.Errorf("scores %+v, want %v", scores, want)
	}
	paired := ask[openai.ScoreResponse](t, c.BaseURL+"/score", `{"text_1":["x","weight of the cargo"],"text_2":["y","they've signed"]}`)
	if len(paired.Data) != 2 || paired.Data[1].Score != want[0] {
		t.Errorf("pairs %+v", paired)
	}
}

func TestScoresOfEmbeddingsAreCosines(t *testing.T) {
	_, c := serveEncoder(t, "cls", Options{})
	v := alone(t, "cls", "the vessel", "the port", "kg")
	got := ask[openai.ScoreResponse](t, c.BaseURL+"/v1/score", `{"text_1":"the vessel","text_2":["the vessel","the port","kg"]}`)
	if math.Abs(got.Data[0].Score-1) > 1e-6 || got.Data[1].Score != cosine(v[0], v[1]) || got.Data[2].Score != cosine(v[0], v[2]) {
		t.Errorf("%+v, want 1, %g and %g", got, cosine(v[0], v[1]), cosine(v[0], v[2]))
	}
	if cosine(make([]float32, 3), []float32{1, 2, 3}) != 0 {
		t.Error("a vector without direction has a cosine")
	}
}

func TestEncoderRefusals(t *testing.T) {
	_, embed := serveEncoder(t, "mean", Options{MaxBody: 1 << 16})
	_, cross := serveEncoder(t, "cross", Options{})
	long := strings.Repeat("the vessel ", 60)
	many := strings.TrimSuffix(strings.Repeat(`"a",`, maxTexts+1), ",")
	for _, tt := range []struct {
		c          *openai.Client
		path, body string
		status     int
		want       string
	}{
		{embed, "/v1/embeddings", `{"input":"a","model":"other"}`, 404, "model_not_found"},
		{embed, "/v1/embeddings", `{}`, 400, "input is missing"},
		{embed, "/v1/embeddings", `{"input":[]}`, 400, "empty list"},
		{embed, "/v1/embeddings", `{"input":["a","` + long + `"]}`, 400, `maximum context length is 64 tokens, input 1 has`},
		{embed, "/v1/embeddings", `{"input":["a","` + long + `"]}`, 400, `context_length_exceeded`},
		{embed, "/v1/embeddings", `{"input":[99999]}`, 400, "token 99999"},
		{embed, "/v1/embeddings", `{"input":"a","encoding_format":"int8"}`, 400, "int8"},
		{embed, "/v1/embeddings", `{"input":"a","dimensions":8}`, 400, "dimensions is 8: this model has 24"},
		{embed, "/v1/embeddings", `{"input":"a","truncate_prompt_tokens":65}`, 400, "want 1 to 64"},
		{embed, "/v1/embeddings", `{"input":"a","temperature":1}`, 400, "temperature"},
		{embed, "/v1/embeddings", `{"input":[` + many + `]}`, 400, "want at most 2048"},
		{embed, "/v1/embeddings", "{\"input\":\"\xff\"}", 400, "UTF-8"},
		{embed, "/v1/embeddings", `{"input":"` + strings.Repeat("a", 1<<16) + `"}`, 413, "body_too_large"},
		{embed, "/v1/completions", `{}`, 404, "not served here"},
		{cross, "/v1/embeddings", `{"input":"a"}`, 400, "has no embeddings"},
		{cross, "/v1/rerank", `{"query":"a","documents":[]}`, 400, "documents has 0 texts"},
		{cross, "/v1/rerank", `{"query":"a","documents":["b"],"top_n":0}`, 400, "top_n is 0"},
		{cross, "/rerank", `{"query":"a","documents":["b","` + long + `"]}`, 400, "documents 1 has"},
		{cross, "/v1/score", `{"text_1":["a","b"],"text_2":["c","d","e"]}`, 400, "want as many, or one"},
		{cross, "/v1/score", `{"text_2":["c"]}`, 400, "text_1 has 0 texts"},
	} {
		status, _, b := post(t, tt.c.BaseURL+tt.path, tt.body)
		if status != tt.status || !strings.Contains(string(b), tt.want) {
			t.Errorf("%s %.60s: %d %s, want %d with %q", tt.path, tt.body, status, b, tt.status, tt.want)
		}
	}
}

func TestEncoderOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no estimates":         {ModelDir: encoderDir("mean"), Overcommit: true},
		"maximum model length": {ModelDir: encoderDir("mean"), MaxModelLen: 65},
		"at least the maximum": {ModelDir: encoderDir("mean"), MaxBatchedTokens: 63, MaxNumSeqs: 2},
		"architecture":         {ModelDir: modelDir},
		"the fault garbage":    {ModelDir: encoderDir("mean"), Fault: parse(t, "garbage")},
		"config.json":          {ModelDir: t.TempDir()},
	} {
		if _, err := NewEncoder(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for dir, want := range map[string]bool{encoderDir("mean"): true, encoderDir("cross"): true, modelDir: false} {
		s, err := model.LoadShape(dir)
		if err != nil || IsEncoder(s) != want {
			t.Errorf("%s: IsEncoder is %v, %v", dir, IsEncoder(s), err)
		}
	}
}

func parse(t *testing.T, s string) Fault {
	t.Helper()
	f, err := ParseFault(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Requests at once give what each gives alone, in fewer steps than texts.
func TestEncoderBatches(t *testing.T) {
	e, c := serveEncoder(t, "mean", Options{MaxNumSeqs: 8, MaxBatchedTokens: 80, Threads: 2})
	var texts []string
	for i := range 40 {
		texts = append(texts, fmt.Sprintf("container %d of the vessel%s", i, strings.Repeat(" kg", i%9)))
	}
	want := alone(t, "mean", texts...)
	var wg sync.WaitGroup
	for i, text := range texts {
		wg.Go(func() {
			both := []string{text, texts[0]}
			got, _, err := c.Embeddings(t.Context(), &openai.EmbeddingRequest{Input: openai.Input{Prompt: openai.Prompt{Texts: both}}})
			if err != nil || !slices.Equal(got.Data[0].Embedding.Values, want[i]) || !slices.Equal(got.Data[1].Embedding.Values, want[0]) {
				t.Errorf("text %d: %v, its result differs from the one alone", i, err)
			}
		})
	}
	wg.Wait()
	var b bytes.Buffer
	if err := e.metrics.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`vllm:request_success_total{engine="0",model_name="tiny",finished_reason="stop"} 80`, `vllm:num_requests_running{engine="0",model_name="tiny"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="tiny"} 0`, `vllm:request_prompt_tokens_count{engine="0",model_name="tiny"} 80`,
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("metrics lack %s:\n%s", line, b.String())
		}
	}
}

func TestBatcher(t *testing.T) {
	m, err := bert.Load(encoderDir("mean"), bert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(n int) tokenizer.Encoding { return tokenizer.Encoding{IDs: make([]int, n), Types: make([]int, n)} }
	b := newBatcher(m, 3, 50, newEncoderMetrics("m"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.compute(gone, []tokenizer.Encoding{in(9)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a request that left", err)
	}
	results := make(chan error, 2)
	for _, lengths := range [][]int{{20, 20, 20}, {1, 1, 1, 1, 60}} {
		var texts []tokenizer.Encoding
		for _, n := range lengths {
			texts = append(texts, in(n))
		}
		before := 0
		b.mu.Lock()
		before = len(b.waiting)
		b.mu.Unlock()
		go func() {
			rows, err := b.compute(t.Context(), texts)
			for i := range rows {
				if err == nil && len(rows[i]) != m.Width() {
					err = fmt.Errorf("row %d has %d values", i, len(rows[i]))
				}
			}
			results <- err
		}()
		for waits := 0; waits < before+len(lengths); { // both queue in this order
			b.mu.Lock()
			waits = len(b.waiting)
			b.mu.Unlock()
			runtime.Gosched()
		}
	}
	var sizes []int
	for batch := b.next(); len(batch) > 0; batch = b.next() {
		sizes = append(sizes, len(batch))
		rows, err := b.step(t.Context(), batch)
		b.finish(batch, rows, err)
	}
	// Two texts of 20 fit 50 tokens; of the rest three fit a step; the longest goes alone.
	if want := []int{2, 3, 2, 1}; !slices.Equal(sizes, want) {
		t.Errorf("steps of %v texts, want %v", sizes, want)
	}
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, err := b.compute(t.Context(), make([]tokenizer.Encoding, maxWaiting+1)); !errors.Is(err, errFull) {
		t.Errorf("error %v for too many texts", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	b.run(ctx)
	if _, err := b.compute(t.Context(), []tokenizer.Encoding{in(1)}); !errors.Is(err, errClosed) {
		t.Errorf("error %v after the end", err)
	}
}

func TestOneFailureIsNotTheOthers(t *testing.T) {
	e, _ := serveEncoder(t, "mean", Options{})
	bad := tokenizer.Encoding{IDs: []int{-1}, Types: []int{0}}
	good := tokenizer.Encoding{IDs: []int{2, 3}, Types: []int{0, 0}}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := e.batcher.compute(t.Context(), []tokenizer.Encoding{good}); err != nil {
				t.Errorf("a good text failed: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := e.batcher.compute(t.Context(), []tokenizer.Encoding{good, bad, good}); err == nil {
				t.Error("a bad text succeeded")
			}
		})
	}
	wg.Wait()
}

func TestEncoderDrainAndClose(t *testing.T) {
	e, c := serveEncoder(t, "mean", Options{Fault: parse(t, "error:status=503;version:say=v0")})
	if status, header, b := post(t, c.BaseURL+"/v1/embeddings", `{"input":"a"}`); status != 503 || header.Get(VersionHeader) != "v0" || !strings.Contains(string(b), "fault") {
		t.Errorf("with faults: %d %v %s", status, header, b)
	}
	m, err := c.Models(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.Data[0].ID != "tiny" || m.Data[0].MaxModelLen != 64 || m.Data[0].Meta["kind"] != "embedding" {
		t.Errorf("%+v", m)
	}
	if err := c.Health(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.Drain(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Health(t.Context()); err == nil {
		t.Error("healthy while draining")
	}
	var api struct{ Error openai.Error }
	status, _, b := post(t, c.BaseURL+"/v1/embeddings", `{"input":"a"}`)
	if err := json.Unmarshal(b, &api); err != nil || status != http.StatusServiceUnavailable || api.Error.Code != "draining" {
		t.Errorf("while draining: %d %s", status, b)
	}
}
