package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/model/safetensors"
	"llmops/serving/openai"
)

// writeAdapter makes a LoRA adapter of the tiny model that changes its queries.
func writeAdapter(t *testing.T, rank int, strength float32) string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf(`{"peft_type":"LORA","r":%d,"lora_alpha":%d,"target_modules":["q_proj"],"bias":"none","base_model_name_or_path":"tiny"}`, rank, rank)
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	var tensors []safetensors.Tensor
	for layer := range 2 {
		name := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.q_proj.", layer)
		tensors = append(tensors,
			safetensors.Tensor{Name: name + "lora_A.weight", DType: safetensors.F32, Shape: []int64{int64(rank), 32}},
			safetensors.Tensor{Name: name + "lora_B.weight", DType: safetensors.F32, Shape: []int64{32, int64(rank)}})
	}
	w, err := safetensors.Create(filepath.Join(dir, "adapter_model.safetensors"), tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range tensors {
		var b []byte
		for k := range 32 * rank {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(strength*float32(math.Sin(float64(i*1000+k)))))
		}
		if err := w.WriteAt(x.Name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Adapters by name, more than fit in memory, together with the base: each answers
// as it does alone.
func TestAdapters(t *testing.T) {
	dirs := map[string]string{}
	for i := range 4 {
		dirs[fmt.Sprintf("a%d", i)] = writeAdapter(t, 4, 0.3+0.2*float32(i))
	}
	o := Options{LoRA: LoRA{Max: 2, Modules: map[string]string{"a0": dirs["a0"]}}}
	s, url := serve(t, o)
	body := func(model string) string {
		return fmt.Sprintf(`{"model":%q,"prompt":"the port of loading is","max_tokens":12,"temperature":0,"ignore_eos":true}`, model)
	}
	load := func(name, dir, extra string) (int, string) {
		status, _, b := post(t, url+"/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q%s}`, name, dir, extra))
		return status, string(b)
	}
	for _, name := range []string{"a1", "a2", "a3"} {
		if status, b := load(name, dirs[name], ""); status != 200 || !strings.Contains(b, "added successfully") {
			t.Fatalf("%s: %d %s", name, status, b)
		}
	}
	names := []string{"tiny", "a0", "a1", "a2", "a3"}
	alone := map[string]string{}
	seen := map[string]bool{}
	for _, n := range names {
		r := ask[openai.CompletionResponse](t, url+"/v1/completions", body(n))
		alone[n] = r.Choices[0].Text
		seen[alone[n]] = true
		if r.Usage.PromptTokensDetails.CachedTokens != 0 {
			t.Errorf("%s found another's blocks", n)
		}
	}
	if len(seen) < 4 {
		t.Errorf("the adapters change too little to tell: %q", alone)
	}
	type answer struct{ name, text string }
	got := make(chan answer)
	for i := range 30 {
		n := names[i%len(names)]
		go func() {
			_, _, b := post(t, url+"/v1/completions", body(n))
			var r openai.CompletionResponse
			if err := json.Unmarshal(b, &r); err != nil || len(r.Choices) != 1 {
				got <- answer{n, string(b)}
				return
			}
			got <- answer{n, r.Choices[0].Text}
		}()
	}
	for range 30 {
		if a := <-got; a.text != alone[a.name] {
			t.Errorf("%s answers %q among others, %q alone", a.name, a.text, alone[a.name])
		}
	}
	_, b := get(t, url+"/v1/models")
	var models openai.Models
	if err := json.Unmarshal([]byte(b), &models); err != nil || len(models.Data) != 5 || models.Data[1].ID != "a0" || models.Data[1].Parent != "tiny" || models.Data[1].Root != dirs["a0"] {
		t.Errorf("models %s, %v", b, err)
	}
	// The last answer is out a moment before its step is.
	const idle = `vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for m := ""; !strings.Contains(m, idle); {
		if ctx.Err() != nil {
			t.Fatalf("no metrics of idle adapters:\n%s", m)
		}
		_, m = get(t, url+"/metrics")
	}

	// A name that means other weights now shares nothing with the old ones.
	if status, b := load("a1", dirs["a3"], ""); status != 400 || !strings.Contains(b, "load_inplace") {
		t.Errorf("a second time: %d %s", status, b)
	}
	if status, b := load("a1", dirs["a3"], `,"load_inplace":true`); status != 200 {
		t.Errorf("in place: %d %s", status, b)
	}
	if r := ask[openai.CompletionResponse](t, url+"/v1/completions", body("a1")); r.Choices[0].Text != alone["a3"] {
		t.Errorf("a1 answers %q, its new weights %q", r.Choices[0].Text, alone["a3"])
	}
	if status, _, b := post(t, url+"/v1/unload_lora_adapter", `{"lora_name":"a0"}`); status != 200 {
		t.Errorf("unload: %d %s", status, b)
	}
	if status, _, b := post(t, url+"/v1/completions", body("a0")); status != 404 || !strings.Contains(string(b), `a1`) {
		t.Errorf("after unloading: %d %s", status, b)
	}
	// What was given up leaves memory when the next step comes.
	for range 3 {
		ask[openai.CompletionResponse](t, url+"/v1/completions", body("a2"))
	}
	if err := s.onLoop(func(time.Duration) error {
		if n := len(s.loop.residents.dirs); n != 3 || len(s.loop.retired) != 0 {
			t.Errorf("%d adapters are known, %d still to be forgotten", n, len(s.loop.retired))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestBadAdapters(t *testing.T) {
	good := writeAdapter(t, 4, 0.5)
	_, url := serve(t, Options{LoRA: LoRA{Max: 1, MaxRank: 4}})
	wrongBase := writeAdapter(t, 4, 0.5)
	b, err := os.ReadFile(filepath.Join(wrongBase, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wrongBase, "adapter_config.json"), bytes.Replace(b, []byte(`"r":4`), []byte(`"r":2`), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"", good, "lora_name is missing"}, {"a", "", "lora_path is missing"}, {"tiny", good, "base model"},
		{"a", filepath.Join(good, "nowhere"), "adapter_config.json"}, {"a", writeAdapter(t, 8, 0.5), "rank"}, {"a", wrongBase, "lora_"},
	} {
		status, _, b := post(t, url+"/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, tt.name, tt.path))
		if status != 400 || !strings.Contains(string(b), tt.want) {
			t.Errorf("%q from %s: %d %s, want %q", tt.name, tt.path, status, b, tt.want)
		}
	}
	if _, err := New(Options{ModelDir: modelDir, LoRA: LoRA{Modules: map[string]string{"a": good}}}); err == nil {
		t.Error("adapters without room for one")
	}
	if _, err := New(Options{ModelDir: modelDir, LoRA: LoRA{Max: 1, Modules: map[string]string{"a": good + "x"}}}); err == nil {
		t.Error("started without its adapter")
	}
}
