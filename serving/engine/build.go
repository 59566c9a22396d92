package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"llmops/fleet"
)

// options are what is asked for, under the names that model.yaml has for them. Every
// field of Serve that is an option is here, so that none can be dropped.
func options(s Serve) []string {
	var out []string
	for _, o := range []struct {
		name string
		on   bool
	}{
		{"fault", s.Fault != ""},
		{"role", s.Role != ""},
		{"tensor_parallel", s.TensorParallel > 1},
		{"pipeline_parallel", s.PipelineParallel > 1},
		{"max_model_len", s.MaxModelLen > 0},
		{"max_num_seqs", s.MaxNumSeqs > 0},
		{"max_num_batched_tokens", s.MaxNumBatchedTokens > 0},
		{"kv_cache", s.KVDtype != ""},
		{"kv_offload", s.KVOffload > 0},
		{"quantise", s.Quantise != ""},
		{"lora.modules", len(s.LoRA.Modules) > 0},
		{"lora.max", s.LoRA.Max > 0},
		{"lora.max_rank", s.LoRA.MaxRank > 0},
		{"lora.runtime", s.LoRA.Runtime},
		{"sleep", s.Sleep},
		{"speculative", s.Speculative.Method != ""},
		{"speculative.max_batch", s.Speculative.MaxBatch > 0},
		{"drain", s.Drain > 0},
	} {
		if o.on {
			out = append(out, o.name)
		}
	}
	return out
}

// builder collects the command line and keeps account of the options that it covers.
type builder struct {
	Serve
	release release
	host    string
	port    string
	group   fleet.Group
	open    []string // options that nothing covers yet
	errs    []error
}

func newBuilder(a adapter, s Serve) (*builder, error) {
	r, err := a.release(s.Release)
	if err != nil {
		return nil, err
	}
	b := &builder{Serve: s, release: r, open: options(s), host: "0.0.0.0", port: strconv.Itoa(a.port)}
	if s.Listen != "" {
		i := strings.LastIndexByte(s.Listen, ':')
		if i < 1 || i == len(s.Listen)-1 {
			return nil, fmt.Errorf("engine %s: listen %q is not host:port", a.kind, s.Listen)
		}
		b.host, b.port = s.Listen[:i], s.Listen[i+1:]
	}
	if s.Dir == "" || s.Alias == "" {
		return nil, fmt.Errorf("engine %s: nothing to serve: it needs a model's folder and a name", a.kind)
	}
	if s.Role != "" && s.Role != Prefill && s.Role != Decode {
		return nil, fmt.Errorf("engine %s: role %q is not prefill or decode", a.kind, s.Role)
	}
	if sp := s.Speculative; sp.Method == "" && sp != (Speculative{}) || sp.Method != "" && sp.Tokens < 1 {
		return nil, &Refusal{a.kind, "speculative", "it needs a method and how many tokens it guesses ahead"}
	}
	if s.MaxNumBatchedTokens > 0 && s.MaxNumBatchedTokens < s.MaxNumSeqs {
		return nil, &Refusal{a.kind, "max_num_batched_tokens", fmt.Sprintf("it is %d, below max_num_seqs, %d: a step must hold a token of each sequence", s.MaxNumBatchedTokens, s.MaxNumSeqs)}
	}
	return b, nil
}

// gpus makes what the replica takes agree with how the model is split.
func (b *builder) gpus() {
	split := max(b.TensorParallel, 1) * max(b.PipelineParallel, 1)
	switch {
	case b.Need.Count == 0 && split > 1:
		b.group.GPU.Count = split
	case b.Need.Count > 0 && b.Need.Count != split && b.TensorParallel+b.PipelineParallel > 0:
		b.fail("tensor_parallel", "%d × %d GPUs are to be used and %d are asked for", max(b.TensorParallel, 1), max(b.PipelineParallel, 1), b.Need.Count)
	}
}

// processor refuses what a replica without a GPU cannot do.
func (b *builder) processor() {
	if !b.CPU {
		return
	}
	for _, option := range []string{"tensor_parallel", "pipeline_parallel"} {
		if slices.Contains(b.open, option) {
			b.fail(option, "a replica on the processor has no GPUs to be split over")
		}
	}
	b.group.GPU = fleet.Need{}
}

