package model

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// The counts are those the publishers' index files and cards give.
func TestParameters(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         int64
		kv           float64 // bytes a token at two bytes an element
		active       int64   // 0: not published
	}{
		{"llama-3-8b", `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
			"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"tie_word_embeddings":false,"torch_dtype":"bfloat16","rope_theta":500000.0}`,
			8_030_261_248, 131072, 0},
		{"qwen2.5-7b", `{"model_type":"qwen2","hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
			"intermediate_size":18944,"vocab_size":152064,"tie_word_embeddings":false}`, 7_615_616_512, 57344, 0},
		{"qwen2.5-0.5b", `{"model_type":"qwen2","hidden_size":896,"num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,
			"intermediate_size":4864,"vocab_size":151936,"tie_word_embeddings":true}`, 494_032_768, 12288, 0},
		{"mixtral-8x7b", `{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
			"intermediate_size":14336,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2}`, 46_702_792_704, 131072, 0},
		{"qwen3-30b-a3b", `{"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,
			"intermediate_size":6144,"moe_intermediate_size":768,"vocab_size":151936,"num_experts":128,"num_experts_per_tok":8}`, 30_532_122_624, 98304, 0},
		{"gemma-2-9b", `{"model_type":"gemma2","hidden_size":3584,"num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,
			"intermediate_size":14336,"vocab_size":256000}`, 9_241_705_984, 344064, 0},
		{"gpt2", `{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"n_ctx":1024,"vocab_size":50257}`, 124_439_808, 36864, 0},
	} {
		s, err := ParseShape([]byte(tt.config))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := s.Parameters(); got != tt.want {
			t.Errorf("%s: %d parameters, want %d", tt.name, got, tt.want)
		}
		if got := s.KVBytesPerToken(2); got != tt.kv {
			t.Errorf("%s: %g KV bytes a token, want %g", tt.name, got, tt.kv)
		}
	}
}

