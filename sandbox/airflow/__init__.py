"""An Airflow beside a sandbox, of real processes; nothing here imports Airflow or the provider."""
