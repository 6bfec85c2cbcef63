"""Slurm itself over slurmrestd: its settings, daemons and load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Controller, RpcCount, SchedulerStats
from airflow_provider_soperator.slurm.errors import ControllerUnreachable
from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.requests.cluster import (
    Ping,
    SchedulerDiagnostics,
    ShowConfig,
    WhoAmI,
    read_config,
)
from airflow_provider_soperator.slurm.rest.calls import (
    NAME,
    Json,
    RestCall,
    Site,
    Steps,
    asked,
    handles,
    moment,
    number,
    unsupported,
)


@handles
def show_config(request: ShowConfig, site: Site) -> Steps[ClusterConfig]:
    """Get the settings; ``settings`` has slurmrestd's names and notation, which differ a little from ``scontrol``'s."""
    site.require(45, "show the cluster's settings")
    data = yield from asked(RestCall("GET", "slurm/conf"))
    return read_config(
        data["meta"]["slurm"]["release"], {name: _setting(value) for name, value in data["slurm_conf"].items()}
    )


def _setting(value: Any) -> str:
    if isinstance(value, Mapping) and "infinite" in value:
        value = "INFINITE" if value["infinite"] else number(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_setting(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return "" if value is None else str(value)


@handles
def ping(request: Ping, site: Site) -> Steps[tuple[Controller, ...]]:
    data = yield from asked(RestCall("GET", "slurm/ping/"))
    found = tuple(map(_controller, data["pings"]))
    if not any(controller.is_up for controller in found):
        # Other calls also return the reason.
        yield from asked(RestCall("GET", "slurm/diag/"))
        said = ", ".join(f"slurmctld at {controller.host} is down" for controller in found)
        raise ControllerUnreachable(said, NAME)
    return found


def _controller(said: Json) -> Controller:
    is_up = said["responding"] if "responding" in said else said["pinged"] == "UP"
    role = said.get("mode") or ("primary" if said.get("primary") else "backup")
    return Controller(host=said["hostname"], role=role, is_up=is_up)


@handles
def who_am_i(request: WhoAmI, site: Site) -> Steps[str]:
    """Return the user in the token: slurmrestd has no call for it."""
    if not site.user:
        unsupported("tell whose token this is, and the token names no user", "set the user of the connection")
    yield from ()  # no call at all
    return site.user


@handles
def diagnostics(request: SchedulerDiagnostics, site: Site) -> Steps[SchedulerStats]:
    data = yield from asked(RestCall("GET", "slurm/diag/"))
    said = data["statistics"]
    return SchedulerStats(
        at=moment(said["req_time"]),
        jobs_pending=said["jobs_pending"],
        jobs_running=said["jobs_running"],
        rpcs=_rpcs("message_type", said["rpcs_by_message_type"]),
        rpcs_by_user=_rpcs("user", said["rpcs_by_user"]),
    )


def _rpcs(name: str, said: Iterable[Json]) -> tuple[RpcCount, ...]:
    return tuple(RpcCount(one[name], one["count"], timedelta(microseconds=one["total_time"])) for one in said)


@handles
def file_request(request: FileRequest, site: Site) -> Steps[None]:  # type: ignore[type-arg]
    unsupported("reach the cluster's files", "name an SSH or Kubernetes connection beside it for files")
