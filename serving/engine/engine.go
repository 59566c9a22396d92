// Package engine knows how each engine is started and spoken to: one file an
// engine, each a pure function from what shall be served, [Serve], to the group of
// processes that serves it and the [Facts] that hold for it: flags as the engine's
// release names them, check, drain and grace, metric names, and the calls that load
// an adapter or put the engine to sleep. Where it runs is not decided here.
//
// An option that is asked for and that the engine does not have is an error that
// names both; none is dropped. The package starts nothing and sends nothing. Its
// functions are safe for concurrent use.
package engine

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"llmops/fleet"
)

// Serve is what one engine shall serve. An option left at its zero value is left to
// the engine.
type Serve struct {
	Kind     string // which engine
	Alias    string // what clients put in "model"
	Version  string // what the engine must say it is
	Release  string // the engine's own version, as "0.32.0"; empty: the newest that is known here
	Image    string // the container; empty: the job file's
	Dir      string // the model's folder, or file
	Listen   string // address as the process sees it; empty: every interface, the engine's own port
	Fault    string // a fault to rehearse, in the engine's own words; empty: none
	Role     Role
	Replicas int
	Need     fleet.Need
	CPU      bool // it computes without a GPU: what needs one is refused

	TensorParallel      int // GPUs over which a layer is split
	PipelineParallel    int // stages into which the layers are cut
	MaxModelLen         int // tokens of prompt and answer
	MaxNumSeqs          int // sequences computed at once
	MaxNumBatchedTokens int // tokens of one step: the budget of a prefill's chunk
	KVDtype             KVDtype
	KVOffload           int64  // bytes of host memory for what the cache on the GPU cannot hold
	Quantise            string // on loading, in the engine's own words; a checkpoint that is quantised says so itself
	LoRA                LoRA
	Sleep               bool // can be put to sleep and woken
	Speculative         Speculative
	Drain               time.Duration     // how long it goes on with what it has begun; 0: DefaultDrain, where the engine can
	Env                 map[string]string // added to the engine's environment
}

// Role is a replica's part where prefill and decode are served apart.
type Role string

// The roles. The zero Role does both.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// KVDtype is the type of the cache's numbers. The zero KVDtype is the engine's choice.
type KVDtype string

// The types of a cache.
const (
	BF16  KVDtype = "bf16"
	F16   KVDtype = "f16"
	F32   KVDtype = "float32"
	FP8   KVDtype = "fp8" // e4m3
	E5M2  KVDtype = "fp8_e5m2"
	INT8  KVDtype = "int8"
	INT4  KVDtype = "int4"
	NVFP4 KVDtype = "nvfp4"
)

// LoRA is what an engine needs to know of adapters. Any field that is set turns them on.
type LoRA struct {
	Modules map[string]string `json:"modules,omitempty"` // those known from the start: name to folder
	Max     int               `json:"max,omitempty"`     // running at once
	MaxRank int               `json:"max_rank,omitempty"`
	Runtime bool              `json:"runtime,omitempty"` // others may be loaded while it serves
}

func (l LoRA) on() bool { return len(l.Modules) > 0 || l.Max > 0 || l.MaxRank > 0 || l.Runtime }

// Speculative is speculative decoding. It costs throughput in a large batch, so it
// has a bound: none is tried while more than MaxBatch sequences are computed.
type Speculative struct {
	Method   string `json:"method,omitempty"`    // ngram, draft, eagle3 or mtp
	Model    string `json:"model,omitempty"`     // folder of the draft or the heads
	Tokens   int    `json:"tokens,omitempty"`    // guessed ahead
	MaxBatch int    `json:"max_batch,omitempty"` // 0: no bound
}

// DefaultDrain is how long an engine goes on with what it has begun: longer than
// nearly every answer, shorter than anybody waits for a node.
const DefaultDrain = 2 * time.Minute

// margin is what an engine takes to end once it has drained; a kill before that
// loses nothing but its last log lines.
const margin = 30 * time.Second

