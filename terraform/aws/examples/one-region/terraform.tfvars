cluster = "prod"
region  = "eu-central-1"

zones = {
  az1 = { residency = "eu", compliance = ["soc2"] }
  az2 = { residency = "eu", compliance = ["soc2"] }
  az3 = { residency = "eu", compliance = ["soc2"] }
}

availability_zones = { az1 = "eu-central-1a", az2 = "eu-central-1b", az3 = "eu-central-1c" }

pools = {
  interactive = {
    class         = "interactive"
    gpu           = "h100-sxm"
    gpus_per_node = 8
    nodes         = 2
    spare         = 1
    survive       = "zone"
    zones         = ["az1", "az2", "az3"]
    residency     = "eu"
    compliance    = ["soc2"]
  }
  bulk = {
    class         = "batch"
    gpu           = "l40s"
    gpus_per_node = 4
    nodes         = 1
    spare         = 0
    survive       = "none"
    zones         = ["az1"]
    spot          = true
  }
}

# Yours to fill in: the price that you pay for a node, for an hour.
prices = {}

artifacts = {
  nomad               = { url = "https://WEIGHTS_BUCKET.s3.eu-central-1.amazonaws.com/artifacts/nomad_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  nomad-device-nvidia = { url = "https://WEIGHTS_BUCKET.s3.eu-central-1.amazonaws.com/artifacts/nomad-device-nvidia_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  llmops              = { url = "https://WEIGHTS_BUCKET.s3.eu-central-1.amazonaws.com/artifacts/llmops_linux_amd64.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

ami            = "ami-00000000000000000"
server_ami     = "ami-00000000000000000"
weights_bucket = "WEIGHTS_BUCKET"
