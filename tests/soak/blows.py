"""Blows to an Airflow and to the Slurm that its tasks wait for, dealt at random and counted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from sandbox.airflow.api import ENDS
from tests.airflow.processes import is_alive, parent
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster
from tests.soak.rounds import Round

#: Seconds in which a run must have come as far as blows are dealt: a slow machine takes a quarter of it.
LONGEST = 40 * 60
#: Of tasks that are left when there is little left to hit, each would be hit until it has no try left.
LAST = 6
LAST_SHARE = 0.1
#: Seconds between two blows where time is the measure, and else the part of all tasks that comes a step further.
PAUSES = (0.5, 3.0)
STEPS = (0.03, 0.2)
#: One task in so many is marked as failed, by the suite, while it waits.
MARKED = 12


class Blows:
    """Those that strike one run of a DAG."""

    def __init__(self, round_: Round, stack: Stack, cluster: Cluster, run: Run) -> None:
        self.dealt: Counter[str] = Counter()
        #: Tasks that were marked as failed, and their indices.
        self.marked: set[tuple[str, int]] = set()
        self._stack, self._cluster, self._run = stack, cluster, run
        # What can be aimed at is a matter of time: it must not change which blows there are.
        self._dice, self._aim = round_.dice("blows"), round_.dice("aim")

    def rain(self, names: Sequence[str], pause: Callable[[random.Random], None]) -> None:
        """Deal blows of these kinds, until few tasks are left; then all is started that was ended."""
        blows: list[Callable[[], bool]] = [getattr(self, name) for name in names]
        began = time.monotonic()
        self._stack.wait("the first tasks run", lambda: any(task["state"] == "running" for task in self._run.tasks()))
        while self._many_are_left():
            assert time.monotonic() - began < LONGEST, f"too slow: {self.dealt}"
            blow = self._dice.choice(blows)
            # There may be nothing to hit.
            self.dealt[blow.__name__] += blow()
            pause(self._dice)
        self._stack.start_all()
        self._cluster.sandbox.up()

    def pass_time(self, dice: random.Random) -> None:
        """Some seconds between two blows."""
        time.sleep(dice.uniform(*PAUSES))

    def see_progress(self, dice: random.Random) -> None:
        """A part of all tasks, larger or smaller, comes further: where each blow sets many back, time is no measure."""
        before = self._progress()
        enough = before + max(1, round(dice.uniform(*STEPS) * len(self._run.tasks())))
        what = f"tasks come further after {self.dealt}"
        self._stack.wait(what, lambda: self._progress() >= enough or not self._many_are_left(), LONGEST)

    def _progress(self) -> int:
        """How often a task has begun to wait, or has ended."""
        states = Counter(task["state"] for task in self._run.tasks())
        return states["deferred"] + 2 * sum(states[state] for state in ENDS)

    def _many_are_left(self) -> bool:
        tasks = self._run.tasks()
        return sum(task["state"] not in ENDS for task in tasks) > max(LAST, LAST_SHARE * len(tasks))

    def kill_task(self) -> bool:
        return self._strike(lambda pid: os.kill(pid, signal.SIGKILL))

    def end_worker(self) -> bool:
        return self._strike(lambda pid: os.kill(pid, signal.SIGTERM))

    def kill_worker(self) -> bool:
        """The task together with what watches it."""

        def kill_both(pid: int) -> None:
            os.kill(parent(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        return self._strike(kill_both)

    def kill_triggerer(self) -> bool:
        return self._restart_triggerer(signal.SIGKILL, with_children=True)

    def end_triggerer(self) -> bool:
        return self._restart_triggerer(signal.SIGTERM, with_children=False)

    def _restart_triggerer(self, how: signal.Signals, *, with_children: bool) -> bool:
        triggerer = self._stack.components["triggerer"]
        triggerer.end(how, with_children=with_children)
        triggerer.start()
        return True

    def cut_connections(self) -> bool:
        return not self._cluster.fault("login-cut").startswith("0 ")

    def restart_sshd(self) -> bool:
        return self._restart("sshd")

    def restart_slurmctld(self) -> bool:
        # Not by SIGKILL: a controller forgets what it was told in the seconds before, the ids of jobs among it. Their
        # tasks fail, as they should, once it is clear that Slurm has lost these jobs, which takes five minutes.
        return self._restart("slurmctld", signal.SIGTERM)

    def restart_slurmdbd(self) -> bool:
        return self._restart("slurmdbd")

    def _restart(self, daemon: str, how: signal.Signals = signal.SIGKILL, longest: float = 2.0) -> bool:
        init = self._cluster.sandbox.init
        init.signal(daemon, how)
        self._stack.wait(f"{daemon} is gone", lambda: not init.processes()[daemon]["pid"])
        time.sleep(self._aim.uniform(0, longest))
        self._cluster.sandbox.up()
        return True

    def mark_failed(self) -> bool:
        tasks = self._run.tasks()
        waiting = [task for task in tasks if task["state"] in ("running", "deferred")]
        if not waiting or len(self.marked) >= len(tasks) / MARKED:
            return False
        task = self._aim.choice(waiting)
        # It may be over by the time that Airflow is told.
        self._run.mark(task["task_id"], "failed")
        self.marked.add((task["task_id"], task["map_index"]))
        return True

    def _strike(self, blow: Callable[[int], None]) -> bool:
        """Hit a process of a task's that is there, and is this Airflow's."""
        tasks = [task for task in self._run.tasks() if task["state"] == "running" and task["pid"]]
        self._aim.shuffle(tasks)
        scheduler = self._stack.components["scheduler"].pid
        for pid in (task["pid"] for task in tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if is_alive(pid) and os.getsid(pid) == os.getsid(scheduler):
                    blow(pid)
                    return True
        return False


def seconds(dice: random.Random, longest: float) -> float:
    """How long a job is to take."""
    return round(dice.uniform(0, longest), 1)
