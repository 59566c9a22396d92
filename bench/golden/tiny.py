"""Writes random checkpoints of a few kilobytes to serving/embedded/llama/testdata,
and what transformers computes with them in float32 and eager attention.

    python bench/golden/tiny.py serving/embedded/llama/testdata [NAME...]

They cover what the shipped model does not: an untied head, rotary scaling, biases,
norms of queries and keys, sliding windows, float16, two shards. Written with torch 2.15.0 and transformers 5.24.0.
"""

import base64
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

PATTERN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
TEXT = ["the weight of the container is stated on the bill of lading in kilograms, and the port of loading is where it was shipped"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
COMMON = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.25, bos_token_id=None, eos_token_id=2, pad_token_id=0, attn_implementation="eager")
SMALL = COMMON | dict(vocab_size=96, intermediate_size=40)
NO_HEAD_DIM = {k: v for k, v in SMALL.items() if k != "head_dim"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
MODELS = {
    "llama": (
        LlamaForCausalLM,
        LlamaConfig(
            **COMMON,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        ),
        torch.bfloat16,
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**{k: v for k, v in COMMON.items() if k != "head_dim"}, tie_word_embeddings=True), torch.float16),
    # Smaller ones, each for one or two things.
    "mistral": (MistralForCausalLM, MistralConfig(**SMALL, tie_word_embeddings=False, sliding_window=37), torch.bfloat16),
    "qwen2-window": (
        Qwen2ForCausalLM,
        Qwen2Config(**NO_HEAD_DIM, tie_word_embeddings=False, use_sliding_window=True, sliding_window=20, max_window_layers=1, rope_parameters=YARN),
        torch.bfloat16,
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config(**SMALL | dict(vocab_size=48, intermediate_size=24), tie_word_embeddings=True, attention_bias=True, use_sliding_window=True, sliding_window=24, layer_types=["sliding_attention", "full_attention"]),
        torch.float32,
    ),
    "qwen3-yarn": (Qwen3ForCausalLM, Qwen3Config(**SMALL, tie_word_embeddings=False, rope_parameters=YARN | {"attention_factor": 1.3, "truncate": False}), torch.bfloat16),
    "llama-bias": (
        LlamaForCausalLM,
        LlamaConfig(**SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "linear", "rope_theta": 500000.0, "factor": 3.0}),
        torch.bfloat16,
    ),
    "llama-dynamic": (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=False, rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}), torch.float16),
}
PROMPTS = [list(range(3, 40)), [7], [(i * 37 + 11) % 320 for i in range(150)]]


def tokenizer(out):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated", False), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False))
    (out / "tokenizer.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}, indent=1) + "\n")


def shards(out, tensors):
    """Splits the tensors over two files under an index."""
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({n: tensors[n] for n in part}, out / file, {"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {n: f for f, part in halves.items() for n in part}}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def main(root, names):
    for name, (cls, config, dtype) in MODELS.items():
        if names and name not in names:
            continue
        out = root / name
        out.mkdir(exist_ok=True)
        torch.manual_seed(1)
        model = cls(config).eval()
        for key, p in model.named_parameters():
            if key.endswith("norm.weight"):
                torch.nn.init.uniform_(p, 0.5, 1.5)
            if key.endswith("bias"):
                torch.nn.init.normal_(p, 0, 0.5)
            p.data = p.data.to(dtype).float()
        tensors = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items() if not (config.tie_word_embeddings and k == "lm_head.weight")}
        if name == "qwen2":
            shards(out, tensors)
        else:
            save_file(tensors, out / "model.safetensors", {"format": "pt"})
        text = config.to_dict()
        text["architectures"] = [cls.__name__]
        text["dtype"] = str(dtype).removeprefix("torch.")
        (out / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
        if name in ("llama", "qwen2"):
            tokenizer(out)
        golden = []
        with torch.no_grad():
            for ids in PROMPTS:
                ids = [i % config.vocab_size for i in ids]
                logits = model(torch.tensor([ids])).logits[0]
                row = {"ids": ids, "logits": {}, "greedy": []}
                for p in {0, len(ids) // 2, len(ids) - 1}:
                    row["logits"][p] = base64.b64encode(logits[p].numpy().astype("<f4").tobytes()).decode()
                logprobs = torch.log_softmax(logits.double(), -1)
                row["logprobs"] = [round(logprobs[i, ids[i + 1]].item(), 6) for i in range(len(ids) - 1)]
                seq = list(ids)
                for _ in range(24):
                    last = model(torch.tensor([seq])).logits[0, -1]
                    two = last.topk(2).values
                    seq.append(last.argmax().item())
                    row["greedy"].append({"id": seq[-1], "gap": round((two[0] - two[1]).item(), 6)})
                golden.append(row)
        (out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
