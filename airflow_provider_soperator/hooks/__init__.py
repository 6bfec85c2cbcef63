"""Airflow connections, and the clients made from them."""
