"""A cluster as objects for Soperator's operator: their content, and the provisioner, which applies them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.provisioning.fields import SpecMistake, preset_of
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.provisioner import Provisioner, ProvisioningPlan, Reached
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.clusters import CLUSTER_ANNOTATION
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict

if TYPE_CHECKING:
    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation, KubernetesObjects

#: Annotation with the task that has applied the cluster last.
_BEGUN_BY = "airflow-provider-soperator/begun-by"
_ACTIONS = ("delete", "create", "update")
#: vCPUs, and the share of memory, that are left to Kubernetes and to containers beside slurmd.
_KEPT_CPUS, _KEPT_MEMORY = 2, 0.25
_MUNGE: Object = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "5Gi"}
_DAEMON: Object = {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "20Gi"}


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
        cluster, nodesets = objects_of(spec, source.installation)
        self._wanted: list[tuple[Resource, Object]] = [
            (SLURM_CLUSTER, cluster),
            *((NODE_SET, nodeset) for nodeset in nodesets),
        ]
        self._is_destroy = False
        self._planned = ProvisioningPlan("nothing was planned")
        #: The change of size of static node sets that would lose nodes.
        self._shrunk: dict[str, str] = {}
        self._begun_by = ""

    def plan(self, *, destroy: bool = False) -> ProvisioningPlan:
        self._is_destroy, self._shrunk = destroy, {}
        self._planned = asyncio.run(self._plan())
        self._log.info("Plan: %s.", self._planned.summary)
        return self._planned

    def guard(self, allowed: Sequence[str]) -> None:
        refused = {name: how for name, how in self._shrunk.items() if name not in allowed}
        if refused:
            name, how = next(iter(refused.items()))
            raise SpecMistake(
                f"rejected, nothing was changed: {name} would shrink {how}, which kills jobs on the nodes that go; use "
                f"ScaleNodeSetOperator, which drains them first, or set allow_destroy=[{name!r}]"
            )

    def apply(self) -> str:
        asyncio.run(self._apply())
        return self._planned.summary

    def interrupt(self) -> str:
        return "what was applied so far stays"

    def reached(self) -> Reached:
        # A load balancer gets its address after some minutes; without one there will be none.
        login_comes = self._wanted[0][1]["spec"]["slurmNodes"]["login"]["sshdServiceType"] == "LoadBalancer"
        return Reached(login=asyncio.run(self._login()), login_comes=login_comes)

    def is_begun_by(self, owner: str) -> bool:
        return self._begun_by == owner

    def begin(self, owner: str) -> None:
        annotations = self._wanted[0][1]["metadata"].setdefault("annotations", {})
        annotations[_BEGUN_BY] = owner

    async def _plan(self) -> ProvisioningPlan:
        changes: dict[str, str] = {}
        exists = False
        async with self._opened() as objects:
            await objects.check_namespace()
            for resource, body in self._wanted:
                label = _label(resource, body)
                before: Object | None = None
                with suppress(ObjectMissing):
                    before = await objects.read(resource, body["metadata"]["name"])
                if resource is SLURM_CLUSTER and before:
                    exists = True
                    self._begun_by = before["metadata"].get("annotations", {}).get(_BEGUN_BY, "")
                if self._is_destroy:
                    if before is not None:
                        changes[label] = "delete"
                        self._log.info("  - %s", label)
                    continue
                after = await self._sent(objects, resource, body, dry_run=True)
                lines = list(differences(before["spec"], after["spec"])) if before else []
                if before is None or lines:
                    changes[label] = "update" if before else "create"
                    self._log.info("  %s %s", "~" if before else "+", label)
                for line in lines:
                    self._log.info("      %s", line)
                if resource is NODE_SET and before and not after["spec"].get("ephemeralNodes"):
                    had, gets = (int(one["spec"].get("replicas", 1)) for one in (before, after))
                    if gets < had:
                        self._shrunk[label] = f"from {had} to {gets} nodes"
        counted = Counter(changes.values())
        summary = ", ".join(f"{counted[action]} to {action}" for action in _ACTIONS if counted[action])
        return ProvisioningPlan(summary or "nothing to do", changes, exists)

    async def _apply(self) -> None:
        async with self._opened() as objects:
            # The cluster is deleted last, because its node sets need it for their deletion.
            for resource, body in reversed(self._wanted) if self._is_destroy else self._wanted:
                label = _label(resource, body)
                if label not in self._planned.changes:
                    continue
                if self._is_destroy:
                    # An earlier try may have deleted it.
                    with suppress(ObjectMissing):
                        await objects.delete(resource, body["metadata"]["name"])
                else:
                    await self._sent(objects, resource, body)
                self._log.info("%s: %s", label, "deleted" if self._is_destroy else "applied")

    async def _sent(self, objects: Objects, resource: Resource, body: Object, *, dry_run: bool = False) -> Object:
        try:
            return await objects.apply(resource, body, force=self._source.force, dry_run=dry_run)
        except TransportError as error:
            if not is_conflict(error):
                raise
            raise SpecMistake(
                f"{_label(resource, body)} is managed by others ({error.what}): change it there, or set force=True in "
                "KubernetesObjects to take over these fields; managers that still apply them will revert the change"
            ) from error

    async def _login(self) -> str:
        async with self._opened() as objects:
            soperator = ClusterObjects(objects, self._wanted[0][1]["metadata"]["name"])
            for service in await soperator.services("login"):
                for one in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
                    return str(one.get("ip") or one.get("hostname") or "")
        return ""


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


def _label(resource: Resource, body: Object) -> str:
    return f"{resource.kind}/{body['metadata']['name']}"


def objects_of(spec: ClusterSpec, installation: Installation) -> tuple[Object, list[Object]]:
    names = [one.name for one in spec.nodesets]
    known = {"SlurmCluster", "NodeSet", f"SlurmCluster/{spec.name}", *(f"NodeSet/{name}" for name in names)}
    for said in installation.overrides:
        if said not in known:
            raise SpecMistake(f"unknown object {said!r} in overrides: {name_remedy(said, sorted(known))}")
    cluster = _slurm_cluster(spec, installation)
    nodesets = [_nodeset(one, spec, installation) for one in spec.nodesets]
    return _with(cluster, "SlurmCluster", installation), [_with(one, "NodeSet", installation) for one in nodesets]


def _has_cluster_names(version: str) -> bool:
    return int(version.partition(".")[0]) >= 5


def _slurm_of(version: str) -> str:
    """The Slurm that a release of Soperator comes with."""
    if _has_cluster_names(version):
        return "26.05.3-nebius-2"
    return "25.11.2" if version == "3.0.0" else "25.11.3"


def _partitions(spec: ClusterSpec) -> Object:
    if not spec.partitions:
        return {"configType": "default"}
    said = []
    for one in spec.partitions:
        nodesets: Object = {"nodeSetRefs": list(one.nodesets)} if one.nodesets else {"isAll": True}
        said.append({"name": one.name, "config": one.config, **nodesets})
    return {"configType": "structured", "partitions": said}


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{name: _merged(base[name], value) if name in base else value for name, value in over.items()}}


def _with(made: Object, kind: str, installation: Installation) -> Object:
    for said in (kind, f"{kind}/{made['metadata']['name']}"):
        made = _merged(made, installation.overrides.get(said, {}))
    return made


def _slurm_cluster(spec: ClusterSpec, installation: Installation) -> Object:
    def image(name: str, suffix: str = "") -> str:
        return f"{installation.registry}/{name}:{_tag(spec, installation)}{suffix}"

    def container(name: str, wanted: Object) -> Object:
        return {"image": image(name), "imagePullPolicy": "IfNotPresent", "resources": wanted}

    place = {"k8sNodeFilterName": "service"}
    munge = {"munge": container("munge", _MUNGE)}
    jail = {"jail": {"volumeSourceName": "jail"}}
    return {
        "metadata": {"name": spec.name},
        "spec": {
            "crVersion": spec.operator_version,
            "maintenance": spec.maintenance or "none",
            "k8sNodeFilters": [
                {"name": "service", "nodeSelector": {installation.node_label: installation.service_node_set}}
            ],
            "volumeSources": [
                {"name": "jail", "persistentVolumeClaim": {"claimName": installation.jail_claim}},
                {"name": "controller-spool", "persistentVolumeClaim": {"claimName": installation.spool_claim}},
            ],
            "secrets": {},
            "populateJail": {"image": image("populate_jail", f"-cuda{installation.cuda_version}"), **place},
            "partitionConfiguration": _partitions(spec),
            "slurmNodes": {
                "accounting": {"enabled": bool(spec.accounting), **place},
                "controller": {
                    **place,
                    **munge,
                    # Without it, the controller has no right to power nodes up and down.
                    "serviceAccountName": f"{spec.name}-slurm-controller",
                    "slurmctld": container("controller_slurmctld", _DAEMON),
                    "volumes": {"spool": {"volumeSourceName": "controller-spool"}, **jail},
                },
                "login": {
                    **place,
                    **munge,
                    "size": int(spec.login.size or 1) if spec.login else 1,
                    "sshd": container("login_sshd", _DAEMON),
                    "sshRootPublicKeys": list(spec.login_keys),
                    "sshdServiceType": "NodePort" if spec.public_login is False else "LoadBalancer",
                    "volumes": jail,
                },
                "exporter": {"enabled": False, **place},
                "rest": {
                    "enabled": bool(spec.rest),
                    **place,
                    **({"rest": container("slurmrestd", _DAEMON)} if spec.rest else {}),
                },
            },
        },
    }


def _tag(spec: ClusterSpec, installation: Installation) -> str:
    return f"{spec.operator_version}-slurm{installation.slurm_version or _slurm_of(spec.operator_version)}"


def _nodeset(one: NodeSet, spec: ClusterSpec, installation: Installation) -> Object:
    preset, version, tag = preset_of(one.preset), spec.operator_version, _tag(spec, installation)
    assert preset is not None, "the description was checked"
    # slurmd gets most of the machine.
    resources = {
        "cpu": str(preset.cpus - _KEPT_CPUS),
        "memory": f"{int(preset.memory_gb * (1 - _KEPT_MEMORY))}Gi",
        "ephemeral-storage": "50Gi",
        **({"nvidia.com/gpu": str(preset.gpus)} if preset.gpus else {}),
    }
    body: Object = {
        "replicas": one.size,
        "ephemeralNodes": bool(one.ephemeral),
        "gpu": {"enabled": bool(preset.gpus), "nvidia": {"gdrCopyEnabled": bool(preset.gpus)}},
        "nodeConfig": {"features": list(one.features)} if one.features else {},
        "nodeSelector": {installation.node_label: one.name},
        "slurmd": {
            "image": {"repository": f"{installation.registry}/worker_slurmd", "tag": tag},
            "resources": resources,
            "volumes": {
                "spool": {"emptyDir": {"sizeLimit": "50Gi"}},
                "jail": {"persistentVolumeClaim": {"claimName": installation.jail_claim}},
            },
        },
        "munge": {"image": {"repository": f"{installation.registry}/munge", "tag": tag}, "resources": _MUNGE},
    }
    if preset.gpus:
        body["nodeConfig"]["gresConfig"] = ["AutoDetect=nvidia"]
        body["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if one.initial is not None:
        body["initialNumberEphemeralNodes"] = one.initial
    metadata: Object = {"name": one.name}
    if _has_cluster_names(version):
        body["clusterName"] = spec.name
        if one.auto_resume is not None:
            body["nodeConfig"]["autoResume"] = one.auto_resume
    elif one.auto_resume is False:
        raise SpecMistake(f"node set {one.name}: auto_resume needs Soperator 5.0, and this is {version}; omit it")
    else:
        metadata["annotations"] = {CLUSTER_ANNOTATION: spec.name}
    return {"metadata": metadata, "spec": body}
