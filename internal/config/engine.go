package config

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"llmops/pipeline"
	"llmops/roofline"
	"llmops/serving/deploy"
	"llmops/serving/embedded"
	"llmops/serving/engine"
)

// The embedded engine's own bounds; the others choose theirs by the model and the GPU.
const (
	embeddedLen  = 2048
	embeddedSeqs = 16
)

type engineFile struct {
	Kind                scalar `yaml:"kind"`
	Release             scalar `yaml:"release"`
	Image               scalar `yaml:"image"`
	MaxModelLen         scalar `yaml:"max_model_len"`
	MaxNumSeqs          scalar `yaml:"max_num_seqs"`
	MaxNumBatchedTokens scalar `yaml:"max_num_batched_tokens"`
	TensorParallel      scalar `yaml:"tensor_parallel"`
	PipelineParallel    scalar `yaml:"pipeline_parallel"`
	KVCache             scalar `yaml:"kv_cache"`
	KVOffload           scalar `yaml:"kv_offload"`
	Speculative         struct {
		Method   scalar `yaml:"method"`
		Model    scalar `yaml:"model"`
		Tokens   scalar `yaml:"tokens"`
		MaxBatch scalar `yaml:"max_batch"`
	} `yaml:"speculative"`
	LoRA struct {
		Max     scalar            `yaml:"max"`
		MaxRank scalar            `yaml:"max_rank"`
		Runtime scalar            `yaml:"runtime"`
		Modules map[string]scalar `yaml:"modules"`
	} `yaml:"lora"`
	Sleep scalar            `yaml:"sleep"`
	Drain scalar            `yaml:"drain"`
	Env   map[string]scalar `yaml:"env"`
	Fault scalar            `yaml:"fault"`
}

type placementFile struct {
	GPU      scalar `yaml:"gpu"`
	Replicas scalar `yaml:"replicas"`
	Pool     scalar `yaml:"pool"`
	Zone     scalar `yaml:"zone"`
	Near     scalar `yaml:"near"`
	Loads    scalar `yaml:"loads"`
	Warm     scalar `yaml:"warm"`
}

// anyOf is the first that is set.
func anyOf(all ...scalar) scalar {
	i := slices.IndexFunc(all, scalar.set)
	return all[max(i, 0)]
}

// option is where an option of an engine stands in the file.
func (f *file) option(name string) scalar {
	e := &f.Engine
	at := map[string]scalar{
		"release": e.Release, "max_model_len": e.MaxModelLen, "max_num_seqs": e.MaxNumSeqs, "max_num_batched_tokens": e.MaxNumBatchedTokens,
		"tensor_parallel": e.TensorParallel, "pipeline_parallel": e.PipelineParallel, "kv_cache": e.KVCache, "kv_offload": e.KVOffload,
		"speculative": anyOf(e.Speculative.Method, e.Speculative.Tokens, e.Speculative.MaxBatch, e.Speculative.Model), "speculative.max_batch": e.Speculative.MaxBatch,
		"lora.max": e.LoRA.Max, "lora.max_rank": e.LoRA.MaxRank, "lora.runtime": e.LoRA.Runtime,
		"sleep": e.Sleep, "drain": e.Drain, "fault": e.Fault, "gpu": f.Placement.GPU, "source": f.Source,
	}
	for _, m := range slices.Sorted(maps.Keys(e.LoRA.Modules)) {
		at["lora.modules"] = anyOf(at["lora.modules"], e.LoRA.Modules[m])
	}
	return anyOf(at[name], e.Kind)
}

