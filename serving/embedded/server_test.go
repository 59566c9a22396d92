package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// modelDir holds a random checkpoint of a few kilobytes.
var modelDir = filepath.Join("llama", "testdata", "llama")

func serve(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	if o.ModelDir == "" {
		o.ModelDir = modelDir
	}
	if o.Name == "" {
		o.Name = "tiny"
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, h.URL
}

func post(t testing.TB, url, body string) (int, http.Header, []byte) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, b
}

// ask posts and wants success.
func ask[T any](t testing.TB, url, body string) T {
	t.Helper()
	status, _, b := post(t, url, body)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", body, status, b)
	}
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func get(t testing.TB, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// events posts and returns the data of each event.
func events(t testing.TB, url, body string) []string {
	t.Helper()
	status, header, b := post(t, url, body)
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("status %d, %s: %s", status, header.Get("Content-Type"), b)
	}
	var out []string
	r := openai.NewReader(bytes.NewReader(b), 0)
	for {
		e, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(e.Data))
	}
}

func TestChat(t *testing.T) {
	_, url := serve(t, Options{Version: "v7"})
	const body = `{"model":"tiny","messages":[{"role":"user","content":"the weight"}],"temperature":0,"max_tokens":9,"ignore_eos":true,"logprobs":true,"top_logprobs":2,"return_token_ids":true%s}`
	status, header, b := post(t, url+"/v1/chat/completions", fmt.Sprintf(body, ""))
	if status != 200 || header.Get(VersionHeader) != "v7" {
		t.Fatalf("status %d, version %q: %s", status, header.Get(VersionHeader), b)
	}
	var whole openai.ChatResponse
	if err := json.Unmarshal(b, &whole); err != nil {
		t.Fatal(err)
	}
	c := whole.Choices[0]
	if c.FinishReason != openai.FinishLength || c.Message.Role != "assistant" || len(c.TokenIDs) != 9 || len(c.Logprobs.Content) != 9 || whole.SystemFingerprint == "" {
		t.Errorf("got %s", b)
	}
	if u := whole.Usage; u.CompletionTokens != 9 || u.PromptTokens != len(whole.PromptTokenIDs) || u.TotalTokens != u.PromptTokens+9 {
		t.Errorf("usage %+v", u)
	}
	for _, l := range c.Logprobs.Content {
		if len(l.TopLogprobs) != 2 || l.TopLogprobs[0].Logprob != l.Logprob || l.Logprob >= 0 {
			t.Errorf("greedy token %+v is not the first of its alternatives", l)
		}
	}

	// The stream brings the same text, ids and usage.
	got := events(t, url+"/v1/chat/completions", fmt.Sprintf(body, `,"stream":true,"stream_options":{"include_usage":true}`))
	if got[len(got)-1] != "[DONE]" {
		t.Fatalf("the stream ends with %q", got[len(got)-1])
	}
	var text strings.Builder
	var ids []int
	var usage *openai.Usage
	finish := ""
	for i, data := range got[:len(got)-1] {
		var chunk openai.ChatChunk
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(err)
		}
		if chunk.Usage != nil {
			usage = chunk.Usage
		}
		for _, c := range chunk.Choices {
			if (c.Delta.Role == "assistant") != (i == 0) {
				t.Errorf("chunk %d has the role %q", i, c.Delta.Role)
			}
			text.WriteString(c.Delta.Content)
			ids = append(ids, c.TokenIDs...)
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
	}
	if text.String() != c.Message.Content.Text || !slices.Equal(ids, c.TokenIDs) || finish != "length" || usage == nil || usage.CompletionTokens != 9 {
		t.Errorf("streamed %q %v %q %+v, want %q %v", text.String(), ids, finish, usage, c.Message.Content.Text, c.TokenIDs)
	}
	// Its prompt was in the cache by then: 16 of its tokens fill a block.
	if usage != nil && usage.PromptTokensDetails.CachedTokens < core.BlockSize {
		t.Errorf("usage %+v has no cached tokens", usage.PromptTokensDetails)
	}
}

