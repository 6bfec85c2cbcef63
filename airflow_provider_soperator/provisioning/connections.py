"""Airflow connections to a cluster that was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake


@dataclass(frozen=True, kw_only=True)
class Connections:
    """The ids of Airflow connections to the cluster.

    With ``airflow_conn_id``, a connection of type ``http`` to Airflow's own API server, they are written. Without it
    they have to exist once the cluster is made. Of a new login node only the address is known: give other extra fields
    of the connections, such as ``key_file`` and ``host_key``, in ``ssh_extra`` and ``kubernetes_extra``.
    """

    slurm: str | None = None
    kubernetes: str | None = None
    ssh: str | None = None
    airflow_conn_id: str | None = None
    ssh_login: str = "root"
    ssh_extra: Mapping[str, Any] = field(default_factory=dict)
    kubernetes_extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.airflow_conn_id and not (self.slurm or self.kubernetes or self.ssh):
            raise SpecMistake(
                "airflow_conn_id is for writing connections, but none is given: set slurm, kubernetes or ssh"
            )
        if self.airflow_conn_id and self.slurm and not (self.kubernetes or self.ssh):
            raise SpecMistake(
                f"the connection {self.slurm} to Slurm needs another one as transport: also set ssh or kubernetes"
            )


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
            made.append(
                {
                    "connection_id": wanted.ssh,
                    "conn_type": "ssh",
                    "host": self.login,
                    "login": wanted.ssh_login,
                    "extra": dict(wanted.ssh_extra),
                }
            )
        if wanted.slurm:
            ways = {"ssh_conn_id": wanted.ssh, "kubernetes_conn_id": wanted.kubernetes}
            extra = {**{name: way for name, way in ways.items() if way}, "namespace": namespace}
            made.append({"connection_id": wanted.slurm, "conn_type": "soperator", "extra": extra})
        return made
