# The variables of the published recipe, in its newest shape: names, types, what has a default, and the checks that
# people run into. What the recipe does with them is in main.tf, and is not what the published one does.

# ---------------------------------------------------------------------------------- where and whose

variable "company_name" {
  type = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", var.company_name))
    error_message = "A company name has 2 to 32 lowercase letters, digits or hyphens, from a letter to a letter or digit."
  }
}

variable "region" {
  type     = string
  nullable = false
}

variable "iam_tenant_id" {
  type     = string
  nullable = false

  validation {
    condition     = startswith(var.iam_tenant_id, "tenant-")
    error_message = "The id of a tenant begins with tenant-."
  }
}

variable "iam_project_id" {
  type     = string
  nullable = false

  validation {
    condition     = startswith(var.iam_project_id, "project-")
    error_message = "The id of a project begins with project-."
  }
}

variable "vpc_subnet_id" {
  type = string

  validation {
    condition     = startswith(var.vpc_subnet_id, "vpcsubnet-")
    error_message = "The id of a subnet begins with vpcsubnet-."
  }
}

variable "o11y_iam_tenant_id" {
  type     = string
  nullable = false
}

variable "o11y_profile" {
  type     = string
  nullable = false
}

variable "aws_access_key_id" {
  type = string
}

variable "aws_secret_access_key" {
  type      = string
  sensitive = true
}

variable "production" {
  type    = bool
  default = true
}

variable "iam_merge_request_url" {
  type    = string
  default = ""

  validation {
    condition     = !var.production || var.iam_merge_request_url != ""
    error_message = "A production cluster needs the URL of its merge request; set production to false for any other."
  }
}

# ---------------------------------------------------------------------------------- storage

variable "controller_state_on_filestore" {
  type    = bool
  default = false
}

variable "filestore_controller_spool" {
  type = object({
    existing = optional(object({ id = string }))
    spec = optional(object({
      size_gibibytes       = number
      block_size_kibibytes = number
      forbid_deletion      = optional(bool, false)
    }))
  })
  nullable = false
}

variable "filesystem_jail" {
  type = object({
    existing = optional(object({ id = string }))
    spec = optional(object({
      type                 = optional(string, "NETWORK_SSD")
      size_gibibytes       = number
      block_size_kibibytes = number
      forbid_deletion      = optional(bool, false)
    }))
  })
  nullable = false

  validation {
    condition     = (var.filesystem_jail.existing == null) != (var.filesystem_jail.spec == null)
    error_message = "The jail is either existing or made by its spec."
  }
}

variable "allow_empty_jail_submounts" {
  type    = bool
  default = false
}

variable "filesystem_jail_submounts" {
  type = list(object({
    name       = string
    mount_path = string
    existing   = optional(object({ id = string }))
    spec = optional(object({
      type                 = optional(string, "NETWORK_SSD")
      size_gibibytes       = number
      block_size_kibibytes = number
      forbid_deletion      = optional(bool, false)
    }))
  }))
  default = []

  validation {
    condition     = var.allow_empty_jail_submounts || length(var.filesystem_jail_submounts) > 0
    error_message = "A cluster has at least one submount in its jail, unless allow_empty_jail_submounts is set."
  }
}

variable "filestore_accounting" {
  type = object({
    existing = optional(object({ id = string }))
    spec = optional(object({
      size_gibibytes       = number
      block_size_kibibytes = number
      forbid_deletion      = optional(bool, false)
    }))
  })
  default = null
}

variable "nfs_in_k8s" {
  type = object({
    enabled = bool
    spec = optional(object({
      version         = optional(string)
      use_stable_repo = optional(bool, true)
      size_gibibytes  = optional(number)
      disk_type       = optional(string)
      filesystem_type = optional(string)
      threads         = optional(number)
    }))
  })
  default = { enabled = false }
}

# ---------------------------------------------------------------------------------- Kubernetes

variable "k8s_version" {
  type    = string
  default = null
}

variable "k8s_cluster_node_ssh_access_users" {
  type = list(object({
    name        = string
    public_keys = list(string)
  }))
  default  = []
  nullable = false
}

variable "use_preinstalled_gpu_drivers" {
  type    = bool
  default = false
}

# ---------------------------------------------------------------------------------- Slurm

variable "slurm_operator_version" {
  type     = string
  nullable = false
}

