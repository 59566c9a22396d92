# One region, three zones, state in S3 with its own lock. Copy this folder and change
# terraform.tfvars.

terraform {
  required_version = ">= 1.10.0, < 2.0.0"

  # terraform init -backend-config=bucket=... -backend-config=region=...
  backend "s3" {
    key          = "llmops/fleet.tfstate"
    encrypt      = true
    use_lockfile = true
  }

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.80, < 6.0"
    }
  }
}

provider "aws" {
  region = var.region
}

module "contract" {
  source = "../../../contract"

  cluster          = var.cluster
  zones            = var.zones
  pools            = var.pools
  more_nodes       = var.more_nodes
  prices           = var.prices
  network          = var.cidr
  server_addresses = [for i in range(3) : "${var.cluster}-server-${i}.${var.cluster}.internal"]
  artifacts        = var.artifacts
  models_path      = "/mnt/models/weights"
  prepare          = templatefile("../../prepare.sh.tftpl", { cluster = var.cluster, region = var.region, mount = "/mnt/models" })
}

module "aws" {
  source = "../.."

  fleet                 = module.contract
  cluster               = var.cluster
  region                = var.region
  cidr                  = var.cidr
  availability_zones    = var.availability_zones
  client_networks       = var.client_networks
  ami                   = var.ami
  server_ami            = var.server_ami
  capacity_reservations = var.capacity_reservations
  weights_bucket        = var.weights_bucket
}
