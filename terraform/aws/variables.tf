variable "fleet" {
  type = object({
    nodes             = any
    servers           = list(string)
    cloud_init        = map(string)
    server_cloud_init = map(string)
  })
  description = "The outputs of the contract module."
}

variable "cluster" {
  type        = string
  description = "Name of the cluster, as the contract has it."
}

variable "region" {
  type        = string
  description = "The AWS region, eu-central-1."
}

variable "availability_zones" {
  type        = map(string)
  description = "The availability zone of each of the contract's zones: { az1 = \"eu-central-1a\" }."
}

variable "cidr" {
  type        = string
  default     = "10.40.0.0/16"
  description = "The network of the cluster, private addresses only."

  validation {
    condition     = can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", var.cidr)) && can(cidrsubnet(var.cidr, 4, 15))
    error_message = "cidr is ${var.cidr}: want a private range of /24 or larger."
  }
}

variable "client_networks" {
  type        = list(string)
  default     = []
  description = "Private networks, peered or by VPN, from which applications reach the routers. Nobody else does."

  validation {
    condition     = alltrue([for n in var.client_networks : can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", n))])
    error_message = "client_networks are private ranges; a public front belongs behind a load balancer that you answer for."
  }
}

variable "router_port" {
  type        = number
  default     = 8080
  description = "Where the routers listen."
}

variable "ami" {
  type        = string
  description = "Image of the GPU nodes: NVIDIA driver, docker, nvidia-container-toolkit, AWS CLI, SSM agent, mdadm, jq, curl, unzip."
}

variable "server_ami" {
  type        = string
  description = "Image of the servers: AWS CLI, SSM agent, jq, curl, unzip."
}

variable "server_type" {
  type        = string
  default     = "m7i.large"
  description = "Instance type of the servers."
}

variable "instance_types" {
  type        = map(string)
  default     = {}
  description = "Instance types by node class, over those that the module knows."
}

variable "capacity_reservations" {
  type        = map(string)
  default     = {}
  description = "Capacity reservation by node class. Eight-GPU instances are seldom to be had without one."
}

variable "root_gib" {
  type        = number
  default     = 200
  description = "Size of a node's root volume; images live there, weights on the instance's own disks."
}

variable "weights_bucket" {
  type        = string
  description = "The S3 bucket of weights and evidence, which nodes may read."
}

variable "kms_key" {
  type        = string
  default     = null
  description = "ARN of the key for volumes and secrets; left out, AWS's own."
}