func TestCompletionScoresPrompts(t *testing.T) {
	_, url := serve(t, Options{})
	b, err := os.ReadFile(filepath.Join("llama", "testdata", "llama", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		IDs      []int
		Logprobs []float64
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	for _, g := range rows {
		ids, err := json.Marshal(g.IDs)
		if err != nil {
			t.Fatal(err)
		}
		for _, max := range []int{0, 1} {
			r := ask[openai.CompletionResponse](t, url+"/v1/completions",
				fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"echo":true,"logprobs":1,"temperature":0,"return_token_ids":true}`, ids, max))
			c := r.Choices[0]
			lp := c.Logprobs
			n := len(g.IDs) + max
			if len(lp.Tokens) != n || len(lp.TokenLogprobs) != n || len(lp.TopLogprobs) != n || len(lp.TextOffset) != n || !slices.Equal(c.PromptTokenIDs, g.IDs) {
				t.Fatalf("%d tokens and max_tokens %d give %d log probabilities", len(g.IDs), max, len(lp.Tokens))
			}
			if lp.TokenLogprobs[0] != nil || lp.TopLogprobs[0] != nil {
				t.Errorf("the first token has a log probability")
			}
			for i, want := range g.Logprobs {
				if got := lp.TokenLogprobs[i+1]; got == nil || math.Abs(*got-want) > 1e-3 {
					t.Errorf("log probability %d is %v, want %g", i+1, got, want)
					break
				}
				if top := lp.TopLogprobs[i+1]; top[lp.Tokens[i+1]] != *lp.TokenLogprobs[i+1] || len(top) > 2 {
					t.Errorf("alternatives %v do not hold the token %q itself", top, lp.Tokens[i+1])
				}
			}
			if !slices.IsSorted(lp.TextOffset) || r.Usage.PromptTokens != len(g.IDs) || r.Usage.CompletionTokens != max {
				t.Errorf("offsets %v, usage %+v", lp.TextOffset, r.Usage)
			}
		}
	}
}

func TestPromptsChoicesAndEcho(t *testing.T) {
	_, url := serve(t, Options{})
	r := ask[openai.CompletionResponse](t, url+"/v1/completions",
		`{"prompt":["the port","of lading"],"n":2,"temperature":1,"seed":3,"max_tokens":6,"ignore_eos":true,"echo":true,"return_token_ids":true}`)
	if len(r.Choices) != 4 || r.Usage.CompletionTokens != 24 {
		t.Fatalf("got %+v", r)
	}
	for i, c := range r.Choices {
		if c.Index != i || !strings.HasPrefix(c.Text, []string{"the port", "of lading"}[i/2]) || *c.FinishReason != "length" {
			t.Errorf("choice %d is %+v", i, c)
		}
	}
	if slices.Equal(r.Choices[0].TokenIDs, r.Choices[1].TokenIDs) {
		t.Error("two sampled answers are the same")
	}
	again := ask[openai.CompletionResponse](t, url+"/v1/completions",
		`{"prompt":"the port","temperature":1,"seed":3,"max_tokens":6,"ignore_eos":true,"return_token_ids":true}`)
	if !slices.Equal(again.Choices[0].TokenIDs, r.Choices[0].TokenIDs) {
		t.Errorf("seed 3 gave %v, then %v", r.Choices[0].TokenIDs, again.Choices[0].TokenIDs)
	}
}

func TestStopStringsAndMinTokens(t *testing.T) {
	_, url := serve(t, Options{})
	const body = `{"prompt":"the weight of","temperature":0,"max_tokens":30,"ignore_eos":true,"return_token_ids":true%s}`
	whole := ask[openai.CompletionResponse](t, url+"/v1/completions", fmt.Sprintf(body, ""))
	text := whole.Choices[0].Text
	runes := []rune(text)
	if len(runes) < 8 {
		t.Fatalf("the answer %q is too short for this test", text)
	}
	stop := string(runes[3:6])
	quoted, err := json.Marshal([]string{"never seen", stop})
	if err != nil {
		t.Fatal(err)
	}
	want := text[:strings.Index(text, stop)]
	r := ask[openai.CompletionResponse](t, url+"/v1/completions", fmt.Sprintf(body, `,"stop":`+string(quoted)))
	if c := r.Choices[0]; c.Text != want || *c.FinishReason != "stop" || c.StopReason != stop {
		t.Errorf("stop %q of %q gives %q, %s, %v", stop, text, c.Text, *c.FinishReason, c.StopReason)
	}
	var streamed strings.Builder
	for _, data := range events(t, url+"/v1/completions", fmt.Sprintf(body, `,"stream":true,"stop":`+string(quoted))) {
		var chunk openai.CompletionResponse
		if json.Unmarshal([]byte(data), &chunk) == nil {
			streamed.WriteString(chunk.Choices[0].Text)
		}
	}
	if streamed.String() != want {
		t.Errorf("streamed %q, want %q", streamed.String(), want)
	}
	r = ask[openai.CompletionResponse](t, url+"/v1/completions", fmt.Sprintf(body, `,"min_tokens":30,"stop":`+string(quoted)))
	if c := r.Choices[0]; len(c.TokenIDs) != 30 {
		t.Errorf("min_tokens 30 stopped after %d", len(c.TokenIDs))
	}
}

// One prompt gives the same tokens and log probabilities alone, among others, and
// from the cache.
func TestAnswersDoNotDependOnTheBatch(t *testing.T) {
	_, url := serve(t, Options{MaxBatchedTokens: 37})
	body := func(i int) string {
		return fmt.Sprintf(`{"prompt":"container %d is in the port of loading","temperature":0.8,"seed":%d,"max_tokens":20,"ignore_eos":true,"logprobs":3}`, i, i)
	}
	alone := make([]string, 16)
	one := func(i int) string {
		r := ask[openai.CompletionResponse](t, url+"/v1/completions", body(i))
		b, err := json.Marshal(r.Choices)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for i := range alone {
		alone[i] = one(i)
	}
	var wg sync.WaitGroup
	together := make([]string, 48)
	for i := range together {
		wg.Go(func() { together[i] = one(i % 16) })
	}
	wg.Wait()
	for i, got := range together {
		if got != alone[i%16] {
			t.Errorf("request %d together:\n%s\nalone:\n%s", i, got, alone[i%16])
		}
	}
}

func TestRefusals(t *testing.T) {
	_, url := serve(t, Options{MaxModelLen: 64, MaxBody: 4096})
	long := strings.Repeat("x ", 70)
	const user = `"messages":[{"role":"user","content":"a"}]`
	for _, tt := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"chat/completions", `{` + user + `,"model":"other"}`, 404, `"model_not_found"`},
		{"chat/completions", `{"messages":[]}`, 400, "messages is empty"},
		{"chat/completions", `{"messages":[{"content":"a"}]}`, 400, "no role"},
		{"chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "image_url"},
		{"chat/completions", `{` + user + `,"max_tokens":0}`, 400, "max_tokens is 0"},
		{"chat/completions", `{` + user + `,"max_tokens":3,"max_completion_tokens":4}`, 400, "send one"},
		{"chat/completions", `{` + user + `,"top_logprobs":3}`, 400, "without logprobs"},
		{"chat/completions", `{` + user + `,"logprobs":true,"top_logprobs":21}`, 400, "0 to 20"},
		{"chat/completions", `{` + user + `,"max_tokens":100}`, 400, "maximum context length is 64 tokens"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"xml"}}`, 400, "want the type text"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"json_schema"}}`, 400, "has a schema"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"json_schema","json_schema":{"schema":{"patternProperties":{}}}}}`, 400, "patternProperties"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"json_object"},"ignore_eos":true}`, 400, "ignore_eos contradicts"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"json_object"},"min_tokens":3}`, 400, "min_tokens contradicts"},
		{"chat/completions", `{` + user + `,"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}}`, 400, "send one"},
		{"completions", `{"prompt":"a","structured_outputs":{"regex":"a","choice":["b"]}}`, 400, "2 forms"},
		{"completions", `{"prompt":"a","structured_outputs":{"grammar":"a"}}`, 400, "grammar"},
		{"completions", `{"prompt":"a","priority":99999999999}`, 400, "priority"},
		{"completions", `{"prompt":"a","kv_transfer_params":{"do_remote_decode":true}}`, 400, "kv role"},
		{"load_lora_adapter", `{"lora_name":"a","lora_path":"/nowhere"}`, 400, "without adapters"},
		{"unload_lora_adapter", `{"lora_name":"a"}`, 404, "model_not_found"},
		{"chat/completions", `{` + user + `,"tools":[{}],"tool_choice":"required"}`, 400, "tool_choice"},
		{"chat/completions", `{` + user + `,"unheard_of":1}`, 400, "unheard_of"},
		{"completions", `{"prompt":"` + long + `","max_tokens":1}`, 400, "context_length_exceeded"},
		{"completions", `{"prompt":[1,999]}`, 400, "outside the vocabulary"},
		{"completions", `{"prompt":""}`, 400, "no tokens"},
		{"completions", `{}`, 400, "prompt is missing"},
		{"completions", `{"prompt":"a","max_tokens":0}`, 400, "0 with echo"},
		{"completions", `{"prompt":"a","temperature":-1}`, 400, "temperature"},
		{"completions", `{"prompt":"a","top_p":0}`, 400, "top_p"},
		{"completions", `{"prompt":"a","n":2,"temperature":0}`, 400, "greedy"},
		{"completions", `{"prompt":"a","stream_options":{"include_usage":true}}`, 400, "without stream"},
		{"completions", `{"prompt":"a","stop":""}`, 400, "empty string"},
		{"completions", `{"prompt":"a","min_tokens":20,"max_tokens":2}`, 400, "min_tokens"},
		{"completions", `{"prompt":"a","logprobs":99}`, 400, "logprobs"},
		{"completions", `{"prompt":"a","echo":true,"logprobs":1,"stream":true}`, 400, "streamed"},
		{"completions", `{"prompt":"a","suffix":"b"}`, 400, "suffix"},
		{"completions", `{"prompt":"a","best_of":3}`, 400, "best_of"},
		{"completions", `{"prompt":"a","logit_bias":{"9999":1}}`, 400, "logit_bias"},
		{"completions", "{\"prompt\":\"\xff\"}", 400, "UTF-8"},
		{"completions", `{"prompt":"` + strings.Repeat("y", 5000) + `"}`, 413, "4096"},
		{"completions", `{"prompt":`, 400, "JSON"},
		{"embeddings", `{}`, 404, "not served"},
	} {
		status, _, b := post(t, url+"/v1/"+tt.path, tt.body)
		var e struct{ Error *openai.Error }
		if err := json.Unmarshal(b, &e); err != nil || e.Error == nil || e.Error.Message == "" {
			t.Errorf("%.80s: answer %s is no error of the API", tt.body, b)
		}
		if status != tt.status || !strings.Contains(string(b), tt.want) {
			t.Errorf("%.80s: status %d, %s; want %d with %q", tt.body, status, b, tt.status, tt.want)
		}
	}
	// It still answers.
	ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":"a","max_tokens":1}`)
}

