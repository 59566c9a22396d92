# Serves a model with an engine that is installed on the nodes, without a container: exec
# or raw_exec. Its arguments take the address that Nomad gives as ${NOMAD_IP_http} and
# ${NOMAD_PORT_http}.

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

variable "driver" {
  type        = string
  default     = "exec"
  description = "exec, or raw_exec where the client has it"
}

variable "models" {
  type        = string
  default     = "models"
  description = "the host volume that weights are brought to, where the driver is exec"
}

variable "models_path" {
  type        = string
  default     = "/models"
  description = "where tasks see it"
}

variable "cpu" {
  type        = number
  default     = 8000
  description = "MHz"
}

variable "memory" {
  type        = number
  default     = 16384
  description = "MiB"
}

variable "load" {
  type        = string
  default     = "20m"
  description = "from start to the first answer of the check, weights included, with room"
}

variable "progress" {
  type        = string
  default     = "30m"
  description = "longer than load"
}

variable "groups" {
  type = list(object({
    name     = string
    near     = string # meta.rack to be in, if it can be; empty: any
    count    = number
    argv     = list(string)
    env      = map(string)
    port     = number # 0: Nomad picks
    path     = string # of the health check; empty: none
    interval = string
    timeout  = string
    grace    = string # between the signal to stop and the kill
    gpu      = string # the model, as a regular expression; empty: any
    gpus     = number
    fetch    = list(string) # brings its weights to a node; empty: they are there
  }))
}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "service"
  node_pool = var.pool
  priority  = 70

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

      dynamic "affinity" {
        for_each = group.value.near == "" ? [] : [group.value.near]
        content {
          attribute = "${meta.rack}"
          value     = affinity.value
          weight    = 100
        }
      }
      dynamic "spread" {
        for_each = group.value.near == "" ? ["${meta.rack}"] : []
        content {
          attribute = spread.value
          weight    = 50
        }
      }

      # Out of the services first: no router sends anything to what is about to stop.
      shutdown_delay = "10s"

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
          }
        }
        dynamic "port" {
          for_each = group.value.port == 0 ? ["http"] : []
          labels   = ["http"]
          content {}
        }
      }
      service {
        provider = "nomad"
        name     = var.name
        port     = "http"
        tags     = ["group=${group.value.name}"]
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
      dynamic "volume" {
        for_each = length(group.value.fetch) > 0 && var.driver == "exec" ? ["models"] : []
        labels   = ["models"]
        content {
          type   = "host"
          source = var.models
        }
      }

      # Brings the weights from the fleet's bucket to the node, once: what is there is kept.
      # Keys are in the variable nomad/jobs, named as the AWS tools name them; without it the
      # machine's own role asks.
      dynamic "task" {
        for_each = length(group.value.fetch) == 0 ? [] : [group.value.fetch]
        labels   = ["weights"]
        content {
          driver = var.driver
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
            for_each = var.driver == "exec" ? ["models"] : []
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
          command = group.value.argv[0]
          args    = slice(group.value.argv, 1, length(group.value.argv))
        }
        env = group.value.env
        dynamic "volume_mount" {
          for_each = length(group.value.fetch) > 0 && var.driver == "exec" ? ["models"] : []
          content {
            volume      = volume_mount.value
            destination = var.models_path
            read_only   = true
          }
        }

        # Nothing keeps a process from the other GPUs of its node, and env is read before
        # the device is known: a template is read after.
        dynamic "template" {
          for_each = group.value.gpus == 0 ? [] : ["CUDA_VISIBLE_DEVICES={{ env \"NVIDIA_VISIBLE_DEVICES\" }}"]
          content {
            data        = template.value
            destination = "secrets/gpu.env"
            env         = true
            change_mode = "noop"
          }
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
                for_each = model.value == "" ? [] : [model.value]
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
  }
}
