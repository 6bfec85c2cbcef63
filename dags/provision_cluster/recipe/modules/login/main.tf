# Where the published recipe looks up the address of the cluster's login nodes.

resource "terraform_data" "lb_service_ip" {
  input = "203.0.113.7"
}

output "ip" {
  value = terraform_data.lb_service_ip.output
}
