"""How long nothing runs between two jobs of a chain: one that lives in Slurm, and chains of Airflow's tasks."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.airflow import airflow_beside
from benchmarks.chains import ends
from benchmarks.chains.shape import FLOORS, NOTES, STAGES, WORK, command
from benchmarks.table import Row
from sandbox.airflow.api import DagRun
from sandbox.airflow.beside import Airflow
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER

#: Chains of each way; where it is a matter of tenths of a second, it takes some to tell.
ROUNDS = {"alone": 4, "pipeline": 4, "plain": 1, "triggerer": 1, "ssh_operator": 1}
#: By the DAG of each.
WAYS = {
    "pipeline": "SbatchPipeline",
    "plain": "SbatchOperators joined by >>, deferred",
    "triggerer": "the same, in the triggerer alone",
    "ssh_operator": "SSHOperators with sbatch --wait",
}
#: Seconds between the jobs of two tasks that are deferred.
PLAIN = 3.0
_DAGS = Path(__file__).parent / "dags"
_LONGEST = 900.0


@dataclass(frozen=True)
class Gaps:
    """Seconds between jobs, and of each whole chain from its first job's begin to its last one's end."""

    between: list[float]
    whole: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.between)

    def __str__(self) -> str:
        return (
            f"{self.median:.2f} s (at most {max(self.between):.2f} s), "
            f"all {STAGES} in {statistics.median(self.whole):.0f} s"
        )


def run() -> list[Row]:
    with airflow_beside("bench-chains", _DAGS, [*WAYS, *FLOORS, *ends.DAGS], {}) as (sandbox, airflow):
        alone = _gaps(sandbox, "alone", lambda number: _alone(sandbox, number))
        gaps = {way: _gaps(sandbox, way, lambda number, way=way: _run(airflow, way, number)) for way in WAYS}  # type: ignore[misc]
        floors = {way: _floor(airflow, way) for way in FLOORS}
        of_ends = ends.rows(airflow)
    ratio = gaps["pipeline"].median / alone.median
    told = {way: f"{name}: {gaps[way]}" for way, name in WAYS.items()}
    what = f"between two jobs of a chain of {STAGES}, each of {WORK} s"
    return [
        Row(
            "chains",
            f"{what}: median of {ROUNDS['pipeline']} chains",
            f"{told['pipeline']}\n{ratio:.2f} times what Slurm alone takes",
            f"Slurm alone: {alone}",
            ratio <= 1.1,
        ),
        Row(
            "chains",
            what,
            f"{told['plain']}\n{told['triggerer']}",
            f"{PLAIN:g} s\n{told['ssh_operator']}",
            gaps["plain"].median <= PLAIN,
        ),
        Row(
            "chains",
            f"Airflow between two tasks of a chain of {STAGES}, each of {WORK} s and without a job",
            "\n".join(f"{name}: {floors[way]}" for way, name in FLOORS.items()),
        ),
        *of_ends,
    ]


def _gaps(sandbox: Sandbox, way: str, run_one: Callable[[int], None]) -> Gaps:
    notes = []
    for number in range(ROUNDS[way]):
        run_one(number)
        notes.append(_shell(sandbox, f"cat {NOTES}-{way}-{number}"))
    return _read(way, notes)


def _floor(airflow: Airflow, way: str) -> Gaps:
    _run(airflow, way, 0)
    return _read(way, [(airflow.home.folder / way).read_text()])


def _read(way: str, notes: Sequence[str]) -> Gaps:
    """What chains have noted: stages and moments, of each stage its begin and its end."""
    between: list[float] = []
    whole: list[float] = []
    for note in notes:
        rows = [line.split() for line in note.splitlines()]
        moments = [float(moment) for _, moment in sorted(rows, key=lambda row: (int(row[0]), float(row[1])))]
        assert len(moments) == 2 * STAGES, f"{way}: {len(moments) / 2:g} of {STAGES} stages have run"
        between += [begin - end for end, begin in zip(moments[1:-1:2], moments[2::2], strict=True)]
        whole.append(moments[-1] - moments[0])
    return Gaps(between, whole)


def _run(airflow: Airflow, way: str, number: int) -> None:
    run = DagRun(airflow.api, way, airflow.api.trigger(way, {"round": number}))
    deadline = time.monotonic() + _LONGEST
    while run.state() not in ("success", "failed"):
        assert time.monotonic() < deadline, f"the run of {way} takes too long"
        time.sleep(1)


def _alone(sandbox: Sandbox, number: int) -> None:
    lines = ["after="]
    for stage in range(STAGES):
        job = shlex.quote(command("alone", stage, str(number)))
        lines += [f"after=$(sbatch --parsable --output=/dev/null ${{after:+--dependency=afterok:$after}} --wrap {job})"]
    _shell(sandbox, "\n".join([*lines, 'while [ -n "$(squeue --noheader)" ]; do sleep 0.5; done']))


def _shell(sandbox: Sandbox, script: str) -> str:
    said = sandbox.init.run("sshd", ["su", "-", USER, "-c", script], timeout=_LONGEST)
    assert said.returncode == 0, said.stderr
    return said.stdout
