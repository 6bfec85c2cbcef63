"""Advice from a month: schedules with and without demand, what each would have changed, and the best as code to paste.

Proposals are made of the first three quarters of the month, chosen by what they come to there, and shown with what they
come to in the last quarter, of which they know nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from rich.console import Console
from rich.table import Table

from airflow_provider_soperator.capacity.allocation import Units, bounds_of
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from benchmarks.trace.load import Month
from benchmarks.trace.run import Block, ByDemand, Outcome, by_schedule, play, quantile
from benchmarks.trace.world import GRACE

#: Share of the time that inference may be below its target, by which a proposal is chosen.
MOST_BELOW = 0.001
#: Fewer days have no two weekends to make windows of, and no days after them.
LEAST_DAYS = 14
#: Share of minutes that fit into a number of units.
_FITS = 0.9995
#: Hours of the shortest window: a lead may not be longer.
_SHORTEST = 2
_DAYS = {True: "mon-fri", False: "sat,sun"}
RULE = (
    f"inference at most {MOST_BELOW:.1%} of the time below its target, then the shortest wait; if none keeps that, the "
    "least time below"
)


@dataclass(frozen=True)
class Proposal:
    """A schedule, with demand or without."""

    name: str
    schedule: CapacitySchedule
    demand: Demand | None = None


@dataclass(frozen=True)
class Judged:
    """A proposal, and what it comes to in the time that it was made of, and in the time after it."""

    proposal: Proposal
    made_of: Outcome
    after: Outcome


def advise(loaded: Month, block: Block) -> list[Judged]:
    """All proposals, the best first."""
    end = len(loaded.requests)
    parts = [loaded.part(0, end * 3 // 4), loaded.part(end * 3 // 4, end)]
    # Once for all proposals: it takes as long as a replay.
    needs = [block.needs(part.requests) for part in parts]
    judged = [
        Judged(one, *(outcome(one, part, its, block) for part, its in zip(parts, needs, strict=True)))
        for one in proposals(parts[0], needs[0], block)
    ]
    return sorted(judged, key=lambda one: (one.made_of.below * (one.made_of.below > MOST_BELOW), one.made_of.wait))


def proposals(loaded: Month, needs: Sequence[int], block: Block) -> list[Proposal]:
    """What fits this time: a fixed split, handovers at the best hours, and ranges within which demand decides."""
    hours: dict[tuple[bool, int], list[int]] = {}
    for minute, units in enumerate(needs):
        at = loaded.at(minute)
        hours.setdefault((at.weekday() < 5, at.hour), []).append(units)
    most = quantile(needs, _FITS)
    always = [("daily 00:00 - 24:00", list(needs))]

    def numbers(times: Sequence[tuple[str, list[int]]], lead: str = "0m") -> CapacitySchedule:
        levels = [(when, min(block.highest, quantile(some, _FITS))) for when, some in times]
        return schedule([(when, block.nodes - level, level) for when, level in levels], lead)

    def ranges(times: Sequence[tuple[str, list[int]]], share: float, headroom: int) -> CapacitySchedule:
        highest = block.most_served(loaded.jobs, most, headroom)
        lowest = [(when, max(1, min(highest, quantile(some, share)))) for when, some in times]
        return schedule(
            [
                (when, {"min": block.nodes - highest, "max": block.nodes - low}, {"min": low, "max": highest})
                for when, low in lowest
            ]
        )

    def schedule(windows: Sequence[tuple[str, Units, Units]], lead: str = "0m") -> CapacitySchedule:
        return CapacitySchedule(
            timezone=str(loaded.start.tzinfo),
            windows=[Window(when, {"training": left, "inference": served}) for when, left, served in windows],
            gpus_per_unit={"training": block.gpus, "inference": block.gpus},
            limit=block.nodes * block.gpus,
            lead=lead,
        )

    found = [Proposal("fixed split", numbers(always))]
    for count in (2, 3, 4):
        times = _times(hours, count)
        found += [Proposal(f"{count} windows a day, lead {lead}", numbers(times, lead)) for lead in ("1h", "2h")]
    for headroom in range(4):
        found.append(Proposal(f"demand, headroom {headroom}", ranges(always, 0.0, headroom), block.demand(headroom)))
    for headroom in (1, 2):
        floors = ranges(_times(hours, 3), 0.5, headroom)
        found.append(Proposal(f"demand above a median, headroom {headroom}", floors, block.demand(headroom)))
    return found


def _times(hours: dict[tuple[bool, int], list[int]], count: int) -> list[tuple[str, list[int]]]:
    """The windows of weekdays and of weekends, up to so many a day, and the needs of the minutes in each.

    Of all hours at which they could begin those for which the fewest unit-hours are set aside.
    """
    found = []
    for weekday, days in _DAYS.items():
        levels = [quantile(hours[weekday, hour], _FITS) for hour in range(24)]
        cuts = min(
            (
                (0, *between, 24)
                for number in range(count)
                for between in combinations(range(1, 24), number)
                if all(last - first >= _SHORTEST for first, last in pairwise((0, *between, 24)))
            ),
            key=lambda cuts: sum((last - first) * max(levels[first:last]) for first, last in pairwise(cuts)),
        )
        found += [
            (
                f"{days} {first:02}:00 - {last:02}:00",
                [one for hour in range(first, last) for one in hours[weekday, hour]],
            )
            for first, last in pairwise(cuts)
        ]
    return found


def outcome(proposal: Proposal, loaded: Month, needs: list[int], block: Block) -> Outcome:
    """What a proposal comes to."""
    wished = _wished(proposal.schedule, loaded)
    if proposal.demand is None:
        levels = [bounds_of(one["inference"])[1] for one in wished]
        lead = int(proposal.schedule.lead_time.total_seconds()) // 60
        return play(loaded, needs, by_schedule(levels, lead, min(lead, block.transfer)), block.world(levels[0]))
    low, high = bounds_of(wished[0]["inference"])
    way = ByDemand(block, proposal.demand, needs, wished.__getitem__)
    return play(loaded, needs, way, block.world(max(low, min(high, needs[0]))))


def _wished(schedule: CapacitySchedule, loaded: Month) -> list[Mapping[str, Units]]:
    """What is wished for in each minute."""
    start, end = loaded.at(0), loaded.at(len(loaded.requests))
    found: list[Mapping[str, Units]] = []
    for segment in schedule.segments(start, end):
        found += [segment.allocation] * int((min(segment.until, end) - max(segment.since, start)).total_seconds() / 60)
    return found


def code(proposal: Proposal, block: Block) -> str:
    """A DAG file of a proposal, in which ids and the query are to be replaced."""
    schedule, demand = proposal.schedule, proposal.demand
    windows = "".join(f"        Window({one.when!r}, {dict(one.allocation)!r}),\n" for one in schedule.windows)
    extra = f"    demand={_demand_code(demand)},\n" if demand else ""
    loads = "from airflow_provider_soperator.capacity.demand import Demand\n" if demand else ""
    loads += "from airflow_provider_soperator.capacity.loads import QueueLoad, ServiceLoad\n" if demand else ""
    transfer = "" if demand else f'"transfer": timedelta(minutes={block.transfer}), '
    text = f"""from datetime import timedelta

