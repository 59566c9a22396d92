# Measures what a kind of GPU reaches, inside of the engine's container and without a
# model: copying memory, products and attention at the shapes of decoding, products at
# those of prefill in bf16 and fp8, and all-reduces between the GPUs of a node. Registered
# once and dispatched for each question; hidden, intermediate and so on are the model's,
# of which each GPU computes its part:
#
#   nomad job dispatch -meta hidden=8192 -meta intermediate=28672 NAME
#   nomad alloc logs ALLOC > ceilings.json
#   llmops size assumptions.yaml --measured ceilings.json
#
# The answer is one object on standard output, and alloc/data/ceilings.json.

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
  default     = "vllm/vllm-openai:v0.32.0"
  description = "the engine's, which has python3 and torch; in production by digest, name@sha256:..."
}

variable "gpu" {
  type        = string
  default     = ""
  description = "the model, as a regular expression; empty: any"
}

variable "gpus" {
  type        = number
  default     = 1
  description = "that a layer is split over; with more than one, all-reduces are measured"
}

variable "memory" {
  type        = number
  default     = 32768
  description = "MiB of host memory"
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
    meta_optional = ["hidden", "intermediate", "heads", "kv_heads", "head_dim", "batch", "context", "prompt"]
  }
  meta {
    hidden       = "8192"
    intermediate = "28672"
    heads        = "64"
    kv_heads     = "8"
    head_dim     = "128"
    batch        = "64"   # sequences of a step
    context      = "2048" # tokens of each
    prompt       = "2048" # tokens of a prefill
  }

  group "ceilings" {
    # A figure that a second try makes is a figure of another kind: none.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "main" {
      driver = "docker"
      config {
        image              = var.image
        image_pull_timeout = "1h"
        entrypoint         = ["python3"]
        args = [
          "/local/ceilings.py", "--out", "${NOMAD_ALLOC_DIR}/data/ceilings.json", "--ranks", "${var.gpus}",
          "--hidden", "${NOMAD_META_hidden}", "--intermediate", "${NOMAD_META_intermediate}",
          "--heads", "${NOMAD_META_heads}", "--kv-heads", "${NOMAD_META_kv_heads}", "--head-dim", "${NOMAD_META_head_dim}",
          "--batch", "${NOMAD_META_batch}", "--context", "${NOMAD_META_context}", "--prompt", "${NOMAD_META_prompt}",
        ]
        ipc_mode = "host"
      }
      template {
        destination     = "local/ceilings.py"
        left_delimiter  = "<%"
        right_delimiter = "%>"
        data            = <<-PYTHON
          """Measures what a device reaches; see the job file that this is in."""
          import argparse, datetime, json, os, statistics, sys, tempfile, time

          import torch
          import torch.distributed as dist
          import torch.multiprocessing as mp

          CUDA = torch.cuda.is_available()
          DEVICE = "cuda" if CUDA else "cpu"
          REPETITIONS = 7


          def clock(work, least):
              """Seconds of one call, each repetition over enough calls to take `least` seconds."""
              def once(n):
                  if CUDA:
                      start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                      start.record()
                      for i in range(n):
                          work(i)
                      end.record()
                      end.synchronize()
                      return start.elapsed_time(end) / 1e3 / n
                  t = time.perf_counter()
                  for i in range(n):
                      work(i)
                  return (time.perf_counter() - t) / n

              once(3)  # kernels are chosen and loaded
              n = max(3, min(1000, int(least / max(once(3), 1e-7))))
              times = [once(n) for _ in range(REPETITIONS)]
              return {"seconds": statistics.median(times), "seconds_best": min(times), "repetitions": len(times), "calls": n}


          def many(size, make):
              """Copies of an operand that together are larger than any cache, so that each call reads memory."""
              return [make() for _ in range(min(64, max(2, (1 << 30 if CUDA else 1 << 27) // size)))]


          def copy(least):
              n = 1 << 30 if CUDA else 1 << 28
              a, b = torch.ones(n, dtype=torch.uint8, device=DEVICE), torch.empty(n, dtype=torch.uint8, device=DEVICE)
              return {"bytes": 2 * n, **clock(lambda i: b.copy_(a), least)}  # each is read and written


          def gemm(dtype, m, n, k, least):
              """A product of m rows with weights of n rows and k columns, as a linear layer has them."""
              if dtype == "bf16":
                  x = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE)
                  ws = many(2 * n * k, lambda: torch.randn(n, k, dtype=torch.bfloat16, device=DEVICE))
                  work = lambda i: torch.mm(x, ws[i % len(ws)].t())
                  size = 2
              else:
                  x = torch.randn(m, k, device=DEVICE).to(torch.float8_e4m3fn)
                  ws = many(n * k, lambda: torch.randn(n, k, device=DEVICE).to(torch.float8_e4m3fn))
                  one = torch.ones((), device=DEVICE)
                  work = lambda i: torch._scaled_mm(x, ws[i % len(ws)].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
                  size = 1
              # Weights and rows are read, results of bf16 written.
              return {"dtype": dtype, "m": m, "n": n, "k": k, "flops": 2 * m * n * k, "bytes": size * (n * k + m * k) + 2 * m * n, **clock(work, least)}


          def attention(sequences, context, heads, kv_heads, head_dim, least):
              """The next token of each sequence. The query heads of a group are rows of one product: they share keys and values, and all see all of the context."""
              group = heads // kv_heads
              make = lambda rows: torch.randn(sequences, kv_heads, rows, head_dim, dtype=torch.bfloat16, device=DEVICE)
              q, size = make(group), 2 * 2 * sequences * kv_heads * context * head_dim
              kvs = many(size, lambda: (make(context), make(context)))
              work = lambda i: torch.nn.functional.scaled_dot_product_attention(q, *kvs[i % len(kvs)])
              return {"sequences": sequences, "context_tokens": context, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "bytes": size, **clock(work, least)}


          def rank_main(rank, ranks, meeting, out, sizes):
              global DEVICE
              if CUDA:
                  torch.cuda.set_device(rank)
                  DEVICE = f"cuda:{rank}"
              dist.init_process_group("nccl" if CUDA else "gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
              rows = []
              for size in sizes:
                  x = torch.ones(size // 2, dtype=torch.bfloat16, device=DEVICE)
                  # All ranks have to make as many calls, so their number is not found out by each.
                  times = []
                  for _ in range(REPETITIONS + 1):
                      x.fill_(1)
                      dist.barrier()
                      if CUDA:
                          torch.cuda.synchronize()
                      t = time.perf_counter()
                      for _ in range(20):
                          dist.all_reduce(x)
                      if CUDA:
                          torch.cuda.synchronize()
                      times.append((time.perf_counter() - t) / 20)
                  times = times[1:]
                  rows.append({"ranks": ranks, "bytes": size, "seconds": statistics.median(times), "seconds_best": min(times), "repetitions": REPETITIONS, "calls": 20})
              if rank == 0:
                  with open(out, "w", encoding="utf-8") as f:
                      json.dump(rows, f)
              dist.destroy_process_group()


          def all_reduce(ranks, sizes):
              with tempfile.TemporaryDirectory() as folder:
                  out = os.path.join(folder, "rows.json")
                  mp.spawn(rank_main, args=(ranks, os.path.join(folder, "meeting"), out, sizes), nprocs=ranks)
                  with open(out, encoding="utf-8") as f:
                      return json.load(f)


          def main():
              p = argparse.ArgumentParser()
              p.add_argument("--out")
              for name, default in (("ranks", 1), ("hidden", 8192), ("intermediate", 28672), ("heads", 64), ("kv-heads", 8),
                                    ("head-dim", 128), ("batch", 64), ("context", 2048), ("prompt", 2048)):
                  p.add_argument("--" + name, type=int, default=default)
              p.add_argument("--least", type=float, default=0.05, help="seconds of a repetition")
              a = p.parse_args()
              if min(a.ranks, a.hidden, a.intermediate, a.heads, a.kv_heads, a.head_dim, a.batch, a.context, a.prompt) < 1:
                  sys.exit("every size has to be at least 1")
              if a.intermediate % a.ranks or a.heads % a.ranks or a.heads % a.kv_heads:
                  sys.exit(f"{a.heads} heads and a width of {a.intermediate} cannot be split over {a.ranks} GPUs and {a.kv_heads} KV heads")
              if CUDA and a.ranks > torch.cuda.device_count():
                  sys.exit(f"{a.ranks} GPUs are asked for, and {torch.cuda.device_count()} are here")
              start, missing = time.time(), {}
              say = lambda text: print(text, file=sys.stderr, flush=True)

              def attempt(name, work):
                  """What a device cannot do is said, and is no figure."""
                  try:
                      return work()
                  except Exception as e:
                      missing[name] = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
                      say(f"{name}: {missing[name]}")
                      return None
                  finally:
                      if CUDA:
                          torch.cuda.empty_cache()

              wide, heads, kv_heads = a.intermediate // a.ranks, a.heads // a.ranks, max(1, a.kv_heads // a.ranks)
              result = {"api_version": "llmops/v1", "kind": "Ceilings",
                        "device": torch.cuda.get_device_name(0) if CUDA else "cpu", "device_type": DEVICE,
                        "devices": torch.cuda.device_count() if CUDA else 1, "torch": torch.__version__,
                        "measured_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
              say(f"copying on {result['device']}")
              result["copy"] = attempt("copy", lambda: copy(a.least))
              for part, ms in (("decode_gemm", sorted({1, 16, a.batch})), ("prefill_gemm", [a.prompt])):
                  result[part] = []
                  for dtype in ("bf16", "fp8"):
                      # Sixteen rows are what an fp8 product takes at the least.
                      for rows in ms if dtype == "bf16" else sorted({max(16, m) for m in ms}):
                          for n, k in ((wide, a.hidden), (a.hidden, wide)):
                              say(f"{part} {dtype} {rows} x {n} x {k}")
                              row = attempt(dtype, lambda: gemm(dtype, rows, n, k, a.least))
                              if row:
                                  result[part].append(row)
                          if dtype in missing:
                              break
              say("attention")
              row = attempt("decode_attention", lambda: attention(a.batch, a.context, heads, kv_heads, a.head_dim, a.least))
              result["decode_attention"] = [row] if row else []
              result["all_reduce"] = []
              if a.ranks > 1:
                  say(f"all-reduces over {a.ranks}")
                  sizes = sorted({2 * a.hidden * m for m in (1, a.batch, a.prompt)})
                  result["all_reduce"] = attempt("all_reduce", lambda: all_reduce(a.ranks, sizes)) or []
              result["missing"], result["took_seconds"] = missing, time.time() - start
              text = json.dumps(result, indent=1)
              if a.out:
                  with open(a.out + ".part", "w", encoding="utf-8") as f:
                      f.write(text + "\n")
                  os.rename(a.out + ".part", a.out)
              print(text)


          if __name__ == "__main__":
              main()
        PYTHON
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
