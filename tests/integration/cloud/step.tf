# The step of the stand-in recipe with resources of the published one's types, from tests/integration/cloud/provider.py:
# what a plan loses is told by the type of what it destroys.

terraform {
  required_providers {
    nebius = { source = "nebius/nebius" }
  }
}

variable "name" {
  type = string
}

variable "what" {
  type = any
}

variable "identity" {
  type    = string
  default = ""
}

locals {
  kind = lookup({ jail = "filesystem", cluster = "cluster", slurm = "release" }, var.name, "group")
}

# As in the published recipe, whose file systems wait for the check of its variables.
resource "terraform_data" "check_variables" {
  count = local.kind == "filesystem" ? 1 : 0
}

resource "nebius_compute_v1_filesystem" "this" {
  count      = local.kind == "filesystem" ? 1 : 0
  depends_on = [terraform_data.check_variables]
  name       = var.name
  parent_id  = "project"
}

# As in the published recipe: once the cluster is gone, it deletes the disks of volume claims.
resource "terraform_data" "disk_cleanup" {
  count = local.kind == "cluster" ? 1 : 0

  provisioner "local-exec" {
    when    = destroy
    command = "[ -z \"$STUB_LEDGER\" ] || echo disks >> \"$STUB_LEDGER\""
  }
}

resource "nebius_mk8s_v1_cluster" "this" {
  count      = local.kind == "cluster" ? 1 : 0
  depends_on = [terraform_data.disk_cleanup]
  name       = "soperator-${split("-", var.what.name)[0]}"
  parent_id  = var.identity
}

# As in the published recipe: it writes the context of the worker that applies, and is replaced in each plan.
resource "terraform_data" "kubectl_cluster_context" {
  count            = local.kind == "cluster" ? 1 : 0
  triggers_replace = [one(nebius_mk8s_v1_cluster.this).id, timestamp()]

  provisioner "local-exec" {
    command = "[ -z \"$STUB_LEDGER\" ] || echo context >> \"$STUB_LEDGER\""
  }
}

resource "nebius_mk8s_v1_node_group" "this" {
  count       = local.kind == "group" ? 1 : 0
  name        = var.name
  parent_id   = "cluster"
  autoscaling = { min_node_count = 0, max_node_count = var.what.size }
}

resource "helm_release" "this" {
  count     = local.kind == "release" ? 1 : 0
  provider  = nebius
  name      = var.name
  parent_id = "cluster"
  values    = [jsonencode(var.what)]
}
