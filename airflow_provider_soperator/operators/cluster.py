"""Clusters as a whole: make and destroy them, resize their node sets, start their checks."""

from __future__ import annotations

from airflow_provider_soperator.operators.checks import RunActiveCheckOperator
from airflow_provider_soperator.operators.nodesets import ScaleNodeSetOperator
from airflow_provider_soperator.operators.provisioning import (
    DestroyClusterOperator,
    ProvisionClusterOperator,
)

__all__ = [
    "DestroyClusterOperator",
    "ProvisionClusterOperator",
    "RunActiveCheckOperator",
    "ScaleNodeSetOperator",
]
