package engine

import "math"

// sglang: flags of SGLang's own server_args for 0.5.4, 0.5.9 and 0.5.23.
var sglang = adapter{
	kind: "sglang", oldest: "0.5.4", newest: "0.5.23", port: 30000,
	build: func(b *builder) {
		if b.CPU {
			b.fail("gpu", "it computes on GPUs, unless it was built for a processor and is told so")
		}
		b.arg("python3", "-m", "sglang.launch_server", "--model-path", b.Dir, "--host", b.host, "--port", b.port,
			"--served-model-name", b.Alias, "--enable-metrics")
		b.number("tensor_parallel", "--tp-size", b.TensorParallel)
		b.number("pipeline_parallel", "--pp-size", b.PipelineParallel)
		b.number("max_model_len", "--context-length", b.MaxModelLen)
		b.number("max_num_seqs", "--max-running-requests", b.MaxNumSeqs)
		b.number("max_num_batched_tokens", "--chunked-prefill-size", b.MaxNumBatchedTokens)
		if w, ok := b.kv(map[KVDtype]string{BF16: "bf16", FP8: "fp8_e4m3", E5M2: "fp8_e5m2"}); ok {
			b.arg("--kv-cache-dtype", w)
		}
		if b.on("kv_offload") {
			// Whole gigabytes, for each of the processes that hold a part of the model.
			each := float64(b.KVOffload) / 1e9 / float64(max(b.TensorParallel, 1)*max(b.PipelineParallel, 1))
			b.arg("--enable-hierarchical-cache", "--hicache-size", count(int(math.Ceil(each))))
		}
		if b.on("quantise") {
			b.arg("--quantization", b.Quantise)
		}
		b.sglangLoRA()
		if b.on("sleep") {
			b.arg("--enable-memory-saver", "--enable-weights-cpu-backup")
		}
		b.sglangSpeculative()
		if b.on("role") {
			b.arg("--disaggregation-mode", string(b.Role))
		}
		b.drains()
		b.check("/health")
	},
	facts: func(s Serve, r release) Facts {
		return Facts{
			Ready: "/health_generate", Loaded: true, Token: completion(s.Alias),
			Drain: Drain{Finishes: true, Note: "looks every 5 s whether anything is still under way; nothing but the kill bounds it"},
			Metrics: Metrics{Path: "/metrics", Names: map[Signal][]string{
				Running:       {"sglang:num_running_reqs"},
				Waiting:       {"sglang:num_queue_reqs"},
				KVUse:         {"sglang:token_usage"},
				PrefixHitRate: {"sglang:cache_hit_rate"},
				Preemptions:   {"sglang:num_retracted_requests_total"},
				TTFT:          {"sglang:time_to_first_token_seconds"},
				ITL:           {"sglang:inter_token_latency_seconds"},
			}},
			Adapters: Adapters{
				Load: func(name, dir string) Call {
					return Call{"POST", "/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": dir}}
				},
				Unload: func(name string) Call {
					return Call{"POST", "/unload_lora_adapter", map[string]any{"lora_name": name}}
				},
			},
			// return_token_ids is in none of the others that were read.
			Weights: Safetensors, Schemes: []string{fp8Dynamic}, PromptLogprobs: true, TokenIDs: r.atLeast(0, 5, 23),
			Sleep: Sleep{Call{"POST", "/release_memory_occupation", map[string]any{}}, Call{"POST", "/resume_memory_occupation", map[string]any{}}},
		}
	},
}

func (b *builder) sglangLoRA() {
	if !b.LoRA.on() {
		return
	}
	b.arg("--enable-lora")
	b.number("lora.max", "--max-loras-per-batch", b.LoRA.Max)
	b.number("lora.max_rank", "--max-lora-rank", b.LoRA.MaxRank)
	if b.on("lora.modules") {
		b.arg("--lora-paths")
		b.arg(pairs(b.LoRA.Modules)...)
	}
	if b.on("lora.runtime") {
		if len(b.LoRA.Modules) == 0 && b.LoRA.MaxRank == 0 {
			b.fail("lora.runtime", "with no module to take the rank from, lora.max_rank is needed")
		}
		// Without a module it cannot tell which layers adapters change.
		if len(b.LoRA.Modules) == 0 {
			b.arg("--lora-target-modules", "all")
		}
	}
}

func (b *builder) sglangSpeculative() {
	w, ok := b.method(map[string]string{"ngram": "NGRAM", "draft": "STANDALONE", "eagle3": "EAGLE3", "mtp": "NEXTN"})
	if !ok {
		return
	}
	if b.Speculative.MaxBatch > 0 {
		b.fail("speculative.max_batch", "it speculates in every batch")
	}
	b.arg("--speculative-algorithm", w)
	if b.Speculative.Model != "" {
		b.arg("--speculative-draft-model-path", b.Speculative.Model)
	}
	if w == "NGRAM" {
		b.arg("--speculative-num-draft-tokens", count(b.Speculative.Tokens))
		return
	}
	// A chain: k guesses of one each, and the token that is certain.
	b.arg("--speculative-num-steps", count(b.Speculative.Tokens), "--speculative-eagle-topk", "1",
		"--speculative-num-draft-tokens", count(b.Speculative.Tokens+1))
}
