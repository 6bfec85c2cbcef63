"""Each way in turn, with one Airflow beside one sandbox."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.airflow import airflow_beside
from benchmarks.table import Row
from benchmarks.tasks.meter import Meter, Reading
from benchmarks.tasks.rows import Trial, rows
from benchmarks.tasks.shape import COMMAND, TASKS_PER_RUN
from benchmarks.tasks.way import Way
from sandbox.airflow.beside import Airflow
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER

TASKS = 300
#: Of the ways of others so much less is run, as each task takes so much more.
LESS = 10
#: Tasks that workers run at once: Airflow's default.
SLOTS = 32
#: Seconds for which it is measured what all costs while there is nothing to do.
IDLE = 15.0
_UNTIL_EMPTY = 'while [ -n "$(squeue --noheader)" ]; do sleep 0.5; done'
_DAGS = Path(__file__).parent / "dags"
_FLOOR = "floor"


@dataclass(frozen=True)
class Kind:
    """A way to wait, by the DAG whose tasks wait so."""

    dag_id: str
    name: str
    is_ours: bool = False
    holds_slots: bool = False


KINDS = (
    Kind("worker_free", "worker-free", is_ours=True),
    Kind("deferred", "deferred", is_ours=True),
    Kind("ssh_operator", "sbatch --wait", holds_slots=True),
    Kind("poller", "poller each"),
)


def run(tasks: int = TASKS) -> list[Row]:
    """``tasks`` of each of our ways, and a tenth of each of the others; both in whole runs of the DAG."""
    more = {
        "AIRFLOW__CORE__PARALLELISM": str(SLOTS),
        "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": str(tasks),
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": str(tasks),
        "AIRFLOW__TRIGGERER__CAPACITY": str(max(1000, tasks)),
    }
    with airflow_beside("bench-tasks", _DAGS, [kind.dag_id for kind in KINDS] + [_FLOOR], more) as (sandbox, airflow):
        meter = Meter(sandbox)
        trials = [_trial(kind, sandbox, airflow, tasks) for kind in KINDS]
        _fresh_triggerer(sandbox, airflow)
        floor = Way(sandbox, airflow.api, _FLOOR).run_without_jobs(_runs(tasks))
        idle, few = _idle(meter), _runs(tasks / LESS)
        jobs = _jobs(sandbox, meter, few)
        return rows(tasks, trials, floor, idle.cores, (jobs.cpu - idle.cores * jobs.seconds) / few)


def _trial(kind: Kind, sandbox: Sandbox, airflow: Airflow, tasks: int) -> Trial:
    _fresh_triggerer(sandbox, airflow)
    count = _runs(tasks if kind.is_ours else tasks / LESS)
    outcome = Way(sandbox, airflow.api, kind.dag_id).run(count, min(count, SLOTS) if kind.holds_slots else count)
    return Trial(kind.name, kind.is_ours, outcome)


def _fresh_triggerer(sandbox: Sandbox, airflow: Airflow) -> None:
    """One that does not keep the memory that an earlier way has taken."""
    sandbox.init.signal("airflow-triggerer", signal.SIGKILL)
    airflow.up(lambda share, label: None)


def _runs(tasks: float) -> int:
    """As many tasks, or a few more, so that they are whole runs."""
    return TASKS_PER_RUN * -int(-tasks // TASKS_PER_RUN)


def _idle(meter: Meter) -> Reading:
    before = meter.read()
    time.sleep(IDLE)
    return meter.read() - before


def _jobs(sandbox: Sandbox, meter: Meter, count: int) -> Reading:
    """What so many jobs cost Slurm that nobody waits for; who submits them here is not in the figure."""
    submit = f"for n in $(seq {count}); do sbatch --output=/dev/null --wrap {COMMAND} >/dev/null; done"
    before = meter.read()
    said = sandbox.init.run("sshd", ["su", "-", USER, "-c", f"{submit}; {_UNTIL_EMPTY}"], timeout=600)
    assert said.returncode == 0, said.stderr
    return meter.read() - before
