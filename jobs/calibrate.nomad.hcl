# Measures on a GPU what only data can tell of a model: the scales of its activations and
# of its KV cache, which llmops quantise --scheme fp8-static --scales reads, or a
# checkpoint that GPTQ or AWQ have made. Registered once and dispatched for each model:
#
#   nomad job dispatch -meta model=/models/a -meta texts=/models/traffic.jsonl -meta out=/models/a.scales.json NAME
#   nomad job dispatch -meta method=gptq -meta model=/models/a -meta texts=/models/traffic.jsonl -meta out=/models/a-gptq NAME
#
# texts has a JSON object a line, with text or with messages: prompts like those that
# will come, not the ones that it will be judged by. The client's docker plugin has to
# allow volumes, for the program's file.

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
  description = "one with python3 and llmcompressor; in production by digest, name@sha256:..."
}

variable "llmops" {
  type        = string
  default     = "/usr/local/bin/llmops"
  description = "on the nodes; it is seen in the container"
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
    meta_optional = ["method", "scheme", "samples", "length"]
  }
  meta {
    method  = "scales" # or gptq, awq
    scheme  = "int4"   # of gptq and awq
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
        entrypoint         = ["/bin/sh", "-c"]
        args = [<<-SH
          set -eu -- --data "$NOMAD_META_texts" --samples "$NOMAD_META_samples" --length "$NOMAD_META_length"
          out=$NOMAD_META_out
          if [ "$NOMAD_META_method" = scales ]; then
            llmops quantise scales "$NOMAD_META_model" --kv "$@" >"$out.part"
            exec mv "$out.part" "$out"
          fi
          exec llmops quantise "$NOMAD_META_model" --method "$NOMAD_META_method" --scheme "$NOMAD_META_scheme" "$@" --out "$out"
        SH
        ]
        ipc_mode = "host"
        mount {
          type     = "bind"
          source   = var.llmops
          target   = "/usr/local/bin/llmops"
          readonly = true
        }
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
