# The contract first, then the machines over its outputs. Nothing is applied here: that
# would need the machines.

variables {
  cluster          = "iron"
  zones            = { hall1 = { residency = "eu" }, hall2 = { residency = "eu" } }
  prices           = { "8xh100-sxm" = 18 }
  server_count     = 1
  network          = "10.20.0.0/16"
  server_addresses = ["10.20.1.5"]
  artifacts = {
    nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
    nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = "1111111111111111111111111111111111111111111111111111111111111111" }
  }
}

run "contract" {
  command = apply
  module {
    source = "../contract"
  }
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["hall1", "hall2"] } }
    machines = {
      iron1 = { pool = "chat", zone = "hall1" }
      iron2 = { pool = "chat", zone = "hall2" }
    }
    server_count = 3
  }
}

run "every_machine_once" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA", user = "ops" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }

  assert {
    condition     = keys(terraform_data.machine) == ["iron-server-0", "iron-server-1", "iron-server-2", "iron1", "iron2"]
    error_message = jsonencode(keys(terraform_data.machine))
  }
  assert {
    condition     = terraform_data.machine["iron2"].input.user == "ops" && terraform_data.machine["iron1"].input.role == "client"
    error_message = jsonencode(terraform_data.machine["iron2"].input)
  }
  assert {
    condition     = strcontains(local.files["iron1"]["setup.sh"], "-ne 8") && !strcontains(local.files["iron-server-0"]["setup.sh"], "nvidia-smi")
    error_message = local.files["iron1"]["setup.sh"]
  }
  assert {
    condition     = startswith(local.files["iron-server-1"]["nomad.hcl"], "name = \"iron-server-1\"") && strcontains(local.firewall, "elements = { 10.20.0.0/16 }")
    error_message = local.firewall
  }
}

run "machine_missing" {
  command = plan
  variables {
    fleet    = run.contract
    machines = { iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" } }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.machines]
}

run "machine_without_host_key" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.machines]
}

run "user_that_is_shell" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA", user = "a;id" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.machines]
}

run "server_missing" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers  = { iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" } }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.servers]
}

run "server_without_host_key" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.servers]
}

run "no_certificates" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests"
    networks = ["10.20.0.0/16"]
  }
  expect_failures = [var.tls]
}

run "open_to_everybody" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = ["0.0.0.0/0"]
  }
  expect_failures = [var.networks]
}

run "no_network" {
  command = plan
  variables {
    fleet = run.contract
    machines = {
      iron1 = { address = "10.20.1.11", host_key = "ssh-ed25519 AAAA" }
      iron2 = { address = "10.20.2.11", host_key = "ssh-ed25519 AAAA" }
    }
    servers = {
      iron-server-0 = { address = "10.20.1.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-1 = { address = "10.20.2.5", host_key = "ssh-ed25519 AAAA" }
      iron-server-2 = { address = "10.20.2.6", host_key = "ssh-ed25519 AAAA" }
    }
    tls      = "./tests/tls"
    networks = []
  }
  expect_failures = [var.networks]
}
