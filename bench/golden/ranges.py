"""Writes ranges.json beside the random models of serving/embedded/llama/testdata: the largest
magnitude of each linear's input, of the keys after their rotation and of the values, as
transformers meets them in float32 on the prompts of golden.json.

    python bench/golden/ranges.py serving/embedded/llama/testdata

Written with torch 2.14.0 and transformers 5.17.0.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, DynamicCache

MODELS = ["llama", "mistral", "qwen2", "qwen3"]


@torch.no_grad()
def main(root):
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
        out = {"inputs": {}, "keys": {}, "values": {}}

        def met(table, key, x):
            table[key] = max(table.get(key, 0.0), x.abs().max().item())

        for module, linear in model.named_modules():
            if isinstance(linear, torch.nn.Linear) and module != "lm_head":
                linear.register_forward_pre_hook(lambda _, args, module=module: met(out["inputs"], module, args[0]))
        for row in json.loads((root / name / "golden.json").read_text()):
            cache = DynamicCache()
            model(torch.tensor([row["ids"]]), past_key_values=cache, use_cache=True)
            for i, layer in enumerate(cache.layers):
                met(out["keys"], f"model.layers.{i}.self_attn", layer.keys)
                met(out["values"], f"model.layers.{i}.self_attn", layer.values)
        (root / name / "ranges.json").write_text(json.dumps(out, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
