# As in the published recipe, which has these beside it and expects people to edit them.
company_name                     = ""
production                       = true
slurm_login_ssh_root_public_keys = [""]
backups_password                 = "password"
backups_schedule                 = "@daily-random"
backups_prune_schedule           = "@daily-random"
backups_retention                = { keepDaily = 7 }
cleanup_bucket_on_destroy        = false
filestore_controller_spool       = { spec = { size_gibibytes = 128, block_size_kibibytes = 4 } }
