# Puts weights and images on every node of a pool before anything is started there: what
# takes longest of a cold start. Runs once on each node, also on those that come later.
# All nodes read at once: for a store that they could overrun, one pool after another.

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

variable "images" {
  type        = list(string)
  default     = []
  description = "to be pulled, as the engines' files name them"
}

variable "argv" {
  type        = list(string)
  default     = []
  description = "what copies the weights below models_path: llmops download; empty: nothing"
}

variable "models" {
  type        = string
  default     = "models"
  description = "the host volume of the weights"
}

variable "models_path" {
  type        = string
  default     = "/models"
  description = "where argv sees it"
}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "sysbatch"
  node_pool = var.pool
  priority  = 40

  dynamic "constraint" {
    for_each = var.zone == "" ? [] : [var.zone]
    content {
      attribute = "${meta.zone}"
      value     = constraint.value
    }
  }

  dynamic "group" {
    for_each = var.images
    labels   = ["image-${group.key}"]
    content {
      restart {
        attempts = 3
        interval = "1h"
        delay    = "1m"
        mode     = "fail"
      }
      task "pull" {
        driver = "docker"
        config {
          image              = group.value
          image_pull_timeout = "1h" # tens of gigabytes
          entrypoint         = ["/bin/true"]
        }
        resources {
          cpu    = 100
          memory = 64
        }
      }
    }
  }

  dynamic "group" {
    for_each = length(var.argv) == 0 ? [] : [var.argv]
    labels   = ["weights"]
    content {
      # An interrupted copy goes on where it stopped.
      restart {
        attempts = 10
        interval = "6h"
        delay    = "1m"
        mode     = "fail"
      }
      volume "models" {
        type      = "host"
        source    = var.models
        read_only = false
      }
      task "copy" {
        driver = "exec"
        config {
          command = group.value[0]
          args    = slice(group.value, 1, length(group.value))
        }
        volume_mount {
          volume      = "models"
          destination = var.models_path
        }
        resources {
          cpu    = 1000
          memory = 1024
        }
      }
    }
  }
}
