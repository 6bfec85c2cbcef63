"""Workloads, their Pods and the machines of these, read from plain objects: state, GPUs, replicas and problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of, newest, parse_time

#: Reasons of a container to wait that pass soon.
_STARTING = ("ContainerCreating", "PodInitializing")
#: The field manager of all changes here, as in ``managedFields``.
MANAGER = "airflow-provider-soperator"
#: The annotation of what was made for a task: which one.
OWNER = "airflow.apache.org/task"
#: Set on a workload that others have put back during a shift: to how many replicas, and who.
PUT_BACK = f"{MANAGER}/put-back"
GPU_RESOURCE = "nvidia.com/gpu"
#: As in ``worker_slurmd:4.1.7-slurm25.11.3``.
_RELEASE = re.compile(r":([^:@/]+)-slurm[^:@/]*(?:@|$)")
#: Problems to report: replicas mostly wait for the same reason.
_MOST_PROBLEMS = 3


@dataclass(frozen=True)
class Host:
    """The machine of a Pod."""

    name: str
    created: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    is_leaving: bool = False
    #: The Pod names it, but the API has no such Node any more.
    is_gone: bool = False

    @classmethod
    def read(cls, node: Object) -> Host:
        metadata = node["metadata"]
        created = parse_time(metadata.get("creationTimestamp"))
        return cls(metadata["name"], created, tuple(conditions_of(node).values()), is_leaving(node))


@dataclass(frozen=True)
class Pod:
    """The Pod of a Slurm node, which has the same name."""

    phase: str = ""
    is_ready: bool = False
    #: None while it has none, or if Kubernetes Nodes were not asked for.
    host: Host | None = None
    #: Reasons why it does not run, from Kubernetes.
    problems: tuple[str, ...] = ()
    is_leaving: bool = False
    since: datetime | None = None
    #: The release of Soperator in the tag of its slurmd's image; empty if the tag is of another form.
    release: str = ""

    @classmethod
    def read(cls, pod: Object, host: Host | None = None) -> Pod:
        since = newest(one.since for one in conditions_of(pod).values())
        phase = str(_status(pod).get("phase") or "")
        containers = (pod.get("spec") or {}).get("containers") or ()
        images = (_RELEASE.search(str(one.get("image"))) for one in containers if one.get("name") == "slurmd")
        release = next((found[1] for found in images if found), "")
        return cls(phase, is_ready(pod), host, tuple(problems_of(pod)), is_leaving(pod), since, release)


def pods_on_hosts(pods: Sequence[Object], nodes: Sequence[Object]) -> dict[str, Pod]:
    hosts = {host.name: host for host in map(Host.read, nodes)}
    found = {}
    for pod in pods:
        name = machine_of(pod)
        host = hosts.get(name, Host(name, is_gone=True)) if name else None
        found[pod["metadata"]["name"]] = Pod.read(pod, host)
    return found


def is_on_a_node(pod: Object) -> bool:
    """True if the Pod holds its resources; a Pod that has ended holds none."""
    return bool(machine_of(pod)) and _status(pod).get("phase") not in ("Succeeded", "Failed")


def machine_of(pod: Object) -> str:
    """The Pod's Kubernetes Node; empty while it waits for one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_leaving(thing: Object) -> bool:
    return bool(thing["metadata"].get("deletionTimestamp"))


def is_ready(pod: Object) -> bool:
    ready = conditions_of(pod).get("Ready")
    return bool(ready and ready.is_true) and not is_leaving(pod)


def problems_of(pod: Object) -> Iterator[str]:
    """Reasons why a Pod does not run, from Kubernetes."""
    scheduled = conditions_of(pod).get("PodScheduled")
    if scheduled and scheduled.is_false:
        yield scheduled.message or scheduled.reason
    for one in containers_of(pod):
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason and reason not in _STARTING:
            yield f"container {one['name']} waits ({reason}: {waiting.get('message') or 'no message'})"


