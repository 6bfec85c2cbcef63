"""What the chains of all ways have in common."""

from __future__ import annotations

STAGES = 10
#: Seconds for which each job works.
WORK = 1
#: On the file system that all nodes share. Accounting knows whole seconds only.
NOTES = "$HOME/bench-chain"


def command(way: str, stage: int, run: str) -> str:
    """A job that notes when it begins and ends."""
    note = f">>{NOTES}-{way}-{run}"
    return f"echo {stage} $(date +%s.%N) {note}; sleep {WORK}; echo {stage} $(date +%s.%N) {note}"
