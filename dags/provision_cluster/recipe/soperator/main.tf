# A stand-in for the published recipe: it asks for the same, and leaves behind nothing but its state.
#
# Tests say through the environment what becomes of it, see ../modules/step.

terraform {
  required_version = ">= 1.5"
}

locals {
  # One node group of Kubernetes has at most 100 nodes.
  groups = merge([
    for one in var.slurm_nodeset_workers : {
      for k in range(ceil(one.size / 100)) : "${one.name}-${k}" => {
        nodeset  = one.name
        size     = min(100, one.size - 100 * k)
        platform = one.resource.platform
        preset   = one.resource.preset
      }
    }
  ]...)
}

module "filestore" {
  source = "../modules/step"

  name = "jail"
  what = var.filesystem_jail
}

module "k8s" {
  source     = "../modules/step"
  depends_on = [module.filestore]

  name = "cluster"
  what = { name = "${var.company_name}-${terraform.workspace}", region = var.region, project = var.iam_project_id }
  # A cluster in another project is another cluster.
  identity = var.iam_project_id
}

module "node_group" {
  source     = "../modules/step"
  for_each   = local.groups
  depends_on = [module.k8s]

  name = each.key
  what = each.value
}

module "slurm" {
  source     = "../modules/step"
  depends_on = [module.node_group]

  name = "slurm"
  what = {
    version    = var.slurm_operator_version
    keys       = var.slurm_login_ssh_root_public_keys
    partitions = var.slurm_nodesets_partitions
    accounting = var.accounting_enabled
    rest       = var.slurm_rest_enabled
  }
}

module "login_script" {
  source     = "../modules/login"
  depends_on = [module.slurm]
}

# The published recipe has no outputs. These are there for what reads outputs.

output "cluster_name" {
  value = "${var.company_name}-${terraform.workspace}"
}

output "node_groups" {
  value = { for name, group in local.groups : name => group.size }
}

output "first_key" {
  value = var.slurm_login_ssh_root_public_keys[0]
}

output "backups_password" {
  value     = var.backups_password
  sensitive = true
}
