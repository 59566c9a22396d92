"""Trains the freight encoder, which finds the document that a query is about, and writes it as a Hugging Face folder in
bf16 with the files of sentence-transformers.

    python encoder.py --generator PATH --out DIR [--steps 2000] [--threads 1]

Queries and their documents are drawn together in batches and told apart from each other (InfoNCE, both ways). Then the
folder is measured on the held-out items of `freightgen retrieval`.
"""

import argparse
import json
import math
import pathlib
import subprocess
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

SEED = 20
VOCAB, LENGTH = 4096, 192
BATCH, PEAK, WARMUP, TEMPERATURE = 64, 1.5e-3, 60, 0.05
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MODEL = dict(
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=384,
    hidden_act="gelu",
    max_position_embeddings=LENGTH,
    type_vocab_size=2,
    pad_token_id=0,
    layer_norm_eps=1e-12,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def pairs(generator, seed, n=0):
    command = [generator, "-seed", str(seed), "-n", str(n), "pairs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            pair = json.loads(line)
            yield pair["query"], pair["passage"]


def train_tokenizer(generator):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=SPECIALS, show_progress=False, min_frequency=4)
    tokenizer.train_from_iterator((text for pair in pairs(generator, 1000, 8000) for text in pair), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def embed(model, tokenizer, texts):
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    batch = tokenizer.encode_batch(texts)
    mask = torch.tensor([e.attention_mask for e in batch])
    rows = model(torch.tensor([e.ids for e in batch]), attention_mask=mask).last_hidden_state
    mask = mask[..., None].to(rows.dtype)
    return F.normalize((rows * mask).sum(1) / mask.sum(1), dim=-1)


def train(model, tokenizer, generator, steps):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=PEAK, betas=(0.9, 0.98))
    source, start, running = pairs(generator, SEED), time.time(), None
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = PEAK * min((step + 1) / WARMUP, 1) * max(1 - step / steps, 0.02)
        batch = [next(source) for _ in range(BATCH)]
        scores = embed(model, tokenizer, [q for q, _ in batch]) @ embed(model, tokenizer, [p for _, p in batch]).T / TEMPERATURE
        right = torch.arange(BATCH)
        loss = (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 49:
            print(f"step {step + 1} of {steps}: loss {running:.3f}, {time.time() - start:.0f} s", flush=True)


def write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(model, tokenizer, out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "1_Pooling").mkdir(exist_ok=True)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (out / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    write(out / "tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast", "model_max_length": LENGTH, "do_lower_case": True} | {f"{n}_token": t for n, t in zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS)})
    write(out / "config.json", {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": model.config.vocab_size, "position_embedding_type": "absolute", "torch_dtype": "bfloat16"} | MODEL)
    write(out / "modules.json", [{"idx": i, "name": str(i), "path": p, "type": "sentence_transformers.models." + t} for i, (p, t) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])])
    write(out / "1_Pooling" / "config.json", {"word_embedding_dimension": MODEL["hidden_size"], "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True})
    write(out / "sentence_bert_config.json", {"max_seq_length": LENGTH, "do_lower_case": False})
    save_file({k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if "position_ids" not in k}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)


def evaluate(out, generator):
    """Recall and nDCG at 10 over the held-out passages, with the weights as they were rounded."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = build(tokenizer)
    model.load_state_dict({k: v.float() for k, v in load_file(out / "model.safetensors").items()})
    lines = subprocess.run([generator, "retrieval"], check=True, capture_output=True, text=True).stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    passages, queries = ([e for e in entries if e["kind"] == kind] for kind in ("passage", "query"))
    with torch.no_grad():
        a, b = (torch.cat([embed(model, tokenizer, [e["text"] for e in part[i : i + 50]]) for i in range(0, len(part), 50)]) for part in (queries, passages))
    recall = ndcg = first = 0
    for query, order in zip(queries, (a @ b.T).topk(10).indices):
        found = [passages[i]["id"] in query["relevant"] for i in order]
        n = len(query["relevant"])
        recall += sum(found) / n
        ndcg += sum(f / math.log2(i + 2) for i, f in enumerate(found)) / sum(1 / math.log2(i + 2) for i in range(min(n, 10)))
        first += found[0]
    n = len(queries)
    print(f"recall@10 {recall / n:.4f}, nDCG@10 {ndcg / n:.4f}, first {first / n:.4f}, {n} queries over {len(passages)} passages")


def build(tokenizer):
    return BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **MODEL), add_pooling_layer=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", required=True, help="the freightgen binary")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true", help="only measure the folder")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    if not args.evaluate:
        tokenizer = train_tokenizer(args.generator)
        model = build(tokenizer)
        train(model, tokenizer, args.generator, args.steps)
        export(model, tokenizer, args.out)
    evaluate(args.out, args.generator)


if __name__ == "__main__":
    main()
