"""Whatever of an Airflow or of its Slurm dies, and whenever: each task has one job that succeeds, and its result."""

from __future__ import annotations

from collections import Counter

from tests.soak import worlds
from tests.soak.blows import Blows, seconds
from tests.soak.outcomes import MARKS, check, command, wait_all
from tests.soak.rounds import Round

COUNT = 24
LONGEST = 12.0
#: One task in so many has a job that fails at first.
FAILING = 5
BLOWS = (
    "kill_task",
    "kill_worker",
    "end_worker",
    "kill_triggerer",
    "end_triggerer",
    "cut_connections",
    "restart_sshd",
    "restart_slurmctld",
    "restart_slurmdbd",
    "mark_failed",
)
#: Who waits for a job: a worker, the triggerer, or the triggerer alone from first to last.
MODES = ({}, {"deferrable": True}, {"start_from_trigger": True, "end_from_trigger": True})


def play(round_: Round) -> None:
    with worlds.airflow(round_) as (stack, cluster):
        run = stack.add_dag("chaos", tasks(round_), dag_options="max_active_tasks=1000").trigger()
        blows = Blows(round_, stack, cluster, run)
        blows.rain(BLOWS, blows.pass_time)
        wait_all(run)
        round_.counts += blows.dealt
        check(round_, cluster, run, blows.marked)


def tasks(round_: Round) -> str:
    """Each with a job that takes some seconds."""
    dice = round_.dice("tasks")
    made, modes = [], Counter[int]()
    for number in range(COUNT):
        # The first time that it is there, the folder can be made.
        fails = f"mkdir {MARKS}/failed-$TASK 2>/dev/null && exit 1;" if number % FAILING == 0 else ""
        mode = dice.randrange(len(MODES))
        modes[mode] += 1
        made.append(
            f"SbatchOperator(task_id='task_{number}', command={command(seconds(dice, LONGEST), fails)!r},"
            f" env={{'TASK': 'task_{number}'}}, retries=50, retry_delay=timedelta(seconds=1), poll_interval=1,"
            f" **{MODES[mode]})"
        )
    for mode, name in enumerate(("in a worker", "deferred", "in the triggerer alone")):
        round_.counts[f"tasks {name}"] += modes[mode]
    return "\n".join(made)
