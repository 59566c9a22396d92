"""Writes serving/embedded/llama/testdata/llama-lora: a random LoRA adapter of testdata/llama
as peft saves it, and the logits that peft computes with it in float32.

    pip install peft -r examples/freight/train/requirements.txt
    python bench/golden/adapter.py serving/embedded/llama/testdata

Written with peft 0.21.2, torch 2.15.0 and transformers 5.24.0.
"""

import base64
import json
import pathlib
import sys

import peft
import torch
from transformers import AutoModelForCausalLM

IDS = [(i * 37 + 11) % 320 for i in range(50)]


@torch.no_grad()
def main(root):
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(root / "llama", dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(r=4, lora_alpha=10, use_rslora=True, target_modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config).eval()
    for name, p in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(p, 0, 0.15)
    out = root / "llama-lora"
    model.save_pretrained(out)
    (out / "README.md").unlink()
    saved = json.loads((out / "adapter_config.json").read_text())
    saved["base_model_name_or_path"] = "llama"
    (out / "adapter_config.json").write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    logits = model(torch.tensor([IDS])).logits[0, -1]
    text = base64.b64encode(logits.numpy().astype("<f4").tobytes()).decode()
    (out / "golden.json").write_text(json.dumps({"ids": IDS, "logits": {len(IDS) - 1: text}}) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
