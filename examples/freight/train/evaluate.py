"""Measures the answers of a checkpoint on held-out items, per task and kind of answer.

    python evaluate.py --generator PATH --tokenizer DIR --checkpoint FILE [--seed N] [--noise P] [--haystack T] [--limit N]

Weights are rounded to bf16 first. Decoding is greedy; questions about one document share its prefix.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import time

import torch
from tokenizers import Tokenizer

from model import LAYERS, KV_HEADS, HEAD_DIM

OPEN, CLOSE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def prompt(item):
    (message,) = item["messages"]
    return OPEN + message["content"] + CLOSE


@torch.no_grad()
def answers(model, tokenizer, items):
    """Greedy answers to items that share a document; they may share nothing but the first token."""
    prompts = [tokenizer.encode(prompt(i), add_special_tokens=False).ids for i in items]
    end = tokenizer.token_to_id("<|im_end|>")
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == prompts[0][shared] for p in prompts):
        shared += 1
    n, longest = len(prompts), max(len(p) for p in prompts) - shared
    caches = [[] for _ in range(LAYERS)]
    triangle = torch.tril(torch.ones(shared, shared, dtype=torch.bool))[None, None]
    model(torch.tensor([prompts[0][:shared]]), torch.arange(shared)[None], triangle, caches)
    for cache in caches:
        cache[:] = [c.expand(n, KV_HEADS, shared, HEAD_DIM) for c in cache]

    # The rests are padded on the right; what follows is placed after the padding and does not see it.
    lengths = torch.tensor([len(p) - shared for p in prompts])
    rest = torch.zeros(n, longest, dtype=torch.long)
    for i, p in enumerate(prompts):
        rest[i, : len(p) - shared] = torch.tensor(p[shared:])
    own = torch.tril(torch.ones(longest, longest, dtype=torch.bool)).expand(n, 1, longest, longest)
    mask = torch.cat([torch.ones(n, 1, longest, shared, dtype=torch.bool), own], -1)
    positions = shared + torch.arange(longest).expand(n, longest)
    hidden = model(rest, positions, mask, caches)[torch.arange(n), lengths - 1]
    visible = torch.cat([torch.ones(n, shared, dtype=torch.bool), torch.arange(longest) < lengths[:, None]], -1)
    position = shared + lengths
    out, going = [[] for _ in items], torch.ones(n, dtype=torch.bool)
    for step in range(max(i["max_tokens"] for i in items)):
        tokens = model.logits(hidden).argmax(-1)
        going &= tokens != end
        for i in range(n):
            if going[i] and step < items[i]["max_tokens"]:
                out[i].append(tokens[i].item())
        if not going.any():
            break
        visible = torch.cat([visible, torch.ones(n, 1, dtype=torch.bool)], -1)
        hidden = model(tokens[:, None], position[:, None], visible[:, None, None], caches)[:, 0]
        position = position + 1
    return [tokenizer.decode(o) for o in out]


def right(item, answer):
    if item["kind"] == "json":
        try:
            return json.loads(answer) == json.loads(item["answer"])
        except ValueError:
            return False
    if item["kind"] == "number":
        try:
            return float(answer) == float(item["answer"])
        except ValueError:
            return False
    return answer == item["answer"]


def main():
    from export import load, rounded

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", required=True, help="the freightgen binary")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path)
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--tasks", default="freight,json,long-context")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, help="share of damaged label letters, instead of the shipped one")
    parser.add_argument("--haystack", type=int, help="tokens of a long-context document, instead of the shipped number")
    parser.add_argument("--limit", type=int, default=10**9, help="items a task at most")
    parser.add_argument("--wrong", action="store_true", help="print the wrong answers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = rounded(load(args.checkpoint))
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    for task in args.tasks.split(","):
        command = [args.generator, "-seed", str(args.seed)]
        command += ["-noise", str(args.noise)] if args.noise is not None else []
        command += ["-haystack", str(args.haystack)] if args.haystack else []
        lines = subprocess.run(command + [task], check=True, capture_output=True, text=True).stdout.splitlines()
        groups = collections.defaultdict(list)
        for line in lines[: args.limit]:
            item = json.loads(line)
            groups[item["doc"]].append(item)
        start, tally = time.monotonic(), collections.defaultdict(lambda: [0, 0])
        for items in groups.values():
            for item, answer in zip(items, answers(model, tokenizer, items)):
                ok = right(item, answer)
                for key in (task, f"{task}/{item['kind']}"):
                    tally[key][0] += ok
                    tally[key][1] += 1
                if args.wrong and not ok:
                    print(f"{item['id']}: want {item['answer']}, got {answer}")
        for key, (good, n) in tally.items():
            print(f"{key}: {100 * good / n:.1f} % of {n}")
        print(f"  ({time.monotonic() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