variable "slurm_operator_stable" {
  type    = bool
  default = true
}

variable "slurm_nodesets_partitions" {
  type = list(object({
    name               = string
    is_all             = optional(bool, false)
    slurm_nodeset_refs = optional(list(string), [])
    topology           = string
    config             = string
  }))
  default = []

  validation {
    condition     = alltrue([for one in var.slurm_nodesets_partitions : one.is_all != (length(one.slurm_nodeset_refs) > 0)])
    error_message = "A partition either has all node sets or names those that it has."
  }

  validation {
    condition = alltrue(flatten([
      for one in var.slurm_nodesets_partitions : [
        for ref in one.slurm_nodeset_refs : contains(var.slurm_nodeset_workers[*].name, ref)
      ]
    ]))
    error_message = "A partition names a node set that is not there."
  }
}

variable "slurm_partition_config_type" {
  type    = string
  default = "default"
}

variable "slurm_partition_raw_config" {
  type    = list(string)
  default = []
}

variable "slurm_health_check_config" {
  type = object({
    health_check_interval   = number
    health_check_program    = string
    health_check_node_state = list(object({ state = string }))
  })
  default = null
}

variable "sizing_tier_override" {
  type    = string
  default = null
}

variable "slurm_nodeset_system" {
  type = object({
    min_size  = number
    max_size  = number
    resource  = object({ platform = string, preset = optional(string) })
    boot_disk = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
  })
  nullable = false
  default = {
    min_size  = 3
    max_size  = 9
    resource  = { platform = "cpu-d3" }
    boot_disk = { type = "NETWORK_SSD", size_gibibytes = 128, block_size_kibibytes = 4 }
  }
}

variable "slurm_nodeset_controller" {
  type = object({
    size      = number
    resource  = object({ platform = string, preset = optional(string) })
    boot_disk = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
  })
  nullable = false
  default = {
    size      = 1
    resource  = { platform = "cpu-d3" }
    boot_disk = { type = "NETWORK_SSD", size_gibibytes = 128, block_size_kibibytes = 4 }
  }
}

variable "slurm_nodeset_workers" {
  type = list(object({
    name = string
    size = number
    autoscaling = optional(object({
      enabled  = optional(bool, true)
      min_size = optional(number, 0)
    }), {})
    resource  = object({ platform = string, preset = string })
    boot_disk = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
    gpu_cluster = optional(object({
      id                = optional(string)
      infiniband_fabric = optional(string)
    }))
    preemptible = optional(object({}))
    reservation_policy = optional(object({
      policy          = optional(string)
      reservation_ids = optional(list(string))
    }))
    nvlink = optional(object({
      enabled = optional(bool, false)
      type    = optional(string, "GB300")
    }), {})
    extra_labels                   = optional(map(string), {})
    placement_policy_nodes         = optional(list(string))
    features                       = optional(list(string))
    create_partition               = optional(bool)
    rolling_update_strategy        = optional(string, "slurmAwareRollingUpdate")
    drain_timeout                  = optional(string, "0s")
    auto_resume                    = optional(bool)
    ephemeral_nodes                = optional(bool, false)
    initial_number_ephemeral_nodes = optional(number, 0)
    persistent_volume_claim_retention_policy = optional(object({
      when_deleted = string
      when_scaled  = string
    }))
    local_nvme = optional(object({
      enabled                   = optional(bool)
      device_count              = optional(number)
      device_capacity_gigabytes = optional(number)
      mount_path                = optional(string, "/mnt/local-nvme")
      size_limit_gibibytes      = optional(number)
    }), {})
    max_pods = optional(number, 32)
    node_local_image_disk = object({
      enabled = bool
      spec = optional(object({
        size_gibibytes  = number
        filesystem_type = string
        disk_type       = string
      }))
    })
    node_local_jail_submounts = list(object({
      name            = string
      mount_path      = string
      size_gibibytes  = number
      disk_type       = string
      filesystem_type = string
    }))
  }))
  nullable = false

  validation {
    condition     = length(var.slurm_nodeset_workers) > 0
    error_message = "A cluster has at least one node set of workers."
  }

  validation {
    condition     = length(distinct(var.slurm_nodeset_workers[*].name)) == length(var.slurm_nodeset_workers)
    error_message = "Two node sets of workers have one name."
  }

  validation {
    condition     = alltrue([for one in var.slurm_nodeset_workers : one.boot_disk.size_gibibytes >= 128])
    error_message = "The boot disk of a worker has at least 128 GiB."
  }

  validation {
    condition     = alltrue([for one in var.slurm_nodeset_workers : one.autoscaling.min_size == null ? true : one.autoscaling.min_size <= one.size])
    error_message = "A node set cannot have a min_size above its size."
  }

  validation {
    condition = alltrue([
      for one in var.slurm_nodeset_workers :
      one.gpu_cluster == null ? true : try(trimspace(one.gpu_cluster.id), "") != "" || try(trimspace(one.gpu_cluster.infiniband_fabric), "") != ""
    ])
    error_message = "A gpu_cluster has an id or an infiniband_fabric."
  }
}

