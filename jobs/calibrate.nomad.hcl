# Measures on a GPU what only data can tell of a model: the scales of its activations and
# of its KV cache, which llmops quantise --scheme fp8-static --scales reads, or a
# checkpoint that GPTQ or AWQ have made, by llm-compressor. Registered once and
# dispatched for each model:
#
#   nomad job dispatch -meta model=/models/a -meta texts=/models/traffic.jsonl -meta out=/models/a.scales.json NAME
#   nomad job dispatch -meta method=gptq -meta model=/models/a -meta texts=/models/traffic.jsonl -meta out=/models/a-gptq NAME
#
# texts has a JSON object a line, with text or with messages: prompts like those that
# will come, not the ones that it will be judged by.

variable "name" {
  type        = string
  description = "the job's name"
}

variable "namespace" {
  type        = string
  default     = "default"
  description = "one for each duty of compliance or tenant that must not see another's jobs"
}

variable "pool" {
  type        = string
  default     = "default"
  description = "the node pool: one for each kind of GPU, residency and class of work"
}

variable "image" {
  type        = string
  description = "one with python3, torch, transformers and, for gptq and awq, llmcompressor; in production by digest, name@sha256:..."
}

variable "gpu" {
  type        = string
  default     = ""
  description = "the model, as a regular expression; empty: any"
}

variable "gpus" {
  type    = number
  default = 1
}

variable "models" {
  type        = string
  default     = "models"
  description = "the host volume of the weights, seen as /models; results go there, too"
}

variable "memory" {
  type        = number
  default     = 131072
  description = "MiB of host memory: the model, and room for one layer's statistics"
}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "batch"
  node_pool = var.pool
  priority  = 30 # below everything that serves

  parameterized {
    payload       = "forbidden"
    meta_required = ["model", "texts", "out"]
    meta_optional = ["method", "samples", "length"]
  }
  meta {
    method  = "scales" # or gptq, awq
    samples = "512"
    length  = "2048" # tokens of each at most
  }

  group "calibrate" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    volume "models" {
      type   = "host"
      source = var.models
    }

    task "main" {
      driver = "docker"
      config {
        image              = var.image
        image_pull_timeout = "1h"
        entrypoint         = ["python3"]
        args = [
          "/local/calibrate.py", "${NOMAD_META_method}", "${NOMAD_META_model}", "${NOMAD_META_texts}",
          "${NOMAD_META_out}", "${NOMAD_META_samples}", "${NOMAD_META_length}",
        ]
        ipc_mode = "host"
      }
      template {
        destination     = "local/calibrate.py"
        left_delimiter  = "<%"
        right_delimiter = "%>"
        data            = <<-PYTHON
          """Usage: calibrate.py scales|gptq|awq MODEL TEXTS OUT SAMPLES LENGTH"""
          import json, os, sys

          method, model_dir, texts, out, samples, length = sys.argv[1:7]
          samples, length = int(samples), int(length)
          if method not in ("scales", "gptq", "awq"):
              sys.exit(f"method is {method}, want scales, gptq or awq")
          if os.path.exists(out):
              sys.exit(f"{out} is there already")

          import torch
          from transformers import AutoModelForCausalLM, AutoTokenizer

          device = "cuda" if torch.cuda.is_available() else "cpu"
          tokenizer = AutoTokenizer.from_pretrained(model_dir)
          model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto", device_map="auto" if device == "cuda" else None).eval()

          rows = []
          with open(texts, encoding="utf-8") as f:
              for number, line in enumerate(f, 1):
                  if len(rows) == samples:
                      break
                  if not line.strip():
                      continue
                  row = json.loads(line)
                  if "messages" in row:
                      ids = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=True, return_dict=False)
                  elif "text" in row:
                      ids = tokenizer(row["text"])["input_ids"]
                  else:
                      sys.exit(f"{texts}:{number}: want an object with text or messages")
                  rows.append(list(ids)[:length])
          if not rows:
              sys.exit(f"{texts} has no prompts")
          print(f"{len(rows)} prompts of {sum(map(len, rows))} tokens, on {device}", flush=True)

          if method == "scales":
              # Of E4M3, the largest value is 448: a scale is the largest magnitude that was
              # seen over that.
              seen, kv = {}, {}

              def largest(store, key, t):
                  store[key] = max(store.get(key, 0.0), t.detach().abs().max().item())

              def watch(name):
                  return lambda module, args: largest(seen, name, args[0])

              attention = []
              for name, module in model.named_modules():
                  if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head"):
                      module.register_forward_pre_hook(watch(name))
                  if hasattr(module, "k_proj") and hasattr(module, "v_proj"):
                      attention.append(name)
              with torch.no_grad():
                  for ids in rows:
                      cache = model(torch.tensor([ids], device=model.device), use_cache=True).past_key_values
                      # What is cached, and not what was projected: keys are turned between.
                      for name, layer in zip(attention, cache.layers, strict=True):
                          largest(kv, (name, "k"), layer.keys)
                          largest(kv, (name, "v"), layer.values)
              table = {"activations": {n: v / 448 for n, v in seen.items() if v > 0}, "kv": {}}
              for name in attention:
                  table["kv"][name] = {"k": kv[name, "k"] / 448, "v": kv[name, "v"] / 448}
              with open(out + ".part", "w", encoding="utf-8") as f:
                  json.dump(table, f, indent=1, sort_keys=True)
              os.rename(out + ".part", out)
              print(f"{out}: scales of {len(table['activations'])} modules, {len(table['kv'])} caches")
              sys.exit()

          from datasets import Dataset
          from llmcompressor import oneshot
          from llmcompressor.modifiers.quantization import GPTQModifier

          data = Dataset.from_list([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in rows])
          if method == "gptq":
              recipe = [GPTQModifier(targets="Linear", scheme="W4A16", ignore=["lm_head"])]
          else:
              from llmcompressor.modifiers.awq import AWQModifier

              recipe = [AWQModifier(targets="Linear", scheme="W4A16_ASYM", ignore=["lm_head"])]
          oneshot(model=model, dataset=data, recipe=recipe, max_seq_length=length, num_calibration_samples=len(rows))
          model.save_pretrained(out + ".part", save_compressed=True)
          tokenizer.save_pretrained(out + ".part")
          os.rename(out + ".part", out)
          print(f"{out}: {method}")
        PYTHON
      }
      volume_mount {
        volume      = "models"
        destination = "/models"
      }
      resources {
        cpu    = 16000
        memory = var.memory
        device "nvidia/gpu" {
          count = var.gpus
          dynamic "constraint" {
            for_each = var.gpu == "" ? [] : [var.gpu]
            content {
              attribute = "${device.model}"
              operator  = "regexp"
              value     = constraint.value
            }
          }
        }
      }
    }
  }
}
