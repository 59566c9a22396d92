package engine

import "strings"

// tgi: text-generation-launcher's own help for 3.x. The project is in maintenance
// mode and asks to go to vLLM or SGLang: it is here so that one can leave it.
var tgi = adapter{
	kind: "tgi", oldest: "3.0.0", newest: "3.3.7", port: 3000,
	build: func(b *builder) {
		b.arg("text-generation-launcher", "--model-id", b.Dir, "--hostname", b.host, "--port", b.port)
		b.number("tensor_parallel", "--num-shard", b.TensorParallel)
		b.number("max_model_len", "--max-total-tokens", b.MaxModelLen)
		b.number("max_num_seqs", "--max-batch-size", b.MaxNumSeqs)
		b.number("max_num_batched_tokens", "--max-batch-prefill-tokens", b.MaxNumBatchedTokens)
		if w, ok := b.kv(map[KVDtype]string{FP8: "fp8_e4m3fn", E5M2: "fp8_e5m2"}); ok {
			b.arg("--kv-cache-dtype", w)
		}
		if b.on("quantise") {
			b.arg("--quantize", b.Quantise)
		}
		if b.on("lora.modules") {
			b.arg("--lora-adapters", strings.Join(pairs(b.LoRA.Modules), ","))
		}
		if _, ok := b.method(map[string]string{"ngram": ""}); ok {
			b.arg("--speculate", count(b.Speculative.Tokens))
			if b.Speculative.Model != "" {
				b.fail("speculative", "method ngram has no model")
			}
		}
		if b.Speculative.MaxBatch > 0 {
			b.fail("speculative.max_batch", "it speculates in every batch")
		}
		b.arg("--graceful-termination-timeout", seconds(b.drains()))
		b.check("/health")
	},
	facts: func(s Serve, _ release) Facts {
		return Facts{
			Ready: "/health", Loaded: true, Token: completion(s.Alias), Weights: Safetensors, Schemes: []string{fp8Dynamic},
			Drain: Drain{Finishes: true, Bounded: true, Note: "finishes what was begun within --graceful-termination-timeout"},
			Metrics: Metrics{Path: "/metrics", Names: map[Signal][]string{
				Running: {"tgi_batch_current_size"},
				Waiting: {"tgi_queue_size"},
				ITL:     {"tgi_request_mean_time_per_token_duration"},
			}},
		}
	},
}
