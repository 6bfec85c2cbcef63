"""The page *Soperator* in Airflow's navigation, and the tab of a task's job."""
