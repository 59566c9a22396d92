package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Shape is what config.json says about a decoder: enough to count parameters
// and bytes for any family. A zero means that the family has no such thing.
type Shape struct {
	Family        string   `json:"family"` // model_type
	Architectures []string `json:"architectures,omitempty"`

	Hidden       int `json:"hidden"`
	Layers       int `json:"layers"`
	Heads        int `json:"heads"`
	KVHeads      int `json:"kv_heads"`
	HeadDim      int `json:"head_dim"`
	Intermediate int `json:"intermediate"`
	Vocab        int `json:"vocab"`
	MaxPositions int `json:"max_positions"`

	NormEps       float64 `json:"norm_eps,omitempty"`
	Activation    string  `json:"activation,omitempty"`
	Tied          bool    `json:"tied"`
	AttentionBias bool    `json:"attention_bias,omitempty"` // on q, k, v; on o too unless the family is Qwen2
	MLPBias       bool    `json:"mlp_bias,omitempty"`
	QKNorm        bool    `json:"qk_norm,omitempty"` // RMS norm of each query and key head before it turns
	SlidingWindow int     `json:"sliding_window,omitempty"`
	SlidingLayers []bool  `json:"sliding_layers,omitempty"` // which layers have the window; nil: all
	Rope          Rope    `json:"rope"`

	Experts MoE    `json:"experts,omitzero"`
	Latent  Latent `json:"latent,omitzero"`

	DType string        `json:"dtype"`
	Quant *Quantisation `json:"quantisation,omitempty"`

	BOS []int `json:"bos,omitempty"`
	EOS []int `json:"eos,omitempty"`
}

// Rope is the rotary embedding: Type "default", "linear", "dynamic", "llama3",
// "yarn", … as the config spells it.
type Rope struct {
	Theta       float64 `json:"theta,omitempty"`
	Type        string  `json:"type,omitempty"`
	Factor      float64 `json:"factor,omitempty"`
	LowFreq     float64 `json:"low_freq,omitempty"`
	HighFreq    float64 `json:"high_freq,omitempty"`
	OriginalMax int     `json:"original_max,omitempty"`
	Partial     float64 `json:"partial,omitempty"` // share of each head that turns; 0 means all

	// Of "yarn"; a zero stands for its default.
	AttentionFactor float64 `json:"attention_factor,omitempty"`
	BetaFast        float64 `json:"beta_fast,omitempty"`
	BetaSlow        float64 `json:"beta_slow,omitempty"`
	Mscale          float64 `json:"mscale,omitempty"`
	MscaleAllDim    float64 `json:"mscale_all_dim,omitempty"`
	Smooth          bool    `json:"smooth,omitempty"` // the range of the ramp is not rounded to whole dimensions
}

// MoE describes a mixture of experts; Count 0 is a dense model.
type MoE struct {
	Count        int `json:"count"`
	PerToken     int `json:"per_token"`
	Shared       int `json:"shared,omitempty"`
	Intermediate int `json:"intermediate"`
	DenseLayers  int `json:"dense_layers,omitempty"` // leading layers without experts
}

// Latent describes multi-head latent attention; KVRank 0 is ordinary attention.
type Latent struct {
	QRank   int `json:"q_rank,omitempty"`
	KVRank  int `json:"kv_rank"`
	NopeDim int `json:"nope_dim"`
	RopeDim int `json:"rope_dim"`
	ValDim  int `json:"val_dim"`
}

// LoadShape reads config.json in dir.
func LoadShape(dir string) (Shape, error) {
	name := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(name)
	if err != nil {
		return Shape{}, fmt.Errorf("reading model shape: %w", err)
	}
	s, err := ParseShape(b)
	if err != nil {
		return Shape{}, fmt.Errorf("parsing %s: %w", name, err)
	}
	return s, nil
}

