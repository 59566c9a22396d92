# Runs the routers: what clients talk to. They are spread over racks, keep a port of their
# own on each node, and stay while their in-flight requests end.

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

variable "driver" {
  type        = string
  default     = "exec"
  description = "exec, or raw_exec where the client has it"
}

variable "memory" {
  type        = number
  default     = 1024
  description = "MiB"
}

variable "records_path" {
  type        = string
  default     = ""
  description = "where the router writes records of requests: the host volume records is seen there; empty: it writes none"
}

# A list of objects: name, count, argv, env, port (0: Nomad picks), admin (a second port,
# for controllers; 0: Nomad picks; -1: none), path of the health check, interval, timeout
# and grace (between the signal to stop and the kill).
variable "groups" {}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "service"
  node_pool = var.pool
  priority  = 90 # what all else is reached through

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
      count          = group.value.count
      shutdown_delay = "10s" # load balancers look away first

      # Two on one node would fall together.
      constraint {
        distinct_hosts = true
      }
      spread {
        attribute = "${meta.rack}"
        weight    = 100
      }
      update {
        max_parallel      = 1
        canary            = 0
        health_check      = "checks"
        min_healthy_time  = "10s"
        healthy_deadline  = "2m"
        progress_deadline = "5m"
        auto_revert       = false
      }
      migrate {
        max_parallel     = 1
        health_check     = "checks"
        min_healthy_time = "10s"
        healthy_deadline = "2m"
      }

      # One that is cut off goes on with what it can reach, and its leases run out.
      disconnect {
        lost_after = "1h"
        replace    = true
        reconcile  = "keep_original"
      }
      restart {
        attempts = 10
        interval = "10m"
        delay    = "1s"
        mode     = "delay" # it holds no GPU, and its state is its node's
      }
      reschedule {
        delay          = "5s"
        delay_function = "constant"
        unlimited      = true
      }
      # raw_exec sees the node's own folders.
      dynamic "volume" {
        for_each = var.records_path == "" || var.driver == "raw_exec" ? [] : ["records"]
        labels   = ["records"]
        content {
          type   = "host"
          source = volume.value
        }
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
          for_each = try(group.value.admin, -1) > 0 ? [group.value.admin] : []
          labels   = ["admin"]
          content {
            static = port.value
          }
        }
        dynamic "port" {
          for_each = try(group.value.admin, -1) == 0 ? ["admin"] : []
          labels   = ["admin"]
          content {}
        }
      }
      service {
        provider = "nomad"
        name     = var.name
        port     = "http"
        check {
          type     = "http"
          path     = group.value.path
          interval = group.value.interval
          timeout  = group.value.timeout
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
          for_each = var.records_path == "" || var.driver == "raw_exec" ? [] : [var.records_path]
          content {
            volume      = "records"
            destination = volume_mount.value
          }
        }

        # The agent's own API, with a token of this job's identity: give the job an ACL
        # policy of what it must read and write.
        identity {
          env = true
        }
        resources {
          cpu    = 2000
          memory = var.memory
        }
      }
    }
  }
}
