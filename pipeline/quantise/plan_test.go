package quantise

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

// headers writes a checkpoint of which only the headers are real. Each line is
// name, type and shape, such as "model.norm.weight BF16 4096"; a line that ends in
// .safetensors begins another shard, and makes an index be written.
func headers(t *testing.T, config string, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "config.json", config)
	shard, of := "model.safetensors", map[string][]safetensors.Tensor{}
	index := map[string]string{}
	for _, l := range lines {
		if strings.HasSuffix(l, ".safetensors") {
			shard = l
			continue
		}
		f := strings.Fields(l)
		d, err := safetensors.ParseDType(f[1])
		if err != nil {
			t.Fatal(err)
		}
		var shape []int64
		for n := range strings.SplitSeq(f[2], "x") {
			v, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			shape = append(shape, v)
		}
		of[shard] = append(of[shard], sized(f[0], d, shape...))
		index[f[0]] = shard
	}
	for name, ts := range of {
		laid, err := safetensors.Layout(ts)
		if err != nil {
			t.Fatal(err)
		}
		head, err := safetensors.AppendHeader(nil, laid, nil)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, dir, name, string(head))
		if err := os.Truncate(path, int64(len(head))+laid[len(laid)-1].End); err != nil {
			t.Fatal(err)
		}
	}
	if shard != "model.safetensors" {
		b, err := safetensors.AppendIndex(nil, 0, index)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, safetensors.IndexName, string(b))
	}
	return dir
}

