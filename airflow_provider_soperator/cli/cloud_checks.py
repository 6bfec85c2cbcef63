"""What the doctor looks at in Kubernetes and in Nebius: the way there, the rights by feature, and the block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from typing import NamedTuple

from airflow_provider_soperator.cli.verdicts import Verdict, judged
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.nebius.api import whoami
from airflow_provider_soperator.nebius.capacity_blocks import read_block
from airflow_provider_soperator.soperator.objects import Objects

#: Where an account asks for its own rights.
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_READS = "slurmclusters.slurm.nebius.ai list; nodesets.slurm.nebius.ai list; nodesetpowerstates.slurm.nebius.ai list"
_MAKES = "get list create patch delete"
#: The rights of each feature: those of its file in docs/rbac, in whose terms a resource is in the namespace of the
#: cluster, in another one (``default/events``), or in none (``/nodes``).
RIGHTS = {
    "active-checks": "activechecks.slurm.nebius.ai list; cronjobs.batch get; jobs.batch get list create delete",
    "backups": "schedules.k8up.io get; backups.k8up.io get list create",
    "evictions": "/nodes list patch; /pods list; /pods/eviction create",
    "exec": "pods list; pods/exec get create",
    "health": "pods list; /nodes list",
    "leases": "leases.coordination.k8s.io get create patch",
    "pod-events": "pods get; events list; /nodes get; default/events list",
    "provisioning": f"slurmclusters.slurm.nebius.ai {_MAKES}; nodesets.slurm.nebius.ai {_MAKES}; pods list; "
    "nodesetpowerstates.slurm.nebius.ai list; services list; configmaps get; /namespaces get; "
    "/deployments.apps list",
    "readiness": f"{_READS}; pods list",
    "replacement": "pods list; /nodes list",
    "resizing": f"{_READS}; pods list; nodesets/scale.slurm.nebius.ai patch; nodesets.slurm.nebius.ai get",
    "scaling": "deployments.apps get patch; deployments/scale.apps get patch; pods list; "
    "horizontalpodautoscalers.autoscaling list patch; scaledobjects.keda.sh list patch",
}
#: Features of inference, which may be in another namespace or cluster: the doctor looks at them where it is asked to.
_OF_INFERENCE = ("evictions", "scaling")


class Right(NamedTuple):
    """What an account may do to objects of one kind; ``namespace`` is ``*`` for objects in none."""

    verb: str
    resource: str
    group: str
    namespace: str

    def __str__(self) -> str:
        where = "" if self.namespace == "*" else f" in {self.namespace}"
        return f"{self.verb} {self.resource}{f'.{self.group}' * bool(self.group)}{where}"


def rights_of_feature(feature: str, namespace: str) -> Iterator[Right]:
    for one in RIGHTS[feature].split("; "):
        where, *verbs = one.split()
        place, slash, name = where.partition("/")
        if not slash or place in ("pods", "nodesets", "deployments"):
            place, name = namespace, where
        resource, _, group = name.partition(".")
        for verb in verbs:
            yield Right(verb, resource, group, place or "*")


async def kubernetes_checks(
    conn_id: str, namespace: str, cluster: str | None, needed: Collection[str], *, of_cluster: bool = True
) -> list[Verdict]:
    """All about the Kubernetes behind a connection; the ``needed`` features have to work, others may lack rights."""
    checks = _kubernetes(SoperatorClusterHook(conn_id, namespace), needed, of_cluster)
    found = await judged("kubernetes", checks)
    if of_cluster and not any(one.state == "wrong" for one in found):
        found += await judged("soperator", _cluster(SoperatorClusterHook(conn_id, namespace), cluster))
    return found


async def _kubernetes(hook: SoperatorClusterHook, needed: Collection[str], of_cluster: bool) -> AsyncIterator[Verdict]:
    async with hook.objects() as objects:
        await objects.check_namespace()
        yield Verdict("kubernetes", f"the API answers at {objects.client.configuration.host}")
        features = [one for one in RIGHTS if one in needed or (of_cluster and one not in _OF_INFERENCE)]
        wanted = {feature: list(rights_of_feature(feature, hook.namespace)) for feature in features}
        asked = list(dict.fromkeys(right for rights in wanted.values() for right in rights))
        allowed = dict(zip(asked, await asyncio.gather(*(_may(objects, right) for right in asked)), strict=True))
    complete = []
    for feature, rights in wanted.items():
        missing = [right for right in rights if not allowed[right]]
        # Up to Kubernetes 1.34 a WebSocket needs get, from 1.35 on create.
        if len(either := [right for right in missing if right.resource == "pods/exec"]) == 1:
            missing.remove(either[0])
        if not missing:
            complete.append(feature)
            continue
        said = f"the account lacks, for {feature}, the rights to {', '.join(map(str, missing))}"
        remedy = f"bind the roles of docs/rbac/{feature}.yaml to it (`kubectl apply -f`)"
        yield Verdict("rbac", said, remedy, "wrong" if feature in needed else "note")
    if complete:
        yield Verdict("rbac", f"the account has the rights for {', '.join(complete)}")


async def _may(objects: Objects, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    if right.namespace != "*":
        asked["namespace"] = right.namespace
    body = {"spec": {"resourceAttributes": asked}}
    answer = await objects.ask("POST", _REVIEWS, "ask for its own rights", body=body)
    return bool(answer["status"]["allowed"])


async def _cluster(hook: SoperatorClusterHook, name: str | None) -> AsyncIterator[Verdict]:
    async with hook.soperator(name) as soperator:
        seen = await soperator.cluster()
    is_up = seen.phase == "Available"
    remedy = "" if is_up else f"`kubectl describe slurmcluster {seen.name} -n {hook.namespace}` says why"
    yield Verdict("soperator", f"SlurmCluster {seen.name} is {seen.phase}", remedy, "ok" if is_up else "note")


async def nebius_checks(conn_id: str, block: str) -> list[Verdict]:
    """All about Nebius behind a connection, and about a block, if one is named."""
    hook = NebiusHook(conn_id)
    found = await judged("nebius", _account(hook))
    if found[-1].state == "wrong":
        return found
    if block:
        found += await judged("block", _block(hook, block))
    settings = await hook.async_settings()
    if settings.lease_conn_id:
        where = settings.lease_conn_id, settings.lease_namespace
        found += await kubernetes_checks(*where, None, {"leases"}, of_cluster=False)
    return found


async def _account(hook: NebiusHook) -> AsyncIterator[Verdict]:
    settings = await hook.async_settings()
    async with hook.async_client() as sdk:
        yield Verdict("nebius", f"the API at {settings.where} answers {await whoami(sdk)}")


async def _block(hook: NebiusHook, name: str) -> AsyncIterator[Verdict]:
    async with hook.async_client() as sdk:
        block = await read_block(sdk, name)
    said = f"block {block.id} is {block.state}, with {block.limit} GPUs"
    if block.state != "active":
        remedy = "wait until it is active" if block.state == "allocating" else "use an active block, or extend this one"
        yield Verdict("block", said, remedy, "wrong")
    elif block.free is None:
        yield Verdict("block", f"{said}; how many are free is unknown", "shifts wait until Nebius knows", "note")
    else:
        size = "another number" if block.next_change_to is None else block.next_change_to
        change = f", {size} from {block.next_change_at:%d %b %H:%M %Z} on" if block.next_change_at else ""
        yield Verdict("block", f"{said}, {block.free} of them free{change}")
