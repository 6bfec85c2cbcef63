"""The commands ``schedule``, ``shift`` and ``override``: who has how many GPUs when, and how that is changed."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import combinations
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, units_text
from airflow_provider_soperator.capacity.calendar import instant
from airflow_provider_soperator.capacity.order import Timeouts, place_of, requested_allocation
from airflow_provider_soperator.capacity.overrides import Override, kept_overrides, written
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.cli.rehearsal import dags_of, in_order, rehearsed, the_dag, user
from airflow_provider_soperator.cli.terminal import agreed, command, show, tell
from airflow_provider_soperator.errors import CapacityMistake, name_remedy
from airflow_provider_soperator.values import moment_of

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator

#: Letters of a bar, by target; and letters of a whole block.
_BARS, _WIDTH = "█▒░▚▞", 32


@dataclass(frozen=True)
class ScheduledBlock:
    """The schedule of a DAG, with the overrides that are kept for it."""

    dag: DAG
    task: ShiftCapacityOperator
    schedule: CapacitySchedule

    @property
    def places(self) -> dict[str, str]:
        """What each target holds GPUs with, by that."""
        return {place_of(target): target.name for target in self.task.targets}

    def gpus(self, allocation: Mapping[str, Units]) -> dict[str, int]:
        return {one.name: bounds_of(allocation[one.name])[0] * one.gpus_per_unit for one in self.task.targets}


def _shifts(dag: DAG) -> Iterator[Any]:
    """The tasks of a DAG that shift capacity, without those that carry out an approved plan."""
    from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator

    for task in in_order(dag):
        if isinstance(task, ShiftCapacityOperator) and task.approved_plan is None:
            yield task


def _scheduled(dag: DAG) -> ScheduledBlock | None:
    for task in _shifts(dag):
        if task.schedule is not None:
            try:
                kept = kept_overrides(task.overrides_variable)
            except CapacityMistake:
                raise
            except Exception as error:
                # Files can be looked at without an Airflow.
                tell(f"Overrides of {dag.dag_id} are unknown: {str(error).splitlines()[0]}")
                kept = []
            return ScheduledBlock(dag, task, task.schedule.overridden(kept))
    return None


def _the_schedule(name: str) -> ScheduledBlock:
    found = _scheduled(the_dag(name))
    if found is None:
        raise LookupError(f"DAG {name} has no schedule of capacity: name a DAG with one, such as those of capacity_dag")
    return found


# schedule


@command
def schedule(args: Namespace) -> None:
    """Draw schedules; ends with status 1 if two DAGs contradict each other."""
    start = _moment("at", args.at, None) or datetime.now(timezone.utc)
    end = start + timedelta(days=args.days)
    found = [one for dag in dags_of(args.dags) if (one := _scheduled(dag))]
    if not found:
        raise LookupError("no DAG has a schedule of capacity: capacity_dag makes one")
    rows, lines = list[dict[str, Any]](), list[str]()
    for one in found:
        zone = one.schedule.zone
        lines.append(f"{one.dag.dag_id}: block {one.task.block}, times of {one.schedule.timezone}")
        segments = one.schedule.segments(start, end)
        most = one.schedule.limit or max(sum(one.gpus(segment.allocation).values()) for segment in segments)
        for segment in segments:
            since, until = segment.since.astimezone(zone), segment.until.astimezone(zone)
            said = units_text(segment.allocation)
            rows.append(
                {"dag": one.dag.dag_id, "since": since.isoformat(), "until": until.isoformat(), "window": segment.name,
                 "allocation": said}
            )  # fmt: skip
            lines.append(f"  {since:%a %d %b %H:%M} {_bar(one.gpus(segment.allocation), most)} {said} ({segment.name})")
    pairs = combinations(found, 2)
    conflicts = [said for one, other in pairs for said in _conflicts(one, other, start, end)]
    lines += ["Conflicts:", *conflicts] if conflicts else []
    rows += [{"dag": "", "since": "", "until": "", "window": "conflict", "allocation": said} for said in conflicts]
    show(args, rows, "\n".join(lines))
    sys.exit(bool(conflicts))


def _bar(gpus: Mapping[str, int], most: int) -> str:
    drawn = "".join(_BARS[n % len(_BARS)] * round(_WIDTH * held / (most or 1)) for n, held in enumerate(gpus.values()))
    return f"{drawn[:_WIDTH]:·<{_WIDTH}}"


def _conflicts(one: ScheduledBlock, other: ScheduledBlock, start: datetime, end: datetime) -> Iterator[str]:
    """What two DAGs want of the same thing at the same time, in sentences."""
    shared = one.places.keys() & other.places.keys()
    names = f"{one.dag.dag_id} and {other.dag.dag_id}"
    limit = one.schedule.limit or other.schedule.limit
    told: set[str] = set()
    for mine in one.schedule.segments(start, end):
        for its in other.schedule.segments(max(mine.since, start), min(mine.until, end)):
            since = max(mine.since, its.since, start).astimezone(one.schedule.zone)
            for place in sorted(shared):
                wanted, too = mine.allocation[one.places[place]], its.allocation[other.places[place]]
                (low, high), (least, most) = bounds_of(wanted), bounds_of(too)
                if max(low, least) > min(high, most) and place not in told:
                    told.add(place)
                    yield f"  {names} both move {place}: from {since:%a %d %b %H:%M} on to {wanted} and to {too} units"
            held = {place: one.gpus(mine.allocation)[name] for place, name in one.places.items()}
            for place, name in other.places.items():
                held[place] = max(held.get(place, 0), other.gpus(its.allocation)[name])
            is_same_block = one.task.block == other.task.block
            if is_same_block and limit and sum(held.values()) > limit and "block" not in told:
                told.add("block")
                whole = f"{sum(held.values())} GPUs of block {one.task.block}, which has {limit}"
                yield f"  {names} want {whole}, from {since:%a %d %b %H:%M} on"


# shift


@command
def shift(args: Namespace) -> None:
    """Show the plan of a shift, then start the DAG."""
    dag = the_dag(args.dag)
    task = next(_shifts(dag), None)
    if task is None:
        raise LookupError(f"DAG {dag.dag_id} shifts no capacity: name a DAG with a ShiftCapacityOperator")
    sizes = _sizes(args.sizes, [target.name for target in task.targets])
    until = _moment("until", args.until, task.schedule)
    asked = {**sizes, "until": until and until.isoformat(), "because": args.because or None}
    conf = {name: value for name, value in asked.items() if value is not None}
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
    agreed(args, f"Start a run of {dag.dag_id}?")
    from airflow.api.client import get_current_api_client

    run = get_current_api_client().trigger_dag(dag.dag_id, conf=conf, triggering_user_name=user() or None)
    tell(f"Started: run {run['dag_run_id']} of {dag.dag_id}" if run else "Not started")


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
    found = _the_schedule(args.dag)
    key = found.task.overrides_variable
    if not key:
        raise LookupError(
            f"DAG {found.dag.dag_id} keeps no overrides: set overrides_variable of its ShiftCapacityOperator"
        )
    base, kept, now = found.task.schedule, kept_overrides(key), datetime.now(timezone.utc)
    assert base is not None, "it was found by it"
    since, until = (_moment(name, getattr(args, name), base) for name in ("since", "until"))
    if not args.sizes and not args.remove:
        show(args, map(_row, kept), None if kept else f"No override of {found.dag.dag_id} is kept")
        return
    if args.remove:
        new = [one for one in kept if not _is_within(one, base, since, until)]
        gone = [one for one in kept if one not in new]
        said = f"{len(gone)} of {len(kept)} overrides are removed: {'; '.join(map(_told, gone)) or 'none fits'}"
    else:
        sizes = _sizes(args.sizes, [target.name for target in found.task.targets])
        begin = since or now
        units = requested_allocation(sizes, found.task.targets, base.limit or _BOUNDLESS, begin).units
        if base.limit is None and len(sizes) < len(found.task.targets):
            raise CapacityMistake("the schedule has no limit", "give a size for each target")
        made = base.override(units, begin, until, user(), args.because)
        new, said = [*kept, made], f"Added: {_told(made)}"
    after = base.overridden(new)
    first, last = since or now, until or now + timedelta(days=7)
    lines = [said]
    for change in after.changes(first, last):
        at = change.at.astimezone(base.zone)
        lines.append(f"  {at:%a %d %b %H:%M}: {units_text(change.after.allocation)} ({change.after.name})")
    show(args, map(_row, new), "\n".join(lines))
    agreed(args, "Keep it so?")
    from airflow.models.variable import Variable

    Variable.set(key, written(new, now, base.zone))
    tell(f"Kept. A run of {found.dag.dag_id} begins within minutes of each change, while the DAG is switched on.")


_BOUNDLESS = 1 << 30


def _row(one: Override) -> dict[str, str]:
    return {"when": one.when, "allocation": units_text(one.allocation), "by": one.by, "because": one.because}


def _told(one: Override) -> str:
    return f"{units_text(one.allocation)}, {one.when} ({one.name})"


def _is_within(one: Override, base: CapacitySchedule, since: datetime | None, until: datetime | None) -> bool:
    begin, end = instant(one.dates.start, base.zone), instant(one.dates.end, base.zone)
    return (until is None or begin < until) and (since is None or end > since)


def _moment(name: str, said: str, schedule: CapacitySchedule | None) -> datetime | None:
    """A moment; without a zone it is of the clocks of the schedule."""
    try:
        moment = datetime.fromisoformat(said) if said and schedule else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None and schedule:
        return instant(moment, schedule.zone)
    return moment_of(name, said)
