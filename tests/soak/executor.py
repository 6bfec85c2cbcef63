"""Tasks on nodes by SlurmExecutor, whatever dies meanwhile: each try has one job that began, and a true end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

from sandbox.airflow.api import ENDS
from tests.airflow.stack import Run
from tests.soak import worlds
from tests.soak.blows import LAST, LONGEST, Blows, seconds
from tests.soak.outcomes import wait_all
from tests.soak.rounds import Round
from tests.soak.tries import FAILING, MARKS, Away, Tries

#: Seconds of a quick task, and between which others take.
QUICK, SLOW = 3.0, (5.0, 20.0)
#: Blows of a round, and seconds between two of them: into what the one before has begun, or after all of it.
BLOWS, PAUSES = (8, 12), ((0.0, 3.0), (3.0, 20.0))
#: Seconds until something comes back.
SHORT, LONG = 5.0, 20.0
#: What dies is drawn from these.
DEATHS = (
    *("kill_scheduler", "kill_scheduler", "kill_scheduler", "end_scheduler"),
    *("kill_slurmctld", "restart_slurmctld", "hang_slurmctld"),
    *("kill_node", "kill_node", "cancel_job", "cancel_job"),
    *("take_slurmdbd", "take_sshd", "kill_api_server", "kill_dag_processor", "kill_triggerer"),
)
HEAD = f"""
import os
import time

from airflow.sdk import BaseOperator, get_current_context
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

MARKS = Path("{MARKS}")
RETRIED = dict(retries=20, retry_delay=timedelta(seconds=1))
ALONE = dict(executor="SlurmExecutor", executor_config={{"cpus_per_task": 64}})
SHARED = dict(executor="SlurmExecutor", executor_config={{"cpus_per_task": 2, "share": 3}})

def mark(what):
    ti = get_current_context()["ti"]
    of_try = f"|{{ti.run_id}}|{{ti.task_id}}|{{ti.map_index}}|{{ti.try_number}}|"
    with MARKS.open("a") as marks:
        marks.write(f"{{what}}{{of_try}}{{os.environ['SLURM_JOB_ID']}}\\n")
    return sum(line.startswith(what + of_try) for line in MARKS.read_text().splitlines())

@task
def works(takes):
    mark("began")
    time.sleep(takes)
    mark("ended")

@task
def fails_once():
    mark("began")
    if get_current_context()["ti"].try_number == 1:
        mark("{FAILING}")
        raise ValueError("not at the first try")
    mark("ended")

@task.sensor(mode="reschedule", poke_interval=1, **ALONE, **RETRIED)
def rescheduled():
    is_second = mark("began") == 2
    if is_second:
        mark("ended")
    return is_second

class Deferred(BaseOperator):
    def execute(self, context):
        mark("began")
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=1)), method_name="resume")

    def resume(self, context, event=None):
        mark("began")
        mark("ended")
