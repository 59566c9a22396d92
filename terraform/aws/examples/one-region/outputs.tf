# llmops fleet status reads these.

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

output "instances" {
  description = "The instance of each node and server."
  value       = module.aws.instances
}

output "secrets" {
  description = "Where the certificates belong, by role."
  value       = module.aws.secrets
}
