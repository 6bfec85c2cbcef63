"""The health of a cluster's nodes, by what Slurm, Kubernetes and Prometheus say of them: pure, without I/O."""