"""


def play(round_: Round) -> None:
    with worlds.airflow(round_, on_nodes=True, workers=3, slurmd_timeout=60) as (stack, cluster):
        dag = stack.add_dag("executor", tasks(round_), head=HEAD, dag_options="max_active_tasks=1000")
        runs = [dag.trigger()]
        deaths = Deaths(round_, stack, cluster, runs[0])
        deaths.rain_on(runs, dag.trigger)
        for run in runs:
            wait_all(run)
        # Nothing is held by what was lost.
        runs.append(dag.trigger())
        wait_all(runs[-1])
        round_.counts += deaths.dealt
        round_.counts["runs"] += len(runs)
        Tries(round_, stack, cluster, deaths.away, deaths.cancelled).check(calm=runs[-1])


def tasks(round_: Round) -> str:
    """Of each kind some: in an array, in a job together, in one of their own, with several jobs one after the other."""
    dice = round_.dice("tasks")
    quick = [seconds(dice, QUICK) for _ in range(6)]
    made = [
        f"works.override(task_id='mapped', **ALONE, **RETRIED).expand(takes={quick})",
        f"works.override(task_id='sharing', **SHARED, **RETRIED).expand(takes={quick[::-1]})",
        "fails_once.override(**ALONE, **RETRIED)()",
        "rescheduled()",
        "Deferred(task_id='deferred', **ALONE, **RETRIED)",
    ]
    for number in range(6):
        # Two of them have no retry.
        retries = "" if number < 2 else "**RETRIED"
        made.append(f"works.override(task_id='slow_{number}', **ALONE, {retries})({dice.uniform(*SLOW):.1f})")
    return "\n".join(made)


class Deaths(Blows):
    """Deaths around an executor: of Airflow's processes, of Slurm's, of nodes and of jobs."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        #: What was away, and jobs that were cancelled, by their ids.
        self.away: list[Away] = []
        self.cancelled: set[str] = set()

    def rain_on(self, runs: list[Run], trigger: Callable[[], Run]) -> None:
        """Deal a round's blows, and begin another run whenever there is little left to hit; then all is well again."""
        began, dice = time.monotonic(), self._dice
        blows = dice.randint(*BLOWS)
        # There may be nothing to hit.
        while sum(self.dealt.values()) < blows:
            self._stack.wait("tasks have jobs", lambda: self._is_busy(runs, trigger), LONGEST, is_cheap=True)
            assert time.monotonic() - began < LONGEST, f"too slow: {self.dealt}"
            name = dice.choice(DEATHS)
            self.dealt[name] += bool(getattr(self, name)())
            time.sleep(dice.uniform(*dice.choice(PAUSES)))
        self._stack.start_all()
        self._cluster.sandbox.up()

    def _is_busy(self, runs: list[Run], trigger: Callable[[], Run]) -> bool:
        states = [state for state, _ in self._stack.states(runs[-1]).values()]
        if states and sum(state not in ENDS for state in states) <= LAST:
            runs.append(trigger())
        # They are submitted, wait, or run.
        return not {"queued", "running"}.isdisjoint(states)

    # Airflow

    def kill_scheduler(self) -> bool:
        return self._end("scheduler", signal.SIGKILL)

    def end_scheduler(self) -> bool:
        """It completes the submissions that are under way."""
        return self._end("scheduler", signal.SIGTERM)

    def kill_api_server(self) -> bool:
        return self._end("api-server", signal.SIGKILL)

    def kill_dag_processor(self) -> bool:
        return self._end("dag-processor", signal.SIGKILL)

    def _end(self, name: str, how: signal.Signals) -> bool:
        component = self._stack.components[name]
        with self._absent(name):
            component.end(how, with_children=how == signal.SIGKILL)
            time.sleep(self._aim.uniform(0, SHORT))
            component.start()
            if name == "api-server":
                self._stack.wait("the API server answers", lambda: self._stack.api.is_healthy(name))
        return True

    # Slurm

    def kill_slurmctld(self) -> bool:
        """It forgets what it has not saved, and such jobs are missed after five minutes."""
        return self._take("slurmctld", SHORT)

    def hang_slurmctld(self) -> bool:
        self._cluster.fault("slurmctld-hung")
        time.sleep(self._aim.uniform(0, LONG))
        self._cluster.sandbox.resume_frozen()
        return True

    def take_slurmdbd(self) -> bool:
        return self._take("slurmdbd", LONG)

    def take_sshd(self) -> bool:
        self.cut_connections()
        return self._take("sshd", LONG)

    def _take(self, daemon: str, longest: float) -> bool:
        with self._absent(daemon):
            self._restart(daemon, longest=longest)
        return True

    def kill_node(self) -> bool:
        """One on which jobs run."""
        nodes = sorted({node for _, state, node in self._jobs() if state == "RUNNING"})
        if not nodes:
            return False
        node = self._aim.choice(nodes)
        with self._absent(node):
            self._cluster.fault("node-dies", node=node)
            # Else slurmctld would take a minute to find out, and Airflow half of one.
            self._cluster.try_run("scontrol", "update", f"nodename={node}", "state=down", "reason=died")
        return True

    def cancel_job(self) -> bool:
        jobs = self._jobs()
        if not jobs:
            return False
        job, *_ = self._aim.choice(jobs)
        self.cancelled.add(job)
        return self._cluster.try_run("scancel", job).returncode == 0

    def _jobs(self) -> list[list[str]]:
        """The id, the state and the node of each job; none while slurmctld does not answer."""
        said = self._cluster.try_run(
            "squeue", "--noheader", "--array", "--states=PD,CF,R", "--sort=i", "--format=%i|%T|%N"
        )
        return [line.split("|") for line in said.stdout.splitlines()]

    @contextlib.contextmanager
    def _absent(self, name: str) -> Iterator[None]:
        since = time.time()
        yield
        self.away.append(Away(name, since, time.time()))
