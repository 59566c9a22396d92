variable "cluster" {
  type        = string
  description = "Name of the cluster."
}

variable "zones" {
  type        = any
  description = "See the contract module."
}

variable "pools" {
  type        = any
  description = "See the contract module."
}

variable "prices" {
  type        = map(number)
  description = "US dollars an hour by node class: what a machine costs you, written off."
  default     = {}
}

variable "artifacts" {
  type        = any
  description = "See the contract module."
}

variable "machines" {
  type = map(object({
    pool     = string
    zone     = string
    rack     = string
    address  = string
    host_key = string
    user     = optional(string, "root")
  }))
  description = "The GPU machines by name."
}

variable "servers" {
  type = map(object({
    address  = string
    host_key = string
    user     = optional(string, "root")
  }))
  description = "Nomad's servers: CLUSTER-server-0 and so on."
}

variable "ssh_key" {
  type        = string
  default     = ""
  description = "Path of the private key to log in with; empty: the SSH agent's."
}

variable "bastion" {
  type        = any
  default     = null
  description = "See the metal module."
}

variable "tls" {
  type        = string
  description = "Folder of the certificates."
}

variable "networks" {
  type        = list(string)
  description = "From where Nomad and its jobs may be reached, the one that the machines themselves are in first."
}
