"""Base of all provisioners: the plan before any change, and the addresses of the cluster after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake
from airflow_provider_soperator.provisioning.spec import Connections
from airflow_provider_soperator.terraform.plan import DEPOSED

#: Actions that may be left of an approved action that was interrupted: an unfinished resource is replaced, and a
#: replacement may already have deleted the old one.
_LEFT = {"create": ("create", "replace"), "replace": ("replace", "create")}
#: Before the name of an output, which holds nothing.
OUTPUT = "output "


@dataclass(frozen=True)
class ProvisioningPlan:
    """Changes that a provisioner would make."""

    summary: str
    #: The action on each resource or object that changes.
    changes: Mapping[str, str] = field(default_factory=dict)
    #: The cluster, or a part of it, exists already.
    exists: bool = False
    #: Digest of the description and of the recipe, which give the changes their values; empty if there are none.
    digest: str = ""

    def write(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value != ""}

    def check_agreed(self, agreed: Any) -> None:
        """Raise ``SpecMistake`` if the plan has changes that were not approved, or may have other values.

        It may have fewer changes: an earlier try may have made some.

        >>> ProvisioningPlan("1 to create", {"a": "create"}).check_agreed({"changes": {"a": "create", "b": "create"}})
        """
        if not isinstance(agreed, Mapping) or "changes" not in agreed:
            raise SpecMistake(f"approved_plan must be the result of a task with plan_only=True, got {agreed!r}")
        known: Mapping[str, str] = agreed["changes"]
        news = [
            f"{address} ({action})" for address, action in self.changes.items() if not _is_left(address, action, known)
        ]
        if news:
            raise SpecMistake(
                f"the plan has changed since it was approved: {', '.join(news)}; plan again, and have that approved"
            )
        if self.changes and self.digest != agreed.get("digest", ""):
            raise SpecMistake(
                "the description of the cluster, or its recipe, has changed since the plan was approved, so the same "
                "changes may have other values; plan again, and have that approved"
            )


def _is_left(address: str, action: str, agreed: Mapping[str, str]) -> bool:
    """True for an approved change, and for what an interrupted one has left: its old object, and outputs."""
    said = agreed.get(address, "")
    if action in _LEFT.get(said, (said,)) or address.startswith(OUTPUT):
        return True
    return agreed.get(address.rpartition(DEPOSED)[0]) == "replace"


@dataclass(frozen=True)
class Reached:
    """Addresses and credentials of a cluster that was made, as far as they are known."""

    login: str = ""
    kubeconfig: str = ""
    context: str = ""
    #: If the login nodes have no address yet, they will get one.
    login_comes: bool = False

    def connections(self, wanted: Connections, namespace: str) -> list[dict[str, Any]]:
        """Connections for Airflow's API; ``SpecMistake`` if one cannot be written, ``NotKnownYet`` if not yet."""
        made: list[dict[str, Any]] = []
        if wanted.kubernetes:
            known = {"kube_config": self.kubeconfig} if self.kubeconfig else {"cluster_context": self.context}
            if wanted.kubernetes_extra.keys() & {"kube_config", "kube_config_path", "in_cluster"}:
                # The context is one of the recipe's kubeconfig, and may have another name in this one.
                known = {}
            if not any(known.values()) and not wanted.kubernetes_extra:
                raise SpecMistake(
                    f"the Kubernetes API for {wanted.kubernetes} is not known: set kubernetes_extra, or give the "
                    "recipe an output kubeconfig"
                )
            extra = {**known, "namespace": namespace, **wanted.kubernetes_extra}
            made.append({"connection_id": wanted.kubernetes, "conn_type": "kubernetes", "extra": extra})
        if wanted.ssh:
            if not self.login and self.login_comes:
                raise NotKnownYet(
                    f"the login nodes have no address yet, so {wanted.ssh} cannot be written: a retry keeps what was "
                    "made, and writes it once they have one"
                )
            if not self.login:
                raise SpecMistake(
                    f"the address of the login nodes is not known, so {wanted.ssh} cannot be written: give the recipe "
                    "an output login_address, or write the connection yourself"
                )
            address = {"host": self.login, "login": wanted.ssh_login}
            made.append({"connection_id": wanted.ssh, "conn_type": "ssh", **address, "extra": dict(wanted.ssh_extra)})
        if wanted.slurm:
            # Also one that is not wanted, in place of what the connection may have.
            ways = {"ssh_conn_id": wanted.ssh, "kubernetes_conn_id": wanted.kubernetes}
            extra = {**ways, "namespace": namespace, **wanted.slurm_extra}
            made.append({"connection_id": wanted.slurm, "conn_type": "soperator", "extra": extra})
        return made


class Provisioner(ABC):
    """Makes one cluster. Nothing changes before ``apply``."""

    #: The partitions of the cluster after an apply that may take others from it; None if it takes none.
    kept_partitions: Set[str] | None = None
    #: The mode of maintenance that keeps the cluster down after the apply, said by the spec or not; or empty.
    maintenance = ""

    @abstractmethod
    def plan(self, *, destroy: bool = False, keep_data: bool = True) -> ProvisioningPlan:
        """Determine the required changes, and log them. A destruction may keep what holds data."""

    @abstractmethod
    def guard(self, allowed: Sequence[str]) -> None:
        """Raise if the plan destroys anything that is not ``allowed``."""

    @abstractmethod
    def is_begun_by(self, owner: str) -> bool:
        """True if the plan is what is left of what an earlier try of a task has begun."""

    @abstractmethod
    def apply(self, owner: str) -> str:
        """Carry out the plan for a task, whose next try finds that it has begun; returns a summary."""

    @abstractmethod
    def interrupt(self) -> str:
        """Stop in good order because the task is killed, and describe the state. For signal handlers."""

    @abstractmethod
    def reached(self) -> Reached:
        """Addresses of the cluster, as far as known."""

    def close(self) -> None:
        """Delete the plan, if it is in a file."""
        return None
