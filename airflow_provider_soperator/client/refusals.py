"""Refused submissions: what may be used instead, from the user's associations, the partitions and what nodes have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from airflow_provider_soperator.errors import ClusterError, name_remedy
from airflow_provider_soperator.slurm import hostlist, job_description, sbatch_arguments
from airflow_provider_soperator.slurm.cluster_records import Node, Partition, UserRights
from airflow_provider_soperator.slurm.errors import QueueFull, SlurmError, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.option_values import as_words
from airflow_provider_soperator.slurm.requests import ListNodes, ListPartitions, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.requests.submission import Submitted


def explained_answers(jobs: Sequence[BatchJob], answers: tuple[Submitted, ...]) -> Steps[tuple[Submitted, ...]]:
    """The answers, with errors about accounts, QOS, partitions and nodes that name what may be used instead."""
    answers = yield from _without_too_large(jobs, answers)
    refused = {answer.error.option for answer in answers if answer.error} - {""}
    if not refused:
        return answers
    rights: UserRights | None = None
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[Node, ...] = ()
    try:
        if refused & {*OF_ACCOUNTING}:
            rights = yield ShowRights((yield WhoAmI()))
        if OF_PARTITIONS in refused:
            partitions = yield ListPartitions()
        if refused & {*OF_NODES}:
            nodes = yield ListNodes()
    except ClusterError:
        # Slurm's own message is raised in any case.
        pass
    return tuple(
        replace(answer, error=explained_refusal(answer.error, job, rights, partitions, nodes))
        if answer.error and answer.error.option
        else answer
        for job, answer in zip(jobs, answers, strict=True)
    )


def _without_too_large(jobs: Sequence[BatchJob], answers: tuple[Submitted, ...]) -> Steps[tuple[Submitted, ...]]:
    """The answers, in which an array of more jobs than fit into an empty queue does not wait until that has room."""
    is_full = (isinstance(answer.error, QueueFull) for answer in answers)
    counts = [
        len(sbatch_arguments.indices_asked_for(job)) if full else 0 for job, full in zip(jobs, is_full, strict=True)
    ]
    if not any(counts):
        return answers
    try:
        most = int((yield ShowConfig()).settings["MaxJobCount"])
    except (ClusterError, KeyError):
        # It waits, which is right for any that fits.
        return answers
    return tuple(
        Submitted(None, error=SubmitRefused(f"the array has {count} elements, and the cluster's MaxJobCount is {most}"))
        if count > most
        else answer
        for count, answer in zip(counts, answers, strict=True)
    )


#: Options that are explained by the user's associations, by the names of partitions, and by what nodes have.
OF_ACCOUNTING = ("--account", "--qos")
OF_PARTITIONS = "--partition"
OF_NODES = ("--nodes", "--gres")


def explained_refusal(
    refusal: SlurmError,
    job: BatchJob,
    rights: UserRights | None = None,
    partitions: Iterable[Partition] = (),
    nodes: Iterable[Node] = (),
) -> SlurmError:
    """The error with what may be used instead, or the parameter if it is not called as the option."""
    option, asked = refusal.option, sbatch_arguments.asked_for(job)
    wanted = [name for said in as_words(asked.partition or ()) for name in said.split(",")]
    why = ""
    if option == OF_PARTITIONS:
        why = _about_partition(wanted, tuple(partitions))
    elif option in OF_NODES:
        why = _about_nodes(set(wanted), nodes)
    elif rights and not rights.is_known:
        why = f"user {rights.user} is not in accounting (`sacctmgr add user {rights.user} account=NAME`)"
    elif rights and option == "--account":
        why = _about_account(asked.account or "", wanted, rights)
    elif rights and option == "--qos":
        why = _about_qos(asked.qos or "", asked.account or "", rights)
    long = option.removeprefix("--")
    if (typed := job_description.BY_LONG.get(long)) and typed.field != long.replace("-", "_"):
        why = f"see the parameter {typed.field}"
    return SubmitRefused(refusal.said, refusal.command, why, option) if why else refusal


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"{what} {name!r}: {name_remedy(name, known, '')}".rstrip()


def _about_partition(wanted: Iterable[str], partitions: Sequence[Partition]) -> str:
    names = {one.name for one in partitions}
    unknown = [name for name in wanted if name not in names]
    if not unknown or not names:
        return ""
    # Hidden partitions are not for every user.
    shown = [one.name for one in partitions if not one.is_hidden]
    return f"{_unknown('partition', unknown[0], shown)} the partitions are {', '.join(shown)}"


def _about_nodes(wanted: set[str], nodes: Iterable[Node]) -> str:
    found = [node for node in nodes if not wanted or not wanted.isdisjoint(node.partitions)]
    if not found:
        return ""
    where = f"partition {', '.join(sorted(wanted))}" if wanted else "the cluster"
    gpus = max(node.gpus for node in found)
    best = [node for node in found if node.gpus == gpus]
    kinds = ", ".join(sorted({node.gres for node in best}))
    has = f"{gpus} GPUs ({hostlist.fold(node.name for node in best)}: {kinds})" if gpus else "no GPUs"
    most = f"{max(node.cpus for node in found)} CPUs and {max(node.memory for node in found)} MiB"
    return f"{where} has {len(found)} nodes, and at most {has}, {most} on one"


def _about_account(said: str, partitions: Sequence[str], rights: UserRights) -> str:
    may = f"user {rights.user} may use {_accounts(rights)}"
    if not said:
        return f"no account is given, and the user has no default account: {may}"
    only = [one.partition for one in rights.associations if one.account == said]
    if not only:
        return f"{_unknown('account', said, rights.accounts)} {may}"
    if "" in only or not {*only}.isdisjoint(partitions):
        return ""
    return f"user {rights.user} may use account {said} in partition {', '.join(only)} only"


def _accounts(rights: UserRights) -> str:
    default = [name for name in rights.accounts if name == rights.default_account]
    others = [name for name in rights.accounts if name not in default]
    return ", ".join([*(f"{name} (default)" for name in default), *others]) or "none"


def _about_qos(said: str, account: str, rights: UserRights) -> str:
    if not said:
        return ""
    account = account or rights.default_account
    allowed: dict[str, dict[str, None]] = {}
    for one in rights.associations:
        allowed.setdefault(one.account, {}).update(dict.fromkeys(one.qos))
    with_it = allowed.get(account, {})
    if said in with_it:
        return ""
    may = f"user {rights.user} may use {', '.join(with_it) or 'none'} with account {account}"
    others = [name for name, qos in allowed.items() if said in qos]
    if others:
        return f"qos {said} needs account {', '.join(others)}: {may}"
    return f"{_unknown('qos', said, with_it)} {may}"
