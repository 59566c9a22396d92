variable "cluster" {
  type        = string
  description = "Name of the cluster: begins every node's name, and is Nomad's region."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", var.cluster))
    error_message = "cluster is ${var.cluster}: want 2 to 32 of a-z, 0-9 and -, a letter first and no - at the end."
  }
}

variable "zones" {
  type = map(object({
    residency  = string
    compliance = optional(list(string), [])
    racks      = optional(list(string), [])
  }))
  description = "Failure zones by name: the jurisdiction that data in each stays in, what it is certified for, and its racks if known."

  validation {
    condition     = length(var.zones) > 0 && alltrue([for z in keys(var.zones) : can(regex("^[a-z0-9][a-z0-9-]*$", z))])
    error_message = "zones needs at least one zone, and names of a-z, 0-9 and -; got ${jsonencode(keys(var.zones))}."
  }
}

variable "pools" {
  type = map(object({
    class         = string
    gpu           = string
    gpus_per_node = number
    nodes         = number
    spare         = optional(number, 1)
    survive       = optional(string, "node")
    zones         = list(string)
    spot          = optional(bool, false)
    residency     = optional(string)
    compliance    = optional(list(string), [])
    node_class    = optional(string)
  }))
  description = <<-EOT
    Node pools by name. nodes is what the planned load needs, spare what may be lost
    and still carry it, survive what the spare must make up for: a node, a zone or
    nothing. class is interactive, batch or infra. residency and compliance hold every
    zone of the pool to them. node_class names the machine and is how prices are found;
    left out, it is GPU kind and count.
  EOT

  validation {
    condition     = length(var.pools) > 0 && alltrue([for p in keys(var.pools) : can(regex("^[a-z][a-z0-9-]{0,62}$", p)) && !contains(["all", "default"], p)])
    error_message = "pools needs at least one pool; a name is 1 to 63 of a-z, 0-9 and -, and Nomad keeps \"all\" and \"default\" for itself; got ${jsonencode(keys(var.pools))}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : contains(["interactive", "batch", "infra"], p.class)])
    error_message = "Unknown class: ${join(", ", [for n, p in var.pools : "pool ${n} has class ${p.class}" if !contains(["interactive", "batch", "infra"], p.class)])}; want interactive, batch or infra."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : contains(keys(local.gpus), p.gpu)])
    error_message = "Unknown GPU kind: ${join(", ", [for n, p in var.pools : "pool ${n} asks for ${p.gpu}" if !contains(keys(local.gpus), p.gpu)])}; known are ${join(", ", keys(local.gpus))}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : contains(p.gpu == "cpu" ? [0] : [1, 2, 4, 8], p.gpus_per_node)])
    error_message = "GPUs per node are 1, 2, 4 or 8, and 0 for gpu = \"cpu\": ${join(", ", [for n, p in var.pools : "pool ${n} has ${p.gpus_per_node} of ${p.gpu}" if !contains(p.gpu == "cpu" ? [0] : [1, 2, 4, 8], p.gpus_per_node)])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : p.nodes >= 1 && floor(p.nodes) == p.nodes && p.spare >= 0 && floor(p.spare) == p.spare && p.nodes + p.spare <= 1000])
    error_message = "nodes and spare are whole numbers, nodes at least 1, together at most 1000: ${join(", ", [for n, p in var.pools : "pool ${n} has ${p.nodes} and ${p.spare}" if !(p.nodes >= 1 && floor(p.nodes) == p.nodes && p.spare >= 0 && floor(p.spare) == p.spare && p.nodes + p.spare <= 1000)])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : length(p.zones) > 0 && length(distinct(p.zones)) == length(p.zones) && length(setsubtract(p.zones, keys(var.zones))) == 0])
    error_message = "A pool's zones are some of ${join(", ", keys(var.zones))}, each once: ${join(", ", [for n, p in var.pools : "pool ${n} names ${jsonencode(p.zones)}" if !(length(p.zones) > 0 && length(distinct(p.zones)) == length(p.zones) && length(setsubtract(p.zones, keys(var.zones))) == 0)])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : contains(["none", "node", "zone"], p.survive)])
    error_message = "survive is none, node or zone: ${join(", ", [for n, p in var.pools : "pool ${n} has ${p.survive}" if !contains(["none", "node", "zone"], p.survive)])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : p.survive != "node" || p.spare >= 1])
    error_message = "N+1 needs a spare: ${join(", ", [for n, p in var.pools : "pool ${n}" if p.survive == "node" && p.spare < 1])} must survive the loss of a node with spare = 0; give it one, or say survive = \"none\"."
  }
  validation {
    # Nodes are dealt to zones in turn, so the fullest zone holds ceil(total/zones).
    condition     = alltrue([for p in values(var.pools) : p.survive != "zone" || length(p.zones) >= 2 && ceil((p.nodes + p.spare) / max(1, length(p.zones))) <= p.spare])
    error_message = "Fewer zones or spares than N+1 over zones wants: ${join(", ", [for n, p in var.pools : "pool ${n} would lose ${ceil((p.nodes + p.spare) / max(1, length(p.zones)))} of ${p.nodes + p.spare} nodes with one of ${length(p.zones)} zones, and can spare ${p.spare}" if p.survive == "zone" && !(length(p.zones) >= 2 && ceil((p.nodes + p.spare) / max(1, length(p.zones))) <= p.spare)])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : !(p.spot && p.class != "batch")])
    error_message = "Spot machines leave with two minutes' notice, less than a stream may last: ${join(", ", [for n, p in var.pools : "pool ${n} is ${p.class} on spot" if p.spot && p.class != "batch"])}; only batch pools may be spot."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : p.class != "interactive" || p.survive != "none"])
    error_message = "An interactive pool must survive the loss of a node: ${join(", ", [for n, p in var.pools : "pool ${n} has survive = \"none\"" if p.class == "interactive" && p.survive == "none"])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : p.residency == null || alltrue([for z in p.zones : try(var.zones[z].residency == p.residency, true)])])
    error_message = "Residency without its zones: ${join("; ", [for n, p in var.pools : "pool ${n} keeps data in ${coalesce(p.residency, "-")} and has ${join(", ", [for z in p.zones : "${z} in ${var.zones[z].residency}" if try(var.zones[z].residency != p.residency, false)])}" if p.residency != null && anytrue([for z in p.zones : try(var.zones[z].residency != p.residency, false)])])}."
  }
  validation {
    condition     = alltrue([for p in values(var.pools) : alltrue([for z in p.zones : try(length(setsubtract(p.compliance, var.zones[z].compliance)) == 0, true)])])
    error_message = "A zone lacks what the pool must comply with: ${join("; ", [for n, p in var.pools : "pool ${n}: ${join(", ", [for z in p.zones : "${z} is not certified for ${join(", ", setsubtract(p.compliance, var.zones[z].compliance))}" if try(length(setsubtract(p.compliance, var.zones[z].compliance)) > 0, false)])}" if anytrue([for z in p.zones : try(length(setsubtract(p.compliance, var.zones[z].compliance)) > 0, false)])])}."
  }
}

