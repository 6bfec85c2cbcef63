"""The Kubernetes side of Slurm's nodes: each is a Pod of the same name, on a Node, with Events about both.

Objects are those of either Kubernetes client; of a client nothing is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    TransportError,
    is_missing,
    kubernetes_errors,
)

#: Where the Events about Nodes are, which are in no namespace themselves.
_NODE_EVENTS = "default"
#: Events of one object that are read; they come in no order.
_MOST_EVENTS = 500
#: Nodes that a Pod was on, the last ones.
_MOST_NODES = 3
_RIGHTS = "get on pods and nodes, and list on events, also in the namespace default,"


@dataclass
class Worker:
    """What there is to know of one of Slurm's nodes."""

    name: str
    #: None if there is none.
    pod: Any = None
    #: By their names; None for one that is gone. More than one if the Pod has moved.
    nodes: dict[str, Any] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    #: What could not be found out, and why.
    troubles: list[str] = field(default_factory=list)


async def look(core: Any, namespace: str, name: str) -> Worker:
    """Ask for everything. Only what is said of the Pod is needed: the account may have no right to the rest."""
    worker = Worker(name)
    worker.pod = await _read(
        core.read_namespaced_pod(name, namespace, _request_timeout=API_TIMEOUT), f"read pod {name}"
    )
    await _try(worker, _add_events(worker, core, namespace, "Pod", name))
    # A Pod that was lost with its Node has come back on another. Kubelets say which Node they speak from.
    newest = sorted(worker.events, key=happened, reverse=True)
    hosts = [event.source.host for event in newest if event.source and event.source.host]
    if worker.pod and worker.pod.spec.node_name:
        hosts.insert(0, worker.pod.spec.node_name)
    worker.nodes = dict.fromkeys([*dict.fromkeys(hosts)][:_MOST_NODES])
    await asyncio.gather(*(_try(worker, _add_node(worker, core, node)) for node in list(worker.nodes)))
    return worker


def happened(event: Any) -> datetime:
    """When it happened last; which field has it depends on who wrote it."""
    series = event.series.last_observed_time if event.series else None
    found: datetime = series or event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return found


async def _add_node(worker: Worker, core: Any, name: str) -> None:
    worker.nodes[name] = await _read(core.read_node(name, _request_timeout=API_TIMEOUT), f"read node {name}")
    await _add_events(worker, core, _NODE_EVENTS, "Node", name)


async def _add_events(worker: Worker, core: Any, namespace: str, kind: str, name: str) -> None:
    with kubernetes_errors(f"list events of namespace {namespace}", _RIGHTS):
        found = await core.list_namespaced_event(
            namespace,
            field_selector=f"involvedObject.kind={kind},involvedObject.name={name}",
            limit=_MOST_EVENTS,
            _request_timeout=API_TIMEOUT,
        )
    worker.events += found.items


async def _read(call: Awaitable[Any], what: str) -> Any:
    """An object; None if there is none."""
    with kubernetes_errors(what, _RIGHTS):
        try:
            return await call
        except Exception as error:
            if is_missing(error):
                return None
            raise


async def _try(worker: Worker, work: Awaitable[None]) -> None:
    try:
        await work
    except TransportError as error:
        worker.troubles.append(str(error))


async def look_at_all(core: Any, namespace: str, names: Sequence[str]) -> list[Worker]:
    return list(await asyncio.gather(*(look(core, namespace, name) for name in names)))
