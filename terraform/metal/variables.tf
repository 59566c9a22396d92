variable "fleet" {
  type = object({
    nodes         = any
    servers       = list(string)
    client_config = map(string)
    server_config = string
    install       = map(string)
    unit          = string
  })
  description = "The outputs of the contract module, which was given these machines."
}

variable "machines" {
  type = map(object({
    address  = string
    host_key = string
    user     = optional(string, "root")
    port     = optional(number, 22)
  }))
  description = "How to reach each GPU node by SSH, by the node's name. host_key is the machine's public key: nothing is trusted at first sight."

  validation {
    condition     = length(setsubtract(keys(var.fleet.nodes), keys(var.machines))) == 0 && length(setsubtract(keys(var.machines), keys(var.fleet.nodes))) == 0
    error_message = "machines and the contract's nodes differ: ${jsonencode(setunion(setsubtract(keys(var.fleet.nodes), keys(var.machines)), setsubtract(keys(var.machines), keys(var.fleet.nodes))))}."
  }
  validation {
    condition     = alltrue([for m in values(var.machines) : can(regex("^(ssh-ed25519|ecdsa-sha2-nistp[0-9]+|ssh-rsa) [A-Za-z0-9+/=]+", m.host_key))])
    error_message = "host_key is a public key as ssh-keyscan prints it, without the name: ${join(", ", [for n, m in var.machines : n if !can(regex("^(ssh-ed25519|ecdsa-sha2-nistp[0-9]+|ssh-rsa) [A-Za-z0-9+/=]+", m.host_key))])}."
  }
  validation {
    condition     = alltrue([for m in values(var.machines) : can(regex("^[a-z_][a-z0-9_-]*$", m.user)) && can(regex("^[A-Za-z0-9.:-]+$", m.address))])
    error_message = "A machine's user is a login name and its address a name or an IP address."
  }
}

variable "servers" {
  type = map(object({
    address  = string
    host_key = string
    user     = optional(string, "root")
    port     = optional(number, 22)
  }))
  description = "How to reach each Nomad server by SSH, by the server's name."

  validation {
    condition     = length(setsubtract(var.fleet.servers, keys(var.servers))) == 0 && length(setsubtract(keys(var.servers), var.fleet.servers)) == 0
    error_message = "servers are ${jsonencode(var.fleet.servers)} in the contract and ${jsonencode(keys(var.servers))} here."
  }
  validation {
    condition     = alltrue([for m in values(var.servers) : can(regex("^(ssh-ed25519|ecdsa-sha2-nistp[0-9]+|ssh-rsa) [A-Za-z0-9+/=]+", m.host_key))])
    error_message = "host_key is a public key as ssh-keyscan prints it, without the name."
  }
}

variable "ssh_key" {
  type        = string
  default     = ""
  description = "Path of the private key to log in with; empty: the SSH agent's. Its content gets into no state."
}

variable "bastion" {
  type = object({
    host     = string
    host_key = string
    user     = optional(string, "root")
  })
  default     = null
  description = "The machine through which a closed network is reached."
}

variable "tls" {
  type        = string
  description = "Folder with ca.pem, server.pem, server-key.pem, client.pem and client-key.pem, as nomad tls makes them. Their content gets into no state."

  validation {
    condition     = alltrue([for f in ["ca.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem"] : fileexists("${var.tls}/${f}")])
    error_message = "${var.tls} lacks ${join(", ", [for f in ["ca.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem"] : f if !fileexists("${var.tls}/${f}")])}."
  }
}

variable "networks" {
  type        = list(string)
  description = "The networks from which Nomad's ports and those of its jobs answer; everybody else is dropped."

  validation {
    condition     = length(var.networks) > 0 && alltrue([for n in var.networks : can(cidrhost(n, 0)) && !startswith(n, "0.0.0.0/") && !strcontains(n, ":")])
    error_message = "networks are IPv4 ranges such as 10.0.0.0/16, and never everybody; got ${jsonencode(var.networks)}."
  }
}
