// Package embedded is an inference engine for small models on the CPU: an
// http.Handler that speaks the OpenAI-compatible API as vLLM does, names of
// metrics included, so that the rest of llmops cannot tell them apart.
//
// A Server joins a core.Core, which decides what each step computes, with a
// core.Executor, which computes it: package llama for the Llama family. A
// sequence's tokens depend on its own prompt and sampling alone, never on what else
// is in the batch or in the cache. A Server is safe for concurrent use.
//
// It has no GPU code, tool-call parsing, guided decoding, preemption or network
// listener, and it computes one model.
package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama"
)

// Defaults of Options.
const (
	DefaultMaxNumSeqs = 16
	// DefaultMaxBatchedTokens keeps a step of the shipped model near 20 ms, because
	// every running answer waits for the prompts that share its step.
	DefaultMaxBatchedTokens = 64
	DefaultMaxBody          = 16 << 20
)

// Options configure a Server. Zero values take the defaults.
type Options struct {
	ModelDir string // a checkpoint with config.json, tokenizer.json and safetensors
	Name     string // what clients put in "model"; default: the folder's name
	Version  string // sent as Llmops-Version on every response

	MaxModelLen      int    // prompt and answer together; default and at most: the model's own
	MaxNumSeqs       int    // computed at once
	MaxBatchedTokens int    // in one step
	Chunk            int    // tokens of one prompt in a step; 0: as many as fit
	Overcommit       bool   // admit what the cache may not hold to the end, and preempt
	KVBlocks         int    // of core.BlockSize tokens; default: enough for MaxNumSeqs of MaxModelLen
	KV               string // of a computed cache: float32, bf16 or fp8; default: the checkpoint's, else float32
	Threads          int    // that compute; default 1: another replica uses a second core better
	MaxBody          int64  // bytes of a request

	Estimate   *Estimate // nil: compute
	LoRA       LoRA
	KVTransfer KVTransfer
	KVEvents   KVEvents // of the prefix cache

	Fault Fault
	Crash func() // ends the process, when Fault says so
}

func (o Options) withDefaults(maxPositions int) (Options, error) {
	if o.Name == "" {
		abs, err := filepath.Abs(o.ModelDir)
		if err != nil {
			return o, err
		}
		o.Name = filepath.Base(abs)
	}
	o.MaxModelLen = cmp.Or(o.MaxModelLen, maxPositions)
	o.MaxNumSeqs = cmp.Or(o.MaxNumSeqs, DefaultMaxNumSeqs)
	o.MaxBatchedTokens = cmp.Or(o.MaxBatchedTokens, max(DefaultMaxBatchedTokens, o.MaxNumSeqs))
	o.KVBlocks = cmp.Or(o.KVBlocks, o.MaxNumSeqs*((o.MaxModelLen+core.BlockSize-1)/core.BlockSize))
	o.Threads = cmp.Or(o.Threads, 1)
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	if o.LoRA.Max > 0 {
		o.LoRA.MaxRank = cmp.Or(o.LoRA.MaxRank, DefaultMaxLoRARank)
	}
	o.LoRA.MaxLoaded = cmp.Or(o.LoRA.MaxLoaded, o.LoRA.Max)
	for _, f := range []struct {
		name     string
		n        int
		from, to int
	}{
		{"maximum model length", o.MaxModelLen, 2, maxPositions},
		{"maximum number of sequences", o.MaxNumSeqs, 1, 4096},
		{"maximum tokens in a step", o.MaxBatchedTokens, o.MaxNumSeqs, 1 << 16},
		{"tokens of one prompt in a step", o.Chunk, 0, 1 << 16},
		{"cache blocks", o.KVBlocks, (o.MaxModelLen + core.BlockSize - 1) / core.BlockSize, 1 << 24},
		{"adapters at once", o.LoRA.Max, 0, 1024},
		{"adapters in memory", o.LoRA.MaxLoaded, o.LoRA.Max, 1 << 16},
		{"rank of adapters", o.LoRA.MaxRank, min(o.LoRA.Max, 1), 512},
		{"threads", o.Threads, 1, max(runtime.NumCPU(), 64)},
	} {
		if f.n < f.from || f.n > f.to {
			return o, fmt.Errorf("%s is %d: want %d to %d", f.name, f.n, f.from, f.to)
		}
	}
	if o.LoRA.Max == 0 && len(o.LoRA.Modules) > 0 {
		return o, errors.New("adapters are named, but none may run at once")
	}
	if o.KV != "" && !slices.Contains([]string{llama.KVFloat32, llama.KVBF16, llama.KVFP8}, o.KV) {
		return o, fmt.Errorf("cache of %q: want float32, bf16 or fp8", o.KV)
	}
	if err := o.KVTransfer.check(); err != nil {
		return o, err
	}
	if o.MaxBody < 1 {
		return o, fmt.Errorf("maximum body is %d bytes: want at least 1", o.MaxBody)
	}
	if o.Fault.has("crash") && o.Crash == nil {
		return o, errors.New("the crash fault needs Crash, which ends the process")
	}
	return o, nil
}
