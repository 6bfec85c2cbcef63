"""What tests of scaling do: run the inference service of either layout, and bring targets to where they shall be."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import kubernetes.client
import kubernetes.config

from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, Target
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.triggers.work import WorkTrigger
from airflow_provider_soperator.work.protocols import result_of
from airflow_provider_soperator.work.targets import TargetScaling
from sandbox.cloud.landscape import INFERENCE_GROUP, INFERENCE_NAMESPACE, REMOTE_INFERENCE_GROUP
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

T = TypeVar("T")

KEDA = "autoscaling.keda.sh"


class Service:
    """The inference service in a Kubernetes cluster: beside Soperator, or in one of its own."""

    def __init__(self, cluster: Cluster, kubeconfig: Path, group: str, conn_id: str) -> None:
        self.cluster, self.kubeconfig, self.group, self.conn_id = cluster, kubeconfig, group, conn_id
        self._has_more = False

    def target(self, **fields: Any) -> KubernetesScaleTarget:
        said = {"name": "inference", "resource": "vllm", "namespace": INFERENCE_NAMESPACE}
        gpus = self.cluster.settings.gpus
        return KubernetesScaleTarget(**{"kubernetes_conn_id": self.conn_id, "gpus_per_unit": gpus, **said, **fields})

    def kubectl(self, *argv: str, stdin: str = "") -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        words = ["kubectl", f"--namespace={INFERENCE_NAMESPACE}", *argv]
        said = subprocess.run(words, env=environment, input=stdin, capture_output=True, text=True, timeout=PATIENCE)
        assert said.returncode == 0, f"{argv}: {said.stdout}{said.stderr}"
        return said.stdout

    def create(self, thing: dict[str, Any]) -> None:
        self._has_more = True
        self.kubectl("create", "--filename=-", stdin=json.dumps(thing))

    def get(self, kind: str, name: str = "vllm") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    @property
    def replicas(self) -> int:
        return int(
            kubernetes.client.AppsV1Api(self.api).read_namespaced_deployment("vllm", INFERENCE_NAMESPACE).spec.replicas
        )

    def scale(self, replicas: int) -> None:
        # As kubectl, which costs more than the rest of many a test.
        apps, body = kubernetes.client.AppsV1Api(self.api), {"spec": {"replicas": replicas}}
        apps.patch_namespaced_deployment_scale("vllm", INFERENCE_NAMESPACE, body, field_manager="kubectl")

    def machines(self, count: int) -> None:
        self.cluster.resize(self.group, count).sync_wait(interval=0.1, timeout=PATIENCE)

    @cached_property
    def api(self) -> Any:
        return kubernetes.config.new_client_from_config(str(self.kubeconfig))

    @property
    def pods(self) -> list[Any]:
        found: list[Any] = kubernetes.client.CoreV1Api(self.api).list_namespaced_pod(INFERENCE_NAMESPACE).items
        return found

    def end(self) -> None:
        """As it was in the beginning: no replicas, no machines, no autoscalers."""
        if self._has_more:
            self.kubectl("delete", "scaledobjects,hpa,leaderworkersets", "--all")
        self.scale(0)
        self.machines(0)
        self.api.close()


@contextmanager
def service(cluster: Cluster, layout: str) -> Iterator[Service]:
    one = {
        "own cluster": Service(
            cluster, cluster.paths.inference_kubeconfig, REMOTE_INFERENCE_GROUP, "kubernetes_inference"
        ),
        "same cluster": Service(cluster, cluster.paths.kubeconfig, INFERENCE_GROUP, "kubernetes_default"),
    }[layout]
    try:
        yield one
    finally:
        one.end()


def at_work(target: Target, work: Callable[[Session], Awaitable[T]], block: str = "") -> T:
    """Something done in one session."""

    async def run() -> T:
        purpose = SessionContext(block=block, key="tests")
        async with target.open(purpose, ShiftClients(), logging.getLogger("scaling")) as session:
            return await work(session)

    return asyncio.run(run())


def look(target: Target) -> Holding:
    return at_work(target, lambda session: session.look())


def bring(target: Target, units: int, within: float = PATIENCE, block: str = "") -> Holding:
    """The target, once it has just so many units."""
    now = datetime.now(timezone.utc)
    work = TargetScaling(
        target=target,
        units=units,
        mode="asap",
        block=block or None,
        nebius_conn_id=NebiusHook.default_conn_name,
        key="scaling",
        since=now,
        deadline=now + timedelta(seconds=within),
        poll_interval=0.1,
    )

    result_of(asyncio.run(WorkTrigger(work.write()).event()))
    return look(target)