variable "more_nodes" {
  type        = map(number)
  default     = {}
  description = "Nodes by pool beside those of pools: what llmops fleet grow has added, which keeps it in llmops.auto.tfvars.json."

  validation {
    condition     = length(setsubtract(keys(var.more_nodes), keys(var.pools))) == 0 && alltrue([for n in values(var.more_nodes) : n >= 0 && floor(n) == n && n <= 1000])
    error_message = "more_nodes is whole numbers by pool, 0 or more; got ${jsonencode(var.more_nodes)} for pools ${join(", ", keys(var.pools))}."
  }
  validation {
    condition     = var.machines == null || alltrue([for n in values(var.more_nodes) : n == 0])
    error_message = "more_nodes makes no machines where they are named one by one in machines: add them there."
  }
  validation {
    condition     = alltrue([for n, p in var.pools : p.survive != "zone" || ceil((p.nodes + p.spare + lookup(var.more_nodes, n, 0)) / max(1, length(p.zones))) <= p.spare])
    error_message = "With more_nodes a pool no longer survives the loss of a zone: ${join(", ", [for n, p in var.pools : "${n} would lose ${ceil((p.nodes + p.spare + lookup(var.more_nodes, n, 0)) / max(1, length(p.zones)))} nodes and can spare ${p.spare}" if p.survive == "zone" && ceil((p.nodes + p.spare + lookup(var.more_nodes, n, 0)) / max(1, length(p.zones))) > p.spare])}."
  }
}

