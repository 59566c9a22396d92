cluster = "iron"

zones = {
  hall1 = { residency = "eu", compliance = ["iso27001"] }
  hall2 = { residency = "eu", compliance = ["iso27001"] }
}

pools = {
  interactive = {
    class         = "interactive"
    gpu           = "h100-sxm"
    gpus_per_node = 8
    nodes         = 2
    spare         = 2
    survive       = "zone"
    zones         = ["hall1", "hall2"]
    residency     = "eu"
  }
}

prices = { "8xh100-sxm" = 18 }

machines = {
  iron1 = { pool = "interactive", zone = "hall1", rack = "r1", address = "10.20.1.11", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
  iron2 = { pool = "interactive", zone = "hall1", rack = "r1", address = "10.20.1.12", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
  iron3 = { pool = "interactive", zone = "hall2", rack = "r2", address = "10.20.2.11", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
  iron4 = { pool = "interactive", zone = "hall2", rack = "r2", address = "10.20.2.12", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
}

servers = {
  iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
  iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
  iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample" }
}

tls      = "./tls"
networks = ["10.20.0.0/16"]

artifacts = {
  nomad               = { url = "https://mirror.internal/nomad_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  nomad-device-nvidia = { url = "https://mirror.internal/nomad-device-nvidia_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  llmops              = { url = "https://mirror.internal/llmops_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}
