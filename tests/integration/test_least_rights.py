"""The manifests in docs/rbac: each feature works with its own rights alone, and each right is needed, and asked for.

A right is taken away at a time, and the feature is used again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes_asyncio.client import CoreV1Api

from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
from airflow_provider_soperator.capacity.targets.protocol import SessionContext
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.operators.cluster import BackupJailOperator
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import KubernetesObjects
from airflow_provider_soperator.sensors.cluster import ClusterReadySensor
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.soperator import evictions
from airflow_provider_soperator.soperator.active_checks import ActiveChecks
from airflow_provider_soperator.soperator.kinds import NODE_SET
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.work.backups import jail_backups
from sandbox.cloud.landscape import NODESET_NAME_LABEL
from sandbox.settings import NAMESPACE, STATIC_SET
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.provisioning import CPU, TaskInstance, destroy, provision
from tests.patience import PATIENCE
from tests.unit.provisioning import clusters

MANIFESTS = Path(__file__).parents[2] / "docs" / "rbac"
#: Where the sandbox has no controllers, so that clusters can be made and destroyed.
ELSEWHERE = "inference"
RUN = "rights-by-hand"
#: Workloads with an autoscaler of either kind.
BY_LOAD, BY_DEMAND = "by-load", "by-demand"
LOG = logging.getLogger("rights")
REFUSALS = (TransportError, CapacityMistake, AirflowException, AirflowFailException)
#: Rights without which the feature goes on, in these tests or with less to tell.
SPARE = {
    # The double takes the one, the API server from 1.35 on the other.
    ("exec", "pods/exec", "create"),
    # For the login node's address, for the name of what is wrong.
    ("provisioning", "services", "list"),
    ("provisioning", "namespaces", "get"),
    ("provisioning", "deployments", "list"),
}
_NUMBERS = itertools.count()


def executed(task: Any) -> None:
    task.execute(TaskInstance(f"run-{next(_NUMBERS)}").context)


async def use_checks(conn_id: str, namespace: str) -> None:
    async with SoperatorClusterHook(conn_id).objects() as objects:
        checks = ActiveChecks(objects)
        check = await checks.find("create-user-soperatorchecks")
        await checks.runs()
        await checks.start(check, RUN, "a task")
        # Another process has begun it in the meantime.
        await checks.start(check, RUN, "a task")
        await checks.end(RUN)


async def use_resizing(conn_id: str, namespace: str) -> None:
    async with SoperatorClusterHook(conn_id).soperator() as soperator:
        nodeset = await soperator.nodeset(STATIC_SET)
        await soperator.set_replicas(STATIC_SET, nodeset.replicas, dry_run=True)
        await soperator.objects.read(NODE_SET, STATIC_SET)


async def use_events(conn_id: str, namespace: str) -> None:
    lines = await SoperatorClusterHook(conn_id).tell_of(["worker-0"])
    # A job's diagnosis does not fail for it.
    if troubles := [line for line in lines if "not asked" in line or "Incomplete" in line]:
        raise AirflowException("; ".join(troubles))


async def use_lease(conn_id: str, namespace: str) -> None:
    async with SoperatorClusterHook(conn_id, namespace).objects(rights="the rights of leases") as objects:
        lease = KubernetesLease(objects, "block", key="key")
        record = ShiftRecord(key="key", airflow="airflow", task="task", session="session")
        now = datetime.now(timezone.utc)
        await lease.write(record, now, timedelta(minutes=5), await lease.read())
        assert await lease.write(record, now, timedelta(minutes=5), await lease.read())


async def use_evictions(conn_id: str, namespace: str) -> None:
    async with SoperatorClusterHook(conn_id).objects(rights=evictions.RIGHTS) as objects:
        label = f"{NODESET_NAME_LABEL}={STATIC_SET}"
        assert await evictions.PodEvictions(objects, label, "to see its rights", None, LOG).check()


async def use_scaling(conn_id: str, namespace: str) -> None:
    for name in (BY_LOAD, BY_DEMAND):
        where: Any = {"kubernetes_conn_id": conn_id, "namespace": namespace, "resource": name}
        target = KubernetesScaleTarget(name="inference", gpus_per_unit=8, pin_hpa=True, **where)
        async with target.open(SessionContext(block="block", key="key"), ShiftClients(), LOG) as session:
            await session.look()
            await session.check(1, CapacityBlock(id="block", limit=8, usage=0))


async def use_exec(conn_id: str, namespace: str) -> None:
    async with SlurmHook(conn_id).async_client() as slurm:
        assert await slurm.ask(ListNodes())


def use_provisioning(conn_id: str, namespace: str) -> None:
    source = KubernetesObjects(conn_id, namespace)
    spec = clusters.cluster(nodesets=(NodeSet("worker-cpu", 1, **CPU),))
    provision(source, TaskInstance(), spec=spec)
    more = clusters.cluster(nodesets=(NodeSet("worker-cpu", 2, **CPU),))
    provision(source, TaskInstance("more"), spec=more)
    destroy(source, spec=more, end_jobs=True)


def use_backups(conn_id: str, namespace: str) -> None:
    names: Any = {"kubernetes_conn_id": conn_id, "namespace": namespace}
    executed(BackupJailOperator(task_id="backup", poll_interval=0.2, deferrable=False, **names))

    async def race() -> None:
        async with jail_backups(conn_id, namespace) as backups:
            for _ in range(2):
                await backups.start("soperator-jail", RUN, "a task")

    asyncio.run(race())


def use_readiness(conn_id: str, namespace: str) -> None:
    names: Any = {"kubernetes_conn_id": conn_id, "namespace": namespace, "slurm_conn_id": None}
    # What it is told may be as old as this: from before a right was taken away.
    executed(ClusterReadySensor(task_id="ready", poke_interval=0.01, timeout=PATIENCE, deferrable=False, **names))


def use_health(conn_id: str, namespace: str) -> None:
    names: Any = {"kubernetes_conn_id": conn_id, "namespace": namespace, "slurm_conn_id": "soperator_default"}
    executed(NodeHealthSensor(task_id="health", target_state="any", deferrable=False, **names))


USES: dict[str, Callable[[str, str], Awaitable[None] | None]] = {
    "active-checks": use_checks,
    "backups": use_backups,
    "evictions": use_evictions,
    "exec": use_exec,
    "health": use_health,
    "leases": use_lease,
    "pod-events": use_events,
    "provisioning": use_provisioning,
    "readiness": use_readiness,
    # It asks what the health sensor asks.
    "replacement": use_health,
    "resizing": use_resizing,
    "scaling": use_scaling,
}


class Account:
    """The ServiceAccount of the manifests, with the rights of one of them, in a namespace."""

    def __init__(self, cluster: Cluster, connections: Connections, folder: Path, namespace: str) -> None:
        self._cluster, self._connections, self._folder = cluster, connections, folder
        self._namespace = namespace
        self._apply("account", [*yaml.safe_load_all((MANIFESTS / "account.yaml").read_text())])
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
        config["users"][0]["user"] = {"token": self._token()}
        self.conn_id = connections.define("kubernetes", kube_config=json.dumps(config))

    def _token(self) -> str:
        def token() -> str:
            secret = json.loads(self._cluster.kubectl("get", "secret", "airflow-token", "--output=json"))
            return b64decode((secret.get("data") or {}).get("token", "")).decode()

        self._cluster.wait("the account has a token", token)
        return token()

    def _apply(self, name: str, things: list[Any]) -> None:
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(things))
        self._cluster.kubectl("apply", "--filename", str(file))

    def remove(self, feature: str) -> None:
        for file in (self._folder / f"{feature}.yaml", self._folder / "account.yaml"):
            self._cluster.kubectl("delete", "--ignore-not-found", "--filename", str(file))

    def rights(self, feature: str) -> list[Any]:
        """The manifest, for the namespace of this test."""
        things = [*yaml.safe_load_all((MANIFESTS / f"{feature}.yaml").read_text())]
        for thing in things:
            if thing["metadata"].get("namespace") == NAMESPACE:
                thing["metadata"]["namespace"] = self._namespace
        return things

    def has(self, feature: str, things: list[Any]) -> None:
        self._apply(feature, things)

    def lacks(self, things: list[Any]) -> None:
        """The same with other rules: without kubectl, whose processes take longer than what is tested."""
        rbac = kubernetes.client.RbacAuthorizationV1Api(self._cluster.kubernetes.api_client)
        for thing in things:
            name, namespace = thing["metadata"]["name"], thing["metadata"].get("namespace")
            if thing["kind"] == "Role":
                rbac.replace_namespaced_role(name, namespace, thing)
            elif thing["kind"] == "ClusterRole":
                rbac.replace_cluster_role(name, thing)

    def use(self, feature: str) -> None:
        conn_id = self.conn_id
        if feature == "exec":
            conn_id = self._connections.define(kubernetes_conn_id=conn_id, namespace=self._namespace)
        done = USES[feature](conn_id, self._namespace)
        if done is not None:
            asyncio.run(done)  # type: ignore[arg-type]


def each_taken_away(things: list[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Each verb on each resource, and the manifest without it."""
    for place, thing in enumerate(things):
        for number, rule in enumerate(thing.get("rules", ())):
            for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
                without = deepcopy(things)
                rules = without[place]["rules"]
                others = [one for one in rule["resources"] if one != resource]
                verbs = [one for one in rule["verbs"] if one != verb]
                split = [{**rule, "resources": others}, {**rule, "resources": [resource], "verbs": verbs}]
                rules[number : number + 1] = [one for one in split if one["resources"] and one["verbs"]]
                yield resource, verb, without


