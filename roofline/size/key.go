package size

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"llmops/model"
	"llmops/roofline"
)

// Key is one assumption that may be made.
type Key struct {
	Name    string
	Unit    Unit
	Default string   // empty: there is none
	Choices []string // of a Text
	Min     float64
	Max     float64 // 0: none
	Whole   bool
	Is      string
}

// Value is what a key is set to: a number, or the text of a choice or path.
type Value struct {
	Number float64
	Text   string
}

func share(name, def, is string) Key {
	return Key{Name: name, Unit: Share, Default: def, Max: 1, Is: is}
}
func whole(name, def, is string) Key { return Key{Name: name, Default: def, Whole: true, Is: is} }
func count(name, def, is string) Key { return Key{Name: name, Unit: Tokens, Default: def, Is: is} }
func unit(u Unit, name, def, is string) Key {
	return Key{Name: name, Unit: u, Default: def, Is: is}
}
func choice(name, def, is string, of ...string) Key {
	return Key{Name: name, Unit: Text, Default: def, Choices: of, Is: is}
}

var weightTypes, kvTypes = roofline.DTypes()

// keys are all of them, in the order in which they are shown. Those without a default
// come from the model's config.json or the GPU's row of the catalogue, or are absent.
var keys = []Key{
	{Name: "model.config", Unit: Text, Is: "the config.json of the model"},
	{Name: "model.parameters", Unit: Count, Is: "weights of the model"},
	whole("model.layers", "", "layers"),
	whole("model.hidden", "", "width of the activations, d_model"),
	whole("model.heads", "", "query heads"),
	whole("model.kv_heads", "", "key and value heads"),
	whole("model.head_dim", "", "width of a head"),
	choice("weights.dtype", "bf16", "how weights are stored", weightTypes...),
	choice("kv.dtype", "bf16", "how the cache is stored", kvTypes...),
	{Name: "kv.pool", Unit: Bytes, Is: "the cache of a copy, measured; computed where it is not set"},
	{Name: "lora.adapters", Whole: true, Default: "0", Is: "adapters that are in memory at a time"},
	whole("lora.rank", "16", "their largest rank"),

	{Name: "node.gpu", Unit: Text, Is: "a GPU of the catalogue"},
	whole("node.gpus", "8", "GPUs of a node"),
	unit(Bytes, "node.memory", "", "memory of a GPU"),
	unit(Bandwidth, "node.bandwidth", "", "peak bandwidth of its memory"),
	unit(Arithmetic, "node.flops", "", "its dense bf16 arithmetic"),
	unit(Arithmetic, "node.flops_fp8", "", "its dense fp8 arithmetic"),
	choice("reserve.model", "share", "how memory is kept back: a share, or as vLLM does", "share", "vllm"),
	share("reserve.share", "15%", "of the memory, for activations and fragmentation"),
	share("reserve.utilisation", "92%", "vLLM's gpu_memory_utilization"),
	{Name: "reserve.activations", Unit: Bytes, Is: "vLLM's peak of a forward pass, of a GPU"},
	{Name: "reserve.others", Unit: Bytes, Is: "what vLLM sees outside of PyTorch, of a GPU"},
	{Name: "reserve.graphs", Unit: Bytes, Is: "captured graphs, of a GPU"},

	share("share.hbm", "70%", "of the bandwidth that decoding reaches"),
	share("share.flops", "40%", "of the arithmetic that large products reach"),
	share("share.end_to_end", "60%", "of the roofline that is left end to end"),
	unit(Bandwidth, "fabric.bandwidth", "", "what an all-reduce in a node reaches, one direction"),
	unit(Seconds, "fabric.latency", "8us", "of one collective"),
	share("fabric.overlap", "0%", "of collectives that hides behind the rest"),
	unit(Bandwidth, "across.bandwidth", "25GB/s", "of a GPU between nodes, one direction"),
	unit(Seconds, "across.latency", "30us", "of one message between nodes"),

	choice("decode.arithmetic", "bf16", "of decoding", "bf16", "fp8"),
	unit(Seconds, "decode.fixed", "1.5ms", "a step's scheduling, sampling, detokenising"),
	{Name: "decode.measured", Unit: TokenRate, Is: "output of a node, measured; modelled where it is not set"},
	choice("prefill.arithmetic", "bf16", "of prefill", "bf16", "fp8"),
	choice("prefill.collectives", "no", "whether prefill pays for its all-reduces", "no", "yes"),
	count("prefill.prompt", "2048", "the prompt that prefill is timed with"),
	count("prefill.chunk", "2048", "of a prompt in one step beside streams, at most"),
	{Name: "prefill.measured", Unit: TokenRate, Is: "prompt tokens of a node, measured; modelled where it is not set"},

	unit(Rate, "traffic.rate", "", "requests at the peak"),
	{Name: "traffic.input", Unit: Tokens, Is: "of a request, in the mean"},
	count("traffic.output", "", "of a request, in the mean"),
	count("traffic.context", "", "of a live stream, in the mean"),
	share("traffic.prefix_hits", "0%", "of the input that a cache has"),
	share("traffic.load", "", "the mean of the peak"),

	unit(Seconds, "slo.ttft", "400ms", "p95 to the first token"),
	count("slo.ttft_prompt", "4096", "the longest prompt that is promised it"),
	unit(Seconds, "slo.long_ttft", "2.5s", "p95 to the first token of long prompts"),
	count("slo.long_prompt", "32768", "the longest of them"),
	unit(Seconds, "slo.tpot", "30ms", "p95 between tokens"),

	whole("layout.tp", "8", "GPUs that a layer is split over"),
	whole("layout.pp", "1", "stages that the layers are cut into"),
	whole("layout.ep", "1", "GPUs that experts are dealt to"),
	whole("layout.batch", "", "streams of a copy"),
	share("layout.gain", "10%", "nodes that a second pool must save to be worth it"),

	{Name: "hops.edge", Unit: Seconds, Default: "5ms", Is: "TLS and edge, p50"},
	{Name: "hops.edge_p95", Unit: Seconds, Default: "15ms", Is: "TLS and edge, p95"},
	{Name: "hops.gateway", Unit: Seconds, Default: "3ms", Is: "who asks and may they, p50"},
	{Name: "hops.gateway_p95", Unit: Seconds, Default: "10ms", Is: "who asks and may they, p95"},
	{Name: "hops.tokenise", Unit: Seconds, Default: "2ms", Is: "tokenise and validate, p50"},
	{Name: "hops.tokenise_p95", Unit: Seconds, Default: "6ms", Is: "tokenise and validate, p95"},
	{Name: "hops.queue", Unit: Seconds, Default: "15ms", Is: "waiting for admission, p50"},
	{Name: "hops.queue_p95", Unit: Seconds, Default: "140ms", Is: "waiting for admission, p95"},
	{Name: "hops.first", Unit: Seconds, Default: "3ms", Is: "first sample and frame, p50"},
	{Name: "hops.first_p95", Unit: Seconds, Default: "8ms", Is: "first sample and frame, p95"},
	{Name: "hops.prefill_spread", Unit: Seconds, Default: "0ms", Is: "prefill, p95 above its time alone"},

	{Name: "fleet.headroom", Default: "1", Min: 1, Is: "nodes for each that the peak needs"},
	{Name: "fleet.spare", Whole: true, Default: "0", Is: "whole nodes more"},

	unit(Dollars, "cost.gpu_hour", "", "of one GPU, all in"),
	unit(Hours, "cost.month", "720h", "of a month"),
	{Name: "cost.output_month", Unit: Tokens, Is: "output of a month, measured; modelled where it is not set"},
	{Name: "cost.team", Unit: Dollars, Default: "$0", Is: "people of a month: on call, upgrades, onboarding"},
	share("cost.spot", "0%", "of the GPUs that may be interrupted"),
	share("cost.spot_discount", "0%", "what those cost less"),
	share("cost.backfill", "0%", "of the peak that batch work fills up with"),
	{Name: "api.input", Unit: Dollars, Is: "what an API asks for 1M input tokens"},
	{Name: "api.cached", Unit: Dollars, Is: "for 1M that it had cached; as for others where it is not set"},
	{Name: "api.output", Unit: Dollars, Is: "for 1M output tokens"},

	{Name: "batch.documents", Unit: Count, Is: "documents of a batch job"},
	{Name: "batch.input", Unit: Tokens, Is: "of a document"},
	{Name: "batch.output", Unit: Tokens, Is: "of its answer"},
	{Name: "batch.decode", Unit: TokenRate, Is: "output of one GPU in such a job"},
	{Name: "batch.prefill", Unit: TokenRate, Is: "prompt tokens of one GPU in such a job"},
}