variable "machines" {
  type = map(object({
    pool = string
    zone = string
    rack = optional(string, "")
  }))
  default     = null
  description = "Machines that exist already, by name. Left out, nodes are made up from the pools, dealt to their zones in turn."

  validation {
    condition     = alltrue([for m in values(coalesce(var.machines, {})) : contains(keys(var.pools), m.pool)])
    error_message = "A machine is of no known pool: ${join(", ", [for n, m in coalesce(var.machines, {}) : "${n} of ${m.pool}" if !contains(keys(var.pools), m.pool)])}."
  }
  validation {
    condition     = alltrue([for m in values(coalesce(var.machines, {})) : try(contains(var.pools[m.pool].zones, m.zone), true)])
    error_message = "A machine stands in a zone that its pool does not have: ${join(", ", [for n, m in coalesce(var.machines, {}) : "${n} of ${m.pool} in ${m.zone}" if try(!contains(var.pools[m.pool].zones, m.zone), false)])}."
  }
  validation {
    condition     = var.machines == null || alltrue([for n, p in var.pools : length([for m in values(coalesce(var.machines, {})) : m if m.pool == n]) == p.nodes + p.spare])
    error_message = "Machines and pools disagree: ${join(", ", [for n, p in var.pools : "pool ${n} wants ${p.nodes} and ${p.spare} spare, and has ${length([for m in values(coalesce(var.machines, {})) : m if m.pool == n])}" if length([for m in values(coalesce(var.machines, {})) : m if m.pool == n]) != p.nodes + p.spare])}."
  }
  validation {
    condition     = alltrue([for n in keys(coalesce(var.machines, {})) : can(regex("^[a-z0-9][a-z0-9-]{0,62}$", n))])
    error_message = "A machine's name is 1 to 63 of a-z, 0-9 and -; got ${jsonencode(keys(coalesce(var.machines, {})))}."
  }
  validation {
    # What was dealt in turn is even by construction; what stands somewhere is not.
    condition = alltrue([for n, p in var.pools : p.survive != "zone" || alltrue([
      for z in p.zones : length([for m in values(coalesce(var.machines, {})) : m if m.pool == n && m.zone == z]) <= p.spare
    ])])
    error_message = "A zone holds more machines of a pool than it has spare, so that its loss is not survived: ${join(", ", flatten([for n, p in var.pools : [for z in p.zones : "${n} in ${z}" if p.survive == "zone" && length([for m in values(coalesce(var.machines, {})) : m if m.pool == n && m.zone == z]) > p.spare]]))}."
  }
}

variable "prices" {
  type        = map(number)
  default     = {}
  description = "US dollars an hour of one node by node class, on demand; \"spot/CLASS\" for spot. A class without a price makes the cost unknown, not nothing."

  validation {
    condition     = alltrue([for p in values(var.prices) : p >= 0])
    error_message = "A price is 0 or more."
  }
}

variable "network" {
  type        = string
  description = "The private IPv4 network that the agents speak in, 10.20.0.0/16. Each binds to its address there, whatever other interfaces the machine has, with or without a default route."

  validation {
    condition     = can(cidrhost(var.network, 0)) && can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.)", var.network))
    error_message = "network is ${var.network}: want a private IPv4 range such as 10.20.0.0/16."
  }
}

