"""The health of a cluster's nodes, from Slurm, Kubernetes and Prometheus: pure, without I/O."""
