# Rehearses the rollback of one alias every week: live traffic goes to the standby for a
# while and comes back. The job fails when the drill does not pass, so that whatever
# watches failed jobs tells of it. nomad job periodic force NAME holds one now.

variable "name" {
  type        = string
  description = "the job's name, such as drill-ALIAS"
}

variable "alias" {
  type        = string
  description = "whose rollback is rehearsed"
}

variable "namespace" {
  type        = string
  default     = "default"
  description = "where the alias's jobs are"
}

variable "pool" {
  type        = string
  default     = "default"
  description = "the node pool: one for each kind of GPU, residency and class of work"
}

variable "cron" {
  type        = string
  default     = "0 10 * * TUE"
  description = "when somebody is there to look"
}

variable "time_zone" {
  type        = string
  default     = "UTC"
  description = "of cron"
}

variable "share" {
  type        = string
  default     = "100%"
  description = "of the traffic; the standby must have the replicas for it"
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

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "batch"
  node_pool = var.pool
  priority  = 60

  periodic {
    crons            = [var.cron]
    time_zone        = var.time_zone
    prohibit_overlap = true
  }

  group "drill" {
    # A drill that did not pass is a finding; another try is a person's decision.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "drill" {
      driver       = var.driver
      kill_signal  = "SIGTERM"
      kill_timeout = "10s" # within which the traffic is taken back; the lease does it otherwise
      config {
        command = var.bin
        args    = ["drill", "rollback", var.alias, "--yes", "--share", var.share, "--fleet", "nomad:"]
      }
      env {
        LLMOPS_HOME = "${NOMAD_TASK_DIR}"
      }
      # The agent's own API, with a token of this job's identity: give the job an ACL
      # policy that lets it write llmops/* and read jobs.
      identity {
        env = true
      }
      resources {
        cpu    = 200
        memory = 256
      }
    }
  }
}
