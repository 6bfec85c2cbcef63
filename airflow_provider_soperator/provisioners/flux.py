"""A cluster by values for Soperator's Helm charts, which Flux carries out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.kubernetes.config_maps import apply_config_map, read_config_map
from airflow_provider_soperator.provisioners.base import Provisioner
from airflow_provider_soperator.provisioners.objects import differences
from airflow_provider_soperator.provisioning import manifests, values
from airflow_provider_soperator.provisioning.errors import SpecMistake
from airflow_provider_soperator.provisioning.planned import Planned

if TYPE_CHECKING:
    from airflow_provider_soperator.hooks.logger import Logger
    from airflow_provider_soperator.provisioning.sources import FluxValues
    from airflow_provider_soperator.provisioning.spec import ClusterSpec


class FluxProvisioner(Provisioner):
    """Writes the ConfigMaps that Flux reads last, so that what is in them wins over what Terraform has put there."""

    def __init__(self, source: FluxValues, spec: ClusterSpec, log: Logger) -> None:
        self._log = log
        self._values = values.by_config_map(spec, source.installation, source.cluster)
        self._hook = SoperatorClusterHook(source.kubernetes_conn_id, source.namespace)
        self._planned = Planned("nothing was planned")
        #: Node sets that the values have had so far.
        self._gone: list[str] = []

    def plan(self, *, destroy: bool = False) -> Planned:
        if destroy:
            raise SpecMistake("values do not destroy a cluster: use the Recipe that it was made by")
        self._planned = asyncio.run(self._plan())
        self._log.info("Plan: %s.", self._planned.summary)
        return self._planned

    def guard(self, allowed: Sequence[str]) -> None:
        """Helm deletes what its values do not name, and nobody sees here what that is: it has to be allowed."""
        if self._gone and not {f"NodeSet/{name}" for name in self._gone} <= set(allowed):
            raise SpecMistake(
                f"refused before anything was changed: the node sets {', '.join(self._gone)} are in the values and not "
                f"in the description, so Helm would delete them; describe them, or name them in allow_destroy"
            )

    def apply(self) -> str:
        asyncio.run(self._apply())
        return f"{self._planned.summary}; Flux carries it out within its interval of mostly 5 minutes"

    def interrupt(self) -> str:
        return "the values that were written stay, and Flux carries them out"

    async def _plan(self) -> Planned:
        changes: dict[str, str] = {}
        exists = False
        self._gone = []
        async with self._hook.objects() as objects:
            await objects.check_namespace()
            for name, said in self._values.items():
                before = await read_config_map(objects, name)
                exists |= before is not None
                old = _read(name, before)
                # What others have put there beside it stays.
                new = self._values[name] = manifests.merged(old, said)
                lines = list(differences(old, new))
                if before is None or lines:
                    changes[f"ConfigMap/{name}"] = "create" if before is None else "update"
                for line in lines if before else ():
                    self._log.info("      %s: %s", name, line)
                there = {one["name"] for one in new.get("nodesets", ())}
                self._gone += [one["name"] for one in old.get("nodesets", ()) if one["name"] not in there]
        counted = ", ".join(f"{name} to {action}" for name, action in changes.items())
        return Planned(counted or "nothing to do", changes, exists)

    async def _apply(self) -> None:
        async with self._hook.objects() as objects:
            for label in self._planned.changes:
                name = label.partition("/")[2]
                await apply_config_map(objects, name, values.data(self._values[name]))
                self._log.info("%s: applied", label)


def _read(name: str, data: dict[str, str] | None) -> dict[str, Any]:
    """Values that somebody may have written by hand."""
    import yaml

    said = yaml.safe_load((data or {}).get(values.KEY, "")) or {}
    if not isinstance(said, dict):
        raise SpecMistake(f"the ConfigMap {name} has no values in {values.KEY}: correct it first")
    return said