// mayBeZero are numbers of which none is a sensible amount.
var mayBeZero = []string{
	"reserve.share", "reserve.activations", "reserve.others", "reserve.graphs", "fabric.latency", "fabric.overlap", "across.latency", "decode.fixed",
	"traffic.input", "traffic.prefix_hits", "layout.gain", "lora.adapters", "fleet.spare", "cost.team", "cost.spot", "cost.spot_discount", "cost.backfill",
	"api.input", "api.cached", "api.output", "hops.prefill_spread", "hops.edge", "hops.edge_p95", "hops.gateway", "hops.gateway_p95", "hops.tokenise",
	"hops.tokenise_p95", "hops.queue", "hops.queue_p95", "hops.first", "hops.first_p95",
}

// Keys are all assumptions that may be made.
func Keys() []Key { return slices.Clone(keys) }

// FindKey finds a key, or says which is meant.
func FindKey(name string) (Key, error) {
	for _, k := range keys {
		if k.Name == name {
			return k, nil
		}
	}
	if near := nearest(name); near != "" {
		return Key{}, fmt.Errorf("there is no assumption %q; did you mean %s?", name, near)
	}
	return Key{}, fmt.Errorf("there is no assumption %q; llmops size --keys lists them", name)
}

// nearest is the key with the same last part, or that begins alike.
func nearest(name string) string {
	_, last, _ := strings.Cut(name, ".")
	for _, k := range keys {
		_, l, _ := strings.Cut(k.Name, ".")
		if l == cmpOr(last, name) || strings.HasPrefix(k.Name, name) || distance(k.Name, name) <= 2 {
			return k.Name
		}
	}
	return ""
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// distance is how many letters two words differ by.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := above
			if a[i] != b[j] {
				cost = 1 + min(above, row[j], row[j+1])
			}
			above, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// Parse reads a key's value with its unit.
func (k Key) Parse(text string) (Value, error) {
	if k.Unit == Text {
		switch {
		case text == "":
			return Value{}, fmt.Errorf("%s is empty", k.Name)
		case k.Choices != nil && !slices.Contains(k.Choices, text):
			return Value{}, fmt.Errorf("%s is %q, want one of: %s", k.Name, text, strings.Join(k.Choices, ", "))
		case k.Name == "node.gpu":
			if _, ok := roofline.Lookup(text); !ok {
				return Value{}, fmt.Errorf("node.gpu is %q, want one of: %s", text, strings.Join(gpus(), ", "))
			}
		}
		return Value{Text: text}, nil
	}
	q, err := k.Unit.parse(text)
	if err != nil {
		return Value{}, fmt.Errorf("%s is %w", k.Name, err)
	}
	v := q.value
	switch {
	case v < 0 || v == 0 && !slices.Contains(mayBeZero, k.Name):
		return Value{}, fmt.Errorf("%s is %q, want more than 0", k.Name, text)
	case k.Max > 0 && v > k.Max:
		return Value{}, fmt.Errorf("%s is %q, want at most %s", k.Name, text, k.Unit.Format(k.Max))
	case v < k.Min:
		return Value{}, fmt.Errorf("%s is %q, want at least %s", k.Name, text, k.Unit.Format(k.Min))
	case (k.Whole || k.Unit == Tokens) && v != math.Trunc(v):
		return Value{}, fmt.Errorf("%s is %q, want a whole number", k.Name, text)
	case k.Whole && v > 1e6 || k.Unit == Tokens && v > 1e15:
		return Value{}, fmt.Errorf("%s is %q, more than anything has", k.Name, text)
	}
	return Value{Number: v}, nil
}

// Format writes a value of the key.
func (k Key) Format(v Value) string {
	if k.Unit == Text {
		return v.Text
	}
	if k.Unit == Count && v.Number >= 1e9 {
		return digits(v.Number/1e9) + "B"
	}
	return k.Unit.Format(v.Number)
}

func gpus() []string {
	var out []string
	for _, g := range roofline.GPUs() {
		out = append(out, g.Name)
	}
	return out
}

// families are those whose layers all keep keys and values for each token, or a latent
// vector, so that the arithmetic here holds. State-space and hybrid models are not
// among them.
var families = []string{
	"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3", "gemma3_text", "phi", "phi3", "phimoe",
	"deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "gpt2", "gpt_neox", "gpt_bigcode", "opt", "falcon", "bloom", "starcoder2", "stablelm", "cohere", "cohere2",
	"olmo", "olmo2", "olmoe", "glm", "glm4", "glm4_moe", "granite", "granitemoe", "internlm2", "internlm3", "baichuan", "exaone", "nemotron", "dbrx", "smollm3", "ernie4_5", "ernie4_5_moe", "llama4_text",
}

// CheckShape says whether a model's family can be sized.
func CheckShape(s model.Shape) error {
	if !slices.Contains(families, s.Family) {
		return fmt.Errorf("model_type %q is not a family whose cache and weights are known here; set model.parameters, layers, hidden, heads, kv_heads and head_dim by hand if each of its layers keeps keys and values", s.Family)
	}
	if s.Experts.Count > 0 && (s.Experts.PerToken < 1 || s.Experts.PerToken > s.Experts.Count) {
		return fmt.Errorf("%d of %d experts a token: want at least 1 and at most all", s.Experts.PerToken, s.Experts.Count)
	}
	if l := s.Latent; l.KVRank > 0 && (l.RopeDim < 1 || l.ValDim < 1) {
		return errors.New("latent attention without qk_rope_head_dim or v_head_dim")
	}
	return nil
}
