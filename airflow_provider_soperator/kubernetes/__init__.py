"""What Kubernetes knows of a Soperator cluster, and of what runs beside it."""
