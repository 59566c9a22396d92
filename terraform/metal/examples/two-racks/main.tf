# Two racks of machines that exist already, and three servers. Copy this folder, change
# terraform.tfvars, then: terraform init, llmops fleet plan, llmops fleet apply.

terraform {
  required_version = ">= 1.9.0, < 2.0.0"
}

module "contract" {
  source = "../../../contract"

  cluster          = var.cluster
  zones            = var.zones
  pools            = var.pools
  prices           = var.prices
  machines         = { for n, m in var.machines : n => { pool = m.pool, zone = m.zone, rack = m.rack } }
  network          = var.networks[0]
  server_addresses = [for n in sort(keys(var.servers)) : var.servers[n].address]
  server_count     = length(var.servers)
  artifacts        = var.artifacts
}

module "metal" {
  source = "../.."

  fleet    = module.contract
  machines = { for n, m in var.machines : n => { address = m.address, host_key = m.host_key, user = m.user } }
  servers  = var.servers
  ssh_key  = var.ssh_key
  bastion  = var.bastion
  tls      = var.tls
  networks = var.networks
}
