# Runs NVIDIA's dcgm-exporter on every node that has GPUs. It takes no device: it looks at
# all of them, those in use as well. The client must allow the runtime nvidia and the
# capability SYS_ADMIN (plugin docker: allow_runtimes, allow_caps); without the capability
# the DCGM_FI_PROF_ fields stay absent.

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
  default     = "all"
  description = "the node pool: all, or one for each kind of GPU, residency and class of work"
}

variable "image" {
  type        = string
  default     = "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless"
  description = "in production by digest, name@sha256:..."
}

variable "port" {
  type        = number
  default     = 9400
  description = "on every node"
}

job "llmops" {
  id        = var.name
  name      = var.name
  namespace = var.namespace
  type      = "system"
  node_pool = var.pool
  priority  = 90 # blind is worse than slow

  constraint {
    attribute = "${meta.gpu}"
    operator  = "is_set"
  }
  constraint {
    attribute = "${meta.gpu}"
    operator  = "!="
    value     = "cpu"
  }

  group "exporter" {
    restart {
      attempts = 10
      interval = "10m"
      delay    = "15s"
      mode     = "delay" # it ends when DCGM does, and a node without it is unknown
    }
    network {
      port "http" {
        static = var.port
        to     = 9400
      }
    }
    service {
      provider = "nomad"
      name     = var.name
      port     = "http"
      tags     = ["metrics"]
      check {
        type     = "http"
        path     = "/health"
        interval = "15s"
        timeout  = "3s"
      }
    }

    task "exporter" {
      driver = "docker"
      config {
        image   = var.image
        runtime = "nvidia"
        cap_add = ["SYS_ADMIN"]
        ports   = ["http"]

        # A sample each 10 s of the fields below. Absent is what a GPU has not.
        args = ["-c", "10000", "-f", "/local/counters.csv"]
      }
      env {
        NVIDIA_VISIBLE_DEVICES = "all"
      }
      template {
        destination = "local/counters.csv"
        data        = <<-EOF
          DCGM_FI_DEV_GPU_TEMP, gauge, degrees
          DCGM_FI_DEV_MEMORY_TEMP, gauge, degrees
          DCGM_FI_DEV_POWER_USAGE, gauge, W
          DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, mJ
          DCGM_FI_DEV_SM_CLOCK, gauge, MHz
          DCGM_FI_DEV_GPU_UTIL, gauge, percent
          DCGM_FI_DEV_FB_USED, gauge, MiB
          DCGM_FI_DEV_FB_FREE, gauge, MiB
          DCGM_FI_DEV_XID_ERRORS, gauge, the last one
          DCGM_EXP_XID_ERRORS_COUNT, counter, in a sliding window
          DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, corrected
          DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, not corrected
          DCGM_FI_DEV_ROW_REMAP_FAILURE, gauge, 0 or 1
          DCGM_FI_DEV_ROW_REMAP_PENDING, gauge, 0 or 1
          DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, counter, rows
          DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, counter, rows
          DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, replays
          DCGM_FI_DEV_THERMAL_VIOLATION, counter, ns
          DCGM_FI_DEV_POWER_VIOLATION, counter, ns
          DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, all links
          DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, share
          DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, share
          DCGM_FI_PROF_DRAM_ACTIVE, gauge, share
          DCGM_FI_DRIVER_VERSION, label, driver
        EOF
      }
      resources {
        cpu    = 200
        memory = 512
      }
    }
  }
}
