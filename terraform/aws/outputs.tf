output "addresses" {
  description = "The private address of each node."
  value       = { for n, i in aws_instance.node : n => i.private_ip }
}

output "instances" {
  description = "The instance of each node and server, for Session Manager."
  value       = merge({ for n, i in aws_instance.node : n => i.id }, { for n, i in aws_instance.server : n => i.id })
}

output "secrets" {
  description = "Where the certificates belong, by role."
  value       = { for r, s in aws_secretsmanager_secret.tls : r => s.name }
}

output "s3_endpoint" {
  description = "The way from the cluster to S3, for a bucket policy that lets nodes fetch what they install."
  value       = aws_vpc_endpoint.s3.id
}
