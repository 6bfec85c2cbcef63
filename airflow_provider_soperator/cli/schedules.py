"""The commands ``schedule``, ``shift`` and ``override``: who has how many GPUs when, and how that is changed."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.board.capacity_dags import CapacityDag
from airflow_provider_soperator.board.looks import attempt
from airflow_provider_soperator.board.schedule_band import conflicts
from airflow_provider_soperator.capacity.allocation import least_gpus, units_text
from airflow_provider_soperator.capacity.calendar import instant, moment_by_clocks
from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts, requested_allocation
from airflow_provider_soperator.capacity.overrides import Override, kept_overrides, written
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.cli.rehearsal import dags_of, in_order, rehearsed, the_dag, user
from airflow_provider_soperator.cli.terminal import agreed, command, show, tell
from airflow_provider_soperator.errors import CapacityMistake, name_remedy
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.requests import Ping

if TYPE_CHECKING:
    from airflow.sdk import DAG

#: Letters of a bar, by target; and letters of a whole block.
_BARS, _WIDTH = "█▒░▚▞", 32
#: Seconds in which a cluster has to answer one who asks by hand.
_SOON = 10.0


def shift_task(dag: DAG) -> Any:
    """The task that shifts capacity, and plans: not one that carries out an approved plan."""
    from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator

    found = (task for task in in_order(dag) if isinstance(task, ShiftCapacityOperator) and task.approved_plan is None)
    return next(found, None)


def _scheduled(dag: DAG) -> CapacityDag | None:
    """The DAG as the page has it, from its file."""
    task = shift_task(dag)
    if task is None or task.schedule is None:
        return None
    schedule, now = task.schedule, datetime.now(timezone.utc)
    try:
        if task.overrides_variable:
            _need_database(task.overrides_variable)
        schedule = schedule.as_kept(task.overrides_variable, now)
    except CapacityMistake:
        raise
    except Exception as error:
        # Files can be looked at without an Airflow.
        tell(f"Overrides of {dag.dag_id} are unknown: {str(error).splitlines()[0]}")
    order = ShiftOrder.to_look("schedule", dag.dag_id, task.block, task.nebius_conn_id, task.targets)
    return CapacityDag(dag_id=dag.dag_id, is_paused=False, schedule=schedule, order=order)


def _need_database(key: str) -> None:
    """Refuse to go on without Airflow's database and its key: to Airflow a Variable that it cannot read is none."""
    from airflow.models.crypto import get_fernet
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    try:
        with create_session() as session:
            row = session.scalar(select(Variable).where(Variable.key == key))
    except Exception as error:
        what = f"Airflow's database cannot be read ({str(error).splitlines()[0]})"
        raise LookupError(f"{what}: run this where Airflow's configuration is") from error
    # Without any key Airflow takes what is encrypted as it stands.
    if row and (row.val is None or (row.is_encrypted and not get_fernet().is_encrypted)):
        raise LookupError(f"the Airflow Variable {key} cannot be decrypted: [core] fernet_key here is not Airflow's")


# schedule


