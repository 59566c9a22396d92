package engine

// ollama: the variables that ollama serve lists, 0.17 to 0.32. Dir is its store of
// models, in which Alias is: it takes no model on its command line and loads one at
// the first request.
var ollama = adapter{
	kind: "ollama", oldest: "0.12.0", newest: "0.17.4", port: 11434,
	build: func(b *builder) {
		b.arg("ollama", "serve")
		b.env("OLLAMA_HOST", b.host+":"+b.port)
		b.env("OLLAMA_MODELS", b.Dir)
		b.env("OLLAMA_KEEP_ALIVE", "-1") // or it drops the weights after five idle minutes
		b.env("OLLAMA_MAX_LOADED_MODELS", "1")
		b.env("OLLAMA_NO_CLOUD", "1")
		if b.on("max_model_len") {
			b.env("OLLAMA_CONTEXT_LENGTH", count(b.MaxModelLen))
		}
		if b.on("max_num_seqs") {
			b.env("OLLAMA_NUM_PARALLEL", count(b.MaxNumSeqs))
		}
		if w, ok := b.kv(map[KVDtype]string{F16: "f16", INT8: "q8_0", INT4: "q4_0"}); ok {
			b.env("OLLAMA_KV_CACHE_TYPE", w)
			b.env("OLLAMA_FLASH_ATTENTION", "1") // without it the type is ignored
		}
		if b.on("pipeline_parallel") {
			b.env("OLLAMA_SCHED_SPREAD", "1")
		}
		b.on("sleep") // always can
		if b.Quantise != "" {
			b.fail("quantise", "a model in its store is as it was quantised")
		}
		if b.Drain > 0 {
			b.fail("drain", "it breaks off what it serves on SIGTERM")
		}
		b.aborts()
		b.check("/api/version")
	},
	facts: func(s Serve, _ release) Facts {
		keep := func(alive int) Call {
			return Call{"POST", "/api/generate", map[string]any{"model": s.Alias, "keep_alive": alive}}
		}
		return Facts{
			Ready: "/api/version", Token: completion(s.Alias), Weights: OwnStore,
			Drain: Drain{Note: "breaks off what it serves; take it out of the route first"},
			Sleep: Sleep{keep(0), keep(-1)},
		}
	},
}
