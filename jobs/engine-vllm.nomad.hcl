# Serves a model with vLLM. Groups named prefill, decode or long are placed apart, each
# with GPUs and arguments of its own; those that hand their cache over name one rack as
# near.

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

variable "zone" {
  type        = string
  default     = ""
  description = "meta.zone of the nodes to run on; empty: any"
}

variable "residency" {
  type        = string
  default     = ""
  description = "meta.residency of the nodes, where data must stay; empty: any"
}

variable "compliance" {
  type        = list(string)
  default     = []
  description = "what meta.compliance of the nodes must name, all of it"
}

variable "spot" {
  type        = string
  default     = "never"
  description = "nodes that may be taken away at any time: never, prefer (batch) or only"
  validation {
    condition     = contains(["never", "prefer", "only"], var.spot)
    error_message = "The variable spot is never, prefer or only."
  }
}

variable "priority" {
  type        = number
  default     = 70
  description = "a job of higher priority may take GPUs of this one where the cluster preempts services; batch: 30"
}

variable "driver" {
  type        = string
  default     = "docker"
  description = "docker or podman"
}

variable "image" {
  type        = string
  default     = "vllm/vllm-openai:v0.32.0"
  description = "used where a group names none; in production by digest, name@sha256:..."
}

variable "inside" {
  type        = number
  default     = 8000
  description = "the port on which argv lets the engine listen, inside the container"
}

variable "network_mode" {
  type        = string
  default     = ""
  description = "host, where caches are handed over by RDMA; argv then listens on $${NOMAD_HOST_PORT_http}"
}

variable "models" {
  type        = string
  default     = "models"
  description = "the host volume of the weights"
}

variable "models_path" {
  type        = string
  default     = "/models"
  description = "where the container sees them: argv names folders below it"
}

variable "fetch_driver" {
  type        = string
  default     = "exec"
  description = "of what brings weights to a node: exec, or raw_exec, which has no volumes"
}

variable "cpu" {
  type        = number
  default     = 16000
  description = "MHz"
}

variable "memory" {
  type        = number
  default     = 65536
  description = "MiB of host memory, with what the cache on the GPU cannot hold"
}

variable "gpu_memory" {
  type        = string
  default     = ""
  description = "the least that each GPU has; one sold with 80 GB reports less than 80 GiB: write 79 GiB"
}

variable "load" {
  type        = string
  default     = "20m"
  description = "from start to the first answer of the check, image and weights included, with room"
}

variable "progress" {
  type        = string
  default     = "30m"
  description = "longer than load: a deployment without a healthy replica for so long has failed"
}

