package config

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/serving/engine"
)

// served is good with another engine and placement.
func served(eng, placement, quantise string) string {
	return strings.NewReplacer(
		"engine: {kind: embedded, max_model_len: 2048, max_num_seqs: 16}", "engine: "+eng,
		"placement: {gpu: cpu, replicas: 1, pool: interactive}", "placement: "+placement,
		"quantise: {scheme: fp8-dynamic, keep: [lm_head]}", "quantise: "+quantise).Replace(good)
}

func TestModelEngine(t *testing.T) {
	path := write(t, served(`
  kind: vllm
  release: 0.32.0
  image: registry.example/vllm@sha256:1
  max_model_len: 32768
  max_num_seqs: 64
  max_num_batched_tokens: 4096
  tensor_parallel: 4
  pipeline_parallel: 2
  kv_cache: fp8
  kv_offload: 80GiB
  speculative: {method: draft, model: ./evals, tokens: 3, max_batch: 8}
  lora: {max: 2, max_rank: 16, runtime: true, modules: {b: ./evals}}
  sleep: true
  drain: 90s
  env: {VLLM_LOGGING_LEVEL: WARNING}`, "{gpu: h100-sxm, replicas: 2, pool: batch, zone: az1, near: r7}", "{scheme: fp8-dynamic}"))
	s, err := Model(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(path), "evals")
	e := s.Engine
	if e.Kind != "vllm" || e.Release != "0.32.0" || !strings.HasPrefix(e.Image, "registry") || e.MaxModelLen != 32768 || e.MaxNumSeqs != 64 || e.MaxNumBatchedTokens != 4096 ||
		e.TensorParallel != 4 || e.PipelineParallel != 2 || e.KVCache != engine.FP8 || e.KVOffload != 80<<30 || !e.Sleep || e.Drain != 90*time.Second || e.Env["VLLM_LOGGING_LEVEL"] != "WARNING" {
		t.Errorf("%+v", e)
	}
	if want := (engine.Speculative{Method: "draft", Model: dir, Tokens: 3, MaxBatch: 8}); e.Speculative != want {
		t.Errorf("%+v", e.Speculative)
	}
	if want := (engine.LoRA{Max: 2, MaxRank: 16, Runtime: true, Modules: map[string]string{"b": dir}}); !reflect.DeepEqual(e.LoRA, want) {
		t.Errorf("%+v", e.LoRA)
	}
	if p := s.Placement; p.GPU != "h100-sxm" || p.Replicas != 2 || p.Pool != "batch" || p.Zone != "az1" || p.Near != "r7" {
		t.Errorf("%+v", p)
	}
	// What is not said is left to the engine; ours has bounds of its own.
	s, err = Model(write(t, served("{kind: vllm}", "{gpu: cpu}", "{scheme: none}")))
	if err != nil || s.Engine.MaxModelLen != 0 || s.Engine.MaxNumSeqs != 0 || s.Placement.Pool != "interactive" {
		t.Errorf("%+v, %v", s.Engine, err)
	}
	s, err = Model(write(t, served("{kind: embedded}", "{gpu: cpu}", "{scheme: none}")))
	if err != nil || s.Engine.MaxModelLen != 2048 || s.Engine.MaxNumSeqs != 16 {
		t.Errorf("%+v, %v", s.Engine, err)
	}
}