@command
def schedule(args: Namespace) -> None:
    """Draw schedules; ends with status 1 if two DAGs contradict each other that are not paused."""
    from airflow.models import DagModel

    if args.days < 1:
        raise ValueError(f"--days is {args.days}: draw one day or more")
    found = [one for dag in dags_of(args.dags) if (one := _scheduled(dag))]
    if not found:
        raise LookupError("no DAG has a schedule of capacity: capacity_dag makes one")
    # Without a database all that is drawn is taken to be in force.
    with suppress(Exception):
        paused = DagModel.get_paused_dag_ids([one.dag_id for one in found])
        found = [replace(one, is_paused=one.dag_id in paused) for one in found]
    start = moment_by_clocks(found[0].schedule.zone, "at", args.at) or datetime.now(timezone.utc)
    rows, lines = list[dict[str, Any]](), list[str]()
    for one in found:
        block, paused_or_not = one.order.block if one.order else "", ", paused" * one.is_paused
        lines.append(f"{one.dag_id}: block {block}, times of {one.schedule.timezone}{paused_or_not}")
        segments = one.schedule.segments(start, start + timedelta(days=args.days))
        held = [least_gpus(segment.allocation, one.gpus) for segment in segments]
        most = one.schedule.limit or max(sum(gpus.values()) for gpus in held)
        for segment, gpus in zip(segments, held, strict=True):
            since, until = (moment.astimezone(one.schedule.zone) for moment in (segment.since, segment.until))
            said, window = units_text(segment.allocation), segment.name
            rows.append({"dag": one.dag_id, "since": since, "until": until, "window": window, "allocation": said})
            lines.append(f"  {since:%a %d %b %H:%M} {_bar(gpus, most)} {said} ({window})")
    collisions = conflicts(found, {}, start, timedelta(days=args.days))
    lines += collisions
    rows += [{"dag": "", "since": "", "until": "", "window": "conflict", "allocation": said} for said in collisions]
    show(args, rows, "\n".join(lines))
    sys.exit(bool(collisions))


def _bar(gpus: Mapping[str, int], most: int) -> str:
    drawn = "".join(_BARS[n % len(_BARS)] * round(_WIDTH * held / (most or 1)) for n, held in enumerate(gpus.values()))
    return f"{drawn[:_WIDTH]:·<{_WIDTH}}"


# shift


@command
def shift(args: Namespace) -> None:
    """Show the plan of a shift, then start the DAG."""
    dag = the_dag(args.dag)
    if (task := shift_task(dag)) is None:
        raise LookupError(f"DAG {dag.dag_id} shifts no capacity: name a DAG with a ShiftCapacityOperator")
    if task.overrides_variable:
        _need_database(task.overrides_variable)
    sizes = _sizes(args.sizes, [target.name for target in task.targets])
    until = moment_by_clocks(task.schedule and task.schedule.zone, "until", args.until)
    if until and not sizes and task.schedule:
        raise ValueError("--until is for sizes of targets: write training=2 or the like")
    asked = {**sizes, "until": until and until.isoformat(), "because": args.because or None}
    conf = {name: value for name, value in asked.items() if value is not None}
    if silent := asyncio.run(_silent({one.slurm_conn_id for one in task.targets if hasattr(one, "slurm_conn_id")})):
        sys.exit("\n".join(f"The cluster {name} does not answer. {why}" for name, why in silent.items()))
    context = rehearsed(dag, task, conf)
    task = context["task"] = task.prepare_for_execution()
    task.render_template_fields(context)
    task.plan_only = True
    # Who asks by hand is told of an outage at once.
    task.timeouts, task.poll_interval = Timeouts(out_of_reach=timedelta(0)), 1.0
    if sizes:
        task.desired, task.until, task.because = sizes, until, args.because
    plan = task.execute(context)
    show(args, [{"plan": plan["text"], "possible": plan["possible"], "steps": plan["steps"]}], plan["text"])
    if args.plan:
        return
    if unheeded := sorted(conf.keys() - dag.params.keys()):
        raise LookupError(f"the trigger form of {dag.dag_id} has no {', '.join(unheeded)}: start it without")
    from airflow.api.client import get_current_api_client
    from airflow.models import DagModel

    if DagModel.get_paused_dag_ids([dag.dag_id]):
        tell(f"{dag.dag_id} is paused: the run waits for `airflow dags unpause {dag.dag_id}`")
    agreed(args, f"Start a run of {dag.dag_id}?")
    run = get_current_api_client().trigger_dag(dag.dag_id, conf=conf, triggering_user_name=user() or None)
    if not run:
        sys.exit("Not started.")
    tell(f"Started: run {run['dag_run_id']} of {dag.dag_id}")


