"""What Kubernetes knows of a Soperator cluster."""
