"""A cluster as values of Soperator's Helm charts, in the ConfigMaps that Flux reads last."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_soperator.provisioning.manifests import (
    Installation,
    has_cluster_names,
    merged,
    partitions,
    resources,
    workers,
)
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import ClusterSpec

Values = dict[str, Any]

#: Where Soperator's recipe keeps what Flux reads.
NAMESPACE = "flux-system"
KEY = "values.yaml"


def by_config_map(spec: ClusterSpec, installation: Installation, cluster: str) -> dict[str, Values]:
    """What each ConfigMap is to say, by its name. ``cluster`` is what the charts call the SlurmCluster."""
    return {"slurm-cluster": _slurm_cluster(spec), "nodesets": _nodesets(spec, installation, cluster)}


def data(values: Values) -> dict[str, str]:
    """Values as a ConfigMap holds them. JSON is YAML, too."""
    return {KEY: json.dumps(values, indent=2, sort_keys=True)}


def _slurm_cluster(spec: ClusterSpec) -> Values:
    """Only what was said: the rest stays as the chart, and the ConfigMaps before this one, have it."""
    nodes: Values = {"login": {"sshRootPublicKeys": list(spec.login_keys)}}
    if spec.login is not None and spec.login.size is not None:
        nodes["login"]["size"] = spec.login.size
    for name, is_on in (("accounting", spec.accounting), ("rest", spec.rest)):
        if is_on is not None:
            nodes[name] = {"enabled": is_on}
    said: Values = {"slurmNodes": nodes}
    if spec.maintenance is not None:
        said["maintenance"] = spec.maintenance
    if spec.partitions:
        said["partitionConfiguration"] = partitions(spec)
    return said


def _nodesets(spec: ClusterSpec, installation: Installation, cluster: str) -> Values:
    """All of them, whole: Helm replaces a list, and merges nothing in it."""
    said: Values = {"nodesets": [_nodeset(one, spec.operator_version, installation) for one in spec.nodesets]}
    if has_cluster_names(spec.operator_version):
        said["clusterName"] = cluster
    return said


def _nodeset(one: NodeSet, version: str, installation: Installation) -> Values:
    # The chart has names of its own for these two.
    names = {"ephemeral-storage": "ephemeralStorage", "nvidia.com/gpu": "gpu"}
    wanted = {names.get(name, name): value for name, value in resources(one).items()}
    said = merged(
        {"name": one.name, **workers(one, version, installation)},
        {
            "slurmd": {"resources": wanted},
            "munge": {"resources": {"cpu": "500m", "memory": "1Gi", "ephemeralStorage": "5Gi"}},
        },
    )
    for override in ("NodeSet", f"NodeSet/{one.name}"):
        said = merged(said, installation.overrides.get(override, {}))
    return said  # type: ignore[no-any-return]