async def _silent(conn_ids: Collection[str]) -> dict[str, str]:
    """The clusters that do not answer now, and why: a task would wait for them."""
    failures: dict[str, str] = {}

    async def ping(conn_id: str) -> None:
        async with SlurmHook(conn_id).async_client() as client:
            await client.ask_now(Ping())

    await asyncio.gather(*(attempt(name, failures, ping(name), None, _SOON) for name in conn_ids))
    return failures


def _sizes(said: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    sizes = dict(one.partition("=")[::2] for one in said)
    for name, size in sizes.items():
        if name not in targets:
            raise LookupError(f"there is no target {name}: {name_remedy(name, targets)}")
        if not size:
            raise ValueError(f"{name} has no size: write {name}=2, or {name}='16 gpus'")
    return sizes


# override


@command
def override(args: Namespace) -> None:
    """List, add or remove overrides of a DAG's schedule."""
    dag = the_dag(args.dag)
    task = shift_task(dag)
    if task is None or task.schedule is None or not task.overrides_variable:
        raise LookupError(f"DAG {dag.dag_id} keeps no overrides: name one of capacity_dag")
    _need_database(task.overrides_variable)
    if args.remove and args.sizes:
        raise ValueError("--remove takes no sizes: it removes all overrides that hold between --since and --until")
    base: CapacitySchedule = task.schedule
    key, kept, now = task.overrides_variable, kept_overrides(task.overrides_variable), datetime.now(timezone.utc)
    since, until = (moment_by_clocks(base.zone, name, getattr(args, name)) for name in ("since", "until"))
    if not args.sizes and not args.remove:
        show(args, map(_row, kept), None if kept else f"No override of {dag.dag_id} is kept")
        return
    if args.remove:
        new = [one for one in kept if not _is_within(one, base, since, until)]
        gone = [one for one in kept if one not in new]
        said = f"{len(gone)} of {len(kept)} overrides are removed: {'; '.join(map(_told, gone)) or 'none fits'}"
    else:
        sizes = _sizes(args.sizes, [target.name for target in task.targets])
        begin = since or now
        if base.limit is None and len(sizes) < len(task.targets):
            raise CapacityMistake("the schedule has no limit", "give a size for each target")
        # Without a limit any sizes fit.
        units = requested_allocation(sizes, task.targets, base.limit or 1 << 30, begin).units
        made = base.overridden(kept, now).override(units, begin, until, user(), args.because)
        if not written([made], now, base.zone):
            raise ValueError(f"the override of {made.when} is over: give a later --until")
        new, said = [*kept, made], f"Added: {_told(made)}"
    after = base.overridden(new, now)
    first = since or now
    last = max(first, until or first + timedelta(days=7))
    lines = [said]
    for change in after.changes(first, last):
        at = change.at.astimezone(base.zone)
        lines.append(f"  {at:%a %d %b %H:%M}: {units_text(change.after.allocation)} ({change.after.name})")
    show(args, map(_row, new), "\n".join(lines))
    agreed(args, "Keep it so?")
    if kept_overrides(key) != kept:
        raise LookupError("the overrides were changed meanwhile, and stay as they are: repeat this")
    from airflow.models.variable import Variable

    Variable.set(key, json.dumps(written(new, now, base.zone)))
    tell(f"Kept. A run of {dag.dag_id} begins within minutes of each change, while the DAG is switched on.")


def _row(one: Override) -> dict[str, str]:
    return {"when": one.when, "allocation": units_text(one.allocation), "by": one.by, "because": one.because}


def _told(one: Override) -> str:
    return f"{units_text(one.allocation)}, {one.when} ({one.name})"


def _is_within(one: Override, base: CapacitySchedule, since: datetime | None, until: datetime | None) -> bool:
    begin, end = instant(one.dates.start, base.zone), instant(one.dates.end, base.zone)
    return (until is None or begin < until) and (since is None or end > since)