def containers_of(pod: Object) -> list[Object]:
    """The statuses of its containers, those that initialise it first."""
    status = _status(pod)
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def gpus_of(workload: Object) -> int | None:
    """The GPUs that one replica requests, from its Pod template; None if the kind has no known template.

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


def is_of_groups(workload: Object) -> bool:
    """True for a LeaderWorkerSet, whose status leaves out the number of groups that are ready while that is 0."""
    return "leaderWorkerTemplate" in (workload.get("spec") or {})


def _gpus_of_pod(template: Object) -> int:
    limits = [(one.get("resources") or {}).get("limits") or {} for one in template["spec"]["containers"]]
    return sum(int(limit.get(GPU_RESOURCE, 0)) for limit in limits)


def is_seen(workload: Object) -> bool:
    """True if the controller has observed the last change, or does not report that."""
    status = workload.get("status") or {}
    return "observedGeneration" not in status or status["observedGeneration"] >= workload["metadata"]["generation"]


def writers_of(thing: Object) -> list[tuple[str, str, Object]]:
    """The field managers that have written its spec, the last one last: name, time, and the fields of the spec."""
    entries = thing["metadata"].get("managedFields") or ()
    found = [(one, (one.get("fieldsV1") or {}).get("f:spec")) for one in entries]
    written = [(str(one.get("manager")), str(one.get("time")), spec) for one, spec in found if spec is not None]
    return sorted(written, key=lambda writer: writer[1])


def last_scaled_by(workload: Object, *, but: str = MANAGER) -> str:
    """The last field manager, ``but`` one, that has set the replicas; empty if the API has not noted any."""
    names = [name for name, _, spec in writers_of(workload) if "f:replicas" in spec and name != but]
    return names[-1] if names else ""


@dataclass(frozen=True)
class Keeper:
    """Owner of an object, which resets it to its own definition, mostly in Git."""

    name: str
    #: How to make a change persist.
    remedy: str
    is_helm: bool = False
    #: It manages ``spec.replicas`` now, and resets them soon.
    sets_replicas: bool = False

    def __str__(self) -> str:
        return self.name

    def warning(self, replicas: int) -> str:
        """Warning that a NodeSet's number of replicas will be reset, with the remedy."""
        # Helm's `default 1` treats 0 as unset.
        quirk = ". Soperator's chart makes 1 of replicas: 0" if self.is_helm and replicas == 0 else ""
        return f"{self.name} resets the number of replicas at its next upgrade or apply: {self.remedy}{quirk}"


def source_of(workload: Object) -> Keeper | None:
    """The GitOps controller of an object, from the marks that it leaves.

    >>> labels = {"kustomize.toolkit.fluxcd.io/name": "apps"}
    >>> print(source_of({"metadata": {"labels": labels}}))
    Flux (Kustomization apps)
    """
    metadata = workload["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    writers = writers_of(workload)
    left_out = "spec.replicas is left out there"
    ignored = f"{left_out}, or ignored (spec.ignoreDifferences with RespectIgnoreDifferences=true)"
    application = str(annotations.get("argocd.argoproj.io/tracking-id", "")).partition(":")[0]
    if not application and any(name.startswith("argocd") for name, *_ in writers):
        # Helm writes the same label.
        application = labels.get("app.kubernetes.io/instance", "")
    found = (
        ("kustomize-controller", "Flux (Kustomization {})", labels.get("kustomize.toolkit.fluxcd.io/name"), left_out),
        ("helm-controller", "Flux (HelmRelease {})", labels.get("helm.toolkit.fluxcd.io/name"), left_out),
        ("argocd-controller", "Argo CD (Application {})", application, ignored),
    )
    for manager, said, name, remedy in found:
        if name:
            sets = any(who == manager and "f:replicas" in spec for who, _, spec in writers)
            # Flux writes a HelmRelease again only when its values or its chart have changed.
            return Keeper(said.format(name), remedy, sets_replicas=sets and manager != "helm-controller")
    return None


def was_put_back(workload: Object, replicas: int) -> str:
    """Why another shift has left it at this number; empty if it has not, or another manager has set them since."""
    noted = (workload["metadata"].get("annotations") or {}).get(PUT_BACK)
    who = last_scaled_by(workload)
    if not noted or noted != f"{replicas} by {who}":
        return ""
    source = source_of(workload)
    remedy = f" unless {source.remedy}" if source else ""
    return (
        f"{source or who} put it back to {replicas} replicas during an earlier shift, and will again{remedy}; to try "
        f"again, remove its annotation {PUT_BACK}"
    )


def problems(workload: Object, pods: Sequence[Object]) -> tuple[str, ...]:
    """Reasons why replicas are missing or not ready, from Kubernetes."""
    said = []
    for one in conditions_of(workload).values():
        late = one.type == "Progressing" and one.reason == "ProgressDeadlineExceeded"
        if late or (one.type == "ReplicaFailure" and one.is_true):
            said.append(one.message or one.reason)
    said += [words for pod in pods if not is_leaving(pod) for words in problems_of(pod)]
    return tuple(dict.fromkeys(said))[:_MOST_PROBLEMS]
