"""By which way a cluster is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.provisioning.manifests import Installation

#: What the recipe calls the SlurmCluster and its namespace, whatever the cluster is called.
SOPERATOR = "soperator"


@dataclass(frozen=True)
class Recipe:
    """The published Terraform recipe, or one of your own with the same variables.

        Recipe("/opt/recipes/nebius-solutions-library/soperator", subfolder="installations/research")
        Recipe("https://github.com/nebius/nebius-solutions-library.git", subfolder="soperator/installations/example",
               ref="soperator-v4.1.7-1")

    ``home`` is where each cluster has a folder of its own that outlives tasks, ``workspace`` Terraform's workspace of
    the cluster, which has its name unless another is given ("default" is the one that is always there), ``env`` what
    the recipe wants of the environment beside Nebius' credentials.
    """

    source: str
    subfolder: str = ""
    ref: str | None = None
    home: str | None = None
    workspace: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: A backend for the state in place of the recipe's, such as ``{"s3": {"bucket": "..."}}``.
    backend: Mapping[str, Any] | None = None
    #: The program; Terraform or OpenTofu of the PATH if it is not set.
    terraform: str | None = None
    parallelism: int | None = None
    #: For how long somebody else's lock on the state is waited for.
    lock_timeout: timedelta = timedelta(minutes=10)
    #: What the recipe calls the SlurmCluster, and where it puts it.
    cluster: str = SOPERATOR
    namespace: str = SOPERATOR


@dataclass(frozen=True)
class KubernetesObjects:
    """The objects of Soperator's operator, applied to a Kubernetes cluster that has the operator already.

    ``force`` takes over fields that others rule over, such as Helm.
    """

    kubernetes_conn_id: str = "kubernetes_default"
    namespace: str = SOPERATOR
    installation: Installation = field(default_factory=Installation)
    force: bool = False


Source = Recipe | KubernetesObjects
