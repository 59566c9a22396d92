# Measures what a kind of GPU reaches with a model, without any server: vLLM's own
# throughput benchmark. Registered once and dispatched for each question:
#
#   nomad job dispatch -meta model=/models/q -meta input=1024 -meta output=256 NAME

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
  description = "in production by digest, name@sha256:..."
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
  description = "the host volume of the weights, seen as /models"
}

variable "memory" {
  type        = number
  default     = 65536
  description = "MiB"
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
    meta_required = ["model"]
    meta_optional = ["input", "output", "prompts"]
  }
  meta {
    input   = "1024"
    output  = "256"
    prompts = "500"
  }

  group "benchmark" {
    # A figure that a second try makes is a figure of another kind: none.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    volume "models" {
      type      = "host"
      source    = var.models
      read_only = true
    }

    task "main" {
      driver = "docker"
      config {
        image              = var.image
        image_pull_timeout = "1h"
        entrypoint         = ["vllm"]
        args = [
          "bench", "throughput",
          "--model", "${NOMAD_META_model}",
          "--tensor-parallel-size", "${var.gpus}",
          "--input-len", "${NOMAD_META_input}",
          "--output-len", "${NOMAD_META_output}",
          "--num-prompts", "${NOMAD_META_prompts}",
          "--output-json", "${NOMAD_ALLOC_DIR}/data/benchmark.json",
        ]
        ipc_mode = "host"
      }
      volume_mount {
        volume      = "models"
        destination = "/models"
        read_only   = true
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
