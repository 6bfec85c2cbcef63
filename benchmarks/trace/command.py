"""The options of ``trace`` for one's own month, block and service, and what is printed of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from airflow_provider_soperator.capacity.calendar import zone
from airflow_provider_soperator.errors import CapacityMistake
from benchmarks.table import show
from benchmarks.trace import advice
from benchmarks.trace.load import DAY, month
from benchmarks.trace.own import Unreadable, read_month
from benchmarks.trace.run import BLOCK, BUSY, PEAK, Block, compared

#: Options that a block has under another name.
_FIELDS = {"gpus-per-node": "gpus", "max-requests": "max_requests"}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("one's own cluster in `trace`, and advice")
    group.add_argument("--jobs", type=Path, metavar="FILE", help="what `sacct` has printed: see docs/demand.md")
    group.add_argument(
        "--requests", type=Path, nargs="+", metavar="FILE", help="answers of Prometheus to `query_range`: requests/s"
    )
    group.add_argument("--advise", action="store_true", help="propose schedules, and print the best as code")
    group.add_argument("--timezone", default="UTC", metavar="NAME", help="of the schedules (UTC)")
    group.add_argument(
        "--requeued", type=float, default=0.5, metavar="SHARE",
        help="share of the jobs of FILE that may be requeued and write checkpoints (0.5)",
    )  # fmt: skip
    for name, what in (
        ("nodes", "nodes of the block"),
        ("gpus-per-node", "GPUs of a node"),
        ("gone", "minutes that a machine needs to go"),
        ("boot", "minutes that a machine needs to come"),
        ("max-requests", "requests that a node serves at a time"),
    ):
        default = getattr(BLOCK, _FIELDS.get(name, name))
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    group.add_argument(
        "--seconds", type=float, default=BLOCK.seconds, metavar="N", help=f"that a request takes ({BLOCK.seconds:g})"
    )


def is_asked(given: argparse.Namespace) -> bool:
    return bool(given.advise or given.jobs or given.requests)


def run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Replay one's own month, or propose schedules for it or for the one of a seed."""
    if bool(given.jobs) != bool(given.requests):
        parser.error("--jobs and --requests are of one month: give both")
    fields = ("nodes", "gone", "boot", "seconds", "max_requests")
    block = Block(gpus=given.gpus_per_node, **{name: getattr(given, name) for name in fields})
    if block.highest < 1:
        parser.error(f"a block of {block.nodes} nodes cannot be divided: give --nodes of 2 or more")
    gpus = block.nodes * block.gpus
    try:
        place = zone(given.timezone)
        if given.jobs:
            own = read_month(given.jobs, given.requests, place, gpus=gpus, may_requeue=given.requeued, seed=given.seed)
            print(own)
            loaded = own.month
        else:
            loaded = month(given.seed, gpus=gpus, busy=BUSY, peak=PEAK * block.nodes / BLOCK.nodes)
            loaded = replace(loaded, start=loaded.start.replace(tzinfo=place))
    except (CapacityMistake, Unreadable) as error:
        parser.error(str(error))
    if not given.advise:
        show([replace(row, met=None) for row in compared(loaded, block)])
        return 0
    if len(loaded.requests) < advice.LEAST_DAYS * DAY:
        days = len(loaded.requests) / DAY
        parser.error(f"advice needs {advice.LEAST_DAYS} days, got {days:.1f}: give requests of a longer time")
    advice.show(advice.advise(loaded, block), block)
    return 0
