# What the contract makes of a right description.

variables {
  cluster = "prod"
  zones = {
    az1 = { residency = "eu", compliance = ["soc2", "hipaa"], racks = ["r1", "r2"] }
    az2 = { residency = "eu", compliance = ["soc2", "hipaa"] }
    az3 = { residency = "us", compliance = ["soc2"] }
  }
  pools = {
    interactive = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 3, spare = 3, survive = "zone", zones = ["az1", "az2"], residency = "eu", compliance = ["hipaa"] }
    bulk        = { class = "batch", gpu = "l40s", gpus_per_node = 4, nodes = 2, spare = 0, survive = "none", zones = ["az3"], spot = true }
  }
  prices           = { "8xh100-sxm" = 50, "spot/4xl40s" = 3.5 }
  network          = "10.0.0.0/16"
  server_addresses = ["10.0.0.10", "10.0.1.10", "10.0.2.10"]
  artifacts = {
    nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
    nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = "1111111111111111111111111111111111111111111111111111111111111111" }
  }
}

run "nodes_by_pool_and_zone" {
  command = apply

  assert {
    condition     = jsonencode(output.pools["interactive"].zones) == jsonencode({ az1 = ["prod-interactive-az1-01", "prod-interactive-az1-02", "prod-interactive-az1-03"], az2 = ["prod-interactive-az2-01", "prod-interactive-az2-02", "prod-interactive-az2-03"] })
    error_message = "interactive: ${jsonencode(output.pools["interactive"].zones)}"
  }
  assert {
    condition     = output.totals.nodes == 8 && output.totals.gpus == 6 * 8 + 2 * 4 && output.totals.hourly == 6 * 50 + 2 * 3.5
    error_message = "totals: ${jsonencode(output.totals)}"
  }
  assert {
    condition     = [for n in ["01", "02", "03"] : output.nodes["prod-interactive-az1-${n}"].rack] == ["r1", "r2", "r1"] && output.nodes["prod-interactive-az2-01"].rack == "az2"
    error_message = "racks: ${jsonencode([for n in values(output.nodes) : n.rack])}"
  }
  assert {
    condition     = length(output.nodes) == 8 && output.nodes["prod-bulk-az3-02"].spot && output.nodes["prod-bulk-az3-02"].device == "NVIDIA L40S"
    error_message = "nodes: ${jsonencode(output.nodes)}"
  }
}

run "client_configuration" {
  command = apply

  assert {
    condition = alltrue([for line in [
      "node_pool  = \"interactive\"", "max_kill_timeout = \"15m\"", "zone       = \"az1\"", "rack       = \"r2\"", "residency  = \"eu\"", "compliance = \"hipaa\"",
      "host_volume \"models\"", "plugin \"nomad-device-nvidia\"", "\"fingerprint.denylist\" = \"env_aws,env_gce,env_azure,env_digitalocean\"",
      "verify_https_client    = true", "verify_server_hostname = true", "include \\\"network\\\" \\\"10.0.0.0/16\\\" | limit 1 | attr \\\"address\\\" }}\"", "\"10.0.2.10:4647\"",
    ] : strcontains(output.client_config["prod-interactive-az1-02"], line)])
    error_message = output.client_config["prod-interactive-az1-02"]
  }
  assert {
    condition     = !strcontains(output.client_config["prod-bulk-az3-01"], "raw_exec")
    error_message = "raw_exec is on unasked"
  }
  assert {
    condition     = alltrue([for c in values(output.cloud_init) : startswith(c, "#cloud-config\n") && yamldecode(c).write_files[0].path == "/etc/nomad.d/nomad.hcl"])
    error_message = "cloud-init is not one"
  }
  assert {
    condition     = base64decode(yamldecode(output.cloud_init["prod-bulk-az3-01"]).write_files[0].content) == output.client_config["prod-bulk-az3-01"]
    error_message = "cloud-init brings another configuration"
  }
  assert {
    condition     = alltrue([for c in concat(values(output.cloud_init), values(output.server_cloud_init)) : !strcontains(base64decode(yamldecode(c).write_files[0].content), "PRIVATE KEY") && length(c) < 16384])
    error_message = "user data holds a key, or more than the 16 KiB that clouds take"
  }
  assert {
    condition     = length(output.server_cloud_init) == 3 && strcontains(output.server_config, "bootstrap_expect = 3")
    error_message = output.server_config
  }
}

