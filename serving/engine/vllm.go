package engine

// vllm: flags of vLLM's own help for 0.10.2, 0.11.0, 0.12.0, 0.18.1, 0.24.0 and 0.32.0.
var vllm = adapter{
	kind: "vllm", oldest: "0.10.0", newest: "0.32.0", port: 8000,
	build: func(b *builder) {
		b.arg("vllm", "serve", b.Dir, "--host", b.host, "--port", b.port, "--served-model-name", b.Alias)
		b.number("tensor_parallel", "--tensor-parallel-size", b.TensorParallel)
		b.number("pipeline_parallel", "--pipeline-parallel-size", b.PipelineParallel)
		b.number("max_model_len", "--max-model-len", b.MaxModelLen)
		b.number("max_num_seqs", "--max-num-seqs", b.MaxNumSeqs)
		b.number("max_num_batched_tokens", "--max-num-batched-tokens", b.MaxNumBatchedTokens)
		b.needsGPU("kv_offload")
		words := map[KVDtype]string{FP8: "fp8_e4m3", E5M2: "fp8_e5m2"}
		if b.release.atLeast(0, 11) {
			words[BF16] = "bfloat16"
		}
		if b.release.atLeast(0, 18) {
			words[F16] = "float16"
		}
		if b.release.atLeast(0, 20) {
			words[NVFP4] = "nvfp4"
		}
		if b.CPU { // its attention there has no others
			for _, not := range []KVDtype{BF16, F16, NVFP4} {
				delete(words, not)
			}
		}
		if w, ok := b.kv(words); ok {
			b.arg("--kv-cache-dtype", w)
		}
		switch {
		case !b.release.atLeast(0, 11, 1) && b.KVOffload > 0:
			b.fail("kv_offload", "--kv-offloading-size came with 0.11.1, this is %v", b.release)
		case b.on("kv_offload"):
			b.arg("--kv-offloading-size", gib(b.KVOffload))
		}
		if b.on("quantise") {
			b.arg("--quantization", b.Quantise)
		}
		b.vllmLoRA()
		b.needsGPU("sleep")
		if b.on("sleep") {
			b.arg("--enable-sleep-mode")
			b.env("VLLM_SERVER_DEV_MODE", "1") // without it the calls are not served
		}
		b.vllmSpeculative()
		if b.on("role") {
			b.arg("--kv-transfer-config", inJSON(map[string]string{
				"kv_connector": "NixlConnector",
				"kv_role":      map[Role]string{Prefill: "kv_producer", Decode: "kv_consumer"}[b.Role],
			}))
		}
		switch {
		case b.release.atLeast(0, 18):
			b.arg("--shutdown-timeout", seconds(b.drains()))
		case b.Drain > 0:
			b.fail("drain", "--shutdown-timeout came with 0.18, %v breaks off what it serves on SIGTERM", b.release)
		default:
			b.aborts()
		}
		b.check("/health")
	},
	facts: func(s Serve, r release) Facts {
		f := Facts{
			Ready: "/health", Loaded: true, Token: completion(s.Alias),
			Drain:    Drain{Finishes: true, Bounded: true, Note: "refuses new requests and finishes what was begun within --shutdown-timeout"},
			Metrics:  Metrics{Path: "/metrics", Names: vllmNames},
			Adapters: vllmAdapters,
			Sleep:    Sleep{Call{"POST", "/sleep?level=1", nil}, Call{"POST", "/wake_up", nil}},
			Weights:  Safetensors, Schemes: compressed, PromptLogprobs: true, TokenIDs: r.atLeast(0, 10, 2),
		}
		if !r.atLeast(0, 18) {
			f.Drain = Drain{Note: "breaks off what it serves; take it out of the route first"}
		}
		return f
	},
}

func (b *builder) vllmLoRA() {
	if !b.LoRA.on() {
		return
	}
	b.arg("--enable-lora")
	b.number("lora.max", "--max-loras", b.LoRA.Max)
	b.number("lora.max_rank", "--max-lora-rank", b.LoRA.MaxRank)
	if b.on("lora.modules") {
		b.arg("--lora-modules")
		b.arg(pairs(b.LoRA.Modules)...)
	}
	if b.on("lora.runtime") {
		b.env("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
	}
}

func (b *builder) vllmSpeculative() {
	words := map[string]string{"ngram": "ngram", "eagle3": "eagle3"}
	if b.release.atLeast(0, 11) {
		words["mtp"] = "mtp" // before that each family had a name of its own
	}
	if b.release.atLeast(0, 17) {
		words["draft"] = "draft_model"
	}
	w, ok := b.method(words)
	if !ok {
		return
	}
	c := map[string]any{"method": w, "num_speculative_tokens": b.Speculative.Tokens}
	if b.Speculative.Model != "" {
		c["model"] = b.Speculative.Model
	}
	if w == "ngram" {
		c["prompt_lookup_max"] = b.Speculative.Tokens
	}
	switch {
	case b.Speculative.MaxBatch == 0:
	case !b.release.atLeast(0, 24):
		// Up to 0.13 a disable_by_batch_size is read and has no effect.
		b.fail("speculative.max_batch", "num_speculative_tokens_per_batch_size came with 0.24, %v speculates in every batch", b.release)
	case b.MaxNumSeqs == 0:
		b.fail("speculative.max_batch", "it needs max_num_seqs, up to which none shall be tried")
	case b.on("speculative.max_batch") && b.Speculative.MaxBatch < b.MaxNumSeqs:
		c["num_speculative_tokens_per_batch_size"] = [][3]int{
			{1, b.Speculative.MaxBatch, b.Speculative.Tokens}, {b.Speculative.MaxBatch + 1, b.MaxNumSeqs, 0},
		}
	}
	b.arg("--speculative-config", inJSON(c))
}

// vllmNames: the gpu_ names were deprecated with 0.9.2, hidden with 0.11 and removed
// with 0.12; time_per_output_token was hidden with 0.11.
var vllmNames = map[Signal][]string{
	Running:       {"vllm:num_requests_running"},
	Waiting:       {"vllm:num_requests_waiting"},
	KVUse:         {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	PrefixQueries: {"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
	PrefixHits:    {"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
	Preemptions:   {"vllm:num_preemptions_total"},
	TTFT:          {"vllm:time_to_first_token_seconds"},
	ITL:           {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
}

// vllmAdapters need VLLM_ALLOW_RUNTIME_LORA_UPDATING.
var vllmAdapters = Adapters{
	Load: func(name, dir string) Call {
		return Call{"POST", "/v1/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": dir}}
	},
	Unload: func(name string) Call {
		return Call{"POST", "/v1/unload_lora_adapter", map[string]any{"lora_name": name}}
	},
}
