"""A Soperator cluster as Kubernetes has it, over the stock connection of type ``kubernetes``."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from itertools import chain
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from async_timeout import timeout

from airflow_provider_soperator.hooks.connections import installed, known_in_loop
from airflow_provider_soperator.shared import SharedAnswers, SharedClients
from airflow_provider_soperator.soperator import pod_events
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    ConnectFailed,
    TransportError,
    Unreachable,
    kubernetes_errors,
)
from airflow_provider_soperator.values import NAMESPACE

if TYPE_CHECKING:
    import kubernetes_asyncio.client
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook


#: By connection: kubernetes_asyncio lets other threads have the file of a certificate before it has written it.
_LOADING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
os.register_at_fork(after_in_child=_LOADING.clear)
#: Seconds for credentials, which may come from a program or a server.
_LOGIN = 60.0


async def connect(kubernetes_conn_id: str) -> kubernetes_asyncio.client.ApiClient:
    """A client for the running event loop, which the caller closes."""
    with installed("kubernetes"):
        import kubernetes_asyncio.client
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    hook = AsyncKubernetesHook(kubernetes_conn_id=kubernetes_conn_id)
    with kubernetes_errors(f"log in by the connection {kubernetes_conn_id}"):
        async with known_in_loop(kubernetes_conn_id):
            # Not within the limit: an answer of Airflow that is no longer waited for would be taken for the next one.
            await hook.get_conn_extras()
        try:
            async with timeout(_LOGIN):
                await _load(hook, _LOADING[kubernetes_conn_id])
        except asyncio.TimeoutError as error:
            raise Unreachable(
                f"the credentials of the connection {kubernetes_conn_id} did not come within {_LOGIN:g} s",
                "see whether the plugin in its kubeconfig hangs",
            ) from error
        if hook.client_configuration is None:
            # It was loaded for the whole process, where another connection may have replaced it.
            raise ConnectFailed(
                "apache-airflow-providers-cncf-kubernetes is older than 10.18, and mixes up connections",
                "`pip install 'airflow-provider-soperator[kubernetes]'`",
            )
        return kubernetes_asyncio.client.ApiClient(configuration=hook.client_configuration)


async def _load(hook: AsyncKubernetesHook, loading: threading.Lock) -> None:
    # Not by a wait for the lock: tasks of one event loop would keep each other from ending.
    while not loading.acquire(blocking=False):
        await asyncio.sleep(0.01)
    try:
        # The hook's client ends with this block; only its configuration is needed.
        async with hook.get_conn():
            pass
    except asyncio.CancelledError as ended:
        _end_plugin(ended)
        raise
    finally:
        loading.release()


def _end_plugin(ended: BaseException) -> None:
    """End the process of a plugin, which kubernetes_asyncio leaves: one would stay for each try."""
    for frame, _ in traceback.walk_tb(ended.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, asyncio.subprocess.Process) and value.returncode is None:
                with suppress(ProcessLookupError):
                    value.kill()


class SharedKubernetes:
    """The client of a Kubernetes cluster, and its answers, shared by all users in an event loop."""

    def __init__(self, key: tuple[str, int]) -> None:
        self.answers = SharedAnswers()
        self._client = asyncio.ensure_future(connect(key[0]))

    async def client(self) -> kubernetes_asyncio.client.ApiClient:
        return await asyncio.shield(self._client)

    async def close(self) -> None:
        with suppress(TransportError):
            await (await self._client).close()


#: By connection, and the number of failures so far: after one the connection or its token may have changed, so the next
#: users get a new client.
_SHARED: SharedClients[tuple[str, int], SharedKubernetes] = SharedClients()
_FAILURES: Counter[str] = Counter()

_RIGHTS = (
    "get, list and patch on slurmclusters, nodesets, nodesets/scale, nodesetpowerstates and activechecks, list on pods "
    "and services, get on cronjobs, get, list, create and delete on jobs, and a ClusterRole with list on nodes,"
)
#: Number of nodes that are described; where many have failed, most have failed in the same way.
_MOST_WORKERS = 4


class SoperatorClusterHook(BaseHook):
    """The Kubernetes side of a Soperator cluster.

    Slurm's nodes are Pods there, which run on Nodes that come and go.

        hook = SoperatorClusterHook("kubernetes_default", namespace="soperator")
        async with hook.soperator() as soperator:
            seen = await soperator.look()
        print(seen.cluster.phase, [nodeset.name for nodeset in seen.nodesets])
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = "kubernetes_default"

    def __init__(self, kubernetes_conn_id: str = default_conn_name, namespace: str = NAMESPACE) -> None:
        super().__init__()
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[kubernetes_asyncio.client.ApiClient]:
        """A client for the running event loop."""
        async with await connect(self.kubernetes_conn_id) as client:
            yield client

    @asynccontextmanager
    async def objects(self, max_age: float | None = None, rights: str = _RIGHTS) -> AsyncIterator[Objects]:
        """The cluster's objects, for the running event loop; errors ask for these ``rights``.

        With ``max_age`` lists may be that many seconds old: all users of the cluster in the loop share them.
        """
        if max_age is None:
            async with self.async_client() as client:
                yield Objects(client, self.namespace, rights)
            return
        conn_id = self.kubernetes_conn_id
        failures = _FAILURES[conn_id]
        async with _SHARED.lend((conn_id, failures), SharedKubernetes) as shared:
            try:
                yield Objects(await shared.client(), self.namespace, rights, shared.answers, max_age)
            except Exception:
                _FAILURES[conn_id] = max(_FAILURES[conn_id], failures + 1)
                raise

    @asynccontextmanager
    async def soperator(
        self, cluster: str | None = None, max_age: float | None = None
    ) -> AsyncIterator[ClusterObjects]:
        """The cluster of this name, or the only one in the namespace; ``max_age`` as for ``objects``."""
        async with self.objects(max_age) as objects:
            yield ClusterObjects(objects, cluster)

    async def tell_of(self, workers: Sequence[str], within: float = API_TIMEOUT) -> list[str]:
        """Lines for people about some Slurm nodes as Kubernetes sees them, or why there are none."""
        try:
            async with timeout(within), self.objects(rights=pod_events.RIGHTS) as objects:
                now, told = datetime.now(timezone.utc), workers[:_MOST_WORKERS]
                found = await asyncio.gather(*(pod_events.lines_about(objects, one, now) for one in told))
        except TransportError as error:
            return [f"Kubernetes was not asked: {error}"]
        except asyncio.TimeoutError:
            return [f"Kubernetes was not asked: its API did not answer within {within:g} s"]
        left = len(workers) - len(found)
        return [*chain(*found), *([f"and {left} more"] if left else [])]