// needsGPU refuses an option that is about the memory of a GPU.
func (b *builder) needsGPU(option string) {
	if b.CPU && slices.Contains(b.open, option) {
		b.fail(option, "on the processor it has nothing to free or to offload from")
	}
}

// arg appends to the command line.
func (b *builder) arg(args ...string) { b.group.Argv = append(b.group.Argv, args...) }

// on tells whether the option is asked for, and takes it as covered.
func (b *builder) on(option string) bool {
	i := slices.Index(b.open, option)
	if i < 0 {
		return false
	}
	b.open = slices.Delete(b.open, i, i+1)
	return true
}

// number passes an option on as one flag.
func (b *builder) number(option, flag string, n int) {
	if b.on(option) {
		b.arg(flag, strconv.Itoa(n))
	}
}

func (b *builder) env(key, value string) {
	if b.group.Env == nil {
		b.group.Env = map[string]string{}
	}
	b.group.Env[key] = value
}

// fail refuses an option and says why.
func (b *builder) fail(option, format string, args ...any) {
	b.on(option)
	b.errs = append(b.errs, &Refusal{b.Kind, option, fmt.Sprintf(format, args...)})
}

// kv is the engine's own word for the cache's type.
func (b *builder) kv(words map[KVDtype]string) (string, bool) {
	if !b.on("kv_cache") {
		return "", false
	}
	w, ok := words[b.KVDtype]
	if !ok {
		b.fail("kv_cache", "%q is not one of: %s", b.KVDtype, joined(words))
	}
	return w, ok
}

// method is the engine's own word for the way to speculate.
func (b *builder) method(words map[string]string) (string, bool) {
	if !b.on("speculative") {
		return "", false
	}
	w, ok := words[b.Speculative.Method]
	switch {
	case !ok:
		b.fail("speculative", "method %q is not one of: %s", b.Speculative.Method, joined(words))
	case (b.Speculative.Method == "draft" || b.Speculative.Method == "eagle3") && b.Speculative.Model == "":
		b.fail("speculative", "method %s needs a model", b.Speculative.Method)
		ok = false
	}
	return w, ok
}

func joined[K ~string, V any](m map[K]V) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, string(k))
	}
	return strings.Join(out, ", ")
}

// check sets the probe of a process whose model takes minutes to load.
func (b *builder) check(path string) {
	b.group.Check = fleet.Check{Path: path, Interval: 10 * time.Second, Timeout: 5 * time.Second}
}

// drains is for engines that go on with what they have begun when they are told to
// stop: the kill comes after.
func (b *builder) drains() time.Duration {
	b.on("drain")
	d := cmp.Or(b.Drain, DefaultDrain)
	b.group.Grace = d + margin
	return d
}

// aborts is for those that do not: they are out of every route before they are told.
func (b *builder) aborts() { b.group.Grace = margin }

func (b *builder) done() (fleet.Group, error) {
	for _, o := range b.open {
		b.errs = append(b.errs, &Refusal{Engine: b.Kind, Option: o})
	}
	for k, v := range b.Env {
		b.env(k, v)
	}
	if len(b.errs) > 0 {
		return fleet.Group{}, errors.Join(b.errs...)
	}
	return b.group, nil
}

func count(n int) string { return strconv.Itoa(n) }

// seconds is a duration for a flag that takes whole ones.
func seconds(d time.Duration) string { return strconv.Itoa(int(d.Round(time.Second) / time.Second)) }

// gib is a number of bytes as the engines that count in GiB want it.
func gib(n int64) string { return strconv.FormatFloat(float64(n)/(1<<30), 'f', -1, 64) }

func inJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("engine: " + err.Error()) // of maps of strings and numbers
	}
	return string(text)
}

// pairs are name=folder, ordered by name so that the same adapters give the same
// command line.
func pairs(modules map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		out = append(out, name+"="+modules[name])
	}
	return out
}
