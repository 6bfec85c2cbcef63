"""The command ``doctor``: looks at all that a connection needs, and names what is wrong with it, and the remedy."""

from __future__ import annotations

import asyncio
import platform
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from airflow_provider_soperator import __version__
from airflow_provider_soperator.cli.cloud_checks import RIGHTS, kubernetes_checks, nebius_checks
from airflow_provider_soperator.cli.slurm_checks import slurm_checks
from airflow_provider_soperator.cli.terminal import command, show
from airflow_provider_soperator.cli.verdicts import Verdict, of_error
from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.hooks.slurm import Settings, SlurmHook
from airflow_provider_soperator.transports.transport_errors import UnknownEndpoint, Unreachable


@command
def doctor(args: Namespace) -> None:
    """Look at all that a connection needs; ends with status 1 if something is wrong."""
    for feature in args.feature or ():
        if feature not in RIGHTS:
            raise ValueError(f"there is no feature {feature}: {name_remedy(feature, RIGHTS)}")
    verdicts = [*airflow_checks(), *asyncio.run(cluster_checks(args))]
    if args.executor:
        from airflow_provider_soperator.cli.executor_checks import executor_checks

        verdicts += asyncio.run(executor_checks(args))
    show(args, map(asdict, verdicts), "\n".join(map(str, verdicts)))
    sys.exit(any(one.state == "wrong" for one in verdicts))


async def cluster_checks(args: Namespace) -> list[Verdict]:
    """The verdicts on the connections, and on what is behind them."""
    hook, found = SlurmHook(args.conn_id), list[Verdict]()
    nebius = asyncio.ensure_future(_nebius(args))
    try:
        settings = await hook.async_settings()
        found.append(Verdict("connection", f"{args.conn_id}: {settings.transport}"))
        kubernetes = asyncio.ensure_future(_kubernetes(settings, args))
        found += await slurm_checks(settings, args)
        found += await kubernetes
    except Exception as error:
        found.append(of_error("connection", error))
    return [*found, *await nebius]


async def _kubernetes(settings: Settings, args: Namespace) -> list[Verdict]:
    if not settings.kubernetes_conn_id:
        return []
    # What Kubernetes knows of a failed job is told wherever there is a connection to it.
    needed = {"pod-events", *(args.feature or ())}
    if "kubernetes" in (settings.transport, settings.files_via):
        needed.add("exec")
    where = settings.kubernetes_conn_id, settings.namespace
    return await kubernetes_checks(*where, settings.cluster or None, needed)


async def _nebius(args: Namespace) -> list[Verdict]:
    conn_id = args.nebius_conn_id or NebiusHook.default_conn_name
    try:
        await NebiusHook(conn_id).async_settings()
    except (UnknownEndpoint, Unreachable) as error:
        # Of a database that cannot be read another verdict tells.
        return [of_error("nebius", error)] if args.nebius_conn_id or args.block else []
    except Exception as error:
        return [of_error("nebius", error)]
    return await nebius_checks(conn_id, args.block)


def airflow_checks() -> Iterator[Verdict]:
    """The verdicts on Airflow itself, from its database."""
    from airflow import __version__ as airflow

    yield Verdict("airflow", f"Airflow {airflow}, Python {platform.python_version()}, this provider {__version__}")
    try:
        from airflow.jobs.job import most_recent_job

        jobs = {name: most_recent_job(name) for name in _PROCESSES}
        alive = {name: bool(job and job.is_alive()) for name, job in jobs.items()}
    except Exception as error:
        said = f"Airflow's database cannot be read ({str(error).splitlines()[0]})"
        yield Verdict("airflow", said, "run this where Airflow's configuration is; `airflow db check`", "note")
        return
    for name, (process, why) in _PROCESSES.items():
        if alive[name]:
            yield Verdict("airflow", f"the {process} is alive")
        else:
            yield Verdict("airflow", f"no {process} is alive", f"start `airflow {process}`: {why}", "wrong")


_PROCESSES = {
    "SchedulerJob": ("scheduler", "no task runs without it"),
    "TriggererJob": ("triggerer", "deferred tasks and the watchers of assets wait for it"),
}
