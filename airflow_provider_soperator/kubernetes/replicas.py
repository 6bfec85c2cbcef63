"""Replicas of a workload, told from its objects: how many there are, and what keeps them from being more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_soperator.kubernetes.objects import MANAGER, Object
from airflow_provider_soperator.kubernetes.pods import is_leaving, problems_of

GPU_RESOURCE = "nvidia.com/gpu"
#: Problems that are told of: replicas that wait mostly wait for the same.
_MOST_PROBLEMS = 3


def gpus_of(workload: Object) -> int | None:
    """The GPUs that one replica asks for, as far as its template says; None if it has none that is known.

    >>> container = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    >>> gpus_of({"spec": {"template": {"spec": {"containers": [container, {}]}}}})
    8
    >>> group = {"size": 2, "workerTemplate": {"spec": {"containers": [container]}}}
    >>> gpus_of({"spec": {"leaderWorkerTemplate": group}})
    16
    """
    spec = workload.get("spec") or {}
    if "template" in spec:
        return _gpus_of_pod(spec["template"])
    if group := spec.get("leaderWorkerTemplate"):
        worker = _gpus_of_pod(group["workerTemplate"])
        leader = _gpus_of_pod(group["leaderTemplate"]) if group.get("leaderTemplate") else worker
        return leader + (int(group.get("size", 1)) - 1) * worker
    return None


def _gpus_of_pod(template: Object) -> int:
    limits = [(one.get("resources") or {}).get("limits") or {} for one in template["spec"]["containers"]]
    return sum(int(limit.get(GPU_RESOURCE, 0)) for limit in limits)


def is_seen(workload: Object) -> bool:
    """Whether its controller has taken note of its last change, as far as it says."""
    status = workload.get("status") or {}
    return "observedGeneration" not in status or status["observedGeneration"] >= workload["metadata"]["generation"]


def last_scaled_by(workload: Object) -> str:
    """Who else has set the replicas last, as the API has noted it; empty if it has not."""
    changes = [
        change
        for change in workload["metadata"].get("managedFields") or []
        if "f:replicas" in ((change.get("fieldsV1") or {}).get("f:spec") or {}) and change.get("manager") != MANAGER
    ]
    return str(max(changes, key=lambda change: str(change.get("time")))["manager"]) if changes else ""


def problems(workload: Object, pods: Sequence[Object]) -> tuple[str, ...]:
    """What keeps replicas from being, or from being ready, in the words of whoever has found it."""
    said = [*_of_workload(workload), *(words for pod in pods if not is_leaving(pod) for words in problems_of(pod))]
    return tuple(dict.fromkeys(said))[:_MOST_PROBLEMS]


def _of_workload(workload: Object) -> Iterator[str]:
    for one in (workload.get("status") or {}).get("conditions") or []:
        late = one["type"] == "Progressing" and one.get("reason") == "ProgressDeadlineExceeded"
        if late or (one["type"] == "ReplicaFailure" and one["status"] == "True"):
            yield str(one.get("message") or one.get("reason"))