func TestModelsHealthMetrics(t *testing.T) {
	s, url := serve(t, Options{Version: "v2"})
	ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":"`+strings.Repeat("weight of the ", 20)+`","max_tokens":5,"ignore_eos":true}`)
	if status, _ := get(t, url+"/health"); status != 200 {
		t.Errorf("health is %d", status)
	}
	if _, body := get(t, url+"/version"); !strings.Contains(body, `"v2"`) {
		t.Errorf("version is %s", body)
	}
	_, body := get(t, url+"/v1/models")
	var m openai.Models
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	if d := m.Data[0]; d.ID != "tiny" || d.MaxModelLen != 256 || d.Meta["version"] != "v2" || d.Quantisation != "none" || d.Root == "" {
		t.Errorf("models %+v", d)
	}
	// The last answer is out a moment before its step is counted.
	until, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	text := ""
	counted := func() bool {
		return strings.Contains(text, `vllm:generation_tokens_total{engine="0",model_name="tiny"} 5`) && strings.Contains(text, `vllm:num_requests_running{engine="0",model_name="tiny"} 0`)
	}
	for !counted() && until.Err() == nil {
		_, text = get(t, url+"/metrics")
	}
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="tiny"} 0`, `vllm:num_requests_waiting{`, `vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0`,
		`vllm:generation_tokens_total{engine="0",model_name="tiny"} 5`, `vllm:prompt_tokens_total{`, `vllm:prefix_cache_queries_total{`, `vllm:prefix_cache_hits_total{`,
		`vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"} 1`, `vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 4`, `vllm:e2e_request_latency_seconds_bucket{engine="0",model_name="tiny",le="+Inf"} 1`,
		`vllm:cache_config_info{engine="0",model_name="tiny",block_size="16",num_gpu_blocks="256"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if status, _ := get(t, url+"/health"); status != 503 {
		t.Errorf("health is %d while draining", status)
	}
	if status, _, _ := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != 503 {
		t.Errorf("a request gets %d while draining", status)
	}
}

// A client that leaves frees its blocks, in the queue and while it is served.
func TestClientsThatLeave(t *testing.T) {
	s, url := serve(t, Options{MaxNumSeqs: 1, Fault: mustFault(t, "slow-prompt:over=1,per-token=1ms")})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(`{"prompt":"the weight of the container","max_tokens":200,"ignore_eos":true,"stream":true}`))
			if err != nil {
				t.Error(err)
				return
			}
			r, err := http.DefaultClient.Do(req)
			if err != nil {
				return // it had no first token yet
			}
			defer r.Body.Close()
			cancel()
			_, _ = io.Copy(io.Discard, r.Body)
		})
	}
	wg.Wait()
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan core.Stats)
	if err := s.loop.post(func(time.Duration) { done <- s.loop.core.Stats() }); err != nil {
		t.Fatal(err)
	}
	if st := <-done; st.Running+st.Waiting+st.UsedBlocks != 0 || st.Generated >= 600 {
		t.Errorf("after all have left: %+v", st)
	}
}

func TestDrainWaitsForAnswersAndCloseEndsThem(t *testing.T) {
	s, url := serve(t, Options{Fault: mustFault(t, "slow-prompt:over=1,per-token=200ms")})
	started := make(chan struct{})
	status := make(chan int)
	go func() {
		r, err := http.Post(url+"/v1/completions", "", &notify{Reader: strings.NewReader(`{"prompt":"the weight","max_tokens":3}`), done: started})
		if err != nil {
			status <- 0
			return
		}
		defer r.Body.Close()
		status <- r.StatusCode
	}()
	<-started
	for { // until the handler has counted it
		s.mu.Lock()
		n := s.inFlight
		s.mu.Unlock()
		if n == 1 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Drain(ctx); err == nil || !strings.Contains(err.Error(), "1 requests") {
		t.Errorf("draining with a request under way: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-status; got != 503 && got != 500 {
		t.Errorf("the request got %d when the engine closed", got)
	}
}

type notify struct {
	io.Reader
	done chan struct{}
}

func (n *notify) Read(p []byte) (int, error) {
	c, err := n.Reader.Read(p)
	if err == io.EOF {
		close(n.done)
	}
	return c, err
}

func TestDefaultsOfTheCheckpoint(t *testing.T) {
	dir := copyModel(t, "llama")
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"do_sample":false,"eos_token_id":[2,7],"repetition_penalty":1.3,"max_new_tokens":5}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s, url := serve(t, Options{ModelDir: dir})
	if d := s.defaults; !slices.Equal(d.stop, []int{2, 7}) || d.temperature != 0 || d.repetition != 1.3 || d.maxNew != 5 {
		t.Errorf("defaults %+v", d)
	}
	a := ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":"the weight","ignore_eos":true}`)
	b := ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":"the weight","ignore_eos":true}`)
	if a.Choices[0].Text != b.Choices[0].Text || a.Usage.CompletionTokens != 5 {
		t.Errorf("answers %q and %q of %d tokens are not greedy or not 5", a.Choices[0].Text, b.Choices[0].Text, a.Usage.CompletionTokens)
	}
}

// copyModel copies a checkpoint to a folder that a test may change.
// A vocabulary smaller than the tokenizer's would answer with ids that have no logit.
func TestVocabularyOfAnotherTokenizer(t *testing.T) {
	dir := copyModel(t, "llama")
	file := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte(`"vocab_size": 320`), []byte(`"vocab_size": 100`), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{ModelDir: dir}); err == nil || !strings.Contains(err.Error(), "tokenizer.json has 320") {
		t.Errorf("error %v", err)
	}
}

func copyModel(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("llama", "testdata", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What a stream brings, put together, is the text up to the first stop string.
func FuzzStopStrings(f *testing.F) {
	tok, err := tokenizer.Load(filepath.Join("llama", "testdata", "llama"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("the weight of the container is 12 kg", "tain", "kg")
	f.Add("aaaaab", "aab", "ab")
	f.Add("é\u20ac🚢", "\u20ac", "x")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		ids := tok.Encode(text, false)
		if a == "" || b == "" || len(ids) == 0 {
			return
		}
		want := tok.Decode(ids, true)
		at, _ := firstStop(want, []string{a, b})
		if at >= 0 {
			want = want[:at]
		}
		r := &request{seq: &core.Sequence{}, text: tok.Stream(true), stop: []string{a, b}}
		got, finish := "", ""
		for i, id := range ids {
			e := core.Event{Seq: r.seq, Token: &core.Token{ID: id}}
			if i == len(ids)-1 {
				e.Finish = "length"
			}
			u := r.advance(e)
			got += u.text
			if finish = u.finish; finish != "" {
				break
			}
		}
		// Two stop strings that overlap may end at different tokens; the one that is whole first wins.
		if got != want && !(finish == "stop" && strings.HasPrefix(got, want)) {
			t.Errorf("%q up to %q or %q came as %q, want %q", text, a, b, got, want)
		}
		if (finish == "stop") != (at >= 0) {
			t.Errorf("%q with %q or %q ends with %q", text, a, b, finish)
		}
	})
}
