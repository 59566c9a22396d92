variable "cluster" {
  type        = string
  description = "Name of the cluster."
}

variable "region" {
  type        = string
  description = "The AWS region."
}

variable "zones" {
  type        = any
  description = "See the contract module."
}

variable "availability_zones" {
  type        = map(string)
  description = "The availability zone of each zone."
}

variable "pools" {
  type        = any
  description = "See the contract module."
}

variable "more_nodes" {
  type        = map(number)
  description = "Nodes that llmops fleet grow has added, by pool."
  default     = {}
}

variable "prices" {
  type        = map(number)
  description = "US dollars an hour by node class: on demand, reserved or negotiated, as you pay."
  default     = {}
}

variable "artifacts" {
  type        = any
  description = "See the contract module."
}

variable "client_networks" {
  type        = list(string)
  default     = []
  description = "Private networks of the applications."
}

variable "ami" {
  type        = string
  description = "Image of the GPU nodes."
}

variable "server_ami" {
  type        = string
  description = "Image of the servers."
}

variable "capacity_reservations" {
  type        = map(string)
  default     = {}
  description = "Capacity reservation by node class."
}

variable "weights_bucket" {
  type        = string
  description = "The S3 bucket of the weights."
}

variable "cidr" {
  type        = string
  default     = "10.40.0.0/16"
  description = "The network of the cluster."
}