@pytest.fixture
def scripts(cluster: Cluster, connections: Connections) -> Iterator[None]:
    """What Soperator's chart makes in the namespace of a cluster."""

    async def change(make: bool) -> None:
        async with SoperatorClusterHook("kubernetes_default", ELSEWHERE).objects() as objects:
            core = CoreV1Api(objects.client)
            scripts: Any = {"metadata": {"name": "slurm-scripts"}, "data": {"prolog.sh": ""}}
            if make:
                await core.create_namespaced_config_map(ELSEWHERE, scripts)
            else:
                await core.delete_namespaced_config_map("slurm-scripts", ELSEWHERE)

    asyncio.run(change(True))
    yield
    asyncio.run(change(False))


@pytest.fixture
def workloads(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """Inference that Flux keeps, without replicas."""
    labels = {"app": "llm", "kustomize.toolkit.fluxcd.io/name": "apps"}
    container = {"name": "llm", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "llm"}}, "template": template}

    def thing(version: str, kind: str, name: str, spec: object) -> dict[str, object]:
        metadata = {"name": name, "namespace": ELSEWHERE, "labels": labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    def scaled(name: str) -> dict[str, str]:
        return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}

    things = [
        *(thing("apps/v1", "Deployment", name, spec) for name in (BY_LOAD, BY_DEMAND)),
        thing(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            BY_LOAD,
            {"scaleTargetRef": scaled(BY_LOAD), "minReplicas": 1, "maxReplicas": 1},
        ),
        thing(
            "keda.sh/v1alpha1",
            "ScaledObject",
            BY_DEMAND,
            {"scaleTargetRef": scaled(BY_DEMAND), "minReplicaCount": 0, "maxReplicaCount": 0, "triggers": []},
        ),
    ]
    file = tmp_path / "workloads.yaml"
    file.write_text(yaml.safe_dump_all(things))
    cluster.kubectl("apply", "--filename", str(file))
    yield
    cluster.kubectl("delete", "--filename", str(file))


