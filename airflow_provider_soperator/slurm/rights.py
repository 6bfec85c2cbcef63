"""Why Slurm has not taken a job's account, QOS or partition, and which it would: it says only that one is invalid."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from airflow_provider_soperator.slurm import waits
from airflow_provider_soperator.slurm.accounts import UserRights
from airflow_provider_soperator.slurm.errors import SlurmError, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.records import Partition

#: Options whose refusal the user's associations explain, and one that needs the names of partitions.
OF_ACCOUNTING = ("--account", "--qos")
OF_PARTITIONS = "--partition"


def option_of(error: SlurmError | None) -> str:
    """The option that was refused, if more can be said about it than Slurm does."""
    option = error.option if isinstance(error, SubmitRefused) else ""
    return option if option in (*OF_ACCOUNTING, OF_PARTITIONS) else ""


def explained(
    refusal: SlurmError, job: BatchJob, rights: UserRights | None, partitions: Iterable[Partition]
) -> SlurmError:
    """The same refusal, with what may be used in its place; as it was if that does not follow from what is known."""
    option, asked = option_of(refusal), waits.asked_for(job)
    wanted = [asked.partition] if isinstance(asked.partition, str) else list(asked.partition or ())
    if option == OF_PARTITIONS:
        why = _partition(wanted, tuple(partitions))
    elif rights is None:
        return refusal
    elif not rights.is_known:
        why = f"accounting knows no user {rights.user} (`sacctmgr add user {rights.user} account=NAME`)"
    elif option == "--account":
        why = _account(asked.account or "", wanted, rights)
    else:
        why = _qos(asked.qos or "", asked.account or "", rights)
    return SubmitRefused(refusal.said, refusal.command, why, option) if why else refusal


def near(what: str, said: str, names: Iterable[str]) -> str:
    """What was said, and what may have been meant.

    >>> near("account", "visoin", ["vision", "shared"])
    "account 'visoin': did you mean 'vision'?"
    >>> near("account", "x", ["vision", "shared"])
    "account 'x':"
    """
    found = difflib.get_close_matches(said, list(names), n=1)
    return f"{what} {said!r}:" + (f" did you mean {found[0]!r}?" if found else "")


def _partition(wanted: Iterable[str], partitions: Sequence[Partition]) -> str:
    names = {one.name for one in partitions}
    unknown = [one for said in wanted for one in said.split(",") if one not in names]
    if not unknown or not names:
        return ""
    # Those that are hidden are not for everybody.
    shown = [one.name for one in partitions if not one.is_hidden]
    return f"{near('partition', unknown[0], shown)} there are {', '.join(shown)}"


def _account(said: str, partitions: Sequence[str], rights: UserRights) -> str:
    may = f"user {rights.user} may use {_accounts(rights)}"
    if not said:
        return f"no account is named, and the user has none by default: {may}"
    only = [one.partition for one in rights.associations if one.account == said]
    if not only:
        return f"{near('account', said, rights.accounts)} {may}"
    if "" in only or not {*only}.isdisjoint(partitions):
        return ""
    return f"user {rights.user} may use account {said} in partition {', '.join(only)} only"


def _accounts(rights: UserRights) -> str:
    default = [name for name in rights.accounts if name == rights.default_account]
    others = [name for name in rights.accounts if name not in default]
    return ", ".join([*(f"{name} (default)" for name in default), *others]) or "none"


def _qos(said: str, account: str, rights: UserRights) -> str:
    if not said:
        return ""
    account = account or rights.default_account
    by_account = {name: [one for one in rights.associations if one.account == name] for name in rights.accounts}
    allowed = {name: dict.fromkeys(qos for one in held for qos in one.qos) for name, held in by_account.items()}
    with_it = allowed.get(account, {})
    if said in with_it:
        return ""
    may = f"user {rights.user} may use {', '.join(with_it) or 'none'} with account {account}"
    others = [name for name, qos in allowed.items() if said in qos]
    if others:
        return f"qos {said} goes with account {', '.join(others)}: {may}"
    return f"{near('qos', said, with_it)} {may}"