run "prepare_comes_first" {
  command = apply
  variables {
    prepare = "#!/bin/sh\nmount /dev/md0 /var/lib/llmops\n"
  }

  assert {
    condition     = jsonencode(yamldecode(output.cloud_init["prod-bulk-az3-01"]).runcmd) == jsonencode([["/usr/local/sbin/llmops-prepare", "client"], ["/usr/local/sbin/llmops-install-nomad"]])
    error_message = output.cloud_init["prod-bulk-az3-01"]
  }
  assert {
    condition     = yamldecode(output.server_cloud_init["prod-server-2"]).runcmd[0][1] == "server" && base64decode(yamldecode(output.server_cloud_init["prod-server-2"]).write_files[3].content) == var.prepare
    error_message = output.server_cloud_init["prod-server-2"]
  }
}

run "what_is_installed" {
  command = apply

  assert {
    condition     = strcontains(output.install["client"], "fetch nomad-device-nvidia") && !strcontains(output.install["server"], "fetch nomad-device-nvidia") && !strcontains(output.install["client"], "fetch llmops")
    error_message = output.install["client"]
  }
}

run "llmops_is_installed_too" {
  command = apply
  variables {
    artifacts = {
      nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
      nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = "1111111111111111111111111111111111111111111111111111111111111111" }
      llmops              = { url = "https://mirror.internal/llmops.zip", sha256 = "2222222222222222222222222222222222222222222222222222222222222222" }
    }
  }

  assert {
    condition     = alltrue([for s in values(output.install) : strcontains(s, "fetch llmops 'https://mirror.internal/llmops.zip' '2222")])
    error_message = output.install["server"]
  }
}

run "cpu_pool_has_no_device_plugin" {
  command = apply
  variables {
    pools     = { infra = { class = "infra", gpu = "cpu", gpus_per_node = 0, nodes = 1, spare = 1, zones = ["az1", "az2"] } }
    artifacts = { nomad = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
    prices    = { cpu = 1 }
  }

  assert {
    condition     = output.totals == { nodes = 2, gpus = 0, hourly = 2 } && !strcontains(output.client_config["prod-infra-az1-01"], "nvidia")
    error_message = jsonencode(output.totals)
  }
}

run "machines_that_exist" {
  command = apply
  variables {
    pools = { interactive = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az2"] } }
    machines = {
      iron1 = { pool = "interactive", zone = "az1", rack = "r7" }
      iron2 = { pool = "interactive", zone = "az2" }
    }
  }

  assert {
    condition     = keys(output.nodes) == ["iron1", "iron2"] && output.nodes["iron1"].rack == "r7" && output.nodes["iron2"].rack == "az2" && output.totals.gpus == 16
    error_message = jsonencode(output.nodes)
  }
}

run "unknown_price_is_said" {
  command = plan
  variables {
    prices = { "8xh100-sxm" = 50 }
  }
  expect_failures = [check.prices]
}

run "unknown_price_is_not_nothing" {
  command = plan
  variables {
    prices = {}
  }
  expect_failures = [check.prices]

  assert {
    condition     = output.totals.hourly == null && output.pools["bulk"].hourly == null
    error_message = "the cost is ${jsonencode(output.totals.hourly)}"
  }
}

run "one_server_is_said" {
  command = plan
  variables {
    server_count = 1
  }
  expect_failures = [check.quorum]
}

run "one_zone_is_said" {
  command = plan
  variables {
    pools  = { chat = { class = "interactive", gpu = "l4", gpus_per_node = 1, nodes = 1, zones = ["az1"] } }
    prices = { "1xl4" = 1 }
  }
  expect_failures = [check.interactive_zones]
}

run "more_nodes_come_last" {
  command = plan
  variables {
    more_nodes = { bulk = 1 }
  }

  assert {
    condition     = jsonencode(output.pools["bulk"].zones) == jsonencode({ az3 = ["prod-bulk-az3-01", "prod-bulk-az3-02", "prod-bulk-az3-03"] })
    error_message = jsonencode(output.pools["bulk"].zones)
  }
  assert {
    condition     = output.pools["bulk"].nodes == 3 && output.pools["bulk"].needed == 2
    error_message = jsonencode(output.pools["bulk"])
  }
}
