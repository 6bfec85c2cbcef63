"""Kubernetes objects of a Soperator cluster: pure readers, and the API calls. No Airflow."""