// ParseShape reads a config.json of any family. Models with a vision or audio
// tower are described by their text part, which is what decodes.
func ParseShape(b []byte) (Shape, error) {
	var outer object
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&outer); err != nil {
		return Shape{}, err
	}
	c := outer
	for _, key := range []string{"text_config", "llm_config", "language_config"} {
		if inner := outer.object(key); inner != nil {
			c = inner
			break
		}
	}
	s := Shape{
		Family:        cmp.Or(c.str("model_type"), outer.str("model_type")),
		Architectures: outer.strs("architectures"),
		Hidden:        c.num("hidden_size", "n_embd", "d_model", "dim"),
		Layers:        c.num("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
		Heads:         c.num("num_attention_heads", "n_head", "num_heads", "n_heads"),
		KVHeads:       c.num("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
		HeadDim:       c.num("head_dim", "kv_channels", "attention_head_dim"),
		Intermediate:  c.num("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim"),
		Vocab:         c.num("vocab_size", "padded_vocab_size"),
		MaxPositions:  c.num("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
		NormEps:       c.float("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon"),
		Activation:    cmp.Or(c.str("hidden_act"), c.str("hidden_activation"), c.str("activation_function")),
		MLPBias:       c.flag("mlp_bias", false),
		Rope:          c.rope(),
		DType:         cmp.Or(c.str("dtype"), c.str("torch_dtype"), outer.str("dtype"), outer.str("torch_dtype")),
		BOS:           c.ids("bos_token_id"),
		EOS:           c.ids("eos_token_id"),
	}
	// transformers ties by default; these families are the ones whose class turns it off.
	untied := map[string]bool{"llama": true, "mistral": true, "mixtral": true, "qwen2": true, "qwen3": true, "qwen2_moe": true,
		"qwen3_moe": true, "phi3": true, "deepseek_v2": true, "deepseek_v3": true, "olmo2": true, "gpt_oss": true, "glm4_moe": true, "llama4_text": true}
	s.Tied = c.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", !untied[s.Family]))
	switch s.Family {
	case "qwen2": // its class has biases, Mistral's none, whatever the file says
		s.AttentionBias = true
	case "mistral":
	default:
		s.AttentionBias = c.flag("attention_bias", c.flag("qkv_bias", s.Family == "qwen2_moe" || s.Family == "gpt2"))
	}
	s.QKNorm = s.Family == "qwen3" || s.Family == "qwen3_moe"
	s.window(c)
	s.Latent = Latent{QRank: c.num("q_lora_rank"), KVRank: c.num("kv_lora_rank"), NopeDim: c.num("qk_nope_head_dim"), RopeDim: c.num("qk_rope_head_dim"), ValDim: c.num("v_head_dim")}
	if n := c.num("num_local_experts", "num_experts", "n_routed_experts"); n > 1 {
		s.Experts = MoE{
			Count:        n,
			PerToken:     c.num("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token"),
			Shared:       c.num("n_shared_experts", "num_shared_experts"),
			Intermediate: cmp.Or(c.num("moe_intermediate_size"), s.Intermediate),
			DenseLayers:  c.num("first_k_dense_replace"),
		}
	}
	q, err := parseQuantisation(outer, c)
	if err != nil {
		return Shape{}, err
	}
	s.Quant = q
	return s.withDefaults()
}

// window reads which layers see only the last positions. Families differ in what
// a missing key means.
func (s *Shape) window(c object) {
	qwen := s.Family == "qwen2" || s.Family == "qwen3" || s.Family == "qwen2_moe" || s.Family == "qwen3_moe"
	switch {
	case s.Family == "llama": // its class has no window, whatever the file says
	case !c.flag("use_sliding_window", !qwen):
	case (qwen || s.Family == "mistral") && len(c["sliding_window"]) == 0:
		s.SlidingWindow = 4096
	default:
		s.SlidingWindow = c.num("sliding_window")
	}
	if s.SlidingWindow == 0 || s.Family == "mistral" {
		return
	}
	types := c.strs("layer_types")
	if types == nil && qwen {
		from := 28
		if len(c["max_window_layers"]) > 0 {
			from = c.num("max_window_layers")
		}
		for i := range min(s.Layers, maxLayers) {
			s.SlidingLayers = append(s.SlidingLayers, i >= from)
		}
	}
	for _, t := range types[:min(len(types), max(s.Layers, 0))] {
		s.SlidingLayers = append(s.SlidingLayers, t == "sliding_attention")
	}
	switch {
	case s.SlidingLayers != nil && !slices.Contains(s.SlidingLayers, true):
		s.SlidingLayers, s.SlidingWindow = nil, 0
	case !slices.Contains(s.SlidingLayers, false):
		s.SlidingLayers = nil
	}
}

// maxLayers bounds what a damaged file may make us allocate.
const maxLayers = 1 << 16

// Window is how many positions a layer sees, its own included; 0: all.
func (s Shape) Window(layer int) int {
	if s.SlidingLayers != nil && !s.SlidingLayers[layer] {
		return 0
	}
	return s.SlidingWindow
}

func (s Shape) withDefaults() (Shape, error) {
	for _, f := range []struct {
		key string
		n   int
	}{{"hidden_size", s.Hidden}, {"num_hidden_layers", s.Layers}, {"num_attention_heads", s.Heads}, {"vocab_size", s.Vocab}} {
		if f.n <= 0 {
			return Shape{}, fmt.Errorf("%s is missing or not positive: this does not describe a decoder", f.key)
		}
	}
	for _, n := range []int{s.KVHeads, s.HeadDim, s.Intermediate, s.MaxPositions, s.SlidingWindow, s.Experts.Count, s.Experts.PerToken, s.Experts.Shared, s.Experts.Intermediate, s.Experts.DenseLayers, s.Latent.KVRank, s.Latent.QRank} {
		if n < 0 {
			return Shape{}, fmt.Errorf("a size of %d: sizes are not negative", n)
		}
	}
	if s.SlidingLayers != nil && len(s.SlidingLayers) != s.Layers {
		return Shape{}, fmt.Errorf("layer_types has %d entries for %d layers", len(s.SlidingLayers), s.Layers)
	}
	s.KVHeads = cmp.Or(s.KVHeads, s.Heads)
	if s.HeadDim == 0 && s.QKNorm {
		s.HeadDim = 128 // the class's default, not the quotient
	}
	if s.HeadDim == 0 {
		if s.Hidden%s.Heads != 0 && s.Latent.KVRank == 0 {
			return Shape{}, fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is not given", s.Hidden, s.Heads)
		}
		s.HeadDim = s.Hidden / s.Heads
	}
	if s.KVHeads > s.Heads || s.Heads%s.KVHeads != 0 {
		return Shape{}, fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", s.Heads, s.KVHeads)
	}
	if s.Intermediate == 0 {
		s.Intermediate = 4 * s.Hidden // the default of the GPT-2 line, the only families that leave it out
	}
	s.DType = cmp.Or(s.DType, "float32")
	return s, nil
}

// gated reports whether the MLP has a gate projection beside up and down.
func (s Shape) gated() bool {
	switch s.Family {
	case "gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "phi", "starcoder2", "gpt_bigcode", "nemotron":
		return false
	}
	return true
}

// Parameters counts the weights of the decoder, embeddings included: exactly for
// the Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 2, GPT-2 and DeepSeek-V3
// families, to a tenth of a percent for others.
func (s Shape) Parameters() int64 {
	return s.embeddings() + s.blocks(s.Experts.Count) + s.finalNorm()
}

// ActiveParameters counts what one token is multiplied with: the chosen experts
// only, and the output head but not the input table, which is looked up.
func (s Shape) ActiveParameters() int64 {
	return int64(s.Vocab)*int64(s.Hidden) + s.blocks(s.Experts.PerToken) + s.finalNorm()
}

func (s Shape) blocks(experts int) int64 {
	dense := s.Layers
	if s.Experts.Count > 0 {
		dense = min(s.Experts.DenseLayers, s.Layers)
	}
	each := s.attention() + s.norms()
	return int64(dense)*(each+s.denseMLP()) + int64(s.Layers-dense)*(each+s.expertMLP(experts))
}

func (s Shape) embeddings() int64 {
	n := int64(s.Vocab) * int64(s.Hidden)
	if !s.Tied {
		n *= 2
	}
	if s.Family == "gpt2" {
		n += int64(s.MaxPositions) * int64(s.Hidden)
	}
	return n
}

func (s Shape) attention() int64 {
	h, d := int64(s.Hidden), int64(s.HeadDim)
	if l := s.Latent; l.KVRank > 0 {
		heads, qk := int64(s.Heads), int64(l.NopeDim+l.RopeDim)
		q := h * heads * qk
		if l.QRank > 0 {
			q = h*int64(l.QRank) + int64(l.QRank) + int64(l.QRank)*heads*qk
		}
		kv := h*int64(l.KVRank+l.RopeDim) + int64(l.KVRank) + int64(l.KVRank)*heads*int64(l.NopeDim+l.ValDim)
		return q + kv + heads*int64(l.ValDim)*h
	}
	q, kv := int64(s.Heads)*d, int64(s.KVHeads)*d
	n := h*q + 2*h*kv + q*h
	if s.AttentionBias {
		n += q + 2*kv
		if s.Family != "qwen2" && s.Family != "qwen2_moe" {
			n += h
		}
	}
	switch s.Family {
	case "qwen3", "qwen3_moe", "gemma3_text":
		n += 2 * d // query and key norms
	}
	return n
}

// matrices is the number of them in one MLP.
func (s Shape) matrices() int64 {
	if s.gated() {
		return 3
	}
	return 2
}

func (s Shape) denseMLP() int64 {
	h, wide, mats := int64(s.Hidden), int64(s.Intermediate), s.matrices()
	n := mats * h * wide
	if s.Family == "gpt2" || s.MLPBias {
		n += (mats-1)*wide + h
	}
	return n
}

func (s Shape) expertMLP(experts int) int64 {
	h := int64(s.Hidden)
	router := h * int64(s.Experts.Count)
	if s.Family == "deepseek_v3" {
		router += int64(s.Experts.Count) // the score correction
	}
	return s.matrices()*h*int64(s.Experts.Intermediate)*int64(experts+s.Experts.Shared) + router
}

func (s Shape) norms() int64 {
	switch s.Family {
	case "gpt2":
		return 4 * int64(s.Hidden) // two layer norms with bias
	case "gemma2", "gemma3_text":
		return 4 * int64(s.Hidden)
	}
	return 2 * int64(s.Hidden)
}

func (s Shape) finalNorm() int64 {
	if s.Family == "gpt2" {
		return 2 * int64(s.Hidden)
	}
	return int64(s.Hidden)
}

// KVBytesPerToken is what one token costs in the cache over all layers when an
// element takes bytesPerElement. Latent attention keeps its compressed vector.
func (s Shape) KVBytesPerToken(bytesPerElement float64) float64 {
	if s.Latent.KVRank > 0 {
		return float64(s.Layers) * float64(s.Latent.KVRank+s.Latent.RopeDim) * bytesPerElement
	}
	return float64(s.Layers) * 2 * float64(s.KVHeads) * float64(s.HeadDim) * bytesPerElement
}
