output "addresses" {
  description = "Where each machine was reached, by name."
  value       = { for n, m in terraform_data.machine : n => m.output.address }
}