variable "server_addresses" {
  type        = list(string)
  description = "Where clients find the Nomad servers: names or private addresses, without a port."

  validation {
    condition     = length(var.server_addresses) > 0 && alltrue([for a in var.server_addresses : can(regex("^[a-zA-Z0-9.-]+$", a))])
    error_message = "server_addresses needs at least one name or address without a port; got ${jsonencode(var.server_addresses)}."
  }
  validation {
    condition = alltrue([for a in var.server_addresses :
      !can(regex("^[0-9]{1,3}(\\.[0-9]{1,3}){3}$", a)) || can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.|127\\.)", a))
    ])
    error_message = "The network is closed: ${join(", ", [for a in var.server_addresses : a if can(regex("^[0-9]{1,3}(\\.[0-9]{1,3}){3}$", a)) && !can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.|127\\.)", a))])} is a public address."
  }
}

variable "server_count" {
  type        = number
  default     = 3
  description = "How many Nomad servers make the quorum."

  validation {
    condition     = contains([1, 3, 5], var.server_count)
    error_message = "server_count is ${var.server_count}: want 3 or 5; 1 only where losing the servers is no loss."
  }
}

variable "artifacts" {
  type = map(object({
    url    = string
    sha256 = string
  }))
  description = "What a node installs, from a mirror that a closed network reaches: \"nomad\" and, where there are GPUs, \"nomad-device-nvidia\", each a zip with its digest."

  validation {
    condition     = alltrue([for a in values(var.artifacts) : can(regex("^https://[^\\s'\"$`\\\\]+$", a.url)) && can(regex("^[0-9a-f]{64}$", a.sha256))])
    error_message = "An artifact has an https URL and a SHA-256 of 64 hexadecimal digits: ${join(", ", [for n, a in var.artifacts : n if !(can(regex("^https://[^\\s'\"$`\\\\]+$", a.url)) && can(regex("^[0-9a-f]{64}$", a.sha256)))])} has not."
  }
  validation {
    condition     = contains(keys(var.artifacts), "nomad") && (contains(keys(var.artifacts), "nomad-device-nvidia") || alltrue([for p in values(var.pools) : p.gpu == "cpu" || local.vendor[p.gpu] != "nvidia"]))
    error_message = "artifacts needs nomad, and nomad-device-nvidia where a pool has NVIDIA GPUs; got ${jsonencode(keys(var.artifacts))}."
  }
}

variable "max_kill_timeout" {
  type        = string
  default     = "15m"
  description = "The longest kill_timeout that clients honour; longer ones in job files are cut to it without a word. Nomad's own 30s would cut streams off."

  validation {
    condition     = can(regex("^[1-9][0-9]*m$", var.max_kill_timeout))
    error_message = "max_kill_timeout is ${var.max_kill_timeout}: want whole minutes such as 15m, since engines take minutes to drain."
  }
}

variable "models_path" {
  type        = string
  default     = "/var/lib/llmops/models"
  description = "Folder of the nodes that holds weights; jobs mount it as the host volume \"models\"."

  validation {
    condition     = can(regex("^/[A-Za-z0-9._/-]+$", var.models_path))
    error_message = "models_path is ${var.models_path}: want an absolute path."
  }
}

variable "raw_exec" {
  type        = bool
  default     = false
  description = "Whether jobs may run processes without a container, as the client's own user. Only where every submitter of jobs may be root on the nodes."
}

variable "prepare" {
  type        = string
  default     = ""
  description = "Script that a machine made by cloud-init runs as root before it installs Nomad, with client or server as its argument: mounts disks, fetches the keys."

  validation {
    condition     = var.prepare == "" || startswith(var.prepare, "#!")
    error_message = "prepare is a script: its first line names the interpreter, #!/bin/sh."
  }
  validation {
    condition     = !strcontains(var.prepare, "PRIVATE KEY")
    error_message = "prepare holds a private key, and would be in the user data of every machine: fetch it instead."
  }
}
