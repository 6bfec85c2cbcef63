"""The command ``advise``: schedules for a DAG, from a month of jobs and requests, and what each would have changed."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.board.capacity_dags import watched
from airflow_provider_soperator.capacity import advice, month
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import MetricLoad, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.replay import SharedBlock
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.cli.rehearsal import the_dag
from airflow_provider_soperator.cli.schedules import shift_task
from airflow_provider_soperator.cli.terminal import command, show, tell, told
from airflow_provider_soperator.errors import CapacityMistake, ClusterError, ConnectionMistake
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.hostlist import expand
from airflow_provider_soperator.slurm.job_records import AccountingJob
from airflow_provider_soperator.slurm.requests.accounting import ListUsage

if TYPE_CHECKING:
    from airflow.sdk import DAG

_MINUTE, _DAY, _WEEK = timedelta(minutes=1), timedelta(days=1), timedelta(weeks=1)
#: Minutes of a transfer, if neither the DAG nor the call says how long it takes.
_TRANSFER = 10


@command
def advise(args: Namespace) -> None:
    """Propose schedules, with what each would have changed."""
    dag = the_dag(args.dag)
    task = shift_task(dag)
    if task is None or task.schedule is None:
        raise LookupError(f"DAG {dag.dag_id} has no schedule of capacity: name one of capacity_dag")
    if args.days < advice.LEAST_DAYS:
        raise ValueError(f"advice needs {advice.LEAST_DAYS} days, got {args.days}: give more --days")
    demand = _demand(dag)
    nodes, block = _block(dag.dag_id, task, demand, args)
    start, needs = _needs(block.service, args)
    if args.jobs:
        jobs = month.printed_jobs(Path(args.jobs).read_text(), args.jobs)
    else:
        with _or_file("jobs", nodes.slurm_conn_id):
            jobs = _jobs(nodes, start, start + len(needs) * _MINUTE)
    # In other modes jobs end by themselves.
    share = 0.5 * (task.mode == "force") if args.requeued is None else args.requeued
    gpus = (block.nodes - block.least) * block.gpus
    replayed = month.month_of(jobs, start, needs, task.schedule.zone, gpus=gpus, may_requeue=share)
    tell(f"Replaying {replayed} …")
    now = advice.Proposal("as it is", task.schedule, None if demand.observe else block.demand)
    judged = advice.advise(replayed, block, now)
    codes = [advice.code(one.proposal, block.transfer) for one in judged]
    is_best = judged[0].proposal is now
    lines = [
        f"{block.nodes} nodes with {block.gpus} GPUs; a machine needs {block.transfer} min from one side to the other; "
        f"{share:.0%} of the jobs may be requeued",
        "",
        *_table(judged, now),
        "",
        "First three quarters of the time, of which proposals are made, then the last one, of which they know nothing.",
        f"Chosen by the first: {advice.RULE}.",
        "None does better than the schedule as it is." if is_best else f"\n{codes[0]}",
    ]
    figures = [{"made_of": asdict(one.made_of), "after": asdict(one.after)} for one in judged]
    rows = zip(judged, figures, codes, strict=True)
    show(args, [{"proposal": one.proposal.name, **its, "code": text} for one, its, text in rows], "\n".join(lines))


def _demand(dag: DAG) -> Demand:
    """The demand of a DAG, which its watcher has."""
    timetable: Any = dag.timetable
    said = watched(timetable.serialize()).get("demand") if hasattr(timetable, "asset_condition") else None
    if not said:
        what = f"DAG {dag.dag_id} has no demand, so that it is unknown what its service needs"
        raise LookupError(f"{what}: give it demand=Demand([ServiceLoad(…)], observe=True), which moves nothing")
    return Demand.read(json.loads(said))


def _block(dag_id: str, task: Any, demand: Demand, args: Namespace) -> tuple[SlurmNodesTarget, SharedBlock]:
    """The nodes of Slurm, and the block as the DAG and the call describe it."""
    slurm = [one for one in task.targets if isinstance(one, SlurmNodesTarget)]
    services = [one for one in task.targets if one not in slurm]
    if len(slurm) != 1 or len(services) != 1:
        names = ", ".join(one.name for one in task.targets)
        what = f"advice is for Slurm's nodes and one service, but the targets of {dag_id} are {names}"
        raise CapacityMistake(what, "name a DAG with a SlurmNodesTarget and one other target")
    nodes, served = slurm[0], services[0].name
    gpus, its = (task.schedule.gpus_per_unit.get(one.name, one.gpus_per_unit) for one in task.targets)
    if gpus != its:
        raise CapacityMistake(f"advice is for units of as many GPUs, but those of {dag_id} have {gpus} and {its}")
    count = args.nodes or (task.schedule.limit or gpus * nodes.size) // gpus
    if count < 2:
        raise ValueError(f"a block of {count} nodes cannot be divided: give --nodes of 2 or more")
    transfer = args.transfer or task.transfer // _MINUTE or _TRANSFER
    of_requests = [one for one in demand.loads if isinstance(one, ServiceLoad) or getattr(one, "per_unit", None)]
    service = next((one for one in of_requests if one.target == served), None)
    if service is None:
        what = f"no load of {served} says what is of use however many units there are"
        raise CapacityMistake(what, "give a ServiceLoad, or a MetricLoad with per_unit")
    queue = next((one for one in demand.loads if isinstance(one, QueueLoad) and one.target == nodes.name), None)
    if others := [one for one in demand.loads if one not in (service, queue)]:
        tell(f"Not replayed, and in no proposal: {', '.join(map(repr, others))}")
    if isinstance(service, ServiceLoad) and args.seconds:
        service = replace(service, service_time=args.seconds)
    if isinstance(service, ServiceLoad) and isinstance(service.service_time, str):
        raise ValueError("service_time is a query, and a replay has a number: give --seconds")
    queue = queue or QueueLoad(target=nodes.name, min_work=4 * transfer * _MINUTE, slurm_conn_id=nodes.slurm_conn_id)
    loads = [service, queue] if demand.targets[0] == served else [queue, service]
    demand = replace(demand, loads=loads, observe=False)
    return nodes, SharedBlock(count, gpus, transfer, demand, task.grace // _MINUTE, max(0, count - nodes.size))


def _needs(load: ServiceLoad | MetricLoad, args: Namespace) -> tuple[datetime, list[int]]:
    """The first minute, and the units of the service in each, from its Prometheus or from files."""
    query = load.arrivals if isinstance(load, ServiceLoad) else load.query
    place, samples = ", ".join(args.requests or [query]), dict[int, float]()
    for file in args.requests or ():
        samples |= month.printed_samples(Path(file).read_text(), file)
    if not args.requests:
        with _or_file("requests", load.prometheus_conn_id):
            samples = asyncio.run(_asked(load.prometheus_conn_id, query, args.days))
    start, values = month.held(samples, place)
    if (days := len(values) / month.DAY) < advice.LEAST_DAYS:
        what = f"advice needs {advice.LEAST_DAYS} days of requests, and {place} has {days:.1f}"
        raise CapacityMistake(what, "give --requests of a longer time, which may be of several files")
    return start, month.needs_of(load, values)


async def _asked(conn_id: str, query: str, days: int) -> dict[int, float]:
    """The samples of each minute until now; a week at a time, as there may be 11,000 in an answer."""
    until = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    since, found, hook = until - days * _DAY, dict[int, float](), PrometheusHook(conn_id)
    while since < until:
        end = min(since + _WEEK, until)
        found |= month.samples_of(await hook.query_range(query, since, end, _MINUTE), query)
        since = end
    return found


def _jobs(nodes: SlurmNodesTarget, since: datetime, until: datetime) -> list[AccountingJob]:
    """The jobs on these nodes, and those that never started; a day at a time."""
    runs, names = list[AccountingJob](), {*expand(nodes.nodes)}
    with SlurmHook(nodes.slurm_conn_id).client() as slurm:
        while since < until:
            end = min(since + _DAY, until)
            found = slurm.ask(ListUsage(everyone=True, since=since, until=end, steps=False))
            runs += (run for run in found if not run.nodelist or not names.isdisjoint(expand(run.nodelist)))
            since = end
    return month.whole_jobs(runs)


@contextmanager
def _or_file(what: str, conn_id: str) -> Iterator[None]:
    """Says what is asked for; an error names the option for a file."""
    tell(f"Asking {conn_id} for {what} …")
    try:
        yield
    except (ClusterError, ConnectionMistake) as error:
        raise LookupError(f"{told(error)} Or give them as a file, with --{what}") from error


def _table(judged: Sequence[advice.JudgedProposal], now: advice.Proposal) -> list[str]:
    """A line for each proposal, with what it comes to in both parts of the time."""
    [held] = [one.after for one in judged if one.proposal is now]
    rows = [("", "GPUs in use", "jobs wait", "below target", "moves a day", "requeued", f"against {now.name}")]
    for one in judged:
        # In that time there may be neither jobs nor requests.
        usage = max(one.after.usage, 1e-4) / max(held.usage, 1e-4) - 1
        wait = max(one.after.wait, 0.1) / max(held.wait, 0.1)

        def both(said: str, one: advice.JudgedProposal = one) -> str:
            return " / ".join(said.format(its) for its in (one.made_of, one.after))

        said = both("{0.usage:.1%}"), both("{0.wait:.0f}") + " min", both("{0.below:.2%}"), both("{0.moves:.0f}")
        rows.append((one.proposal.name, *said, both("{0.requeued}"), f"usage {usage:+.0%}, wait ×{wait:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
