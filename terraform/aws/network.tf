resource "aws_vpc" "cluster" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = merge(local.tags, { Name = var.cluster })
}

resource "aws_subnet" "zone" {
  for_each                = var.availability_zones
  vpc_id                  = aws_vpc.cluster.id
  availability_zone       = each.value
  cidr_block              = cidrsubnet(var.cidr, 4, index(local.zones, each.key))
  map_public_ip_on_launch = false
  tags                    = merge(local.tags, { Name = "${var.cluster}-${each.key}" })
}

# The table has no default route: there is nothing to route to.
resource "aws_route_table" "closed" {
  vpc_id = aws_vpc.cluster.id
  tags   = merge(local.tags, { Name = var.cluster })
}

resource "aws_route_table_association" "zone" {
  for_each       = aws_subnet.zone
  subnet_id      = each.value.id
  route_table_id = aws_route_table.closed.id
}

# Whatever is made without naming a group gets one that lets nothing through.
resource "aws_default_security_group" "none" {
  vpc_id = aws_vpc.cluster.id
  tags   = local.tags
}

resource "aws_security_group" "members" {
  name        = "${var.cluster}-members"
  description = "Nodes and servers, among themselves"
  vpc_id      = aws_vpc.cluster.id
  tags        = local.tags
}

# Nomad, the engines' ports and the fabric between GPUs, which needs both directions of
# the group's own traffic.
resource "aws_vpc_security_group_ingress_rule" "members" {
  security_group_id            = aws_security_group.members.id
  referenced_security_group_id = aws_security_group.members.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "members" {
  security_group_id            = aws_security_group.members.id
  referenced_security_group_id = aws_security_group.members.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  security_group_id            = aws_security_group.members.id
  referenced_security_group_id = aws_security_group.endpoints.id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.members.id
  prefix_list_id    = aws_vpc_endpoint.s3.prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_security_group" "routers" {
  name        = "${var.cluster}-routers"
  description = "Applications to the routers"
  vpc_id      = aws_vpc.cluster.id
  tags        = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "routers" {
  for_each          = toset(var.client_networks)
  security_group_id = aws_security_group.routers.id
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = var.router_port
  to_port           = var.router_port
}

resource "aws_security_group" "endpoints" {
  name        = "${var.cluster}-endpoints"
  description = "Members to the endpoints of AWS"
  vpc_id      = aws_vpc.cluster.id
  tags        = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id            = aws_security_group.endpoints.id
  referenced_security_group_id = aws_security_group.members.id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.cluster.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.closed.id]
  tags              = local.tags
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = toset(["ssm", "ssmmessages", "ec2messages", "secretsmanager", "kms", "ecr.api", "ecr.dkr"])
  vpc_id              = aws_vpc.cluster.id
  service_name        = "com.amazonaws.${var.region}.${each.value}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for s in aws_subnet.zone : s.id]
  security_group_ids  = [aws_security_group.endpoints.id]
  tags                = local.tags
}