// What an engine does not have is said at the line of the key, and at once.
func TestModelEngineRefuses(t *testing.T) {
	const h100, cpu, none, fp8 = "{gpu: h100-sxm}", "{gpu: cpu}", "{scheme: none}", "{scheme: fp8-dynamic}"
	for _, c := range []struct{ name, engine, placement, quantise, want string }{
		{"unknown", "{kind: abacus}", cpu, none, ":7: engine.kind is \"abacus\", want one of: embedded, vllm"},
		{"unknown key", "{kind: vllm, gpus: 4}", h100, none, "unknown field \"gpus\""},
		{"GGUF", "{kind: llamacpp}", cpu, none, ":7: engine.kind: llamacpp serves one GGUF file; a run reads"},
		{"store", "{kind: ollama}", cpu, none, "its own store of models"},
		{"unknown GPU", "{kind: vllm}", "{gpu: h100}", none, ":9: placement.gpu is \"h100\", want one of: cpu, a100-80gb, h100-sxm"},
		{"another maker's GPU", "{kind: vllm}", "{gpu: mi300x}", none, ":9: placement.gpu: mi300x is known to the arithmetic alone"},
		{"ours on a GPU", "{kind: embedded}", h100, none, ":9: engine embedded: gpu: it computes on the processor"},
		{"none without a GPU", "{kind: trtllm}", cpu, none, ":9: engine trtllm: gpu: it computes on GPUs alone"},
		{"split processor", "{kind: vllm, tensor_parallel: 2}", cpu, none, ":7: engine vllm: tensor_parallel: a replica on the processor"},
		{"ours of a release", "{kind: embedded, release: 1.0.0}", cpu, none, ":7: engine.release: the embedded engine is this program"},
		{"ours in an image", "{kind: embedded, image: own}", cpu, none, ":7: engine.image: the embedded engine is this program"},
		{"ours split", "{kind: embedded, tensor_parallel: 2}", cpu, none, ":7: engine embedded: tensor_parallel"},
		{"release", "{kind: vllm, release: 0.6.0}", h100, none, ":7: engine vllm: release: 0.6.0 is older"},
		{"cache", "{kind: vllm, kv_cache: int8}", h100, none, ":7: engine vllm: kv_cache: \"int8\" is not one of"},
		{"offload", "{kind: vllm, kv_offload: 80}", h100, none, "such as 80GiB"},
		{"offload of nothing", "{kind: vllm, kv_offload: 0GiB}", h100, none, "more than nothing"},
		{"no offload", "{kind: tgi, kv_offload: 1GiB}", h100, none, "engine tgi has no kv_offload"},
		{"chunk", "{kind: vllm, max_num_seqs: 64, max_num_batched_tokens: 32}", h100, none, "below max_num_seqs"},
		{"fault", "{kind: vllm, fault: \"slow:by=2\"}", cpu, none, ":7: engine vllm has no fault"},
		{"sleep", "{kind: trtllm, sleep: true}", h100, none, "engine trtllm has no sleep"},
		{"neither true nor false", "{kind: vllm, sleep: yes}", h100, none, "engine.sleep is \"yes\", want true or false"},
		{"drain", "{kind: vllm, release: 0.12.0, drain: 60s}", h100, none, "came with 0.18"},
		{"guesses", "{kind: vllm, speculative: {tokens: 3}}", h100, none, "speculative: it needs a method"},
		{"draft", "{kind: vllm, speculative: {method: draft, tokens: 3}}", h100, none, "method draft needs a model"},
		{"model of none", "{kind: vllm, speculative: {method: ngram, tokens: 3, model: ./evals}}", h100, none, "leave the model out"},
		{"lost model", "{kind: vllm, speculative: {method: draft, tokens: 3, model: ./gone}}", h100, none, "gone: no such file"},
		{"bound", "{kind: sglang, max_num_seqs: 8, speculative: {method: ngram, tokens: 3, max_batch: 4}}", h100, none, "speculative.max_batch: it speculates in every batch"},
		{"adapter", "{kind: vllm, lora: {modules: {a: ./gone}}}", h100, none, "engine.lora.modules.a"},
		{"adapter's name", "{kind: vllm, lora: {modules: {\"a=b\": ./evals}}}", h100, none, "holds a comma"},
		{"adapters", "{kind: tgi, lora: {runtime: true}}", h100, none, "engine tgi has no lora.runtime"},
		{"variable", "{kind: vllm, env: {\"A-B\": x}}", h100, none, "no name of a variable"},
		{"scheme", "{kind: vllm}", h100, "{scheme: int4-tensor}", ":8: quantise.scheme: engine vllm does not load int4-tensor as it is written here; want fp8-dynamic, fp8-block, fp8-block-ue8m0, fp8-static, int8, int8-weight, int4, or none"},
		{"no scheme", "{kind: trtllm}", h100, fp8, "engine trtllm does not load fp8-dynamic as it is written here; want none"},
		{"pool", "{kind: vllm}", "{pool: \"a/b\"}", none, "placement.pool"},
		{"near", "{kind: vllm}", "{near: \"\"}", none, "placement.near"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Model(write(t, served(c.engine, c.placement, c.quantise)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err != nil && strings.Count(err.Error(), "model.yaml") > 1 {
				t.Errorf("one mistake is told more than once:\n%v", err)
			}
		})
	}
}

// Evidence that an engine cannot give is refused where it is asked for.
func TestModelEvidenceNeedsAnEngine(t *testing.T) {
	for _, c := range []struct{ eng, eval, want string }{
		{"{kind: trtllm}", "text: ./evals/freight.jsonl", "eval.text: engine trtllm does not tell the likelihood"},
		{"{kind: tgi}", "canaries: ./evals/freight.jsonl", "eval.canaries: engine tgi"},
		{"{kind: sglang, release: 0.5.4}", "canaries: ./evals/freight.jsonl", "eval.canaries: engine sglang of release 0.5.4"},
		{"{kind: vllm}", "text: ./evals/freight.jsonl, canaries: ./evals/freight.jsonl", ""},
		{"{kind: sglang}", "text: ./evals/freight.jsonl, canaries: ./evals/freight.jsonl", ""},
	} {
		text := served(c.eng, "{gpu: h100-sxm}", "{scheme: none}")
		_, err := Model(write(t, strings.Replace(text, "confidence: 95%", "confidence: 95%, "+c.eval, 1)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %s: %v, want %q", c.eng, c.eval, err, c.want)
		}
	}
	_, err := Model(write(t, served("{kind: vllm}", "{gpu: h100-sxm}", "{scheme: none}")+"task: embedding\n"))
	if err == nil || !strings.Contains(err.Error(), "served by the embedded engine alone") {
		t.Errorf("%v", err)
	}
	_, err = Model(write(t, served("{kind: tgi}", "{gpu: h100-sxm}", "{scheme: none}")+"scale: {max: 4, kv: 80%}\n"))
	if err == nil || !strings.Contains(err.Error(), "scale.kv: engine tgi does not tell") {
		t.Errorf("%v", err)
	}
}

// A scheme that is built is known to some engine: one that is added is added to the
// facts of those that load it as well.
func TestSchemesAreServed(t *testing.T) {
	for _, scheme := range Schemes {
		served := scheme == "none"
		for _, kind := range engine.Kinds() {
			f, err := engine.About(engine.Serve{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			served = served || slices.Contains(f.Schemes, scheme)
		}
		if !served {
			t.Errorf("no engine loads %s: package engine's Facts.Schemes name none that does", scheme)
		}
	}
}
