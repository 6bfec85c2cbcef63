"""The rows of the table: ours as figures, what they are held against beside them, with what it would be for as many."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.table import Row
from benchmarks.tasks.meter import Reading
from benchmarks.tasks.shape import WAIT
from benchmarks.tasks.way import HELD, Outcome


@dataclass(frozen=True)
class Trial:
    """What one way has come to."""

    name: str
    is_ours: bool
    outcome: Outcome

    @property
    def cost(self) -> Reading:
        """Of all but the time for which the jobs were held back."""
        return self.outcome.starting + self.outcome.ending


def rows(tasks: int, trials: Sequence[Trial], floor: Outcome, idle: float, per_job: float) -> list[Row]:
    """``idle`` is in cores, ``per_job`` in seconds of a processor.

    What grows with the number of tasks is scaled for ways that were tried with fewer.
    """

    def row(what: str, show: Callable[[Trial], str], met: bool | None = None) -> Row:
        ours, theirs = (
            "\n".join(f"{trial.name}: {show(trial)}" for trial in trials if trial.is_ours is side)
            for side in (True, False)
        )
        return Row("tasks", what, ours, theirs, met)

    def total(value: Callable[[Trial], float], unit: str = "") -> Callable[[Trial], str]:
        return lambda trial: _scaled(value(trial), trial.outcome.tasks, tasks, unit)

    def rate(value: Callable[[Reading], float], unit: str = "") -> Callable[[Trial], str]:
        return lambda trial: _scaled(value(trial.outcome.held), trial.outcome.carried, tasks, unit)

    ours = [trial.outcome for trial in trials if trial.is_ours]
    return [
        row(
            "tasks that wait at once",
            lambda trial: f"{trial.outcome.carried} of {trial.outcome.tasks}",
            all(outcome.carried >= tasks for outcome in ours),
        ),
        row(
            "tasks that succeed",
            lambda trial: f"{len(trial.outcome.delays)} of {trial.outcome.tasks}",
            all(len(outcome.delays) == outcome.tasks for outcome in ours),
        ),
        row(f"wall time, less {HELD:g} s in which all wait", total(lambda trial: trial.cost.seconds, " s")),
        row("processor time of Airflow and Slurm in it", total(lambda trial: trial.cost.cpu, " s")),
        row("of this the triggerer", total(lambda trial: trial.cost.triggerer_cpu, " s")),
        row("cores while all wait, beyond what idle takes", rate(lambda held: max(0.0, held.cores - idle))),
        row(f"questions to slurmctld in a minute, in those {HELD:g} s", rate(lambda held: held.rpcs_per_minute)),
        row(
            "SSH connections opened; ours go on with the one of the warm-up",
            total(lambda trial: (trial.cost + trial.outcome.held).connections),
        ),
        row("memory of the triggerer, at the most", lambda trial: _megabytes(trial.outcome)),
        row("from a job's end to its task's: median / 95 % / max", lambda trial: _late(trial.outcome.delays)),
        Row(
            "tasks",
            f"Airflow for {floor.tasks} tasks that start and end in the triggerer, without a job",
            f"{floor.starting.cpu - idle * WAIT:.0f} s of a processor\n{_megabytes(floor)} of the triggerer",
        ),
        Row("tasks", "Airflow (on PostgreSQL) and Slurm with nothing to do", f"{idle:.2f} cores"),
        Row("tasks", f"Slurm with {tasks} jobs that nobody waits for", f"{per_job * tasks:.0f} s of a processor"),
    ]


def _megabytes(outcome: Outcome) -> str:
    return f"{outcome.memory / 2**20:.0f} MB"


def _scaled(value: float, count: int, tasks: int, unit: str) -> str:
    if count >= tasks:
        return _figure(value, unit)
    return f"{_figure(value * tasks / max(count, 1), unit)}, scaled from {_figure(value, unit)} with {count}"


def _figure(value: float, unit: str) -> str:
    return f"{value:.2g}{unit}" if value < 10 else f"{value:.0f}{unit}"


def _late(delays: Sequence[float]) -> str:
    if len(delays) < 2:
        return "none has succeeded"
    return f"{statistics.median(delays):.1f} / {statistics.quantiles(delays, n=20)[-1]:.1f} / {max(delays):.1f} s"
