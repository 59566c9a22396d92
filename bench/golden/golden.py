"""Writes what transformers computes in float32 from a checkpoint, for the tests of an engine on the same weights.

    python golden.py CHECKPOINT_DIR OUT.json

For each conversation: the chat template's text, the token ids, full logits at some positions (base64 of little-endian
float32), the log-probability of every prompt token given those before it, and the greedy continuation with the gap
between the two best logits at each step. Where that gap is small, an engine may honestly choose the other token.
Needs examples/freight/train/requirements.txt. One thread, no sampling: the same versions give the same file.
"""

import argparse
import base64
import hashlib
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

DOCUMENT = """Bill of Lading
Shipper: Norvik Timber Ltd
Consignee: Balto & Keirun GmbH
Ocean Vessel: MV Seom Star
Port of Loading: Gdansk
Discharge Port: Le Havre
Container No.: TRKU4471902
Gross Weight: 12,450.5 kg
Packages: 318 cartons
Issued on: 2025-03-17"""

DECLARATION = (
    "Import Entry\nentry no. = 57DE911564; exporter = Tralax Foods SA; made in = Chile; tariff code = 0808.10; "
    "invoice value = EUR 48.210,75; net wt. = 9 940 kgs; broker = Raisai Logistics BV"
)


def log(lines):
    """A terminal log with a code planted at its start, in its middle and near its end."""
    codes = {1: "Klokuom", lines // 2: "Stian", lines - 3: "Brondei"}
    out = ["Terminal log"]
    for i in range(1, lines):
        if i in codes:
            out.append(f"The code for {codes[i]}: {(i * 7919 + 10007) % 90000 + 10000}.")
        else:
            out.append(f"Crane {i % 9 + 1} moved {i * 37 % 80 + 2} boxes to row {i * 13 % 40 + 1}.")
    return "\n".join(out)


def user(text, question):
    return [{"role": "user", "content": f"{text}\n\n{question}"}]


CONVERSATIONS = {
    "field": user(DOCUMENT, "What is the vessel?"),
    "number": user(DOCUMENT, "Give the gross weight as a number."),
    "json": user(DOCUMENT, "Return JSON with the keys container, packages, discharge_port."),
    "declaration": user(DECLARATION, "Answer in JSON: entry, value."),
    "log-400": user(log(25), "What is the release code of Stian?"),
    "log-1500": user(log(92), "Give the release code of Klokuom."),
    "short": [{"role": "user", "content": "Hello"}],
    "turns": [
        {"role": "system", "content": "You read freight documents."},
        {"role": "user", "content": "Seal: AB104422\n\nGive the seal."},
        {"role": "assistant", "content": "AB104422"},
        {"role": "user", "content": "Naïve — «ünïcode» 漢字 🚢\t12 345,6"},
    ],
}
POSITIONS = 6
STEPS = 48


@torch.no_grad()
def conversation(model, tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    cache = DynamicCache()
    logits = model(torch.tensor([ids]), cache=cache).logits[0]
    logprobs = logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    at = sorted({round(i * (len(ids) - 1) / (POSITIONS - 1)) for i in range(POSITIONS)})
    greedy, last = [], logits[-1]
    end = model.generation_config.eos_token_id
    for _ in range(STEPS):
        best = last.topk(2)
        token = best.indices[0].item()
        greedy.append({"id": token, "gap": round((best.values[0] - best.values[1]).item(), 6)})
        if token == end:
            break
        last = model(torch.tensor([[token]]), cache=cache).logits[0, -1]
    return {
        "messages": messages,
        "text": text,
        "ids": ids,
        "logits": [
            {"position": p, "float32": base64.b64encode(logits[p].numpy().astype("<f4").tobytes()).decode()} for p in at
        ],
        "logprobs": [round(v, 5) for v in logprobs.tolist()],
        "greedy": greedy,
        "answer": tokenizer.decode([g["id"] for g in greedy], skip_special_tokens=True),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    weights = (args.checkpoint / "model.safetensors").read_bytes()
    golden = {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "conversations": {k: conversation(model, tokenizer, m) for k, m in CONVERSATIONS.items()},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
