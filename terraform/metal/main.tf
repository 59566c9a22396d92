# Machines that stand in a rack already, made into Nomad clients and servers by SSH.

locals {
  stage    = ".llmops-stage"
  firewall = templatefile("${path.module}/templates/llmops.nft.tftpl", { networks = var.networks })

  members = merge(
    { for n, m in var.machines : n => merge(m, { role = "client", config = var.fleet.client_config[n], gpus = var.fleet.nodes[n].gpus }) },
    { for n, m in var.servers : n => merge(m, { role = "server", config = "name = \"${n}\"\n${var.fleet.server_config}", gpus = 0 }) },
  )

  files = {
    for n, m in local.members : n => {
      "nomad.hcl"               = m.config
      "nomad.service"           = var.fleet.unit
      "llmops.nft"              = local.firewall
      "llmops-firewall.service" = file("${path.module}/templates/llmops-firewall.service")
      "install.sh"              = var.fleet.install[m.role]
      "setup.sh"                = templatefile("${path.module}/templates/setup.sh.tftpl", { name = n, gpus = m.gpus })
    }
  }
}

resource "terraform_data" "machine" {
  for_each = local.members

  # What is needed to reach the machine once it is no longer described.
  input = {
    role     = each.value.role
    address  = each.value.address
    port     = each.value.port
    user     = each.value.user
    host_key = each.value.host_key
    key      = var.ssh_key
    bastion  = var.bastion
  }

  # What was sent decides whether it is sent again; the certificate stands for its key.
  triggers_replace = [
    each.value.address,
    sha256(jsonencode(local.files[each.key])),
    filesha256("${var.tls}/ca.pem"),
    filesha256("${var.tls}/${each.value.role}.pem"),
  ]

  connection {
    type             = "ssh"
    host             = self.input.address
    port             = self.input.port
    user             = self.input.user
    host_key         = self.input.host_key
    agent            = self.input.key == ""
    private_key      = self.input.key == "" ? null : file(self.input.key)
    bastion_host     = try(self.input.bastion.host, null)
    bastion_host_key = try(self.input.bastion.host_key, null)
    bastion_user     = try(self.input.bastion.user, null)
    timeout          = "2m"
  }

  provisioner "remote-exec" {
    inline = ["rm -rf ${local.stage}", "mkdir -m 0700 ${local.stage}"]
  }

  provisioner "file" {
    content     = local.files[each.key]["nomad.hcl"]
    destination = "${local.stage}/nomad.hcl"
  }
  provisioner "file" {
    content     = local.files[each.key]["nomad.service"]
    destination = "${local.stage}/nomad.service"
  }
  provisioner "file" {
    content     = local.files[each.key]["llmops.nft"]
    destination = "${local.stage}/llmops.nft"
  }
  provisioner "file" {
    content     = local.files[each.key]["llmops-firewall.service"]
    destination = "${local.stage}/llmops-firewall.service"
  }
  provisioner "file" {
    content     = local.files[each.key]["install.sh"]
    destination = "${local.stage}/install.sh"
  }
  provisioner "file" {
    content     = local.files[each.key]["setup.sh"]
    destination = "${local.stage}/setup.sh"
  }
  provisioner "file" {
    source      = "${var.tls}/ca.pem"
    destination = "${local.stage}/ca.pem"
  }
  provisioner "file" {
    source      = "${var.tls}/${each.value.role}.pem"
    destination = "${local.stage}/agent.pem"
  }
  provisioner "file" {
    source      = "${var.tls}/${each.value.role}-key.pem"
    destination = "${local.stage}/agent-key.pem"
  }

  provisioner "remote-exec" {
    inline = [each.value.user == "root" ? "sh ${local.stage}/setup.sh" : "sudo -n sh ${local.stage}/setup.sh"]
  }

  # llmops lets a node go only once it is drained. A machine that does not answer any
  # more cannot be asked to stop, and shall not keep the rest from going on.
  provisioner "remote-exec" {
    when       = destroy
    on_failure = continue
    inline     = [self.input.user == "root" ? "systemctl disable --now nomad" : "sudo -n systemctl disable --now nomad"]
  }
}
