package pipeline

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"llmops/serving/deploy"
	"llmops/serving/engine"
	"llmops/serving/scale"
	"llmops/serving/slo"
)

// Change is what kind of change a candidate is, which decides its gates.
type Change string

// Infra changes (quantisation, engine, flags) must reproduce the parent's
// outputs; Model changes bring new weights, which are held against stable.
const (
	Infra Change = "infra"
	Model Change = "model"
)

// Spec is a model.yaml: what is brought in, where it runs and what it must
// show. Paths are absolute. It is stored with each run and never changes.
type Spec struct {
	Name      string        `json:"name"`
	Change    Change        `json:"change"`
	First     string        `json:"first,omitempty"` // "parent": the first version goes live unasked
	Task      deploy.Task   `json:"task,omitempty"`
	Source    string        `json:"source"`
	File      string        `json:"file"`
	Engine    Engine        `json:"engine"`
	Quantise  Quantise      `json:"quantise"`
	Placement Placement     `json:"placement"`
	Traffic   Traffic       `json:"traffic"`
	SLO       slo.Class     `json:"slo"`
	Benchmark Benchmark     `json:"benchmark,omitzero"`
	Eval      Eval          `json:"eval"`
	Shadow    Shadow        `json:"shadow"`
	Canary    Canary        `json:"canary"`
	Standby   time.Duration `json:"standby"`
	Caps      Caps          `json:"caps,omitzero"`
	Scale     *scale.Policy `json:"scale,omitempty"` // nil: the number of replicas stays
}

// Engine is what serves the model, and how; what is left at its zero value is left to
// the engine. Fault is one of the embedded engine's own faults, given to the candidate
// only: it is how a bad release is rehearsed.
type Engine struct {
	Kind                string             `json:"kind"`
	Release             string             `json:"release,omitempty"`
	Image               string             `json:"image,omitempty"`
	MaxModelLen         int                `json:"max_model_len"` // tokens of prompt and answer
	MaxNumSeqs          int                `json:"max_num_seqs"`
	MaxNumBatchedTokens int                `json:"max_num_batched_tokens,omitempty"` // of one step
	TensorParallel      int                `json:"tensor_parallel,omitempty"`
	PipelineParallel    int                `json:"pipeline_parallel,omitempty"`
	KVCache             engine.KVDtype     `json:"kv_cache,omitempty"`
	KVOffload           int64              `json:"kv_offload,omitempty"` // bytes of host memory
	Speculative         engine.Speculative `json:"speculative,omitzero"`
	LoRA                engine.LoRA        `json:"lora,omitzero"`
	Sleep               bool               `json:"sleep,omitempty"`
	Drain               time.Duration      `json:"drain,omitempty"`
	Env                 map[string]string  `json:"env,omitempty"`
	Fault               string             `json:"fault,omitempty"`
}

// reference is the engine that the parent runs under: without what makes its answers
// less exact, which is the candidate's to show harmless.
func (e Engine) reference() Engine {
	e.KVCache, e.Speculative, e.Fault = "", engine.Speculative{}, ""
	return e
}

// Asked is what is said of the engine beside its kind, under the names of the model
// file and in their order. Values of the environment are left out: they may be what is
// nobody else's to read.
func (e Engine) Asked() string {
	var asked map[string]json.RawMessage
	if json.Unmarshal(mustJSON(e), &asked) != nil {
		return ""
	}
	delete(asked, "kind")
	var out []string
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		value := strings.Trim(string(asked[key]), `"`)
		switch {
		case value == "0": // left to the engine
			continue
		case key == "drain":
			value = e.Drain.String()
		case key == "env":
			value = strings.Join(slices.Sorted(maps.Keys(e.Env)), " ")
		}
		out = append(out, key+" "+value)
	}
	return strings.Join(out, ", ")
}

// gpus are how many one replica takes.
func (e Engine) gpus() int { return max(e.TensorParallel, 1) * max(e.PipelineParallel, 1) }

// Quantise is the scheme of the candidate's weights; an empty Scheme serves
// the source as it is. Keep names modules that stay as they are, Scales a table of
// what was measured with data.
type Quantise struct {
	Scheme string   `json:"scheme,omitempty"`
	Keep   []string `json:"keep,omitempty"`
	Scales string   `json:"scales,omitempty"` // path; empty: none
}

// Placement is where and how often the model runs. GPU is CPU or a name of the
// roofline's catalogue; Near is a rack to be in.
type Placement struct {
	GPU      string `json:"gpu"`
	Replicas int    `json:"replicas"`
	Pool     string `json:"pool"`
	Zone     string `json:"zone,omitempty"`
	Near     string `json:"near,omitempty"`
	Loads    int    `json:"loads,omitempty"` // replicas that may start at once; 0: all
	Warm     string `json:"warm,omitempty"`  // path of prompts that each answers before it is ready
}

// CPU is the placement without a GPU, and Interactive the pool that is meant when
// nothing is said.
const (
	CPU         = "cpu"
	Interactive = "interactive"
)

// place is what of a placement is part of a version: one that is moved is another, so
// that it moves by a canary. As it was before there was a choice it is nil.
func (p Placement) place() []string {
	if (p.GPU == "" || p.GPU == CPU) && (p.Pool == "" || p.Pool == Interactive) && p.Zone == "" && p.Near == "" {
		return nil
	}
	return []string{p.GPU, p.Pool, p.Zone, p.Near}
}

// Traffic is the traffic to plan for: requests a second, and tokens in and out
// of each. Replay is a file of requests that stands in for clients on a fleet
// of one machine.
type Traffic struct {
	Rate   float64 `json:"rate"`
	Input  int     `json:"input"`
	Output int     `json:"output"`
	Replay string  `json:"replay,omitempty"`
}

// Benchmark is what the load is to show beside the service level. Regression is how much
// worse than the version before a figure may be, as a share: 0.1 is a tenth; 0: it is shown
// and not judged.
type Benchmark struct {
	Regression float64 `json:"regression,omitempty"`
}

// Suite is one set of items and the loss of score that is still accepted.
type Suite struct {
	Name   string  `json:"name"`
	Items  string  `json:"items"` // path of the items
	Limit  int     `json:"limit,omitempty"`
	At     int     `json:"at,omitempty"` // of an encoder: how many passages count
	Margin float64 `json:"margin"`       // of 1: 0.03 is 3 points
}

// Eval is the evidence of parity that is asked for.
type Eval struct {
	Suites     []Suite `json:"suites"`
	Text       string  `json:"text,omitempty"`       // path of held-out text for perplexity
	Canaries   string  `json:"canaries,omitempty"`   // path of the prompts of numerical canaries
	Perplexity float64 `json:"perplexity,omitempty"` // accepted ratio, 1.01 is one per cent worse
	Confidence float64 `json:"confidence"`
}

// Shadow mirrors Share of the traffic for a time.
type Shadow struct {
	Share float64       `json:"share"`
	For   time.Duration `json:"for"`
}

// Step is one step of a canary: the candidate's share of the traffic and how
// long it must be healthy under it.
type Step struct {
	Weight float64       `json:"weight"`
	Bake   time.Duration `json:"bake"`
}

// Canary is how the candidate takes over. A step that is not decided after Max
// times its bake ends inconclusive; Harm is the ratio to stable that is still
// tolerated; RollbackOn names the guards.
type Canary struct {
	Steps      []Step   `json:"steps"`
	Max        float64  `json:"max"`
	Harm       float64  `json:"harm"`
	RollbackOn []string `json:"rollback_on"`
}
