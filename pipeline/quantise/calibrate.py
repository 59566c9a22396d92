"""Quantises with data, or measures scales with it, by llm-compressor. Reads what to do
as JSON from standard input; calibrate.go says what is in it."""
import json
import sys

import torch
from datasets import Dataset
from llmcompressor import oneshot
from transformers import AutoModelForCausalLM, AutoTokenizer

do = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(do["source"])
samples = []
with open(do["data"]) as f:
    for line in f:
        if len(samples) == do["samples"]:
            break
        row = json.loads(line)
        if "messages" in row:
            ids = tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(row["text"])["input_ids"]
        samples.append({"input_ids": ids[: do["length"]], "attention_mask": [1] * len(ids[: do["length"]])})
model = AutoModelForCausalLM.from_pretrained(do["source"], dtype="auto", device_map="auto" if torch.cuda.is_available() else None)
same = {"targets": ["Linear"], "scheme": do["preset"], "ignore": do["ignore"]}
if do["method"] == "gptq":
    from llmcompressor.modifiers.quantization import GPTQModifier as Modifier
    same["actorder"] = None  # engines without it load the result as well
elif do["method"] == "awq":
    from llmcompressor.modifiers.awq import AWQModifier as Modifier
else:
    from llmcompressor.modifiers.quantization import QuantizationModifier as Modifier
    if do["kv"]:
        same["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
oneshot(model=model, dataset=Dataset.from_list(samples), recipe=[Modifier(**same)], max_seq_length=do["length"], num_calibration_samples=len(samples))
if do["method"] == "scales":
    table = {"activations": {}, "kv": {}}
    for name, module in model.named_modules():
        if getattr(module, "input_scale", None) is not None:
            table["activations"][name] = module.input_scale.item()
        if getattr(module, "k_scale", None) is not None:
            table["kv"][name] = {"k": module.k_scale.item(), "v": module.v_scale.item()}
    with open(do["out"], "w") as f:
        json.dump(table, f, indent=2)
else:
    model.save_pretrained(do["out"], save_compressed=True)
