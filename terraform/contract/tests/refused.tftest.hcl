# Contradictions that the contract refuses, each by the validation that is for it.

variables {
  cluster = "prod"
  zones = {
    az1 = { residency = "eu", compliance = ["hipaa"] }
    az2 = { residency = "eu", compliance = ["hipaa"] }
    az3 = { residency = "us" }
  }
  pools = {
    chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 2, spare = 2, survive = "zone", zones = ["az1", "az2"] }
  }
  prices           = { "8xh100-sxm" = 50 }
  network          = "10.0.0.0/16"
  server_addresses = ["10.0.0.10"]
  artifacts = {
    nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
    nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = "1111111111111111111111111111111111111111111111111111111111111111" }
  }
}

run "right_as_it_stands" {
  command = plan
}

run "unknown_class" {
  command = plan
  variables {
    pools = { chat = { class = "fast", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az2"] } }
  }
  expect_failures = [var.pools]
}

run "unknown_gpu_kind" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h300", gpus_per_node = 8, nodes = 1, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "odd_number_of_gpus" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 3, nodes = 1, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "gpus_on_a_cpu_node" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "cpu", gpus_per_node = 1, nodes = 1, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "part_of_a_node" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1.5, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "no_node" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 0, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "unknown_zone" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az9"] } }
  }
  expect_failures = [var.pools]
}

run "zone_named_twice" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az1"] } }
  }
  expect_failures = [var.pools]
}

run "no_zone" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = [] } }
  }
  expect_failures = [var.pools]
}

run "unknown_survive" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1"], survive = "region" } }
  }
  expect_failures = [var.pools]
}

run "n_plus_one_without_a_spare" {
  command = plan
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 2, spare = 0, zones = ["az1", "az2"] } }
  }
  expect_failures = [var.pools]
}

run "one_zone_cannot_lose_a_zone" {
  command = plan
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 2, spare = 2, survive = "zone", zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "fewer_spares_than_a_zone_holds" {
  command = plan
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 3, spare = 1, survive = "zone", zones = ["az1", "az2"] } }
  }
  expect_failures = [var.pools]
}

run "spot_for_interactive" {
  command = plan
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az2"], spot = true } }
  }
  expect_failures = [var.pools]
}

run "interactive_without_spare" {
  command = plan
  variables {
    pools = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, spare = 0, survive = "none", zones = ["az1", "az2"] } }
  }
  expect_failures = [var.pools]
}

run "residency_without_a_zone_in_it" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az3"], residency = "eu" } }
  }
  expect_failures = [var.pools]
}

run "compliance_that_a_zone_lacks" {
  command = plan
  variables {
    pools = { chat = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1", "az3"], compliance = ["hipaa"] } }
  }
  expect_failures = [var.pools]
}

run "reserved_name" {
  command = plan
  variables {
    pools = { default = { class = "batch", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, zones = ["az1"] } }
  }
  expect_failures = [var.pools]
}

run "bad_cluster" {
  command = plan
  variables {
    cluster = "Prod_1"
  }
  expect_failures = [var.cluster]
}

run "no_zones_at_all" {
  command = plan
  variables {
    zones = {}
  }
  expect_failures = [var.zones]
}

run "negative_price" {
  command = plan
  variables {
    prices = { "8xh100-sxm" = -1 }
  }
  expect_failures = [var.prices]
}

run "public_server" {
  command = plan
  variables {
    server_addresses = ["52.1.2.3"]
  }
  expect_failures = [var.server_addresses]
}

run "server_with_a_port" {
  command = plan
  variables {
    server_addresses = ["10.0.0.10:4647"]
  }
  expect_failures = [var.server_addresses]
}

run "even_quorum" {
  command = plan
  variables {
    server_count = 2
  }
  expect_failures = [var.server_count]
}

run "artifact_in_the_clear" {
  command = plan
  variables {
    artifacts = { nomad = { url = "http://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }, nomad-device-nvidia = { url = "https://mirror.internal/n.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
  }
  expect_failures = [var.artifacts]
}

run "artifact_without_digest" {
  command = plan
  variables {
    artifacts = { nomad = { url = "https://mirror.internal/nomad.zip", sha256 = "" }, nomad-device-nvidia = { url = "https://mirror.internal/n.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
  }
  expect_failures = [var.artifacts]
}

run "artifact_that_is_shell" {
  command = plan
  variables {
    artifacts = { nomad = { url = "https://mirror.internal/$(id)'.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }, nomad-device-nvidia = { url = "https://mirror.internal/n.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
  }
  expect_failures = [var.artifacts]
}

run "gpus_without_their_plugin" {
  command = plan
  variables {
    artifacts = { nomad = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
  }
  expect_failures = [var.artifacts]
}

run "kill_timeout_of_seconds" {
  command = plan
  variables {
    max_kill_timeout = "30s"
  }
  expect_failures = [var.max_kill_timeout]
}

run "relative_models_path" {
  command = plan
  variables {
    models_path = "models"
  }
  expect_failures = [var.models_path]
}

run "machine_of_no_pool" {
  command = plan
  variables {
    machines = { a = { pool = "none", zone = "az1" } }
  }
  expect_failures = [var.machines]
}

run "machine_in_another_zone" {
  command = plan
  variables {
    machines = { a = { pool = "chat", zone = "az3" }, b = { pool = "chat", zone = "az1" }, c = { pool = "chat", zone = "az1" }, d = { pool = "chat", zone = "az2" } }
  }
  expect_failures = [var.machines]
}

run "too_few_machines" {
  command = plan
  variables {
    machines = { a = { pool = "chat", zone = "az1" }, b = { pool = "chat", zone = "az2" } }
  }
  expect_failures = [var.machines]
}

run "machines_in_one_zone" {
  command = plan
  variables {
    machines = { a = { pool = "chat", zone = "az1" }, b = { pool = "chat", zone = "az1" }, c = { pool = "chat", zone = "az1" }, d = { pool = "chat", zone = "az2" } }
  }
  expect_failures = [var.machines]
}

run "prepare_that_is_no_script" {
  command = plan
  variables {
    prepare = "mount /dev/md0"
  }
  expect_failures = [var.prepare]
}

run "prepare_with_a_key" {
  command = plan
  variables {
    prepare = "#!/bin/sh\n-----BEGIN PRIVATE KEY-----"
  }
  expect_failures = [var.prepare]
}

run "public_network" {
  command = plan
  variables {
    network = "52.0.0.0/16"
  }
  expect_failures = [var.network]
}

run "address_for_a_network" {
  command = plan
  variables {
    network = "10.0.0.1"
  }
  expect_failures = [var.network]
}

run "more_nodes_of_no_pool" {
  command = plan
  variables {
    more_nodes = { gone = 1 }
  }
  expect_failures = [var.more_nodes]
}

run "more_nodes_than_a_zone_may_lose" {
  command = plan
  variables {
    more_nodes = { chat = 1 }
  }
  expect_failures = [var.more_nodes]
}