func write(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// planned is what becomes of each tensor of dir, by name: "quantise", "stay" or
// "refuse", and why.
func planned(t *testing.T, dir string, o Options) (map[string]string, []Step, error) {
	t.Helper()
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	steps, err := Plan(c, shape, o)
	out := map[string]string{}
	for _, s := range steps {
		verdict := "stay"
		switch {
		case s.Refused:
			verdict = "refuse"
		case s.Quantise:
			verdict = "quantise"
		}
		out[s.Name] = verdict + ": " + s.Reason
	}
	return out, steps, err
}

func decoder(family string, more string) string {
	return fmt.Sprintf(`{"model_type":%q,"hidden_size":4096,"num_hidden_layers":2,"num_attention_heads":32,"num_key_value_heads":8,
"intermediate_size":14336,"vocab_size":32000,"torch_dtype":"bfloat16","tie_word_embeddings":false%s}`, family, more)
}

// The headers are those of published checkpoints, with two layers and experts.
var verdicts = []struct {
	name, config string
	keep         []string
	lines        []string // name, type, shape, the verdict and how its reason begins
	ignore       []string
	err          string
}{
	{
		name: "llama", config: decoder("llama", ""),
		lines: []string{
			"lm_head.weight BF16 32000x4096 stay: output head",
			"model.embed_tokens.weight BF16 32000x4096 stay: embedding",
			"model.layers.0.input_layernorm.weight BF16 4096 stay: norm",
			"model.layers.0.self_attn.q_proj.weight BF16 4096x4096 quantise: linear",
			"model.layers.0.self_attn.q_proj.bias BF16 4096 stay: norm or bias",
			"model.layers.0.mlp.down_proj.weight F16 4096x14336 quantise: linear",
			"model.layers.0.self_attn.rotary_emb.inv_freq F32 64 stay:",
		},
		ignore: []string{"lm_head"},
	},
	{
		name: "tied embeddings, no second head", config: strings.Replace(decoder("qwen2", ""), `"tie_word_embeddings":false`, `"tie_word_embeddings":true`, 1),
		lines: []string{
			"model.embed_tokens.weight BF16 32000x4096 stay: embedding",
			"model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{"lm_head"}, // engines build one
	},
	{
		name: "Mixtral: experts one by one", config: decoder("mixtral", `,"num_local_experts":2,"num_experts_per_tok":2`),
		lines: []string{
			"model.layers.0.block_sparse_moe.gate.weight BF16 2x4096 stay: router",
			"model.layers.0.block_sparse_moe.experts.0.w1.weight BF16 14336x4096 quantise: linear",
			"model.layers.0.block_sparse_moe.experts.0.w2.weight BF16 4096x14336 quantise: linear",
			"model.layers.0.block_sparse_moe.experts.1.w3.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.block_sparse_moe.gate", "lm_head"},
	},
	{
		name: "Qwen3-MoE: one expert kept keeps its layer's", config: decoder("qwen3_moe", `,"num_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":768`),
		keep: []string{"model.layers.0.mlp.experts.1.up_proj"},
		lines: []string{
			"model.layers.0.mlp.gate.weight BF16 2x4096 stay: router",
			"model.layers.0.mlp.experts.0.up_proj.weight BF16 768x4096 stay: computed as one with model.layers.0.mlp.experts.1.up_proj",
			"model.layers.0.mlp.experts.1.up_proj.weight BF16 768x4096 stay: kept as asked",
			"model.layers.1.mlp.experts.0.up_proj.weight BF16 768x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.mlp.experts.0.up_proj", "model.layers.0.mlp.experts.1.up_proj", "model.layers.0.mlp.gate", "lm_head"},
	},
	{
		name: "Qwen2-MoE: shared expert", config: decoder("qwen2_moe", `,"num_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":768`),
		lines: []string{
			"model.layers.0.mlp.shared_expert_gate.weight BF16 1x4096 stay: router",
			"model.layers.0.mlp.shared_expert.up_proj.weight BF16 768x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.mlp.shared_expert_gate", "lm_head"},
	},
	{
		name: "Qwen3.5-MoE: fused experts, gate above up", config: decoder("qwen3_5_moe", `,"num_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":768`),
		lines: []string{
			"model.layers.0.mlp.experts.gate_up_proj BF16 2x1536x4096 quantise: 2 fused experts",
			"model.layers.0.mlp.experts.down_proj BF16 2x4096x768 quantise: 2 fused experts",
			"model.layers.0.linear_attn.conv1d.weight BF16 8192x1x4 stay: 3 dimensions",
			"model.layers.0.linear_attn.in_proj_qkv.weight BF16 8192x4096 quantise: linear",
			"model.layers.0.linear_attn.A_log F32 32 stay:",
			"mtp.layers.0.mlp.up_proj.weight BF16 768x4096 stay: predicts several tokens",
			"mtp.fc.weight BF16 4096x8192 stay: predicts several tokens",
		},
		ignore: []string{"model.layers.0.linear_attn.conv1d", "mtp.fc", "model.mtp.fc", "mtp.layers.0.mlp.up_proj", "model.mtp.layers.0.mlp.up_proj", "lm_head"},
	},
	{
		name: "fused experts of the wrong way round", config: decoder("qwen3_5_moe", `,"num_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":768`),
		lines: []string{
			"model.layers.0.mlp.experts.gate_up_proj BF16 2x4096x1536 refuse: fused experts have the shape [2 4096 1536]",
			"model.layers.0.self_attn.q_proj.weight BF16 4096x4096 quantise: linear",
		},
		ignore: []string{"lm_head"}, err: "keep them",
	},
	{
		name: "Llama 4: fused experts stored [in, out]", config: decoder("llama4_text", `,"num_local_experts":2,"num_experts_per_tok":1`),
		lines: []string{
			"model.layers.0.feed_forward.experts.gate_up_proj BF16 2x4096x28672 quantise: 2 fused experts",
			"model.layers.0.feed_forward.experts.down_proj BF16 2x14336x4096 quantise: 2 fused experts",
			"model.layers.0.feed_forward.router.weight BF16 2x4096 stay: router",
			"model.layers.0.feed_forward.shared_expert.up_proj.weight BF16 8192x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.feed_forward.router", "lm_head"},
	},
	{
		name: "gpt-oss in bfloat16", config: decoder("gpt_oss", `,"num_local_experts":2,"num_experts_per_tok":2`),
		lines: []string{
			"model.layers.0.mlp.experts.gate_up_proj BF16 2x4096x28672 refuse: experts of gpt_oss interleave gate and up",
			"model.layers.0.self_attn.o_proj.weight BF16 4096x4096 quantise: linear",
		},
		ignore: []string{"lm_head"}, err: "keep them",
	},
	{
		name: "gpt-oss in bfloat16, its experts kept", config: decoder("gpt_oss", `,"num_local_experts":2,"num_experts_per_tok":2`),
		keep: []string{`re:.*\.experts\.`},
		lines: []string{
			"model.layers.0.mlp.experts.gate_up_proj BF16 2x4096x28672 stay: kept as asked",
			"model.layers.0.mlp.experts.gate_up_proj_bias BF16 2x28672 stay: kept as asked",
			"model.layers.0.mlp.router.weight BF16 2x4096 stay: router",
			"model.layers.0.self_attn.sinks BF16 64 stay:",
			"model.layers.0.self_attn.o_proj.weight BF16 4096x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts", "model.layers.0.mlp.experts.gate_up_proj_bias", "model.layers.0.mlp.router", "lm_head"},
	},
	{
		name: "experts of a family nobody has looked at", config: decoder("novel_moe", `,"num_experts":2,"num_experts_per_tok":2`),
		lines: []string{
			"model.layers.0.mlp.experts.down_proj BF16 2x4096x4096 refuse: the order of a novel_moe model's fused experts",
			"model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{"lm_head"}, err: "not known",
	},
	{
		name: "experts without .weight", config: decoder("novel_moe", `,"num_experts":2,"num_experts_per_tok":2`),
		lines: []string{
			"model.layers.0.mlp.experts.0.down_proj BF16 4096x4096 refuse: looks like experts",
			"model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{"lm_head"}, err: "does not end in .weight",
	},
	{
		name: "Qwen2-VL", config: decoder("qwen2_vl", `,"vision_config":{}`),
		lines: []string{
			"visual.blocks.0.attn.qkv.weight BF16 3840x1280 stay: vision tower",
			"visual.patch_embed.proj.weight BF16 1280x3x2x14x14 stay: vision tower",
			"visual.merger.mlp.0.weight BF16 5120x5120 stay: vision tower",
			"model.layers.0.self_attn.k_proj.weight BF16 1024x4096 quantise: linear",
		},
		ignore: []string{`re:(.*\.)?visual\..*`, "visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv", "visual.merger.mlp.0", "model.visual.merger.mlp.0",
			"visual.patch_embed.proj", "model.visual.patch_embed.proj", "lm_head"},
	},
	{
		name: "Llava", config: `{"model_type":"llava","text_config":` + decoder("llama", "") + `}`,
		lines: []string{
			"vision_tower.vision_model.encoder.layers.23.self_attn.q_proj.weight BF16 1024x1024 stay: vision tower",
			"multi_modal_projector.linear_1.weight BF16 4096x1024 stay: vision tower",
			"language_model.model.layers.0.self_attn.q_proj.weight BF16 4096x4096 quantise: linear",
			"language_model.model.embed_tokens.weight BF16 32000x4096 stay: embedding",
			"language_model.lm_head.weight BF16 32000x4096 stay: output head",
		},
		ignore: []string{`re:(.*\.)?multi_modal_projector\..*`, `re:(.*\.)?vision_tower\..*`, "language_model.lm_head", "multi_modal_projector.linear_1", "model.multi_modal_projector.linear_1",
			"vision_tower.vision_model.encoder.layers.23.self_attn.q_proj", "model.vision_tower.vision_model.encoder.layers.23.self_attn.q_proj", "lm_head"},
	},
	{
		name: "Qwen2.5-Omni", config: decoder("qwen2_5_omni_text", ""),
		lines: []string{
			"thinker.audio_tower.layers.0.fc1.weight BF16 5120x1280 stay: audio tower",
			"talker.model.layers.0.mlp.up_proj.weight BF16 4096x4096 stay: audio tower",
			"thinker.model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{`re:(.*\.)?talker\..*`, `re:(.*\.)?audio_tower\..*`, "talker.model.layers.0.mlp.up_proj", "model.talker.model.layers.0.mlp.up_proj", "thinker.audio_tower.layers.0.fc1", "lm_head"},
	},
	{
		name: "DeepSeek-V3: E4M3 in blocks, MTP in the last layer",
		config: decoder("deepseek_v3", `,"n_routed_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":2048,"kv_lora_rank":512,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
"quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]}`),
		lines: []string{
			"model.layers.1.self_attn.kv_a_proj_with_mqa.weight F8_E4M3 576x4096 quantise: linear, from E4M3 in blocks",
			"model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv F32 5x32 stay: scales of the source",
			"model.layers.1.mlp.gate.weight BF16 2x4096 stay: router",
			"model.layers.1.mlp.gate.e_score_correction_bias F32 2 stay:",
			"model.layers.1.mlp.experts.0.up_proj.weight F8_E4M3 2048x4096 quantise: linear, from E4M3 in blocks",
			"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv BF16 16x32 stay: scales of the source",
			"model.layers.2.mlp.experts.0.up_proj.weight F8_E4M3 2048x4096 stay: predicts several tokens",
			"model.layers.2.mlp.experts.0.up_proj.weight_scale_inv F32 16x32 stay: scales of the source",
			"model.layers.2.eh_proj.weight BF16 4096x8192 stay: predicts several tokens",
			"model.layers.1.self_attn.indexer.weights_proj.weight BF16 64x4096 stay: sparse attention's indexer",
		},
		ignore: []string{"model.layers.1.mlp.gate", "model.layers.1.self_attn.indexer.weights_proj", "model.layers.2.eh_proj", "model.layers.2.mlp.experts.0.up_proj", "lm_head"},
	},
	{
		name: "E4M3 whose scales are lost or of another shape", config: decoder("deepseek_v3", `,"quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]}`),
		lines: []string{
			"model.layers.0.mlp.up_proj.weight F8_E4M3 256x256 refuse: F8_E4M3 without its weight_scale_inv",
			"model.layers.0.mlp.down_proj.weight F8_E4M3 256x256 refuse: its weight_scale_inv is [1 2]",
			"model.layers.0.mlp.down_proj.weight_scale_inv F32 1x2 stay: scales",
			"model.layers.0.mlp.gone.weight_scale_inv F32 1x2 refuse: scales of model.layers.0.mlp.gone.weight, which is missing",
		},
		ignore: []string{"lm_head"}, err: "without its weight_scale_inv",
	},
	{
		name: "codes without a word in config.json", config: decoder("llama", ""),
		lines: []string{
			"model.layers.0.mlp.up_proj.weight F8_E4M3 256x256 refuse: quantised already",
			"model.layers.0.mlp.up_proj.weight_scale F32 256x1 refuse: quantised already",
			"model.layers.0.mlp.down_proj.qweight I32 32x256 refuse: quantised already",
		},
		ignore: []string{"lm_head"}, err: "start from the original weights",
	},
	{
		name: "Gemma 4's router", config: decoder("gemma4_text", ""),
		lines: []string{
			"model.layers.0.router.proj.weight BF16 128x4096 stay: router",
			"model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.router.proj", "lm_head"},
	},
	{
		// sglang#24927: an engine that computes q, k and v as one looks for "q_proj".
		name: "Gemma 4's clipped tower, and one with a name that no pattern knows", config: decoder("gemma4", ""), keep: []string{`re:model\.eyes\..*`},
		lines: []string{
			"model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight BF16 128x256 stay: vision tower",
			"model.eyes.layers.0.q_proj.linear.weight BF16 128x256 stay: kept as asked",
			"model.language_model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
		},
		ignore: []string{
			`re:(.*\.)?vision_tower\..*`,
			"model.eyes.layers.0.q_proj.linear", "model.eyes.layers.0.q_proj",
			"model.vision_tower.encoder.layers.0.self_attn.q_proj.linear", "vision_tower.encoder.layers.0.self_attn.q_proj.linear",
			"model.vision_tower.encoder.layers.0.self_attn.q_proj", "vision_tower.encoder.layers.0.self_attn.q_proj",
			"lm_head",
		},
	},
	{
		name: "GPT-2 keeps its transposed weights, so nothing is left", config: `{"model_type":"gpt2","n_embd":768,"n_layer":2,"n_head":12,"vocab_size":50257}`,
		lines: []string{
			"h.0.attn.c_attn.weight F32 768x2304 stay: stored [in, out]",
			"wte.weight F32 50257x768 stay: embedding",
		},
		ignore: []string{"h.0.attn.c_attn", "lm_head"}, err: "no weight that fp8-dynamic would change",
	},
	{
		name: "q, k and v share a verdict", config: decoder("llama", ""), keep: []string{"model.layers.0.self_attn.k_proj"},
		lines: []string{
			"model.layers.0.self_attn.q_proj.weight BF16 4096x4096 stay: computed as one with model.layers.0.self_attn.k_proj",
			"model.layers.0.self_attn.k_proj.weight BF16 1024x4096 stay: kept as asked",
			"model.layers.0.self_attn.v_proj.weight BF16 1024x4096 stay: computed as one",
			"model.layers.0.self_attn.o_proj.weight BF16 4096x4096 quantise: linear",
			"model.layers.1.self_attn.q_proj.weight BF16 4096x4096 quantise: linear",
		},
		ignore: []string{"model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "lm_head"},
	},
	{
		name: "experts twice, as one tensor and one by one", config: decoder("qwen3_5_moe", `,"num_experts":2,"num_experts_per_tok":2,"moe_intermediate_size":768`),
		lines: []string{
			"model.layers.0.mlp.experts.1.down_proj.weight BF16 4096x768 quantise: linear",
			"model.layers.0.mlp.experts.down_proj BF16 2x4096x768 refuse: it would be written as model.layers.0.mlp.experts.1.down_proj.weight",
		},
		ignore: []string{"lm_head"}, err: "remove one of them",
	},
	{
		name: "odd things", config: decoder("llama", ""),
		lines: []string{
			"model.layers.0.mlp.empty.weight BF16 0x16 stay: empty",
			"model.layers.0.mlp.up_proj.weight BF16 14336x4096 quantise: linear",
			"model.layers.0.mlp.table.weight I32 16x16 stay: I32 is not a float weight",
			"model.layers.0.mlp.scalar BF16 1 stay:",
			"model.layers.0.mlp.matrix BF16 16x16 stay: not a weight",
		},
		ignore: []string{"model.layers.0.mlp.table", "lm_head"},
	},
}

func TestVerdicts(t *testing.T) {
	for _, c := range verdicts {
		t.Run(c.name, func(t *testing.T) {
			got, steps, err := planned(t, headers(t, c.config, c.lines...), Options{Scheme: FP8Dynamic, Keep: c.keep})
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if len(got) != len(c.lines) {
				t.Errorf("%d steps for %d tensors", len(got), len(c.lines))
			}
			for _, l := range c.lines {
				f := strings.SplitN(l, " ", 4)
				if !strings.HasPrefix(got[f[0]], f[3]) {
					t.Errorf("%s: %q, want %q", f[0], got[f[0]], f[3])
				}
			}
			if ignore := ignored(steps); !slices.Equal(ignore, c.ignore) {
				t.Errorf("ignore\n%s\nwant\n%s", strings.Join(ignore, "\n"), strings.Join(c.ignore, "\n"))
			}
		})
	}
}

// What groups, words, blocks or GPUs do not divide is refused before any work, and
// not by the engine after it.
func TestIndivisible(t *testing.T) {
	for _, c := range []struct {
		scheme, line string
		tp           int
		want         string
	}{
		{Int4, "model.layers.0.mlp.up_proj.weight BF16 64x192", 1, "groups of 128 do not divide its 192 columns"},
		{Int8Weight, "model.layers.0.mlp.up_proj.weight BF16 64x100", 1, "groups of 128 do not divide its 100 columns"},
		{Int4Tensor, "model.layers.0.mlp.up_proj.weight BF16 64x12", 1, "words of 32 bits do not divide its 12 columns"},
		{Int4, "model.layers.0.mlp.down_proj.weight BF16 64x256", 4, "groups of 128 do not divide its 64 columns on each of 4 GPUs"},
		{Int4, "model.layers.0.mlp.down_proj.weight BF16 64x512", 4, ""},
		{FP8Dynamic, "model.layers.0.mlp.up_proj.weight BF16 65x192", 1, ""},
		{FP8Dynamic, "model.layers.0.mlp.up_proj.weight BF16 65x192", 2, "2 GPUs do not divide its 65 rows"},
		{FP8Dynamic, "model.layers.0.mlp.down_proj.weight BF16 64x99", 2, "2 GPUs do not divide its 99 columns"},
		{FP8Block, "model.layers.0.self_attn.o_proj.weight BF16 200x300", 1, ""}, // ragged, alone
		{FP8Block, "model.layers.0.mlp.gate_proj.weight BF16 200x256", 1, "blocks of 128 do not divide its 200 rows"},
		{FP8Block, "model.layers.0.mlp.up_proj.weight BF16 768x256", 4, "blocks of 128 do not divide its 192 rows on each of 4 GPUs"},
		{FP8Block, "model.layers.0.mlp.down_proj.weight BF16 256x768", 4, "blocks of 128 do not divide its 192 columns on each of 4 GPUs"},
		{FP8Block, "model.layers.0.mlp.down_proj.weight BF16 256x1024", 4, ""},
		{FP8Block, "model.layers.0.self_attn.k_proj.weight BF16 256x256", 8, ""}, // two heads of 128, copied
	} {
		_, _, err := planned(t, headers(t, decoder("llama", ""), c.line), Options{Scheme: c.scheme, TensorParallel: c.tp})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %s over %d: %v, want %q", c.scheme, c.line, c.tp, err, c.want)
		}
	}
}

// What is quantised already is said to be, whoever did it.
func TestRefusedSources(t *testing.T) {
	line := "model.layers.0.mlp.up_proj.weight BF16 128x128"
	for _, c := range []struct{ config, file, want string }{
		{decoder("llama", `,"quantization_config":{"quant_method":"gptq","bits":4}`), "", "quantised already"},
		{decoder("gpt_oss", `,"quantization_config":{"quant_method":"mxfp4"}`), "", "quantised already"},
		{decoder("llama", `,"quantization_config":{"quant_method":"fp8","activation_scheme":"static"}`), "", "quantised already"},
		{decoder("llama", ""), "hf_quant_config.json", "hf_quant_config.json: it is quantised already"},
		{decoder("llama", ""), "quantize_config.json", "quantised already"},
	} {
		dir := headers(t, c.config, line)
		if c.file != "" {
			write(t, dir, c.file, "{}")
		}
		if _, _, err := planned(t, dir, Options{Scheme: FP8Dynamic}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.config, c.file, err, c.want)
		}
	}
	if _, _, err := planned(t, headers(t, decoder("llama", ""), line), Options{Scheme: "fp9"}); err == nil || !strings.Contains(err.Error(), `scheme "fp9" is not one of fp8-block,`) {
		t.Error(err)
	}
}

// An error names three tensors and counts the others.
func TestErrorsStayShort(t *testing.T) {
	var lines []string
	for i := range 10 {
		lines = append(lines, fmt.Sprintf("model.layers.%d.mlp.up_proj.weight BF16 16x100", i))
	}
	_, steps, err := planned(t, headers(t, strings.Replace(decoder("llama", ""), `"num_hidden_layers":2`, `"num_hidden_layers":10`, 1), lines...), Options{Scheme: Int4})
	if err == nil || strings.Count(err.Error(), "\n") != 3 || !strings.Contains(err.Error(), "and 7 tensors more") || len(steps) != 10 {
		t.Errorf("%v", err)
	}
}
