"""Which pods of a Soperator Slurm's commands run in, and how one that can be used just now is found."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.transports.errors import ConnectFailed, ConnectRefused, TransportError
from airflow_provider_soperator.transports.kubernetes_errors import explained, namespace_read


@dataclass(frozen=True)
class PodChoice:
    """Which pods Slurm's commands can run in, and how a shell is started there.

    >>> PodChoice("app.kubernetes.io/component=login,app.kubernetes.io/instance=mine", "sshd").shell
    ('/bin/sh',)
    """

    labels: str
    container: str
    shell: tuple[str, ...] = ("/bin/sh",)


#: What users see who log in: the jail.
LOGIN = PodChoice("app.kubernetes.io/component=login", "sshd", ("chroot", "/mnt/jail", "/bin/sh"))
CONTROLLER = PodChoice("app.kubernetes.io/component=controller", "slurmctld")


def find_pod(
    core: Any, namespace: str, choices: Sequence[PodChoice], patience: float
) -> Generator[Any, Any, tuple[str, PodChoice]]:
    """The pod that commands are to run in, and the choice that it stands for.

    ``core`` may be of either client: what its calls return is yielded, and what comes of it is to be sent back, or
    thrown in. With the one client that is the same thing, with the other it is awaited in between.
    """
    seen: list[Any] = []
    for choice in choices:
        with explained(f"list the pods of namespace {namespace}"):
            listed = yield core.list_namespaced_pod(namespace, label_selector=choice.labels, _request_timeout=patience)
        if name := _ready(listed.items, choice):
            return name, choice
        seen += listed.items
    if not seen:
        # Kubernetes lists no pods, too, in a namespace that there is not.
        with namespace_read(namespace):
            yield core.read_namespace(namespace, _request_timeout=patience)
    raise _none_ready(namespace, choices, seen)


def _ready(pods: Sequence[Any], choice: PodChoice) -> str | None:
    """The first pod that commands can run in, by its name: everyone takes the same one."""
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.name)):
        conditions = {one.type: one.status for one in pod.status.conditions or ()}
        if conditions.get("Ready") != "True" or pod.metadata.deletion_timestamp:
            continue
        containers = [container.name for container in pod.spec.containers]
        if choice.container not in containers:
            raise ConnectFailed(
                f"pod {pod.metadata.name} has no container {choice.container}, only {', '.join(containers)}",
                "choose another container, or other labels",
            )
        return str(pod.metadata.name)
    return None


def _none_ready(namespace: str, choices: Sequence[PodChoice], seen: Sequence[Any]) -> TransportError:
    if seen:
        names = ", ".join(f"{pod.metadata.name} ({_condition(pod)})" for pod in seen)
        return ConnectRefused(
            f"no pod is Ready in namespace {namespace}: {names}",
            f"see `kubectl -n {namespace} describe pod {seen[0].metadata.name}`",
        )
    labels = " or ".join(choice.labels for choice in choices)
    return ConnectFailed(
        f"no pod in namespace {namespace} has the labels {labels}",
        f"see `kubectl -n {namespace} get pods --show-labels`, and whether it is the SlurmCluster's namespace",
    )


def _condition(pod: Any) -> str:
    if pod.metadata.deletion_timestamp:
        return "is being deleted"
    for one in pod.status.conditions or ():
        if one.type == "Ready":
            return str(one.message or one.reason or "not Ready")
    return str(pod.status.phase or "not started")