def clean(cluster: Cluster) -> None:
    """Remove what features have made, and could not remove."""
    custom, client = cluster.custom_objects, cluster.kubernetes.api_client
    jobs, leases = kubernetes.client.BatchV1Api(client), kubernetes.client.CoordinationV1Api(client)
    for version, plural in (("v1alpha1", "nodesets"), ("v1", "slurmclusters")):
        kind = ("slurm.nebius.ai", version, ELSEWHERE, plural)
        for one in custom.list_namespaced_custom_object(*kind)["items"]:
            custom.delete_namespaced_custom_object(*kind, one["metadata"]["name"])
    for lease in leases.list_namespaced_lease(NAMESPACE).items:
        leases.delete_namespaced_lease(lease.metadata.name, NAMESPACE)

    def has_run() -> bool:
        return any(job.metadata.name == RUN for job in jobs.list_namespaced_job(NAMESPACE).items)

    if has_run():
        jobs.delete_namespaced_job(RUN, NAMESPACE, propagation_policy="Background")
        cluster.wait("the run is gone", lambda: not has_run())


def test_each_manifest_has_a_feature_that_uses_it() -> None:
    assert {path.stem for path in MANIFESTS.glob("*.yaml")} == {"account", *USES}


@pytest.mark.usefixtures("scripts", "workloads")
@pytest.mark.parametrize("feature", sorted(USES))
def test_a_feature_has_the_rights_that_it_needs_and_no_other(
    feature: str, cluster: Cluster, connections: Connections, tmp_path: Path
) -> None:
    namespace = ELSEWHERE if feature in ("provisioning", "scaling") else NAMESPACE
    account = Account(cluster, connections, tmp_path, namespace)
    whole = account.rights(feature)
    try:
        account.has(feature, whole)
        account.use(feature)
        clean(cluster)
        for resource, verb, without in each_taken_away(whole):
            account.lacks(without)
            if (feature, resource, verb) in SPARE:
                account.use(feature)
                clean(cluster)
                continue
            with pytest.raises(REFUSALS) as refused:
                account.use(feature)
            words = str(refused.value)
            # What could not be done, and what the account needs for it.
            assert "has no right to" in words, (resource, verb, words)
            assert resource.partition("/")[0].removesuffix("s") in words.lower(), (resource, verb, words)
            clean(cluster)
    finally:
        account.remove(feature)
        clean(cluster)
