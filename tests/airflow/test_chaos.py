"""Whatever dies, and whenever: each task has one job that succeeds, and its result; nothing else goes on running.

SOPERATOR_CHAOS_TASKS says how many tasks there are to be; as many as are worth it take their time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import pytest

from sandbox.airflow.api import ENDS
from tests.airflow.processes import is_alive, parent
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

COUNT = int(os.environ.get("SOPERATOR_CHAOS_TASKS", "20"))
#: Seconds between two blows.
PAUSES = (0.5, 3.0)
#: So many tasks at least may end in peace.
LAST = 6
#: One task in so many is marked as failed, by the suite, while it waits.
MARKED = 12
#: One task in so many has a job that fails at first.
FAILING = 5

#: Each job that ends well leaves its number in a file of its task's.
TASKS = f"""
modes = [{{}}, {{"deferrable": True}}, {{"start_from_trigger": True, "end_from_trigger": True}}]
for number in range({COUNT}):
    fails = "mkdir /root/chaos/failed-$TASK 2>/dev/null && exit 1;" if number % {FAILING} == 0 else ""
    SbatchOperator(
        task_id=f"task_{{number}}",
        command=f"sleep $((RANDOM % 12)).$((RANDOM % 10)); {{fails}} echo $SLURM_JOB_ID >>/root/chaos/$TASK",
        env={{"TASK": "{{{{ ti.task_id }}}}"}},
        retries=50,
        retry_delay=timedelta(seconds=1),
        poll_interval=1,
        **modes[number % len(modes)],
    )
