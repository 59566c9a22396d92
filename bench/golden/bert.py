"""Writes random encoders of a few kilobytes to serving/embedded/bert/testdata, and
what transformers computes with them in float32.

    python bench/golden/bert.py serving/embedded/bert/testdata

or compares the embeddings of a public one, which are written to golden.json beside
its weights:

    python bench/golden/bert.py --of DIR

Written with torch 2.15.0 and transformers 5.24.0.
"""

import base64
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification, BertModel

TOKENIZER = pathlib.Path(__file__).parents[2] / "model/tokenizer/testdata/bert.json"
COMMON = dict(num_hidden_layers=2, max_position_embeddings=80, initializer_range=0.3, pad_token_id=0, attn_implementation="eager")
MODELS = {
    "mean": (BertModel, dict(hidden_size=24, num_attention_heads=3, intermediate_size=32), torch.bfloat16, {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}),
    "cls": (BertModel, dict(hidden_size=16, num_attention_heads=1, intermediate_size=24, hidden_act="gelu_new"), torch.float16, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
    "cross": (BertForSequenceClassification, dict(hidden_size=16, num_attention_heads=2, intermediate_size=24, num_labels=1), torch.float32, None),
}
TEXTS = [
    "The bill of lading names the shipper.",
    "",
    "Gross weight: 18,420.5 kg; 1234567 cartons, container MSKU-702114/3",
    "Überführung der Fracht nach Zürich 提单 🚢",
    "x",
    "the vessel " * 40,
]
PAIRS = [("weight of the cargo", "Gross weight: 18,420.5 kg"), ("who signed?", "they've signed; we'll see"), ("", "x"), ("a b c", "the port of loading " * 12)]


def encode(values):
    return base64.b64encode(values.to(torch.float32).contiguous().numpy().tobytes()).decode()


def embed(model, tokenizer, texts, first, normalise):
    out = []
    for text in texts:
        e = tokenizer.encode(text)
        with torch.no_grad():
            rows = model(torch.tensor([e.ids]), token_type_ids=torch.tensor([e.type_ids])).last_hidden_state[0]
        v = rows[0] if first else rows.mean(0)
        if normalise:
            v = torch.nn.functional.normalize(v, dim=0)
        out.append({"text": text, "ids": e.ids, "vector": encode(v)})
    return out


def main(folder):
    for i, (name, (kind, shape, dtype, pooling)) in enumerate(MODELS.items()):
        tokenizer = Tokenizer.from_file(str(TOKENIZER))
        tokenizer.enable_truncation(64)
        torch.manual_seed(i)
        config = BertConfig(vocab_size=tokenizer.get_vocab_size(), **COMMON | shape)
        model = kind(config).eval()
        with torch.no_grad():
            for p in model.parameters():  # biases and norms are constant otherwise
                p += torch.randn_like(p) * 0.05
        model = model.to(dtype).to(torch.float32)
        out = folder / name
        out.mkdir(parents=True, exist_ok=True)
        save_file({k: v.to(dtype).contiguous() for k, v in model.state_dict().items() if "position_ids" not in k}, out / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(TOKENIZER, out / "tokenizer.json")
        c = config.to_dict() | {"architectures": [kind.__name__], "dtype": str(dtype).removeprefix("torch.")}
        (out / "config.json").write_text(json.dumps({k: v for k, v in sorted(c.items()) if v is not None}, indent=1) + "\n")
        (out / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}\n')
        if pooling:
            modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * (name == "mean")
            (out / "modules.json").write_text(json.dumps([{"idx": n, "name": str(n), "path": p, "type": "sentence_transformers.models." + t} for n, (p, t) in enumerate(modules)]) + "\n")
            (out / "1_Pooling").mkdir(exist_ok=True)
            (out / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": config.hidden_size} | pooling) + "\n")
            golden = embed(model, tokenizer, TEXTS, name == "cls", name == "mean")
        else:
            golden = []
            for a, b in PAIRS:
                e = tokenizer.encode(a, b)
                with torch.no_grad():
                    logit = model(torch.tensor([e.ids]), token_type_ids=torch.tensor([e.type_ids])).logits[0, 0]
                golden.append({"text": a, "second": b, "ids": e.ids, "vector": encode(torch.sigmoid(logit).reshape(1))})
        (out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def public(folder):
    config = BertConfig(**json.loads((folder / "config.json").read_text()), attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    state = {k.removeprefix("bert."): v.to(torch.float32) for k, v in load_file(folder / "model.safetensors").items()}
    left = model.load_state_dict(state, strict=False)
    assert not left.missing_keys, left
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
    (folder / "golden.json").write_text(json.dumps(embed(model, tokenizer, TEXTS, False, True), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    public(pathlib.Path(sys.argv[2])) if sys.argv[1] == "--of" else main(pathlib.Path(sys.argv[1]))
