"""A wide fan-out of mapped tasks that are deferred, while sshd or the triggerer restarts now and then."""

from __future__ import annotations

from tests.soak import worlds
from tests.soak.blows import Blows, seconds
from tests.soak.outcomes import check, command, wait_all
from tests.soak.rounds import Round

LONGEST = 20.0
BLOWS = ("restart_sshd", "kill_triggerer", "end_triggerer")
#: Where a task ends: some in a worker, as most do, and some in the triggerer.
TASKS = """
SbatchOperator.partial(
    task_id="point",
    command={command!r},
    deferrable=True,
    end_from_trigger={end_from_trigger},
    retries=20,
    retry_delay=timedelta(seconds=1),
    poll_interval=1,
).expand(env={points})
"""


def play(round_: Round) -> None:
    dice = round_.dice("points")
    points = [{"TASK": f"point-{number}", "TAKES": str(seconds(dice, LONGEST))} for number in range(round_.width)]
    end_from_trigger = dice.random() < 0.5
    body = TASKS.format(command=command("$TAKES"), end_from_trigger=end_from_trigger, points=points)
    with worlds.airflow(round_) as (stack, cluster):
        run = stack.add_dag("fan_out", body, dag_options="max_active_tasks=1000").trigger()
        blows = Blows(round_, stack, cluster, run)
        blows.rain(BLOWS, blows.see_progress)
        wait_all(run)
        round_.counts += blows.dealt
        round_.counts["rounds that end in " + ("the triggerer" if end_from_trigger else "workers")] += 1
        check(round_, cluster, run, blows.marked)
