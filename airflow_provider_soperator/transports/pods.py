"""Which pods of a Soperator Slurm's commands run in, and which of them can be used just now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.transports.errors import ConnectFailed, ConnectRefused, TransportError


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


def ready_pod(pods: Sequence[Any], choice: PodChoice) -> str | None:
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


def none_ready(namespace: str, choices: Sequence[PodChoice], seen: Sequence[Any]) -> TransportError:
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
