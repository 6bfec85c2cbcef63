"""Whether a connection works, and in a sentence what is wrong with it if it does not: for Airflow's Test button."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from airflow_provider_soperator.clients.client import SlurmClient
from airflow_provider_soperator.clients.steps import Steps, run
from airflow_provider_soperator.hooks.settings import ConnectionMistake, Settings
from airflow_provider_soperator.hooks.ways import open_async_transport, open_transport
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError
from airflow_provider_soperator.slurm.files import Piece, ReadPieces
from airflow_provider_soperator.slurm.records import ClusterConfig, UserRights
from airflow_provider_soperator.slurm.requests import Ping, SchedulerDiagnostics, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.transports.errors import NotSupported, TransportError
from airflow_provider_soperator.transports.retry import RetryPolicy

#: Seconds that the clocks may differ: tokens and time windows are as wrong as they are.
MOST_SKEW = 30.0
#: Seconds after which somebody who looks at a form wants an answer.
PATIENCE = 30.0


def check(read: Callable[[], Settings]) -> tuple[bool, str]:
    """In time, also if the other side says nothing."""
    found: list[tuple[bool, str]] = []

    def work() -> None:
        found.append(_check(read))

    thread = threading.Thread(target=work, name="soperator-check", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return (
        found[0]
        if found
        else (False, f"no answer within {PATIENCE:g} s: see whether the cluster can be reached at all")
    )


def _check(read: Callable[[], Settings]) -> tuple[bool, str]:
    try:
        settings = read()
        client = SlurmClient(open_transport(settings), RetryPolicy(tries=1))
        try:
            said = run(_questions(settings), client.ask)
        finally:
            client.close()
        if settings.transport in ("ssh", "kubernetes"):
            # Deferred tasks come by another library, with its own view of keys.
            asyncio.run(_check_async(settings))
    except (ConnectionMistake, SlurmError, TransportError) as error:
        return False, str(error)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    return True, said


async def _check_async(settings: Settings) -> None:
    transport = open_async_transport(settings)
    try:
        await transport.ask(Ping())
    except TransportError as error:
        raise type(error)(f"workers can connect, but the triggerer cannot: {error.what}", error.remedy) from error
    finally:
        await transport.close()


def _questions(settings: Settings) -> Steps[str]:
    yield Ping()
    config = yield from _config()
    said = [f"Slurm {config.version}, cluster {config.cluster}" if config else "Slurm answers"]
    yield from _clock()
    user = yield WhoAmI()
    said[0] += f", over {settings.transport} as {user}"
    said.append((yield from _rights(user, config)))
    try:
        yield ReadPieces((Piece("/etc/hostname"),))
    except NotSupported:
        said.append("its files cannot be reached this way: set ssh_conn_id or kubernetes_conn_id, or files_via=local")
    return "; ".join(said)


def _config() -> Steps[ClusterConfig | None]:
    try:
        config: ClusterConfig = yield ShowConfig()
    except NotSupported:
        return None
    return config


def _clock() -> Steps[None]:
    asked = time.time()
    there = (yield SchedulerDiagnostics()).at
    if there is None:
        return
    skew = there.timestamp() - asked
    # slurmctld tells whole seconds, and takes its time.
    if not -MOST_SKEW <= skew <= MOST_SKEW + time.time() - asked:
        raise TransportError(
            f"the cluster's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's",
            "have both keep time (NTP); else tokens are refused, and capacity moves at the wrong time",
        )


def _rights(user: str, config: ClusterConfig | None) -> Steps[str]:
    try:
        rights: UserRights = yield ShowRights(user)
    except AccountingDisabled:
        return "the cluster keeps no accounting, so a job cannot be told of long after its end"
    if rights.may_change_nodes or (config and user == config.slurm_user):
        return "may power, drain and reserve nodes"
    return (
        f"may not power, drain or reserve nodes, for which operators of nodes and capacity need root, SlurmUser or "
        f"`sacctmgr modify user {user} set AdminLevel=Administrator`"
    )
