output "nodes" {
  description = "Every GPU node by name: pool, class, zone, rack, GPUs, node class, spot, residency and hourly price (null: unknown)."
  value       = { for n, r in terraform_data.node : n => r.output }
}

output "pools" {
  description = "Every pool: what it was asked for, and its nodes by zone, GPUs and hourly price (null: unknown)."
  value = {
    for n, p in var.pools : n => {
      class      = p.class
      gpu        = p.gpu
      needed     = p.nodes
      spare      = p.spare
      survive    = p.survive
      spot       = p.spot
      residency  = p.residency
      compliance = p.compliance
      node_class = local.class[n]
      zones      = { for z in p.zones : z => sort([for m in values(local.nodes) : m.name if m.pool == n && m.zone == z]) }
      nodes      = length([for m in values(local.nodes) : m if m.pool == n])
      gpus       = sum([for m in values(local.nodes) : m.gpus if m.pool == n])
      hourly     = try(sum([for m in values(local.nodes) : m.hourly if m.pool == n]), null)
    }
  }
}

output "totals" {
  description = "Nodes, GPUs and US dollars an hour of all pools (null: some price is unknown)."
  value = {
    nodes  = length(local.nodes)
    gpus   = sum([for m in values(local.nodes) : m.gpus])
    hourly = try(sum([for m in values(local.nodes) : m.hourly]), null)
  }
}

output "client_config" {
  description = "Nomad's client configuration of each node."
  value       = local.client_config
}

output "server_config" {
  description = "Nomad's configuration of every server; the name is the machine's."
  value       = local.server_config
}

output "install" {
  description = "The script that installs Nomad on a machine, by what it becomes: client or server."
  value       = local.install
}

output "unit" {
  description = "The systemd unit of Nomad. It waits for the certificates: nothing starts in the clear."
  value       = local.unit
}

output "servers" {
  description = "The names of the Nomad servers."
  value       = local.servers
}

output "cloud_init" {
  description = "User data of each node. Holds no secret: prepare fetches the keys."
  value = {
    for n, c in local.client_config : n => templatefile("${path.module}/templates/cloud-init.yaml.tftpl", {
      hostname = n
      config   = c
      unit     = local.unit
      install  = local.install["client"]
      prepare  = var.prepare
      what     = "client"
    })
  }
}

output "server_cloud_init" {
  description = "User data of each Nomad server."
  value = {
    for n in local.servers : n => templatefile("${path.module}/templates/cloud-init.yaml.tftpl", {
      hostname = n
      config   = local.server_config
      unit     = local.unit
      install  = local.install["server"]
      prepare  = var.prepare
      what     = "server"
    })
  }
}