"""


@dataclass
class Chaos:
    """Deals blows at random, and counts them."""

    stack: Stack
    cluster: Cluster
    run: Run
    dice: random.Random = field(default_factory=lambda: random.Random(COUNT))
    dealt: Counter[str] = field(default_factory=Counter)
    #: Tasks that were marked as failed.
    marked: set[str] = field(default_factory=set)

    def deal(self) -> None:
        blow = self.dice.choice(self._blows)
        blow()
        self.dealt[blow.__name__] += 1
        time.sleep(self.dice.uniform(*PAUSES))

    @cached_property
    def _blows(self) -> list[Callable[[], None]]:
        return [
            self.kill_task,
            self.kill_worker,
            self.end_worker,
            self.kill_triggerer,
            self.end_triggerer,
            self.cut_connections,
            self.restart_sshd,
            self.restart_slurmctld,
            self.restart_slurmdbd,
            self.mark_failed,
        ]

    def kill_task(self) -> None:
        for pid in self._at_work():
            os.kill(pid, signal.SIGKILL)

    def end_worker(self) -> None:
        for pid in self._at_work():
            os.kill(pid, signal.SIGTERM)

    def kill_worker(self) -> None:
        """The task together with what watches it."""
        for pid in self._at_work():
            os.kill(parent(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_triggerer(self) -> None:
        self._restart_triggerer(signal.SIGKILL, with_children=True)

    def end_triggerer(self) -> None:
        self._restart_triggerer(signal.SIGTERM, with_children=False)

    def _restart_triggerer(self, how: signal.Signals, *, with_children: bool) -> None:
        triggerer = self.stack.components["triggerer"]
        triggerer.end(how, with_children=with_children)
        triggerer.start()

    def cut_connections(self) -> None:
        self.cluster.fault("login-cut")

    def restart_sshd(self) -> None:
        self._restart("sshd")

    def restart_slurmctld(self) -> None:
        # Not by SIGKILL: a controller forgets what it was told in the seconds before, the ids of jobs among it. Their
        # tasks fail, as they should, once it is clear that nobody knows these jobs, which takes five minutes.
        self._restart("slurmctld", signal.SIGTERM)

    def restart_slurmdbd(self) -> None:
        self._restart("slurmdbd")

    def _restart(self, daemon: str, how: signal.Signals = signal.SIGKILL) -> None:
        init = self.cluster.sandbox.init
        init.signal(daemon, how)
        self.stack.wait(f"{daemon} is gone", lambda: not init.processes()[daemon]["pid"])
        time.sleep(self.dice.uniform(0, 2))
        self.cluster.sandbox.up()

    def mark_failed(self) -> None:
        waiting = [task["task_id"] for task in self.run.tasks() if task["state"] in ("running", "deferred")]
        if waiting and len(self.marked) < COUNT / MARKED:
            task_id = self.dice.choice(waiting)
            # It may be over by the time that Airflow is told.
            self.run.mark(task_id, "failed")
            self.marked.add(task_id)

    def _at_work(self) -> Iterator[int]:
        """A process of a task's that is there, and is this Airflow's."""
        tasks = [task for task in self.run.tasks() if task["state"] == "running" and task["pid"]]
        self.dice.shuffle(tasks)
        scheduler = self.stack.components["scheduler"].pid
        for pid in (task["pid"] for task in tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if is_alive(pid) and os.getsid(pid) == os.getsid(scheduler):
                    yield pid
                    return


def jobs_of(cluster: Cluster, run: Run) -> dict[str, dict[str, str]]:
    """For each task the states of its jobs, by their ids.

    A controller that was killed may have forgotten jobs that have ended, but accounting has them; and it may be late.
    """
    rows = "--noheader", "--parsable2", "--duplicates", "--allocations", "--format=jobid,state,jobname"
    said = cluster.run("sacct", *rows, "--starttime=now-2hours")
    said += cluster.run("squeue", "--noheader", "--all", "--states=all", "--format=%F|%T|%j")
    found: dict[str, dict[str, str]] = {}
    for job, state, name in (line.split("|") for line in said.splitlines()):
        dag_id, _, rest = name.partition(".")
        if dag_id == run.dag_id:
            found.setdefault(rest.partition(".")[0], {})[job] = state.partition(" ")[0]
    return found


@pytest.mark.timeout(3600)
def test_each_task_has_one_job_that_succeeds(stack: Stack, slurm: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.run("mkdir", "-p", "/root/chaos")
    run = stack.add_dag("chaos", TASKS, dag_options="max_active_tasks=1000").trigger()
    chaos = Chaos(stack, slurm, run)
    began = time.monotonic()
    stack.wait("the first tasks wait", lambda: any(task["state"] == "running" for task in run.tasks()))
    # Of those that are left when little is left to hit, each would be hit until it has no try left.
    while sum(task["state"] not in ENDS for task in run.tasks()) > max(LAST, 0.1 * COUNT):
        assert time.monotonic() - began < 20 * 60, f"too slow: {chaos.dealt}"
        chaos.deal()
    stack.start_all()
    slurm.sandbox.up()
    states = run.wait_all(300)

    jobs = jobs_of(slurm, run)
    with capsys.disabled():
        tries = sum(task["try_number"] for task in run.tasks())
        ended = Counter(state for of_task in jobs.values() for state in of_task.values())
        print(f"\n{COUNT} tasks in {time.monotonic() - began:.0f} s: {dict(Counter(states.values()))}, {tries} tries")
        print(f"{ended.total()} jobs: {dict(ended)}\n{chaos.dealt.total()} blows: {dict(chaos.dealt)}")

    for task_id, state in states.items():
        of_task = jobs.get(task_id, {})
        assert set(of_task.values()) <= {"COMPLETED", "FAILED", "CANCELLED"}, (task_id, of_task)
        if task_id in chaos.marked and state == "failed":
            continue
        assert state == "success", run.log(task_id)
        completed = next((job for job, ended_in in of_task.items() if ended_in == "COMPLETED"), None)
        assert Counter(of_task.values())["COMPLETED"] == 1, f"{task_id}: {of_task}\n{run.log(task_id)}"
        # A controller that dies before it has saved that a job runs may start the same job again.
        assert set(slurm.run("cat", f"/root/chaos/{task_id}").split()) == {completed}
        assert run.xcom(task_id)["job_id"] == completed
