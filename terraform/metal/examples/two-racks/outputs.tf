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