// DeepSeek-V3 is published as 671 B in all, 37 B active.
func TestLatentAttentionWithExperts(t *testing.T) {
	s, err := ParseShape([]byte(`{"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,
		"intermediate_size":18432,"moe_intermediate_size":2048,"vocab_size":129280,"n_routed_experts":256,"num_experts_per_tok":8,"n_shared_experts":1,
		"first_k_dense_replace":3,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
		"quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"],"ignored_layers":["gate"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(s.Parameters()) / 1e9; got < 670.9 || got > 671.2 {
		t.Errorf("%.2f B parameters, want 671 B", got)
	}
	if got := float64(s.ActiveParameters()) / 1e9; got < 36.5 || got > 38 {
		t.Errorf("%.2f B active parameters, want 37 B", got)
	}
	if got, want := s.KVBytesPerToken(2), float64(61*576*2); got != want {
		t.Errorf("%g KV bytes a token, want %g", got, want)
	}
	if got := s.Quant.Scheme(); got != "fp8" {
		t.Errorf("scheme %q, want fp8", got)
	}
	if q := s.Quant; !slices.Equal(q.Block, []int{128, 128}) || q.Activations != "dynamic" || !slices.Equal(q.Ignore, []string{"lm_head", "gate"}) {
		t.Errorf("quantisation %+v", q)
	}
}

func TestNestedTextConfigAndNewSpellings(t *testing.T) {
	s, err := ParseShape([]byte(`{"architectures":["X"],"model_type":"outer","dtype":"bfloat16","vision_config":{"hidden_size":1},
		"text_config":{"model_type":"inner","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,"eos_token_id":[1,2],
		"rope_parameters":{"rope_theta":5e5,"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Family != "inner" || s.HeadDim != 16 || s.KVHeads != 4 || s.DType != "bfloat16" || len(s.EOS) != 2 {
		t.Errorf("got %+v", s)
	}
	if want := (Rope{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}); s.Rope != want {
		t.Errorf("rope %+v, want %+v", s.Rope, want)
	}
}

func TestWindows(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		want   []int // of each layer
	}{
		"mistral":           {`"model_type":"mistral","sliding_window":8`, []int{8, 8, 8}},
		"mistral, null":     {`"model_type":"mistral","sliding_window":null`, []int{0, 0, 0}},
		"mistral, default":  {`"model_type":"mistral"`, []int{4096, 4096, 4096}},
		"llama":             {`"model_type":"llama","sliding_window":8`, []int{0, 0, 0}},
		"qwen2, off":        {`"model_type":"qwen2","sliding_window":8,"max_window_layers":0`, []int{0, 0, 0}},
		"qwen2, upper":      {`"model_type":"qwen2","sliding_window":8,"use_sliding_window":true,"max_window_layers":2`, []int{0, 0, 8}},
		"qwen2, none":       {`"model_type":"qwen2","sliding_window":8,"use_sliding_window":true`, []int{0, 0, 0}},
		"qwen3, types":      {`"model_type":"qwen3","sliding_window":8,"use_sliding_window":true,"layer_types":["full_attention","sliding_attention","full_attention"]`, []int{0, 8, 0}},
		"qwen3, all":        {`"model_type":"qwen3","sliding_window":8,"use_sliding_window":true,"max_window_layers":0`, []int{8, 8, 8}},
		"gemma2, types":     {`"model_type":"gemma2","sliding_window":8,"layer_types":["sliding_attention","full_attention","sliding_attention","more"]`, []int{8, 0, 8}},
		"types of too few":  {`"model_type":"qwen3","sliding_window":8,"use_sliding_window":true,"layer_types":["full_attention","sliding_attention"]`, nil},
		"window below zero": {`"model_type":"mistral","sliding_window":-8`, nil},
	} {
		s, err := ParseShape([]byte(`{"hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,"vocab_size":100,` + tt.config + `}`))
		if tt.want == nil {
			if err == nil {
				t.Errorf("%s: parses", name)
			}
			continue
		}
		for i, want := range tt.want {
			if err != nil || s.Window(i) != want {
				t.Errorf("%s: layer %d sees %d, %v, want %d", name, i, s.Window(i), err, want)
			}
		}
	}
}

func TestQuantisationSummary(t *testing.T) {
	s, err := ParseShape([]byte(`{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,"quantization_config":{
		"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed","ignore":["lm_head"],"kv_cache_scheme":null,
		"config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel","symmetric":true,"dynamic":false,"group_size":null},
		"input_activations":{"num_bits":8,"type":"float","strategy":"token","dynamic":true,"symmetric":true},"output_activations":null}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Quant.Scheme(); got != "fp8 channel" {
		t.Errorf("scheme %q, want fp8 channel", got)
	}
	g := s.Quant.Groups[0]
	if g.Format != "float-quantized" || g.Activations == nil || !g.Activations.Dynamic || g.Activations.Strategy != "token" {
		t.Errorf("group %+v, activations %+v", g, g.Activations)
	}
}

func TestShapeRefusals(t *testing.T) {
	for name, tt := range map[string]struct{ config, want string }{
		"not json":       {`{`, "unexpected EOF"},
		"no layers":      {`{"hidden_size":8,"num_attention_heads":1,"vocab_size":3}`, "num_hidden_layers"},
		"odd heads":      {`{"hidden_size":9,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":3}`, "not a multiple"},
		"odd kv heads":   {`{"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":3,"vocab_size":3}`, "num_key_value_heads"},
		"negative":       {`{"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":-1,"vocab_size":3}`, "not negative"},
		"bad quant":      {`{"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"vocab_size":3,"quantization_config":[1]}`, "quantization_config"},
		"bad quant args": {`{"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"vocab_size":3,"quantization_config":{"config_groups":{"g":{"weights":4}}}}`, "weights"},
	} {
		if _, err := ParseShape([]byte(tt.config)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

func FuzzParseShape(f *testing.F) {
	f.Add([]byte(`{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,"rope_scaling":{"type":"linear","factor":2}}`))
	f.Add([]byte(`{"model_type":"qwen2","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,"use_sliding_window":true,"sliding_window":4,"layer_types":["full_attention","sliding_attention"]}`))
	f.Add([]byte(`{"text_config":null,"quantization_config":{"config_groups":{"a":null}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseShape(b)
		if err != nil {
			return
		}
		if s.Heads%s.KVHeads != 0 || s.Hidden <= 0 || s.Layers <= 0 {
			t.Errorf("accepted %+v", s)
		}
		for i := range min(s.Layers, 100) {
			if w := s.Window(i); w != 0 && w != s.SlidingWindow {
				t.Errorf("layer %d has a window of %d", i, w)
			}
		}
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
	})
}