{loads}from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

schedule = CapacitySchedule(
    timezone={schedule.timezone!r},
    windows=[
{windows}    ],
    gpus_per_unit={dict(schedule.gpus_per_unit)!r},
    limit={schedule.limit},
    lead={schedule.lead!r},
)

dag = capacity_dag(
    'gpu_shifts',
    schedule,
    [
        SlurmNodesTarget(name='training', nodes='worker-[0-{block.nodes - 1}]'),
        NebiusNodeGroupTarget(name='inference', node_group='mk8snodegroup-e00inference'),
    ],
    block='capacityblockgroup-e00example',
{extra}    shift_args={{'mode': 'force', 'grace': timedelta(minutes={GRACE}), {transfer}'deferrable': True}},
)
"""
    return text.replace("'", '"')


def _demand_code(demand: Demand) -> str:
    loads = ""
    for load in demand.loads:
        if isinstance(load, ServiceLoad):
            loads += f"""            ServiceLoad(
                target={load.target!r},
                arrivals={load.arrivals!r},
                service_time={load.service_time},
                max_requests={load.max_requests},
                headroom={load.headroom},
            ),
"""
        elif isinstance(load, QueueLoad):
            minutes = int(load.min_work.total_seconds()) // 60
            loads += f"            QueueLoad(target={load.target!r}, min_work=timedelta(minutes={minutes})),\n"
    calm = int(demand.calm.total_seconds()) // 60
    return f"Demand(\n        [\n{loads}        ],\n        calm=timedelta(minutes={calm}),\n    )"


def show(judged: Sequence[Judged], block: Block) -> None:
    """The table, the rule, and the code of the best."""
    table = Table(
        "proposal", "GPUs in use", "jobs wait", "below target", "moves a day", "requeued", "against the fixed split",
        title="the first three quarters of the time, of which it is made / the last quarter",
    )  # fmt: skip
    split = next(one for one in judged if one.proposal.name == "fixed split")
    for one in judged:
        both = (one.made_of, one.after)
        more, waits = one.after.usage / split.after.usage - 1, one.after.wait / max(split.after.wait, 0.1)
        table.add_row(
            one.proposal.name,
            " / ".join(f"{found.usage:.1%}" for found in both),
            " / ".join(f"{found.wait:.0f}" for found in both) + " min",
            " / ".join(f"{found.below:.2%}" for found in both),
            " / ".join(f"{found.moves:.0f}" for found in both),
            " / ".join(f"{found.requeued}" for found in both),
            f"usage {more:+.0%}, wait x{waits:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(f"Chosen by the first three quarters: {RULE}.", highlight=False)
    # As it is, to be pasted.
    print(f"\n{code(judged[0].proposal, block)}")
