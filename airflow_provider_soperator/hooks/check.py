"""The check behind Airflow's Test button: a sentence that says that a connection works, or what is wrong with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import RetryPolicy
from airflow_provider_soperator.errors import CapacityError, ConnectionMistake
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, UserRights
from airflow_provider_soperator.slurm.errors import AccountingDisabled, ControllerUnreachable, SlurmError
from airflow_provider_soperator.slurm.files import Piece, ReadPieces
from airflow_provider_soperator.slurm.requests import Ping, ReadClock, Request, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps_async
from airflow_provider_soperator.transports import Transport
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError

#: Seconds that the clocks may differ: tokens and time windows are as wrong as they are.
MOST_SKEW = 30.0
#: Seconds within which the form of a connection needs an answer.
PATIENCE = 30.0
NO_FILES = "Scripts and output of jobs cannot be reached this way: set ssh_conn_id, kubernetes_conn_id or files_via"


def check(opening: Callable[[], tuple[Transport, str]]) -> tuple[bool, str]:
    """Check within the time limit, also if the other side does not answer.

    ``opening`` reads the connection, opens its transport, and names that.
    """
    found: list[tuple[bool, str]] = []

    def look() -> None:
        try:
            found.append((True, f"{'. '.join(asyncio.run(_said(*opening())))}."))
        except Exception as error:
            found.append((False, in_words(error)))

    thread = threading.Thread(target=look, name="soperator-check", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if found:
        return found[0]
    return False, sentences(f"no answer within {PATIENCE:g} s", ControllerUnreachable.remedy)


async def _said(transport: Transport, name: str) -> list[str]:
    client = AsyncSlurmClient(transport, RetryPolicy(tries=1))
    try:
        return await run_steps_async(_questions(name), client.ask)
    finally:
        await client.close()


def in_words(error: Exception) -> str:
    """The error and its remedy, as sentences."""
    return sentences(*cause_and_remedy(error))


def cause_and_remedy(error: Exception) -> tuple[str, str]:
    if isinstance(error, SlurmError):
        return f"{error.command}: {error.said}".removeprefix(": "), error.remedy
    if isinstance(error, TransportError):
        return error.what, error.remedy
    is_known = isinstance(error, (ConnectionMistake, CapacityError))
    return str(error) if is_known else f"{type(error).__name__}: {error}", ""


def sentences(*said: str) -> str:
    return " ".join(f"{_begin(one)}{'' if one[-1] in '.?!' else '.'}" for one in said if one)


def _begin(text: str) -> str:
    word = text.split(maxsplit=1)[0]
    # Names of fields and programs are written as they are.
    return text if not word.isalpha() or word.startswith("slurm") else text[0].upper() + text[1:]


def _questions(transport: str) -> Steps[list[str]]:
    yield Ping()
    config: ClusterConfig | None = yield from if_supported(ShowConfig())
    slurm = f"Slurm {config.version}, cluster {config.cluster}" if config else "Slurm answers"
    yield from clock()
    user: str = yield WhoAmI()
    said = [f"{slurm}, over {transport} as {user}"]
    said.append((yield from rights_of(user, config)))
    try:
        yield ReadPieces((Piece("/etc/hostname"),))
    except NotSupported:
        said.append(NO_FILES)
    return said


def if_supported(request: Request[Any]) -> Steps[Any]:
    """The answer; None where the transport cannot ask that."""
    try:
        return (yield request)
    except NotSupported:
        return None


def clock() -> Steps[None]:
    """Raise if the cluster's clock and this machine's differ."""
    asked = time.time()
    told = yield from if_supported(ReadClock())
    if told is None:
        return
    skew = told.timestamp() - asked
    # slurmctld answers in whole seconds, and with a delay.
    if not -MOST_SKEW <= skew <= MOST_SKEW + time.time() - asked:
        raise TransportError(
            f"the cluster's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's",
            "have both keep time (NTP): else tokens are refused, and capacity moves at the wrong time",
        )


def rights_of(user: str, config: ClusterConfig | None) -> Steps[str]:
    """What the user may do to nodes, as a sentence."""
    try:
        rights: UserRights = yield ShowRights(user)
    except AccountingDisabled:
        return "The cluster keeps no accounting, so a job cannot be told of long after its end"
    if rights.may_change_nodes or (config and user == config.slurm_user):
        return "The user may power, drain and reserve nodes"
    is_operator = rights.admin_level == "Operator"
    may = "reserve nodes, but not power or drain them" if is_operator else "not power, drain or reserve nodes"
    return (
        f"The user may {may}, for which operators of nodes and capacity need root, SlurmUser or "
        f"`sacctmgr modify user {user} set AdminLevel=Administrator`"
    )
