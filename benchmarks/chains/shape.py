"""What the chains of all ways have in common."""

from __future__ import annotations

STAGES = 10
#: Seconds for which each job works.
WORK = 1
#: On the file system that all nodes share. Accounting knows whole seconds only.
NOTES = "$HOME/bench-chain"
#: Chains of tasks that have no jobs, by their DAGs: what Airflow itself takes from the end of one to the next.
FLOORS = {"floor_deferred": "deferred", "floor_triggerer": "in the triggerer alone"}


def command(way: str, stage: int, run: str) -> str:
    """A job that notes when it begins and ends."""
    note = f">>{NOTES}-{way}-{run}"
    return f"echo {stage} $(date +%s.%N) {note}; sleep {WORK}; echo {stage} $(date +%s.%N) {note}"
