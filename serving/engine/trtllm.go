package engine

import (
	"maps"
	"slices"
)

// trtllm: trtllm-serve's own options for 1.2, PyTorch backend. What has no flag
// goes into the file that --extra_llm_api_options names, which a shell writes before
// it becomes the server: JSON is YAML.
var trtllm = adapter{
	kind: "trtllm", oldest: "1.2.0", newest: "1.2.1", port: 8000,
	build: func(b *builder) {
		if b.CPU {
			b.fail("gpu", "it computes on GPUs alone")
		}
		b.arg("/bin/sh", "-c", `printf %s "$LLMOPS_TRTLLM_CONFIG" >/tmp/llmops-trtllm.yaml && exec "$@"`, "sh",
			"trtllm-serve", b.Dir, "--host", b.host, "--port", b.port, "--backend", "pytorch")
		b.number("tensor_parallel", "--tp_size", b.TensorParallel)
		b.number("pipeline_parallel", "--pp_size", b.PipelineParallel)
		b.number("max_model_len", "--max_seq_len", b.MaxModelLen)
		b.number("max_num_seqs", "--max_batch_size", b.MaxNumSeqs)
		if b.on("max_num_batched_tokens") {
			b.arg("--max_num_tokens", count(b.MaxNumBatchedTokens), "--enable_chunked_prefill")
		}
		b.arg("--extra_llm_api_options", "/tmp/llmops-trtllm.yaml")

		// Both are needed for the gauges and histograms of /prometheus/metrics.
		config := map[string]any{"enable_iter_perf_stats": true, "return_perf_metrics": true}
		cache := map[string]any{}
		if w, ok := b.kv(map[KVDtype]string{FP8: "fp8", NVFP4: "nvfp4"}); ok {
			cache["dtype"] = w
		}
		if b.on("kv_offload") {
			cache["host_cache_size"] = b.KVOffload
		}
		if len(cache) > 0 {
			config["kv_cache_config"] = cache
		}
		if b.LoRA.on() {
			lora := map[string]any{}
			if b.on("lora.modules") {
				lora["lora_dir"] = slices.Sorted(maps.Values(b.LoRA.Modules))
			}
			if b.on("lora.max") {
				lora["max_loras"] = b.LoRA.Max
			}
			if b.on("lora.max_rank") {
				lora["max_lora_rank"] = b.LoRA.MaxRank
			}
			b.on("lora.runtime") // a request names its adapter's folder
			config["lora_config"] = lora
		}
		if b.Quantise != "" {
			b.fail("quantise", "it takes what the checkpoint was quantised to and does not do so itself")
		}
		b.trtllmSpeculative(config)
		b.env("LLMOPS_TRTLLM_CONFIG", inJSON(config))
		b.drains()
		b.check("/health")
	},
	facts: func(s Serve, _ release) Facts {
		return Facts{
			Ready: "/health", Loaded: true, Token: completion(s.Alias), Weights: Safetensors,
			Drain: Drain{Finishes: true, Note: "its web server waits for open connections; nothing but the kill bounds it"},
			Metrics: Metrics{Path: "/prometheus/metrics", Names: map[Signal][]string{
				Running:       {"trtllm_num_requests_running"},
				Waiting:       {"trtllm_num_requests_waiting"},
				KVUse:         {"trtllm_kv_cache_utilization"},
				PrefixHits:    {"trtllm_kv_cache_reused_blocks_total"},
				PrefixHitRate: {"trtllm_kv_cache_hit_rate"},
				TTFT:          {"trtllm_time_to_first_token_seconds"},
				ITL:           {"trtllm_time_per_output_token_seconds"},
			}},
		}
	},
}

func (b *builder) trtllmSpeculative(config map[string]any) {
	w, ok := b.method(map[string]string{"ngram": "NGram", "draft": "DraftTarget", "eagle3": "Eagle", "mtp": "MTP"})
	if !ok {
		return
	}
	c := map[string]any{"decoding_type": w}
	if w == "MTP" {
		c["num_nextn_predict_layers"] = b.Speculative.Tokens
	} else {
		c["max_draft_len"] = b.Speculative.Tokens
	}
	if b.Speculative.Model != "" {
		c["speculative_model"] = b.Speculative.Model
	}
	if b.on("speculative.max_batch") {
		c["max_concurrency"] = b.Speculative.MaxBatch
	}
	config["speculative_config"] = c
}
