"""What ``kubectl get`` shows of the built-in kinds where a path into the object is not enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sandbox.kube.objects import Object, age, dig, parse_timestamp


def count(path: str) -> Callable[[Object, datetime], int]:
    """A number that is 0 where the object does not say."""
    return lambda thing, now: dig(thing, path) or 0


def length_of(path: str) -> Callable[[Object, datetime], int]:
    """How many there are of a list that may be missing."""
    return lambda thing, now: len(dig(thing, path) or [])


def truth(path: str) -> Callable[[Object, datetime], bool]:
    """A flag that is false where the object does not say."""
    return lambda thing, now: bool(dig(thing, path))


def owner(kind: str) -> Callable[[Object, datetime], str]:
    """The owner of this kind, if there is one."""
    return lambda thing, now: next(
        (str(one["name"]) for one in dig(thing, "metadata.ownerReferences") or [] if one.get("kind") == kind), ""
    )


def role_of_binding(binding: Object, now: datetime) -> str:
    return f"{dig(binding, 'roleRef.kind')}/{dig(binding, 'roleRef.name')}"


def data_count(thing: Object, now: datetime) -> int:
    return len(thing.get("data") or {}) + len(thing.get("binaryData") or {})


def node_status(node: Object, now: datetime) -> str:
    ready = dig(node, "status.conditions[Ready].status")
    status = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return status + (",SchedulingDisabled" if dig(node, "spec.unschedulable") else "")


def node_roles(node: Object, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = dig(node, "metadata.labels") or {}
    return ",".join(sorted(label[len(prefix) :] for label in labels if label.startswith(prefix))) or "<none>"


def node_address(node: Object, now: datetime) -> str:
    return dig(node, "status.addresses[InternalIP].address") or "<none>"


def pod_ready(pod: Object, now: datetime) -> str:
    statuses = dig(pod, "status.containerStatuses") or []
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(dig(pod, 'spec.containers') or [])}"


def pod_status(pod: Object, now: datetime) -> str:
    if dig(pod, "metadata.deletionTimestamp"):
        return "Terminating"
    for status in dig(pod, "status.containerStatuses") or []:
        state = status.get("state") or {}
        for what in ("waiting", "terminated"):
            if reason := (state.get(what) or {}).get("reason"):
                return str(reason)
    return str(dig(pod, "status.reason") or dig(pod, "status.phase") or "Unknown")


def pod_restarts(pod: Object, now: datetime) -> str:
    return str(sum(s.get("restartCount", 0) for s in dig(pod, "status.containerStatuses") or []))


def event_last_seen(event: Object, now: datetime) -> str:
    seen = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return age(seen or dig(event, "metadata.creationTimestamp"), now)


def event_object(event: Object, now: datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def service_external_ip(service: Object, now: datetime) -> str:
    entries = dig(service, "status.loadBalancer.ingress") or []
    found = [entry.get("ip") or entry.get("hostname") for entry in entries]
    return ",".join(filter(None, found)) or "<none>"


def service_ports(service: Object, now: datetime) -> str:
    ports = dig(service, "spec.ports") or []
    return ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in ports) or "<none>"


def replicas_ready(thing: Object, now: datetime) -> str:
    wanted = dig(thing, "spec.replicas")
    return f"{dig(thing, 'status.readyReplicas') or 0}/{1 if wanted is None else wanted}"


def job_status(job: Object, now: datetime) -> str:
    for condition in ("Complete", "Failed", "Suspended"):
        if dig(job, f"status.conditions[{condition}].status") == "True":
            return condition
    return "Running"


def job_completions(job: Object, now: datetime) -> str:
    wanted = dig(job, "spec.completions")
    return f"{dig(job, 'status.succeeded') or 0}/{1 if wanted is None else wanted}"


def job_duration(job: Object, now: datetime) -> str:
    start, end = dig(job, "status.startTime"), dig(job, "status.completionTime")
    until = parse_timestamp(end) if end else now
    return age(start, until or now) if start else ""


def cron_job_suspend(cron_job: Object, now: datetime) -> bool:
    return bool(dig(cron_job, "spec.suspend"))


def cron_job_active(cron_job: Object, now: datetime) -> int:
    return len(dig(cron_job, "status.active") or [])


def cron_job_last(cron_job: Object, now: datetime) -> Any:
    last = dig(cron_job, "status.lastScheduleTime")
    return age(last, now) if last else "<none>"