// Facts is what else one must know of an engine to run it.
type Facts struct {
	Kind     string
	Release  string // that the flags are of
	Port     int    // where it listens, inside its container
	Ready    string // the path that answers 200 when it can be asked for a token
	Loaded   bool   // whether the weights are loaded then; otherwise the first token loads them
	Token    Call   // makes one real token
	Drain    Drain
	Metrics  Metrics
	Adapters Adapters
	Sleep    Sleep
	Weights  Weights
	// Schemes are the schemes of llmops' own quantisation that it loads.
	Schemes []string
	// PromptLogprobs: /v1/completions with echo and logprobs gives the log-probability
	// of each token of a prompt. TokenIDs: /v1/chat/completions gives the numbers of the
	// tokens with return_token_ids.
	PromptLogprobs, TokenIDs bool
}

// Weights is what Dir of a [Serve] must be.
type Weights string

// What engines read.
const (
	Safetensors Weights = "a folder with config.json, tokenizer and safetensors files"
	GGUF        Weights = "one GGUF file"
	OwnStore    Weights = "its own store of models"
)

// The schemes that [Facts] speak of. compressed are those that everything loads
// which reads compressed-tensors; int4Tensor has one scale a matrix, where others
// want one for each channel or group.
const (
	fp8Dynamic = "fp8-dynamic"
	int4Tensor = "int4-tensor"
)

var compressed = []string{fp8Dynamic, "fp8-block", "fp8-block-ue8m0", "fp8-static", "int8", "int8-weight", "int4"}

// Drain is what the engine does on SIGTERM.
type Drain struct {
	Finishes bool // what it has begun
	Bounded  bool // by itself; otherwise the kill bounds it
	Note     string
}

// Call is an HTTP request to an engine, its body sent as JSON. The zero Call is one
// that the engine does not know.
type Call struct {
	Method, Path string
	Body         any
}

// Adapters are the calls that load and unload an adapter; nil: the engine has none.
type Adapters struct {
	Load   func(name, dir string) Call
	Unload func(name string) Call
}

// Sleep are the calls that free the GPU and take it again; zero: the engine has none.
type Sleep struct {
	Sleep, Wake Call
}

// adapter is one engine: it fills in the builder and says what holds.
type adapter struct {
	kind   string
	oldest string // release that the flags are known of
	newest string
	port   int
	build  func(*builder)
	facts  func(Serve, release) Facts
}

// adapters are all engines there are.
var adapters = []adapter{embedded, vllm, sglang, trtllm, llamacpp, tgi, ollama}

// Kinds are the names of the engines.
func Kinds() []string {
	var out []string
	for _, a := range adapters {
		out = append(out, a.kind)
	}
	return out
}

func find(kind string) (adapter, error) {
	for _, a := range adapters {
		if a.kind == kind {
			return a, nil
		}
	}
	return adapter{}, fmt.Errorf("engine %q is not one of: %s", kind, strings.Join(Kinds(), ", "))
}

// Group returns the processes that serve s.
func Group(s Serve) (fleet.Group, error) {
	a, err := find(s.Kind)
	if err != nil {
		return fleet.Group{}, err
	}
	b, err := newBuilder(a, s)
	if err != nil {
		return fleet.Group{}, err
	}
	b.group.Name = cmp.Or(string(s.Role), "main")
	b.group.Count, b.group.GPU, b.group.Image = s.Replicas, s.Need, s.Image
	b.gpus()
	b.processor()
	a.build(b)
	return b.done()
}

// About returns what holds for the engine of s.
func About(s Serve) (Facts, error) {
	a, err := find(s.Kind)
	if err != nil {
		return Facts{}, err
	}
	r, err := a.release(s.Release)
	if err != nil {
		return Facts{}, err
	}
	f := a.facts(s, r)
	f.Kind, f.Release, f.Port = a.kind, r.String(), a.port
	return f, nil
}

// completion asks for one token the way that every engine here understands.
func completion(alias string) Call {
	return Call{"POST", "/v1/completions", map[string]any{"model": alias, "prompt": "1", "max_tokens": 1, "temperature": 0}}
}
