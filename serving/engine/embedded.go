package engine

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// embedded is llmops' own engine. Its release is the program's.
var embedded = adapter{
	kind: "embedded", oldest: "0.0.0", newest: "0.0.0", port: 8000,
	build: func(b *builder) {
		b.arg("${LLMOPS_BIN}", "engine", "serve",
			"--listen", cmp.Or(b.Listen, "${LLMOPS_ADDR}"),
			"--model", b.Dir,
			"--name", b.Alias)
		if b.Version != "" {
			b.arg("--version-name", b.Version)
		}
		b.number("max_model_len", "--max-model-len", b.MaxModelLen)
		b.number("max_num_seqs", "--max-num-seqs", b.MaxNumSeqs)
		b.number("max_num_batched_tokens", "--max-num-batched-tokens", b.MaxNumBatchedTokens)
		if w, ok := b.kv(map[KVDtype]string{F32: "float32", BF16: "bf16", FP8: "fp8"}); ok {
			b.arg("--kv-cache-dtype", w)
		}
		b.on("lora.runtime") // needs only room
		if b.LoRA.on() {
			b.on("lora.max")
			b.arg("--max-loras", count(max(b.LoRA.Max, len(b.LoRA.Modules), 1)))
		}
		b.number("lora.max_rank", "--max-lora-rank", b.LoRA.MaxRank)
		if b.on("lora.modules") {
			b.arg("--lora-modules", strings.Join(pairs(b.LoRA.Modules), ","))
		}
		if b.on("role") {
			b.arg("--kv-role", map[Role]string{Prefill: "kv_producer", Decode: "kv_consumer"}[b.Role])
		}
		b.on("sleep") // always can
		if b.Need.Count > 0 {
			b.fail("gpu", "it computes on the processor: placement.gpu is cpu")
		}
		if b.on("fault") {
			b.arg("--fault", b.Fault)
		}
		if b.Drain > ownDrain {
			b.fail("drain", "%v is more than the %v that it goes on for", b.Drain, ownDrain)
		}
		b.on("drain")
		b.group.Check.Path, b.group.Check.Interval, b.group.Check.Timeout = "/health", time.Second, 2*time.Second
		b.group.Grace = ownDrain + 5*time.Second
	},
	facts: func(s Serve, _ release) Facts {
		return Facts{
			Ready: "/health", Loaded: true, Token: completion(s.Alias),
			Drain:    Drain{Finishes: true, Bounded: true, Note: "/health answers 503, new requests are refused, and what was begun has 10 s"},
			Metrics:  Metrics{Path: "/metrics", Names: vllmNames},
			Adapters: vllmAdapters,
			Sleep:    Sleep{Call{"POST", "/sleep?level=1", nil}, Call{"POST", "/wake_up", nil}},
			Weights:  Safetensors, Schemes: append(slices.Clone(compressed), int4Tensor), PromptLogprobs: true, TokenIDs: true,
		}
	},
}

// ownDrain is how long llmops' own servers go on with what they have begun.
const ownDrain = 10 * time.Second
