"""A fan-out of deferred tasks that have no retry, and lose no job to minutes without slurmctld or the login node.

It begins at any time: before jobs are submitted, while they are, or later. The triggerer may restart meanwhile.
"""

from __future__ import annotations

import contextlib
import signal
import time

import psutil

from tests.airflow.stack import Run
from tests.integration.cluster import Cluster
from tests.soak import worlds
from tests.soak.blows import LONGEST, Blows, seconds
from tests.soak.outcomes import check, command, wait_all
from tests.soak.rounds import Round

#: Seconds of the outage.
LASTS = 300.0
LONGEST_JOB = 60.0
GONE = (("slurmctld",), ("sshd",), ("slurmctld", "sshd"))
TASKS = """
SbatchOperator.partial(task_id="point", command={command!r}, deferrable=True, poll_interval=5).expand(env={points})
"""


def play(round_: Round) -> None:
    dice = round_.dice("outage")
    takes = [seconds(dice, LONGEST_JOB) for _ in range(round_.width)]
    points = [{"TASK": f"point-{number}", "TAKES": str(one)} for number, one in enumerate(takes)]
    gone, share, restarts = dice.choice(GONE), dice.random(), dice.random() < 0.5
    body = TASKS.format(command=command("$TAKES"), points=points)
    with worlds.airflow(round_) as (stack, cluster):
        run = stack.add_dag("outage", body, dag_options="max_active_tasks=1000").trigger()
        enough = max(1, int(share * round_.width))
        stack.wait(f"{enough} tasks have begun to wait", lambda: _begun(run) >= enough, LONGEST)
        _take_away(cluster, gone)
        began = time.monotonic()
        if restarts:
            time.sleep(dice.uniform(0, LASTS / 2))
            Blows(round_, stack, cluster, run).kill_triggerer()
        time.sleep(max(0.0, began + LASTS - time.monotonic()))
        cluster.sandbox.up()
        wait_all(run)
        round_.counts[f"outages of {' and '.join(gone)}"] += 1
        round_.counts["restarts of the triggerer during one"] += restarts
        check(round_, cluster, run, ())


def _begun(run: Run) -> int:
    return sum(task["state"] in ("deferred", "success", "failed") for task in run.tasks())


def _take_away(cluster: Cluster, daemons: tuple[str, ...]) -> None:
    init = cluster.sandbox.init
    # They outlive the process that listens, and more than one process holds each.
    connections = init.outside("sshd").children(recursive=True) if "sshd" in daemons else []
    for daemon in daemons:
        # A slurmctld that is killed forgets the jobs of its last seconds.
        init.signal(daemon, signal.SIGTERM if daemon == "slurmctld" else signal.SIGKILL)
        cluster.wait(f"{daemon} is gone", lambda daemon=daemon: not init.processes()[daemon]["pid"])
    for connection in connections:
        with contextlib.suppress(psutil.NoSuchProcess):
            if connection.name().startswith("sshd"):
                connection.kill()
