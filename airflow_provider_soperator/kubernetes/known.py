"""Kinds of objects that a Soperator cluster is made of."""

from __future__ import annotations

from airflow_provider_soperator.kubernetes.kinds import Resource

_SOPERATOR = "slurm.nebius.ai"

SLURM_CLUSTER = Resource(_SOPERATOR, "v1", "slurmclusters", "SlurmCluster")
NODE_SET = Resource(_SOPERATOR, "v1alpha1", "nodesets", "NodeSet")
POWER_STATE = Resource(_SOPERATOR, "v1alpha1", "nodesetpowerstates", "NodeSetPowerState")
ACTIVE_CHECK = Resource(_SOPERATOR, "v1alpha1", "activechecks", "ActiveCheck")
CRON_JOB = Resource("batch", "v1", "cronjobs", "CronJob")
JOB = Resource("batch", "v1", "jobs", "Job")
