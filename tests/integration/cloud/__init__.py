"""The published recipe's resources, for a real Terraform."""
