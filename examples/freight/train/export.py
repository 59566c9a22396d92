"""Writes a training checkpoint as a Hugging Face folder in bf16.

    python export.py --checkpoint FILE --tokenizer DIR --out DIR [--check]

With --check, transformers loads the folder and must give the same answers as the model it came from.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import CONTEXT, DIM, EPS, FFN, HEAD_DIM, HEADS, KV_HEADS, LAYERS, THETA, VOCAB, Model
from tokenizer import END, END_OF_TEXT


def load(path):
    model = Model()
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model.eval()


def rounded(model):
    """The model with the bf16 weights that a server will compute with."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    return model


def tensors(model):
    out = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, b in enumerate(model.blocks):
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = b.norm1.weight
        out[at + "post_attention_layernorm.weight"] = b.norm2.weight
        sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        for name, w in zip("qkv", b.qkv.weight.split(sizes)):
            out[at + f"self_attn.{name}_proj.weight"] = w
        out[at + "self_attn.o_proj.weight"] = b.out.weight
        gate, up = b.gate_up.weight.split(FFN)
        out[at + "mlp.gate_proj.weight"], out[at + "mlp.up_proj.weight"] = gate, up
        out[at + "mlp.down_proj.weight"] = b.down.weight
    return {k: v.detach().to(torch.bfloat16).contiguous() for k, v in out.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    model = rounded(load(args.checkpoint))
    save_file(tensors(model), args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(args.tokenizer / name, args.out / name)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": DIM,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,
        "bos_token_id": pad,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    write(args.out / "config.json", config)
    write(
        args.out / "generation_config.json",
        {"bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad, "do_sample": False},
    )
    print(f"{args.out}: {(args.out / 'model.safetensors').stat().st_size:,} bytes")
    if args.check:
        check(model, tokenizer, args.out)


def write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


CHECKED = [
    "Bill of Lading\nShipper: Norvik Timber Ltd\nPort of Loading: Gdansk\nGross Weight: 12,450.5 kg\nSeal: AB104422\n\n"
    + question
    for question in ("Give the shipper.", "What is the gross weight as a number?", "Answer in JSON: seal, loading_port.")
]


def check(model, tokenizer, folder):
    """Compares logits and greedy answers with transformers', through its own chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = AutoTokenizer.from_pretrained(folder)
    for content in CHECKED:
        messages = [{"role": "user", "content": content}]
        text = chat.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = chat(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids, "tokenizers differ"
        with torch.no_grad():
            t = len(ids)
            mask = torch.tril(torch.ones(t, t, dtype=torch.bool))[None, None]
            mine = model.logits(model(torch.tensor([ids]), torch.arange(t)[None], mask))
            apart = (mine - theirs(torch.tensor([ids])).logits).abs().max().item()
            assert apart < 1e-3, f"logits are {apart} apart"
            out = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, t), max_new_tokens=40, do_sample=False)
        answer = chat.decode(out[0, t:], skip_special_tokens=True)
        from evaluate import answers

        again = answers(model, tokenizer, [{"messages": messages, "max_tokens": 40}])[0]
        assert answer == again, f"answers differ: {answer!r}, {again!r}"
        print(f"checked: {content.splitlines()[-1]} -> {answer} (logits within {apart:.1e})")


if __name__ == "__main__":
    main()
