# The contract's nodes as EC2 instances in a network without a way in or out: no
# internet gateway, no NAT, no public address. AWS's own services are reached through
# endpoints, and people through Session Manager.

locals {
  known_types = {
    "8xa100-80gb" = "p4de.24xlarge"
    "8xh100-sxm"  = "p5.48xlarge"
    "8xh200-sxm"  = "p5en.48xlarge"
    "8xb200-sxm"  = "p6-b200.48xlarge"
    "1xl4"        = "g6.8xlarge"
    "4xl4"        = "g6.24xlarge"
    "8xl4"        = "g6.48xlarge"
    "1xl40s"      = "g6e.8xlarge"
    "4xl40s"      = "g6e.24xlarge"
    "8xl40s"      = "g6e.48xlarge"
    "cpu"         = "m7i.4xlarge"
  }
  types = merge(local.known_types, var.instance_types)
  zones = keys(var.availability_zones)
  tags  = { llmops_cluster = var.cluster }
}

resource "aws_instance" "node" {
  for_each = var.fleet.nodes

  ami                         = var.ami
  instance_type               = local.types[each.value.node_class]
  subnet_id                   = aws_subnet.zone[each.value.zone].id
  vpc_security_group_ids      = [aws_security_group.members.id, aws_security_group.routers.id]
  associate_public_ip_address = false
  iam_instance_profile        = aws_iam_instance_profile.member["client"].name
  user_data                   = var.fleet.cloud_init[each.key]
  placement_group             = each.value.gpus == 8 ? aws_placement_group.zone[each.value.zone].name : null

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.root_gib
    encrypted   = true
    kms_key_id  = var.kms_key
  }

  dynamic "capacity_reservation_specification" {
    for_each = compact([lookup(var.capacity_reservations, each.value.node_class, "")])
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.spot ? [1] : []
    content {
      market_type = "spot"
    }
  }

  tags = merge(local.tags, { Name = each.key, llmops_pool = each.value.pool, llmops_zone = each.value.zone, llmops_rack = each.value.rack })

  lifecycle {
    # A new image or configuration is for the next machine. A node gets it when it is
    # drained and replaced: llmops fleet plan --replace NODE.
    ignore_changes = [ami, user_data]

    precondition {
      condition     = contains(keys(local.types), each.value.node_class)
      error_message = "No instance type is known for node class ${each.value.node_class}; instance_types can name one."
    }
    precondition {
      condition     = contains(local.zones, each.value.zone)
      error_message = "availability_zones does not say where ${each.value.zone} is."
    }
  }
}

resource "aws_instance" "server" {
  for_each = { for i, n in var.fleet.servers : n => local.zones[i % length(local.zones)] }

  ami                         = var.server_ami
  instance_type               = var.server_type
  subnet_id                   = aws_subnet.zone[each.value].id
  vpc_security_group_ids      = [aws_security_group.members.id]
  associate_public_ip_address = false
  iam_instance_profile        = aws_iam_instance_profile.member["server"].name
  user_data                   = var.fleet.server_cloud_init[each.key]

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 100
    encrypted   = true
    kms_key_id  = var.kms_key
  }

  tags = merge(local.tags, { Name = each.key })

  lifecycle {
    ignore_changes = [ami, user_data]
  }
}

resource "aws_placement_group" "zone" {
  for_each = var.availability_zones
  name     = "${var.cluster}-${each.key}"
  strategy = "cluster"
  tags     = local.tags
}

# Clients know the servers by these names before there is a server.
resource "aws_route53_zone" "cluster" {
  name = "${var.cluster}.internal"
  tags = local.tags

  vpc {
    vpc_id = aws_vpc.cluster.id
  }
}

resource "aws_route53_record" "server" {
  for_each = aws_instance.server
  zone_id  = aws_route53_zone.cluster.zone_id
  name     = "${each.key}.${var.cluster}.internal"
  type     = "A"
  ttl      = 60
  records  = [each.value.private_ip]
}
