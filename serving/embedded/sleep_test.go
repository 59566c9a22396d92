package embedded

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"llmops/serving/openai"
)

// Asleep the engine refuses work and has no cache; awake it answers as before.
func TestSleepAndWake(t *testing.T) {
	dir := writeAdapter(t, 4, 0.5)
	_, url := serve(t, Options{LoRA: LoRA{Max: 1, Modules: map[string]string{"a": dir}}})
	const body = `{"prompt":"the port of loading is the port of loading","max_tokens":12,"temperature":0,"ignore_eos":true`
	want := ask[openai.CompletionResponse](t, url+"/v1/completions", body+`}`)
	adapted := ask[openai.CompletionResponse](t, url+"/v1/completions", body+`,"model":"a"}`)
	asleep := func() bool {
		_, b := get(t, url+"/is_sleeping")
		return strings.Contains(b, "true")
	}
	for _, level := range []string{"", "?level=1&mode=wait", "?level=2"} {
		if status, _, b := post(t, url+"/sleep"+level, ""); status != 200 || !asleep() {
			t.Fatalf("sleep%s: %d %s", level, status, b)
		}
		if status, _, b := post(t, url+"/v1/completions", body+`}`); status != 503 || !strings.Contains(string(b), "sleeping") {
			t.Errorf("asleep: %d %s", status, b)
		}
		if status, _ := get(t, url+"/health"); status != 200 {
			t.Errorf("health asleep: %d", status)
		}
		state := map[string]string{"?level=2": "discard_all"}[level]
		if state == "" {
			state = "weights_offloaded"
		}
		if _, m := get(t, url+"/metrics"); !strings.Contains(m, `sleep_state="`+state+`"} 1`) {
			t.Errorf("the metrics do not say %s", state)
		}
		if status, _, _ := post(t, url+"/sleep", ""); status != 200 {
			t.Errorf("asleep twice: %d", status)
		}
		if status, _, b := post(t, url+"/wake_up", ""); status != 200 || asleep() {
			t.Fatalf("wake up: %d %s", status, b)
		}
		got := ask[openai.CompletionResponse](t, url+"/v1/completions", body+`}`)
		if got.Choices[0].Text != want.Choices[0].Text || got.Usage.PromptTokensDetails.CachedTokens != 0 {
			t.Errorf("awake: %q, %+v", got.Choices[0].Text, got.Usage)
		}
		if got := ask[openai.CompletionResponse](t, url+"/v1/completions", body+`,"model":"a"}`); got.Choices[0].Text != adapted.Choices[0].Text {
			t.Errorf("awake, adapter: %q, want %q", got.Choices[0].Text, adapted.Choices[0].Text)
		}
	}
	for _, bad := range []string{"?level=3", "?mode=nap"} {
		if status, _, _ := post(t, url+"/sleep"+bad, ""); status != 400 {
			t.Errorf("sleep%s: %d", bad, status)
		}
	}
	if status, _, _ := post(t, url+"/wake_up", ""); status != 200 || asleep() {
		t.Errorf("awake twice: %d", status)
	}
}

// What is under way is broken off, or waited for.
func TestSleepWithWorkUnderWay(t *testing.T) {
	_, url := serve(t, Options{Fault: mustFault(t, "slow-tokens:by=5ms")})
	begin := func(ctx context.Context) io.ReadCloser {
		req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(`{"prompt":"a","max_tokens":200,"ignore_eos":true,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res.Body
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for mode, want := range map[string]string{"abort": "put to sleep", "wait": "[DONE]"} {
		answer := begin(ctx)
		if status, _, b := post(t, url+"/sleep?mode="+mode, ""); status != 200 {
			t.Fatalf("%s: %d %s", mode, status, b)
		}
		b, err := io.ReadAll(answer)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: the answer ends with %q, %v", mode, b[max(0, len(b)-200):], err)
		}
		_ = answer.Close()
		post(t, url+"/wake_up", "")
	}
}

func TestResetPrefixCache(t *testing.T) {
	_, url := serve(t, Options{})
	const body = `{"prompt":"the port of loading is the port of loading is the port of loading is the port of loading is the port","max_tokens":1}`
	cached := func() int {
		return ask[openai.CompletionResponse](t, url+"/v1/completions", body).Usage.PromptTokensDetails.CachedTokens
	}
	cached()
	if n := cached(); n == 0 {
		t.Fatal("nothing is cached")
	}
	if status, _, b := post(t, url+"/reset_prefix_cache", ""); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	if n := cached(); n != 0 {
		t.Errorf("%d tokens are still cached", n)
	}
}