func (f *file) engine(r *reader, dir string) pipeline.Engine {
	in := &f.Engine
	e := pipeline.Engine{
		Kind: r.oneOf("engine.kind", in.Kind, "embedded", engine.Kinds()...), Release: r.text(in.Release, ""), Image: r.text(in.Image, ""),
		MaxModelLen: r.integer("engine.max_model_len", in.MaxModelLen, 0), MaxNumSeqs: r.integer("engine.max_num_seqs", in.MaxNumSeqs, 0),
		MaxNumBatchedTokens: r.integer("engine.max_num_batched_tokens", in.MaxNumBatchedTokens, 0),
		TensorParallel:      r.integer("engine.tensor_parallel", in.TensorParallel, 0), PipelineParallel: r.integer("engine.pipeline_parallel", in.PipelineParallel, 0),
		KVCache: engine.KVDtype(r.text(in.KVCache, "")), KVOffload: r.bytes("engine.kv_offload", in.KVOffload),
		Sleep: r.yes("engine.sleep", in.Sleep), Drain: r.span("engine.drain", in.Drain, 0), Fault: r.text(in.Fault, ""),
		Speculative: engine.Speculative{
			Method: r.text(in.Speculative.Method, ""), Model: abs(dir, r.text(in.Speculative.Model, "")),
			Tokens: r.integer("engine.speculative.tokens", in.Speculative.Tokens, 0), MaxBatch: r.integer("engine.speculative.max_batch", in.Speculative.MaxBatch, 0),
		},
		LoRA: engine.LoRA{
			Max: r.integer("engine.lora.max", in.LoRA.Max, 0), MaxRank: r.integer("engine.lora.max_rank", in.LoRA.MaxRank, 0),
			Runtime: r.yes("engine.lora.runtime", in.LoRA.Runtime),
		},
	}
	if e.Kind == "embedded" {
		e.MaxModelLen, e.MaxNumSeqs = max(e.MaxModelLen, r.integer("engine.max_model_len", in.MaxModelLen, embeddedLen)), max(e.MaxNumSeqs, r.integer("engine.max_num_seqs", in.MaxNumSeqs, embeddedSeqs))
		for key, s := range map[string]scalar{"release": in.Release, "image": in.Image} {
			if s.set() {
				r.complain(s, "engine.%s: the embedded engine is this program; leave it out", key)
			}
		}
		if _, err := embedded.ParseFault(e.Fault); err != nil {
			r.complain(in.Fault, "engine.fault: %v", err)
		}
	}
	r.exists(in.Speculative.Model, "engine.speculative.model", e.Speculative.Model)
	if e.Speculative.Method == "ngram" && e.Speculative.Model != "" {
		r.complain(in.Speculative.Model, "engine.speculative.model: ngram guesses from the text itself; leave the model out")
	}
	for _, name := range slices.Sorted(maps.Keys(in.LoRA.Modules)) {
		s := in.LoRA.Modules[name]
		if e.LoRA.Modules == nil {
			e.LoRA.Modules = map[string]string{}
		}
		e.LoRA.Modules[name] = abs(dir, s.text)
		if strings.ContainsAny(name, "=, ") {
			r.complain(s, "engine.lora.modules: the name %q holds a comma, a space or a =, by which engines tell them apart", name)
		}
		if s.text == "" {
			r.complain(s, "engine.lora.modules: %s has no folder", name)
		}
		r.exists(s, "engine.lora.modules."+name, e.LoRA.Modules[name])
	}
	for _, name := range slices.Sorted(maps.Keys(in.Env)) {
		if !variableName.MatchString(name) {
			r.complain(in.Env[name], "engine.env: %q is no name of a variable", name)
			continue
		}
		if e.Env == nil {
			e.Env = map[string]string{}
		}
		e.Env[name] = in.Env[name].text
	}
	return e
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	placeName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

// GPUs are those that a model can be placed on.
func GPUs() []string {
	var out []string
	for _, g := range roofline.GPUs() {
		if g.Device != "" {
			out = append(out, g.Name)
		}
	}
	return out
}

func (f *file) placement(r *reader, dir string) pipeline.Placement {
	gpus := append([]string{pipeline.CPU}, GPUs()...)
	in := &f.Placement
	p := pipeline.Placement{Replicas: r.integer("placement.replicas", in.Replicas, 1), Loads: r.integer("placement.loads", in.Loads, 2), Warm: abs(dir, r.text(in.Warm, ""))}
	r.exists(in.Warm, "placement.warm", p.Warm)
	if g, ok := roofline.Lookup(r.text(in.GPU, pipeline.CPU)); ok && g.Device == "" {
		p.GPU = pipeline.CPU
		r.complain(in.GPU, "placement.gpu: %s is known to the arithmetic alone; the job files place NVIDIA's: %s", g.Name, strings.Join(gpus[1:], ", "))
	} else {
		p.GPU = r.oneOf("placement.gpu", in.GPU, pipeline.CPU, gpus...)
	}
	for _, k := range []struct {
		key string
		in  scalar
		out *string
		def string
	}{{"placement.pool", in.Pool, &p.Pool, pipeline.Interactive}, {"placement.zone", in.Zone, &p.Zone, ""}, {"placement.near", in.Near, &p.Near, ""}} {
		*k.out = r.text(k.in, k.def)
		if k.in.set() && !placeName.MatchString(k.in.text) {
			r.complain(k.in, "%s is %q, want letters, digits, dots, - and _", k.key, k.in.text)
		}
	}
	return p
}

// engineCan refuses what the engine cannot be asked for, or a stage would miss of it.
func (f *file) engineCan(r *reader, s pipeline.Spec) {
	if f.Engine.Kind.set() && f.Engine.Kind.text != s.Engine.Kind {
		return // it is none of them
	}
	facts, err := engine.About(engine.Serve{Kind: s.Engine.Kind, Release: s.Engine.Release, Alias: s.Name})
	if err == nil && facts.Weights != engine.Safetensors {
		r.complain(f.Engine.Kind, "engine.kind: %s serves %s; a run reads, quantises and compares %s", s.Engine.Kind, facts.Weights, engine.Safetensors)
		return
	}
	about := err
	if err == nil {
		_, err = pipeline.CandidateJob(s)
	}
	refusals, others := engine.Refusals(err)
	for _, x := range refusals {
		r.complain(f.option(x.Option), "%v", x)
	}
	for _, x := range others {
		r.complain(f.Engine.Kind, "%v", x)
	}
	if about != nil {
		return
	}
	if q := s.Quantise.Scheme; q != "" && !slices.Contains(facts.Schemes, q) {
		can := "none, which serves the source as it is"
		if len(facts.Schemes) > 0 {
			can = strings.Join(facts.Schemes, ", ") + ", or " + can
		}
		r.complain(f.Quantise.Scheme, "quantise.scheme: engine %s does not load %s as it is written here; want %s", s.Engine.Kind, q, can)
	}
	if s.Task != "" && s.Engine.Kind != "embedded" {
		r.complain(anyOf(f.Task, f.Engine.Kind), "task: encoders for %s are served by the embedded engine alone; %s is started to generate text", s.Task, s.Engine.Kind)
	}
	if s.Eval.Text != "" && !facts.PromptLogprobs {
		r.complain(f.Eval.Text, "eval.text: engine %s does not tell the likelihood of a prompt's tokens, of which perplexity is made; leave it out, and let suites show parity", s.Engine.Kind)
	}
	if s.Eval.Canaries != "" && !(facts.PromptLogprobs && facts.TokenIDs) {
		r.complain(f.Eval.Canaries, "eval.canaries: engine %s of release %s does not tell the numbers and likelihoods of tokens, which canaries compare; leave it out, and let suites show parity", s.Engine.Kind, facts.Release)
	}
	if s.Scale != nil && s.Scale.KV > 0 && len(facts.Metrics.Names[engine.KVUse]) == 0 {
		r.complain(f.Scale.KV, "scale.kv: engine %s does not tell how full its cache is; scale by streams or burn", s.Engine.Kind)
	}
}

// task is what the model is for.
func (f *file) task(r *reader) deploy.Task {
	t := r.oneOf("task", f.Task, "generate", "generate", string(deploy.Embedding), string(deploy.Rerank))
	if t == "generate" {
		return ""
	}
	return deploy.Task(t)
}

// bytes reads "80GiB"; unset is 0.
func (r *reader) bytes(key string, s scalar) int64 {
	if !s.set() {
		return 0
	}
	const wrong = -1
	f := r.suffixed(key, s, wrong, "80GiB", map[string]float64{"MiB": 1.0 / (1 << 20), "GiB": 1.0 / (1 << 30), "TiB": 1.0 / (1 << 40), "MB": 1e-6, "GB": 1e-9, "TB": 1e-12})
	if f != wrong && f < 1 {
		r.complain(s, "%s is %q, want more than nothing", key, s.text)
	}
	return int64(max(f, 0) + 0.5)
}

// yes reads true or false; unset is false.
func (r *reader) yes(key string, s scalar) bool {
	if !s.set() {
		return false
	}
	b, err := strconv.ParseBool(s.text)
	if err != nil || (s.text != "true" && s.text != "false") {
		r.complain(s, "%s is %q, want true or false", key, s.text)
	}
	return b
}
