# What a fleet of GPU nodes is, whoever provides it: the nodes of each pool and zone,
# what each is told when it starts, and what it costs. The modules beside this one
# turn every node into a machine.

locals {
  # The names are those of llmops' own catalogue, by which jobs ask for GPUs; device is
  # how Nomad's plugin calls them.
  gpus = {
    "cpu"       = { vendor = "", device = "" }
    "a100-80gb" = { vendor = "nvidia", device = "NVIDIA A100-SXM4-80GB" }
    "h100-sxm"  = { vendor = "nvidia", device = "NVIDIA H100 80GB HBM3" }
    "h200-sxm"  = { vendor = "nvidia", device = "NVIDIA H200" }
    "b200-sxm"  = { vendor = "nvidia", device = "NVIDIA B200" }
    "gb200"     = { vendor = "nvidia", device = "NVIDIA GB200" }
    "l40s"      = { vendor = "nvidia", device = "NVIDIA L40S" }
    "l4"        = { vendor = "nvidia", device = "NVIDIA L4" }
  }
  vendor = { for k, g in local.gpus : k => g.vendor }

  class = { for n, p in var.pools : n => coalesce(p.node_class, p.gpu == "cpu" ? "cpu" : "${p.gpus_per_node}x${p.gpu}") }

  made = merge([
    for n, p in var.pools : {
      for i in range(p.nodes + p.spare + lookup(var.more_nodes, n, 0)) :
      format("%s-%s-%s-%02d", var.cluster, n, p.zones[i % length(p.zones)], floor(i / length(p.zones)) + 1) => {
        pool  = n
        zone  = p.zones[i % length(p.zones)]
        racks = var.zones[p.zones[i % length(p.zones)]].racks
        index = floor(i / length(p.zones))
      }
    }
  ]...)

  # A zone whose racks are not known is one rack: affinity to it still keeps prefill and
  # decode in one zone.
  place = var.machines != null ? { for n, m in var.machines : n => { pool = m.pool, zone = m.zone, rack = m.rack == "" ? m.zone : m.rack } } : {
    for n, m in local.made : n => { pool = m.pool, zone = m.zone, rack = length(m.racks) > 0 ? m.racks[m.index % length(m.racks)] : m.zone }
  }

  nodes = {
    for n, m in local.place : n => {
      name       = n
      pool       = m.pool
      class      = var.pools[m.pool].class
      zone       = m.zone
      rack       = m.rack
      gpu        = var.pools[m.pool].gpu
      gpus       = var.pools[m.pool].gpus_per_node
      device     = local.gpus[var.pools[m.pool].gpu].device
      node_class = local.class[m.pool]
      spot       = var.pools[m.pool].spot
      residency  = var.zones[m.zone].residency
      compliance = join(",", sort(var.pools[m.pool].compliance))
      hourly     = lookup(var.prices, "${var.pools[m.pool].spot ? "spot/" : ""}${local.class[m.pool]}", null)
    }
  }

  client_config = {
    for n, m in local.nodes : n => templatefile("${path.module}/templates/client.hcl.tftpl", {
      cluster          = var.cluster
      node             = m
      network          = var.network
      servers          = var.server_addresses
      max_kill_timeout = var.max_kill_timeout
      models_path      = var.models_path
      nvidia           = local.vendor[m.gpu] == "nvidia"
      raw_exec         = var.raw_exec
    })
  }

  server_config = templatefile("${path.module}/templates/server.hcl.tftpl", {
    cluster      = var.cluster
    network      = var.network
    servers      = var.server_addresses
    server_count = var.server_count
  })

  install = {
    for what in ["client", "server"] : what => templatefile("${path.module}/templates/install.sh.tftpl", {
      what        = what
      nomad       = var.artifacts["nomad"]
      nvidia      = what == "client" ? try(var.artifacts["nomad-device-nvidia"], null) : null
      llmops      = try(var.artifacts["llmops"], null)
      models_path = var.models_path
    })
  }

  unit    = file("${path.module}/templates/nomad.service")
  servers = [for i in range(var.server_count) : "${var.cluster}-server-${i}"]
}

# One record a node. A plan shows in it what is added, changed or taken away, with its
# GPUs and price, in the same words whatever provides the machine.
resource "terraform_data" "node" {
  for_each = local.nodes
  input    = each.value

  # Another machine, and not the same with another label.
  triggers_replace = [each.value.zone, each.value.gpu, each.value.gpus, each.value.node_class, each.value.spot]
}

resource "terraform_data" "server" {
  for_each = toset(local.servers)
  input    = each.value
}

check "prices" {
  assert {
    condition     = alltrue([for n in values(local.nodes) : n.hourly != null])
    error_message = "No price for ${join(", ", distinct([for n in values(local.nodes) : "${n.spot ? "spot/" : ""}${n.node_class}" if n.hourly == null]))}: the cost of those nodes is unknown."
  }
}

check "quorum" {
  assert {
    condition     = var.server_count >= 3
    error_message = "One Nomad server: whoever restarts it stops all scheduling, and losing its disk loses jobs, variables and tokens."
  }
}

check "interactive_zones" {
  assert {
    condition     = alltrue([for p in values(var.pools) : p.class != "interactive" || length(p.zones) >= 2])
    error_message = "One zone only: ${join(", ", [for n, p in var.pools : n if p.class == "interactive" && length(p.zones) < 2])} goes down with it."
  }
}
