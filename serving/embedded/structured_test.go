package embedded

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"llmops/serving/openai"
)

// A random model held to a form: whatever it would say, it fits.
func TestStructuredOutput(t *testing.T) {
	_, url := serve(t, Options{})
	answer := func(seed int, form string) (text, finish string) {
		r := ask[openai.ChatResponse](t, url+"/v1/chat/completions",
			fmt.Sprintf(`{"messages":[{"role":"user","content":"a"}],"max_tokens":200,"temperature":1,"seed":%d,%s}`, seed, form))
		return r.Choices[0].Message.Content.Text, r.Choices[0].FinishReason
	}
	for seed := range 8 {
		text, finish := answer(seed, `"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":
			{"type":"object","properties":{"port":{"type":"string","maxLength":8},"kg":{"type":"integer","minimum":0,"maximum":999}},"required":["port","kg"],"additionalProperties":false}}}`)
		var got struct {
			Port *string
			Kg   *int
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || finish != "stop" || got.Port == nil || len([]rune(*got.Port)) > 8 || got.Kg == nil || *got.Kg < 0 || *got.Kg > 999 {
			t.Errorf("seed %d: %q, %s, %v", seed, text, finish, err)
		}
		if text, finish := answer(seed, `"structured_outputs":{"choice":["Gdansk","Riga"]}`); finish != "stop" || !slices.Contains([]string{"Gdansk", "Riga"}, text) {
			t.Errorf("seed %d: choice %q, %s", seed, text, finish)
		}
		if text, finish := answer(seed, `"structured_outputs":{"regex":"[A-Z]{2}[0-9]{6}"}`); finish != "stop" || !regexp.MustCompile(`^[A-Z]{2}[0-9]{6}$`).MatchString(text) {
			t.Errorf("seed %d: regex %q, %s", seed, text, finish)
		}
		if text, finish := answer(seed, `"structured_outputs":{"json":"{\"enum\":[true,null]}"}`); finish != "stop" || text != "true" && text != "null" {
			t.Errorf("seed %d: schema in a string %q, %s", seed, text, finish)
		}
	}
	// What is no form restricts nothing.
	if text, _ := answer(1, `"response_format":{"type":"text"}`); text == "" {
		t.Error("a plain answer is empty")
	}
	free, _ := answer(1, `"response_format":null`)
	if text, _ := answer(1, `"structured_outputs":null`); text != free {
		t.Errorf("null changes the answer: %q, %q", text, free)
	}
}

// With too few blocks answers are preempted and computed again, and are the same.
func TestOvercommit(t *testing.T) {
	answers := func(o Options) (all []string, metrics string) {
		_, url := serve(t, o)
		body := func(i int) string {
			return fmt.Sprintf(`{"prompt":"ship %d","max_tokens":60,"temperature":0.7,"seed":%d,"ignore_eos":true}`, i, i)
		}
		got := make([]string, 8)
		done := make(chan int)
		for i := range got {
			go func() {
				_, _, b := post(t, url+"/v1/completions", body(i))
				got[i] = string(b[strings.Index(string(b), `"choices"`):])
				done <- i
			}()
		}
		for range got {
			<-done
		}
		_, metrics = get(t, url+"/metrics")
		return got, metrics
	}
	want, metrics := answers(Options{MaxModelLen: 96})
	if !strings.Contains(metrics, "vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 0\n") {
		t.Error("preemptions with a cache that suffices")
	}
	got, metrics := answers(Options{MaxModelLen: 96, KVBlocks: 8, Overcommit: true})
	if strings.Contains(metrics, "vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 0\n") {
		t.Error("no preemptions in a cache that is too small")
	}
	for i := range want {
		// Whether a prompt was found in the cache is told in the usage and may differ.
		if got[i][:strings.Index(got[i], `"usage"`)] != want[i][:strings.Index(want[i], `"usage"`)] {
			t.Errorf("request %d: %s, want %s", i, got[i], want[i])
		}
	}
}

// An engine that only estimates says so, and serves all the same.
func TestEstimate(t *testing.T) {
	_, url := serve(t, Options{Estimate: &Estimate{GPU: "h100-sxm"}, Version: "v1"})
	_, b := get(t, url+"/v1/models")
	var models openai.Models
	if err := json.Unmarshal([]byte(b), &models); err != nil {
		t.Fatal(err)
	}
	if how := models.Data[0].Meta[openai.MetaEstimate]; !strings.Contains(how, "h100") {
		t.Errorf("models: %+v", models)
	}
	r := ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":"ship","max_tokens":9}`)
	if r.Usage.CompletionTokens != 9 || *r.Choices[0].FinishReason != "length" {
		t.Errorf("answer %+v", r)
	}
	if status, _, b := post(t, url+"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}}`); status != 400 || !strings.Contains(string(b), "makes tokens up") {
		t.Errorf("a form: %d %s", status, b)
	}
	if status, _, _ := post(t, url+"/sleep", ""); status != 404 {
		t.Errorf("sleep: %d", status)
	}
	for _, o := range []Options{
		{Estimate: &Estimate{GPU: "abacus"}}, {Estimate: &Estimate{GPU: "h100-sxm"}, LoRA: LoRA{Max: 1}}, {Estimate: &Estimate{GPU: "h100-sxm"}, KVTransfer: KVTransfer{Role: "kv_consumer"}},
	} {
		o.ModelDir = modelDir
		if _, err := New(o); err == nil {
			t.Errorf("accepted %+v", o)
		}
	}
}
