# Runs llmops watch where nobody's terminal must stay on: it scales, and keeps standbys
# warm. Two of them, of which the one that holds the document leader acts. A run that was
# handed over goes on where its records are, which is the machine it was begun on.

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

variable "bin" {
  type        = string
  default     = "/usr/local/bin/llmops"
  description = "where llmops is on every node"
}

variable "driver" {
  type        = string
  default     = "exec"
  description = "exec, or raw_exec where the client has it"
}

variable "count" {
  type        = number
  default     = 2
  description = "one acts, the others take over"
}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "service"
  node_pool = var.pool
  priority  = 80

  dynamic "constraint" {
    for_each = var.zone == "" ? [] : [var.zone]
    content {
      attribute = "${meta.zone}"
      value     = constraint.value
    }
  }

  group "watch" {
    count = var.count

    constraint {
      distinct_hosts = true
    }
    update {
      max_parallel      = 1
      canary            = 0
      health_check      = "task_states"
      min_healthy_time  = "10s"
      healthy_deadline  = "2m"
      progress_deadline = "5m"
      auto_revert       = false
    }

    # Whoever is cut off loses the leader's document and does nothing.
    disconnect {
      lost_after = "5m"
      replace    = true
    }
    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }
    reschedule {
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }

    task "watch" {
      driver       = var.driver
      kill_signal  = "SIGTERM"
      kill_timeout = "30s" # an append to a run's journal, and the leader's document
      config {
        command = var.bin
        args    = ["watch", "--fleet", "nomad:"]
      }
      env {
        LLMOPS_HOME = "${NOMAD_TASK_DIR}"
      }

      # The agent's own API, with a token of this job's identity: give the job an ACL
      # policy of what it must read and write.
      identity {
        env = true
      }
      resources {
        cpu    = 1000
        memory = 1024
      }
    }
  }
}