variable "slurm_nodeset_login" {
  type = object({
    size               = number
    node_group_enabled = optional(bool, true)
    resource           = object({ platform = string, preset = string })
    boot_disk          = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
  })
  nullable = false
  default = {
    size      = 1
    resource  = { platform = "cpu-d3", preset = "16vcpu-64gb" }
    boot_disk = { type = "NETWORK_SSD", size_gibibytes = 256, block_size_kibibytes = 4 }
  }

  validation {
    condition     = var.slurm_nodeset_login.boot_disk.size_gibibytes >= 256
    error_message = "The boot disk of a login node has at least 256 GiB."
  }
}

variable "slurm_nodeset_accounting" {
  type = object({
    resource  = object({ platform = string, preset = optional(string) })
    boot_disk = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
  })
  default = {
    resource  = { platform = "cpu-d3" }
    boot_disk = { type = "NETWORK_SSD", size_gibibytes = 128, block_size_kibibytes = 4 }
  }
}

variable "slurm_nodeset_nfs" {
  type = object({
    size      = number
    resource  = object({ platform = string, preset = optional(string) })
    boot_disk = object({ type = string, size_gibibytes = number, block_size_kibibytes = number })
  })
  default = null
}

variable "slurm_login_public_ip" {
  type    = bool
  default = true
}

variable "tailscale_enabled" {
  type    = bool
  default = false
}

variable "slurm_sssd_enabled" {
  type    = bool
  default = false
}

variable "slurm_login_ssh_root_public_keys" {
  type     = list(string)
  nullable = false

  validation {
    condition     = length(compact(var.slurm_login_ssh_root_public_keys)) > 0
    error_message = "There has to be a public key with which somebody can log in."
  }
}

variable "slurm_exporter_enabled" {
  type    = bool
  default = true
}

variable "slurm_rest_enabled" {
  type    = bool
  default = true
}

variable "slurm_shared_memory_size_gibibytes" {
  type    = number
  default = 64
}

variable "slurm_topology_block_size" {
  type    = number
  default = null
}

variable "accounting_enabled" {
  type    = bool
  default = false
}

variable "slurmdbd_config" {
  type    = map(any)
  default = {}
}

variable "slurm_accounting_config" {
  type    = map(any)
  default = {}
}

# ---------------------------------------------------------------------------------- what watches over it

variable "telemetry_enabled" {
  type    = bool
  default = true
}

variable "public_o11y_enabled" {
  type    = bool
  default = true
}

variable "dcgm_exporter_enabled" {
  type    = bool
  default = true
}

variable "active_checks_scope" {
  type    = string
  default = "prod_quick"

  validation {
    condition     = contains(["dev", "testing", "prod_quick", "prod_acceptance", "essential"], var.active_checks_scope)
    error_message = "There is no such scope of active checks."
  }
}

variable "maintenance" {
  type    = string
  default = "none"
}

variable "maintenance_ignore_node_groups" {
  type    = list(string)
  default = ["controller", "nfs"]
}

variable "use_default_apparmor_profile" {
  type    = bool
  default = true
}

# ---------------------------------------------------------------------------------- backups

variable "backups_enabled" {
  type    = string
  default = "auto"
}

variable "backups_password" {
  type      = string
  nullable  = false
  sensitive = true
}

variable "backups_schedule" {
  type     = string
  nullable = false
}

variable "backups_prune_schedule" {
  type     = string
  nullable = false
}

variable "backups_retention" {
  type = map(any)
}

variable "cleanup_bucket_on_destroy" {
  type = bool
}
