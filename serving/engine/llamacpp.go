package engine

import (
	"maps"
	"slices"
	"strings"
)

// llamacpp: llama-server's own help at build 11434. Dir is a GGUF file.
var llamacpp = adapter{
	kind: "llamacpp", oldest: "b11000", newest: "b11434", port: 8080,
	build: func(b *builder) {
		b.arg("llama-server", "--model", b.Dir, "--alias", b.Alias, "--host", b.host, "--port", b.port, "--metrics")
		if !strings.HasSuffix(b.Dir, ".gguf") {
			b.fail("source", "%s is not a GGUF file; convert the checkpoint first", b.Dir)
		}
		// What it calls the context is shared by the slots.
		slots := 1
		if b.on("max_num_seqs") {
			slots = b.MaxNumSeqs
			b.arg("--parallel", count(slots))
		}
		switch {
		case b.MaxModelLen > 0 && b.MaxNumSeqs == 0:
			b.fail("max_model_len", "it needs max_num_seqs: the context is one number for all slots together")
		case b.on("max_model_len"):
			b.arg("--ctx-size", count(b.MaxModelLen*slots))
		}
		b.number("max_num_batched_tokens", "--batch-size", b.MaxNumBatchedTokens)
		if w, ok := b.kv(map[KVDtype]string{F32: "f32", F16: "f16", BF16: "bf16", INT8: "q8_0", INT4: "q4_0"}); ok {
			b.arg("--cache-type-k", w, "--cache-type-v", w)
		}
		if b.on("kv_offload") {
			b.arg("--cache-ram", count(int(b.KVOffload>>20)))
		}
		switch {
		case b.TensorParallel > 1 && b.PipelineParallel > 1:
			b.fail("tensor_parallel", "it splits a model by tensors or by layers, not by both")
			b.on("pipeline_parallel")
		case b.on("tensor_parallel"):
			b.arg("--split-mode", "tensor")
		case b.on("pipeline_parallel"):
			b.arg("--split-mode", "layer")
		}
		if b.Quantise != "" {
			b.fail("quantise", "a GGUF file is as it was quantised")
		}
		if b.on("lora.modules") {
			// Requests name them by number, in this order; none is on for all.
			var files []string
			for _, name := range slices.Sorted(maps.Keys(b.LoRA.Modules)) {
				files = append(files, b.LoRA.Modules[name])
			}
			b.arg("--lora", strings.Join(files, ","), "--lora-init-without-apply")
		}
		b.llamacppSpeculative()
		if b.Drain > 0 {
			b.fail("drain", "it breaks off what it serves on SIGTERM")
		}
		b.aborts()
		b.check("/health")
	},
	facts: func(s Serve, _ release) Facts {
		return Facts{
			Ready: "/health", Loaded: true, Token: completion(s.Alias), Weights: GGUF,
			Drain: Drain{Note: "breaks off what it serves, and waits half a minute for clients that keep idle connections; take it out of the route first"},
			Metrics: Metrics{Path: "/metrics", Names: map[Signal][]string{
				Running: {"llamacpp:requests_processing"},
				Waiting: {"llamacpp:requests_deferred"},
			}},
		}
	},
}

func (b *builder) llamacppSpeculative() {
	w, ok := b.method(map[string]string{"ngram": "ngram-simple", "draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"})
	if !ok {
		return
	}
	if b.Speculative.MaxBatch > 0 {
		b.fail("speculative.max_batch", "it speculates in every batch")
	}
	b.arg("--spec-type", w)
	if b.Speculative.Model != "" {
		b.arg("--spec-draft-model", b.Speculative.Model)
	}
	if w == "ngram-simple" {
		b.arg("--spec-ngram-simple-size-m", count(b.Speculative.Tokens))
		return
	}
	b.arg("--spec-draft-n-max", count(b.Speculative.Tokens))
}
