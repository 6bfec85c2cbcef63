"""The provisioner of a cluster by objects for Soperator's operator: it plans, guards and applies them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.provisioning import guards
from airflow_provider_soperator.provisioning.fields import SpecMistake, digest
from airflow_provider_soperator.provisioning.manifests import (
    Manifest,
    manifests_of,
    objects_of,
    partitions_of,
    with_scripts,
)
from airflow_provider_soperator.provisioning.object_limits import scripts_of
from airflow_provider_soperator.provisioning.provisioner import Provisioner, ProvisioningPlan, Reached
from airflow_provider_soperator.provisioning.spec import ClusterSpec, KubernetesObjects
from airflow_provider_soperator.slurm.hostlist import fold
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.clusters import ClusterSeen, cluster_of
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, SERVICE, SLURM_CLUSTER
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.soperator.workloads import MANAGER
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict

#: Annotation with the task that has applied the cluster last, and what was wanted.
_BEGUN_BY = "airflow-provider-soperator/begun-by"
_ACTIONS = ("delete", "create", "update")
#: Fields of a NodeSet of which its Pods have nothing: with others they start anew, and their jobs end.
_NO_POD_FIELDS = frozenset(
    {
        "clusterName", "ephemeralNodes", "initialNumberEphemeralNodes", "maxUnavailable", "nodeConfig.autoResume",
        "nodeConfig.features", "nodeConfig.gresConfig", "nodeConfig.static", "replicas", "updateStrategy",
    }
)  # fmt: skip
_IMAGES = frozenset({"munge.image", "slurmd.image"})


class ObjectsProvisioner(Provisioner):
    """Creates or changes the objects of a cluster by server-side apply; fields that it does not set stay."""

    def __init__(
        self,
        source: KubernetesObjects,
        spec: ClusterSpec,
        opened: Callable[[], AbstractAsyncContextManager[Objects]],
        log: Logger,
    ) -> None:
        """``opened`` opens the objects of the source's namespace, for the running event loop."""
        self._source, self._opened, self._log = source, opened, log
        self._spec = spec
        self._wanted: list[Manifest] = []
        self._is_destroy = False
        self._planned = ProvisioningPlan("nothing was planned")
        #: How nodes that are on would end or start anew, and partitions go, by object; and those that are refused.
        self._lost: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._begun_by = ""
        self._login_comes = False

    def plan(self, *, destroy: bool = False, keep_data: bool = True) -> ProvisioningPlan:
        if not keep_data:
            raise SpecMistake("volume claims are not among the objects of a cluster: keep_data=False is for a Recipe")
        self._is_destroy, self._lost, self._refused, self.kept_partitions = destroy, {}, {}, None
        self._planned = asyncio.run(self._plan())
        self._log.info("Plan: %s.", self._planned.summary)
        return self._planned

    def guard(self, allowed: Sequence[str]) -> None:
        guards.refuse_ended_nodes(self._refused, allowed)

    def apply(self, owner: str) -> str:
        if not self._is_destroy:
            self._wanted[0].body["metadata"].setdefault("annotations", {})[_BEGUN_BY] = f"{owner} {self._digest}"
        asyncio.run(self._apply())
        return self._planned.summary

    def interrupt(self) -> str:
        return "what was applied so far stays"

    def reached(self) -> Reached:
        # A load balancer gets its address after some minutes; without one there will be none.
        return Reached(login=asyncio.run(self._login()), login_comes=self._login_comes)

    def is_begun_by(self, owner: str) -> bool:
        # The cluster is applied first: where it differs again, this is nothing that was left.
        is_left = f"{SLURM_CLUSTER.kind}/{self._spec.name}" not in self._planned.changes
        return is_left and self._begun_by == f"{owner} {self._digest}"

    @property
    def _digest(self) -> str:
        return digest(self._spec, self._source.installation)

    async def _plan(self) -> ProvisioningPlan:
        async with self._opened() as objects:
            await objects.check_namespace()
            before: dict[str, Object] = {}
            for label, (resource, name) in objects_of(self._spec).items():
                with suppress(ObjectMissing):
                    before[label] = await objects.read(resource, name)
                    self._refuse_another(label, before[label])
            cluster = before.get(f"{SLURM_CLUSTER.kind}/{self._spec.name}")
            if cluster:
                self._begun_by = cluster["metadata"].get("annotations", {}).get(_BEGUN_BY, "")
            if self._is_destroy:
                await self._tell_left(objects, before)
                return self._plan_of(dict.fromkeys(before, "delete"), cluster is not None)
            self._wanted = manifests_of(self._spec, self._source.installation, before)
            await self._refuse_foreign(objects, cluster)
            after = {one.label: await self._sent(objects, one, dry_run=True) for one in self._wanted}
            becomes = after[self._wanted[0].label]
            self.maintenance = ClusterSeen.read(becomes).maintenance
            login = becomes["spec"].get("slurmNodes", {}).get("login", {})
            self._login_comes = login.get("sshdServiceType") == "LoadBalancer"
            changes = {label: action for label in after if (action := self._told(label, before.get(label), after))}
            await self._find_lost(objects, before, after)
        return self._plan_of(changes, cluster is not None)

    def _plan_of(self, changes: Mapping[str, str], exists: bool) -> ProvisioningPlan:
        counted = Counter(changes.values())
        summary = ", ".join(f"{counted[action]} to {action}" for action in _ACTIONS if counted[action])
        summary += "".join(f"; {name} would {how}" for name, how in self._lost.items())
        return ProvisioningPlan(summary or "nothing to do", changes, exists, self._digest if changes else "")

    def _refuse_another(self, label: str, there: Object) -> None:
        """Raise for a node set of another cluster, which would be taken from it, or destroyed."""
        if (owner := cluster_of(there)) not in ("", self._spec.name):
            raise SpecMistake(
                f"{label} is of the cluster {owner}, and not of {self._spec.name}: nothing was changed; choose another "
                "name for the node set, or correct that of the cluster"
            )

    async def _tell_left(self, objects: Objects, before: Mapping[str, Object]) -> None:
        for label in before:
            self._log.info("  - %s", label)
        there = await objects.list_all(NODE_SET) if before else []
        names = [one["metadata"]["name"] for one in there if cluster_of(one) == self._spec.name]
        if left := [name for name in names if f"{NODE_SET.kind}/{name}" not in before]:
            self._log.warning("Node sets that are not in the spec stay: %s", ", ".join(left))

    def _told(self, label: str, before: Object | None, after: Mapping[str, Object]) -> str:
        """Log what changes; returns the action."""
        if before is None:
            self._log.info("  + %s", label)
            return "create"
        lines = list(differences(before["spec"], after[label]["spec"]))
        for line in (f"  ~ {label}", *(f"      {line}" for line in lines)) if lines else ():
            self._log.info("%s", line)
        return "update" if lines else ""

    async def _refuse_foreign(self, objects: Objects, cluster: Object | None) -> None:
        """Raise if the operator is of another release, or the scripts to be mounted are missing."""
        wanted, installed = self._spec.operator_version, await objects.operator_version()
        if installed is None:
            there = ((cluster or {}).get("spec") or {}).get("crVersion") or "unknown"
            self._log.warning("The release of the operator cannot be read; the cluster's was %s", there)
        elif installed.split("-")[0] != wanted.split("-")[0]:
            raise SpecMistake(
                f"the operator that is installed is Soperator {installed}, and operator_version is {wanted}: install "
                "that release first, with its CRDs, or change operator_version"
            )
        scripts = scripts_of(self._spec, self._source.installation)
        is_mounted = scripts and any(one.mounts(scripts) for one in self._wanted)
        if scripts and is_mounted and not await objects.has_config_map(scripts):
            raise SpecMistake(
                f"there is no ConfigMap {scripts} in namespace {objects.namespace}, with the prolog, the epilog and "
                "the health checks, so no node could start: create it from Soperator's chart slurm-cluster, or set "
                "Installation(scripts=None) to do without"
            )

    async def _find_lost(self, objects: Objects, before: Mapping[str, Object], after: Mapping[str, Object]) -> None:
        """Find partitions that go, and nodes that are on, and would not be afterwards, or would start anew."""
        cluster = f"{SLURM_CLUSTER.kind}/{self._spec.name}"
        if cluster not in before:
            return
        had, kept = (partitions_of(one[cluster]["spec"]) for one in (before, after))
        if had - kept:
            self.kept_partitions = kept
            self._lost[cluster] = f"lose the partitions {', '.join(sorted(had - kept))}"
        scripts = scripts_of(self._spec, self._source.installation)
        seen = {one.name: one for one in (await ClusterObjects(objects, self._spec.name).look()).nodesets}
        for label, said in before.items():
            one, spec = seen.get(said["metadata"]["name"]), after[label]["spec"]
            if one is None or not label.startswith(NODE_SET.kind):
                continue
            running = guards.nodes_on(one)
            if how := guards.ended_nodes(one, spec, self._spec.operator_version):
                self._lost[label] = self._refused[label] = how
            elif running and (changed := changed_of_pods(said["spec"], spec)):
                self._lost[label] = f"restart, for another {', '.join(changed)}, {fold(running)}"
                # Other images are another release, which is asked for by its name. Its scripts may have another, too.
                is_release = not _IMAGES.isdisjoint(changed)
                if not is_release or not _IMAGES.issuperset(changed_of_pods(with_scripts(said["spec"], scripts), spec)):
                    self._refused[label] = self._lost[label]

    async def _apply(self) -> None:
        async with self._opened() as objects:
            # The cluster is deleted last, because its node sets need it for their deletion.
            for label, (resource, name) in reversed(objects_of(self._spec).items()) if self._is_destroy else ():
                if label in self._planned.changes:
                    # An earlier try may have deleted it.
                    with suppress(ObjectMissing):
                        await objects.delete(resource, name)
                    self._log.info("%s: deleted", label)
            for one in self._wanted if not self._is_destroy else ():
                if one.label in self._planned.changes:
                    await self._sent(objects, one)
                    self._log.info("%s: applied", one.label)

    async def _sent(self, objects: Objects, one: Manifest, *, dry_run: bool = False) -> Object:
        try:
            return await objects.apply(one.resource, one.body, force=self._source.force, dry_run=dry_run)
        except TransportError as error:
            # Other conflicts are of changes at the same moment.
            if not is_conflict(error) or "Apply failed with" not in error.what:
                raise
            if {*re.findall(r'conflicts? with "([^"]*)"', error.what)} == {MANAGER}:
                # The number that ScaleNodeSetOperator has set: for the API its scale is another manager of our name.
                return await objects.apply(one.resource, one.body, force=True, dry_run=dry_run)
            raise SpecMistake(
                f"{one.label} is managed by others ({error.what}): change it there, or set force=True in "
                "KubernetesObjects to take over these fields; managers that still apply them will revert the change"
            ) from error

    async def _login(self) -> str:
        async with self._opened() as objects:
            labels = f"app.kubernetes.io/instance={self._spec.name},app.kubernetes.io/component=login"
            for service in await objects.list_all(SERVICE, labels):
                for one in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
                    return str(one.get("ip") or one.get("hostname") or "")
        return ""


def changed_of_pods(before: Object, after: Object) -> list[str]:
    """What changes of the Pods of a NodeSet, unless Soperator waits for their jobs to end."""
    if after.get("updateStrategy") == "slurmAwareRollingUpdate":
        return []
    paths = [line.partition(":")[0].split(".") for line in differences(before, after)]
    fields = dict.fromkeys(".".join(path[:2]) for path in paths if path[0] not in _NO_POD_FIELDS)
    return [name for name in fields if name not in _NO_POD_FIELDS]


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Lines about the differences between two objects.

    >>> list(differences({"replicas": 1, "gpu": {"enabled": True}}, {"replicas": 2, "gpu": {"enabled": True}}))
    ['replicas: 1 -> 2']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield f"{path}: {'(not set)' if before is None else before} -> {'(not set)' if after is None else after}"
