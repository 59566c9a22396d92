# A member reads the certificate of its own role, the weights and the images, and may
# be reached through Session Manager.

locals {
  roles = toset(["client", "server"])
}

resource "aws_iam_role" "member" {
  for_each = local.roles
  name     = "${var.cluster}-${each.value}"
  tags     = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "member" {
  for_each = local.roles
  name     = "member"
  role     = aws_iam_role.member[each.value].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Effect   = "Allow"
        Action   = "secretsmanager:GetSecretValue"
        Resource = aws_secretsmanager_secret.tls[each.value].arn
      },
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:ListBucket"]
        Resource = ["arn:aws:s3:::${var.weights_bucket}", "arn:aws:s3:::${var.weights_bucket}/*"]
      },
      ], var.kms_key == null ? [] : [{
        Effect   = "Allow"
        Action   = "kms:Decrypt"
        Resource = var.kms_key
    }])
  })
}

resource "aws_iam_role_policy_attachment" "session" {
  for_each   = local.roles
  role       = aws_iam_role.member[each.value].name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_role_policy_attachment" "images" {
  role       = aws_iam_role.member["client"].name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryReadOnly"
}

resource "aws_iam_instance_profile" "member" {
  for_each = local.roles
  name     = "${var.cluster}-${each.value}"
  role     = aws_iam_role.member[each.value].name
  tags     = local.tags
}

# The content is put in by hand, so that no key gets into Terraform's state.
resource "aws_secretsmanager_secret" "tls" {
  for_each    = local.roles
  name        = "${var.cluster}/tls/${each.value}"
  description = "JSON with ca, cert and key for Nomad's ${each.value}s"
  kms_key_id  = var.kms_key
  tags        = local.tags
}
