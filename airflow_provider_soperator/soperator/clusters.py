"""A SlurmCluster as its object describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of, last_changed

AVAILABLE = "Available"
#: Values of ``spec.maintenance`` with which everything runs.
AT_WORK = ("", "none", "skipPopulateJail")
#: The parts of a cluster, in the order in which Soperator looks at them. Once one is not available it leaves the
#: conditions of those that follow as they were.
PARTS = (
    "CommonAvailable",
    "ControllersAvailable",
    "LoginAvailable",
    "AccountingAvailable",
    "SConfigControllerAvailable",
)


@dataclass(frozen=True, kw_only=True)
class ClusterSeen:
    """A SlurmCluster.

    >>> off = {"type": "AccountingAvailable", "status": "False", "message": "Slurm accounting is disabled"}
    >>> said = {"metadata": {"name": "mine"}, "spec": {}, "status": {"phase": "Available", "conditions": [off]}}
    >>> ClusterSeen.read(said).is_available
    True
    """

    name: str
    #: ``Pending``, ``Not available``, ``Available`` or, long ago, ``Reconciling``; empty before Soperator has seen it.
    phase: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: ``spec.maintenance``, if anything is taken down for it.
    maintenance: str = ""
    #: Soperator's own.
    version: str = ""
    has_accounting: bool = False
    has_rest: bool = False
    is_being_deleted: bool = False
    #: When its spec was last changed; None if it is as it was created.
    changed: datetime | None = None

    @classmethod
    def read(cls, said: Object) -> ClusterSeen:
        metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
        nodes, maintenance = spec.get("slurmNodes") or {}, str(spec.get("maintenance") or "")
        return cls(
            name=str(metadata["name"]),
            phase=str(status.get("phase") or ""),
            conditions=conditions_of(said),
            maintenance="" if maintenance in AT_WORK else maintenance,
            version=str(spec.get("crVersion") or ""),
            has_accounting=bool((nodes.get("accounting") or {}).get("enabled")),
            has_rest=bool((nodes.get("rest") or {}).get("enabled")),
            is_being_deleted="deletionTimestamp" in metadata,
            changed=last_changed(said),
        )

    @property
    def missing(self) -> tuple[Condition, ...]:
        """The parts that are not available, of those that the cluster is to have."""
        wanted = [part for part in PARTS if part != "AccountingAvailable" or self.has_accounting]
        known = [self.conditions[part] for part in wanted if part in self.conditions]
        return tuple(one for one in known if not one.is_true)

    @property
    def is_in_maintenance(self) -> bool:
        """Its parts are taken down for a while, or about to be, or not back yet. Its phase may be Available then."""
        return bool(self.maintenance) or any(one.reason == "Maintenance" for one in self.missing)

    @property
    def is_available(self) -> bool:
        return self.phase == AVAILABLE and not self.missing and not self.is_in_maintenance

    @property
    def is_away(self) -> bool:
        """It is not available, has been before, and not on purpose. What has never been there is Unknown, not False."""
        is_set_up = all(part in self.conditions and self.conditions[part].status != "Unknown" for part in PARTS)
        return is_set_up and not self.is_available and not self.is_in_maintenance

    @property
    def away_since(self) -> datetime | None:
        """When the first of the parts went that are not available; None if that cannot be told."""
        return min((one.since for one in self.missing if one.since), default=None)
