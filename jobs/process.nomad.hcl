# Runs the groups of a job as plain processes of the client, without a container:
# llmops' own engine, router and traffic. The client needs raw_exec, and the program
# that argv names at the same path on every node.

variable "name" {
  type        = string
  description = "the job's name"
}

variable "pool" {
  type        = string
  default     = "default"
  description = "the node pool to run in"
}

variable "zone" {
  type        = string
  default     = ""
  description = "meta.zone of the nodes to run on; empty: any"
}

variable "driver" {
  type        = string
  default     = "raw_exec"
  description = "raw_exec, or exec where a process shall have only what it is given"
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

variable "groups" {
  type = list(object({
    name     = string
    near     = string # meta.rack to be in, if it can be; empty: any
    count    = number
    argv     = list(string)
    env      = map(string)
    port     = number # 0: Nomad picks
    admin    = number # a second port, for controllers; 0: Nomad picks; -1: none
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
  type      = "service"
  node_pool = var.pool

  dynamic "constraint" {
    for_each = var.zone == "" ? [] : [var.zone]
    content {
      attribute = "${meta.zone}"
      value     = constraint.value
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

      # A replica that is replaced stays until the new one is healthy.
      update {
        max_parallel      = 1
        canary            = 0
        health_check      = group.value.path == "" ? "task_states" : "checks"
        min_healthy_time  = "1s"
        healthy_deadline  = "10m"
        progress_deadline = "15m"
        auto_revert       = false
      }
      restart {
        attempts = 3
        interval = "10m"
        delay    = "1s"
        mode     = "fail"
      }

      # One whose node is silent is replaced, and goes on with whoever reaches it.
      disconnect {
        lost_after = "10m"
        replace    = true
        reconcile  = "keep_original"
      }
      reschedule {
        delay          = "5s"
        delay_function = "exponential"
        max_delay      = "5m"
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
        dynamic "port" {
          for_each = group.value.admin > 0 ? [group.value.admin] : []
          labels   = ["admin"]
          content {
            static = port.value
          }
        }
        dynamic "port" {
          for_each = group.value.admin == 0 ? ["admin"] : []
          labels   = ["admin"]
          content {}
        }
      }
      service {
        provider = "nomad"
        name     = var.name
        port     = "http"
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
          cpu    = 100
          memory = 256
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
