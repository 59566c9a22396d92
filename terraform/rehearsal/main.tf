# A fleet of one node without a GPU and one server, for run.sh.

terraform {
  required_version = ">= 1.9.0, < 2.0.0"
}

module "contract" {
  source = "../contract"

  cluster = "prod"
  zones   = { az1 = { residency = "eu" } }
  pools = {
    interactive = { class = "infra", gpu = "cpu", gpus_per_node = 0, nodes = 1, spare = 0, survive = "none", zones = ["az1"] }
  }
  prices           = { cpu = 0.5 }
  network          = "10.9.0.0/24"
  server_addresses = ["10.9.0.2"]
  server_count     = 1
  raw_exec         = true
  artifacts        = { nomad = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" } }
}

output "nodes" {
  description = "Every node."
  value       = module.contract.nodes
}

output "pools" {
  description = "Every pool."
  value       = module.contract.pools
}

output "totals" {
  description = "Nodes, GPUs and cost of all pools."
  value       = module.contract.totals
}

output "client" {
  description = "The node's configuration."
  value       = one(values(module.contract.client_config))
}

output "server" {
  description = "The server's configuration."
  value       = module.contract.server_config
}