# A list of objects: name, count, argv, env, port (0: Nomad picks), path of the health
# check (empty: none), interval, timeout, grace (between the signal to stop and the kill),
# gpu (the model, as a regular expression; empty: any), gpus; and, if wanted, image and
# near (the meta.rack to be in: prefill and decode hand their cache over within one).
variable "groups" {}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "service"
  node_pool = var.pool
  priority  = var.priority

  dynamic "constraint" {
    for_each = concat(
      var.zone == "" ? [] : [["${meta.zone}", "=", var.zone]],
      var.residency == "" ? [] : [["${meta.residency}", "=", var.residency]],
      [for c in var.compliance : ["${meta.compliance}", "set_contains", c]],
      var.spot == "never" ? [["${meta.spot}", "!=", "true"]] : [],
      var.spot == "only" ? [["${meta.spot}", "=", "true"]] : [],
    )
    content {
      attribute = constraint.value[0]
      operator  = constraint.value[1]
      value     = constraint.value[2]
    }
  }
  dynamic "affinity" {
    for_each = var.spot == "prefer" ? ["true"] : []
    content {
      attribute = "${meta.spot}"
      value     = affinity.value
      weight    = 100
    }
  }

  dynamic "group" {
    for_each = var.groups
    labels   = [group.value.name]
    content {
      count = group.value.count

      # Out of the services first: no router sends anything to what is about to stop.
      shutdown_delay = "10s"

      dynamic "affinity" {
        for_each = try(group.value.near, "") == "" ? [] : [group.value.near]
        content {
          attribute = "${meta.rack}"
          value     = affinity.value
          weight    = 100
        }
      }
      dynamic "spread" {
        for_each = try(group.value.near, "") == "" ? ["${meta.rack}"] : []
        content {
          attribute = spread.value
          weight    = 50
        }
      }

      # A version of a model is a job of its own, so that this is about edits of the file:
      # one replica after another, each healthy before the next.
      update {
        max_parallel      = 1
        canary            = 0
        health_check      = group.value.path == "" ? "task_states" : "checks"
        min_healthy_time  = "30s"
        healthy_deadline  = var.load
        progress_deadline = var.progress
        auto_revert       = false
      }
      migrate {
        max_parallel     = 1
        health_check     = group.value.path == "" ? "task_states" : "checks"
        min_healthy_time = "30s"
        healthy_deadline = var.load
      }

      # A node that is cut off goes on serving whom it can reach; what came in its place
      # goes when it is back.
      disconnect {
        lost_after = "10m"
        replace    = true
        reconcile  = "keep_original"
      }

      # A GPU that is broken fails every start: two, then another node.
      restart {
        attempts = 2
        interval = "30m"
        delay    = "15s"
        mode     = "fail"
      }
      reschedule {
        delay          = "30s"
        delay_function = "exponential"
        max_delay      = "10m"
        unlimited      = true
      }

      network {
        dynamic "port" {
          for_each = group.value.port == 0 ? [] : [group.value.port]
          labels   = ["http"]
          content {
            static = port.value
            to     = var.inside
          }
        }
        dynamic "port" {
          for_each = group.value.port == 0 ? [var.inside] : []
          labels   = ["http"]
          content {
            to = port.value
          }
        }
      }
      service {
        provider = "nomad"
        name     = var.name
        port     = "http"
        tags     = ["engine=vllm", "group=${group.value.name}"]
        dynamic "check" {
          for_each = group.value.path == "" ? [] : [group.value.path]
          content {
            type     = "http"
            path     = check.value
            interval = group.value.interval
            timeout  = group.value.timeout
          }
        }
      }
      volume "models" {
        type      = "host"
        source    = var.models
        read_only = length(try(group.value.fetch, [])) == 0
      }

      # Brings the weights from the fleet's bucket to the node, once: what is there is kept.
      # Keys are in the variable nomad/jobs, named as the AWS tools name them; without it the
      # machine's own role asks.
      dynamic "task" {
        for_each = length(try(group.value.fetch, [])) == 0 ? [] : [try(group.value.fetch, [])]
        labels   = ["weights"]
        content {
          driver = var.fetch_driver
          lifecycle {
            hook    = "prestart"
            sidecar = false
          }
          config {
            command = task.value[0]
            args    = slice(task.value, 1, length(task.value))
          }
          template {
            data        = "{{ if nomadVarExists \"nomad/jobs\" }}{{ with nomadVar \"nomad/jobs\" }}{{ range $k, $v := . }}{{ $k }}={{ $v }}\n{{ end }}{{ end }}{{ end }}"
            destination = "secrets/store.env"
            env         = true
            change_mode = "noop"
          }
          dynamic "volume_mount" {
            for_each = var.fetch_driver == "exec" ? ["models"] : []
            content {
              volume      = volume_mount.value
              destination = var.models_path
            }
          }
          resources {
            cpu    = 1000
            memory = 512
          }
        }
      }

      task "main" {
        driver       = var.driver
        kill_signal  = "SIGTERM"
        kill_timeout = group.value.grace # the client's max_kill_timeout must allow it
        config {
          image              = try(group.value.image, "") == "" ? var.image : group.value.image
          entrypoint         = [group.value.argv[0]]
          args               = slice(group.value.argv, 1, length(group.value.argv))
          ports              = ["http"]
          network_mode       = var.network_mode
          image_pull_timeout = var.load # of an image of 10 GB and more; otherwise 5 minutes
          ipc_mode           = "host"   # tensor parallelism shares memory; a container has 64 MiB
        }
        env = group.value.env
        volume_mount {
          volume      = "models"
          destination = var.models_path
          read_only   = true
        }
        resources {
          cpu    = var.cpu
          memory = var.memory
          dynamic "device" {
            for_each = group.value.gpus == 0 ? [] : [group.value.gpu]
            iterator = model # "device" is what ${device.model} is about
            labels   = ["nvidia/gpu"]
            content {
              count = group.value.gpus
              dynamic "constraint" {
                for_each = concat(
                  model.value == "" ? [] : [["${device.model}", "regexp", model.value]],
                  var.gpu_memory == "" ? [] : [["${device.attr.memory}", ">=", var.gpu_memory]],
                )
                content {
                  attribute = constraint.value[0]
                  operator  = constraint.value[1]
                  value     = constraint.value[2]
                }
              }
            }
          }
        }
      }
    }
  }
}
