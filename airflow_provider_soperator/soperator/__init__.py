"""Objects of a Soperator cluster in Kubernetes: pure readers, and the calls beside them. No Airflow."""
