"""Bases of operators, most of which leave their work to a trigger, in the triggerer or in an Airflow worker."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.errors import LastingError
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.values import check_arguments, check_durations, check_interval
from airflow_provider_soperator.work.protocols import End, EndsAnywhere, Work, result_of

if TYPE_CHECKING:
    from airflow_provider_soperator.triggers.base import KillableTrigger

#: Seconds for which Airflow's own alarm is put off, so that it strikes only if all else has failed.
_GRACE = 60.0


def task_name(ti: Any) -> str:
    """The same for all tries of a task, and no other's."""
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)))


def begun_before(context: Context) -> datetime | None:
    """In another try, the start of the DAG run; else None.

    Of an earlier try it is not known when it began, but not before the run of the DAG.
    """
    ti = context["ti"]
    return context["dag_run"].start_date if ti and ti.try_number > 1 else None


@contextmanager
def final_errors() -> Iterator[None]:
    """Fail the task for good after a mistake, or an error of Slurm's that no other try can mend."""
    try:
        yield
    except (SlurmError, LastingError, ValueError) as error:
        if getattr(error, "retryable", False):
            raise
        raise AirflowFailException(str(error)) from error


def in_one_process() -> bool:
    """True under ``dag.test()`` and ``airflow tasks test``: nothing goes on with a task that this process leaves."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), InProcessSupervisorComms)


class Waiting:
    """Runs a trigger to its event, in a loop that a signal handler can end in good order."""

    def __init__(self, trigger: KillableTrigger) -> None:
        self._trigger = trigger
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Future[dict[str, Any]] | None = None
        self._is_killed = False

    def event(self) -> dict[str, Any]:
        """The event with which the task goes on. Raises if the task was killed."""
        # The trigger knows the deadline. An exception that a signal handler raises in the midst of a callback of the
        # loop would be logged there, and lost.
        if left := signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, left + _GRACE)
        return asyncio.run(self._run())

    def kill(self) -> None:
        """End the job and the waiting; returns at once. May be called by a signal handler, or by another thread."""
        # First of all: in another thread the loop may be at the end of its work before this is.
        is_first, self._is_killed = not self._is_killed, True
        if is_first and self._loop and self._work:
            # The loop may be closed: Airflow also calls this after a task has raised that its time is over.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._work.cancel)

    def _interrupt(self) -> None:
        assert self._loop is not None
        # Another Ctrl-C ends the process, whatever is left: the cluster may be away.
        self._loop.remove_signal_handler(signal.SIGINT)
        self.kill()

    async def _run(self) -> dict[str, Any]:
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.ensure_future(self._trigger.event())
        # A notebook runs dag.test() in a thread, which gets no signals.
        if in_one_process() and threading.current_thread() is threading.main_thread():
            # In an Airflow worker, the task's process dies of Ctrl-C, and the next try goes on with the job.
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        if self._is_killed:
            self._work.cancel()
        try:
            return await self._work
        except asyncio.CancelledError:
            if not self._is_killed:
                raise
        await self._trigger.cancel()
        raise AirflowException("the task was told to end" + self._trigger.fate)


class StrictOperator(BaseOperator):
    """Refuses parameters that it has not, with the nearest name."""

    def __init__(self, **kwargs: Any) -> None:
        check_arguments(type(self), kwargs.get("task_id"), kwargs, self.remedy_for)
        super().__init__(**kwargs)

    @classmethod
    def remedy_for(cls, name: str) -> str:
        """The remedy for an unknown parameter, if it is not the nearest known one."""
        return ""


class WaitingOperator(EndsAnywhere, StrictOperator):
    """Leaves its work to a trigger."""

    deferrable: bool
    _waiting: Waiting | None = None

    def wait_for(self, trigger: KillableTrigger, context: Context) -> Any:
        """Go on with ``execute_complete`` after the trigger's event, unless the triggerer ends the task."""
        # Airflow would run the trigger without its task, whose states a pipeline needs, and could not end its work.
        if self.deferrable and not in_one_process():
            for name, value in self.endings(context["ti"]).items():
                setattr(trigger, name, value)
            self.defer(trigger=trigger, method_name="execute_complete")
        trigger.task_instance = context["ti"]  # type: ignore[assignment]
        trigger.is_in_worker = True
        self._waiting = Waiting(trigger)
        return self.execute_complete(context, self._waiting.event())

    def start_later(self, seconds: float) -> None:
        """Begin anew after some seconds in which no slot is taken; return after them if the task is not deferred."""
        if self.deferrable and not in_one_process():
            from airflow_provider_soperator.triggers.sbatch import LaterStartTrigger

            self.defer(trigger=LaterStartTrigger(seconds), method_name="execute_complete")
        time.sleep(seconds)

    def time_left(self) -> timedelta | None:
        """What is left of the ``execution_timeout`` of this try, if it has one."""
        limit = self.execution_timeout
        # Airflow's alarm may have run for long when the work begins.
        left = signal.getitimer(signal.ITIMER_REAL)[0] if limit else 0.0
        return timedelta(seconds=left) if left else limit

    def deadline(self) -> float | None:
        """When that is over, in seconds since 1970."""
        left = self.time_left()
        return time.time() + left.total_seconds() if left else None

    @abstractmethod
    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The task's result, once its trigger has fired."""

    def on_kill(self) -> None:
        """The worker is told to end the task: the trigger ends what is to end with it."""
        if self._waiting:
            self._waiting.kill()


class WorkOperator(WaitingOperator):
    """Does its work in a trigger, until it is done or ``timeout`` is over.

    :param timeout: time limit of the work; then the task fails, and what must not outlast it is undone. A shorter
        ``execution_timeout`` counts instead
    :param deferrable: do the work in the triggerer, and not in an Airflow worker
    :param poll_interval: seconds between two polls
    """

    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(hours=24),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.timeout = timeout
        self.deferrable = deferrable
        check_durations(timeout=timeout)
        check_interval("poll_interval", poll_interval)
        self.poll_interval = poll_interval

    @abstractmethod
    def work(self, context: Context) -> Work[Any]:
        """The work, of rendered fields; ``ValueError`` for what could never be done."""

    def span(self, since: datetime | None = None) -> dict[str, Any]:
        """The fields that all work has: when it began, and until when it may take, at which interval."""
        now, limit = datetime.now(timezone.utc), min(self._limit, self.time_left() or self._limit)
        return {"since": since or now, "deadline": now + limit, "poll_interval": self.poll_interval}

    @property
    def _limit(self) -> timedelta:
        return min(self.timeout, self.execution_timeout or self.timeout)

    def execute(self, context: Context) -> Any:
        with final_errors():
            work = self.work(context)
        return self.carry_out(work, context)

    def carry_out(self, work: Work[Any], context: Context) -> Any:
        """Do the work, here or in the triggerer."""
        from airflow_provider_soperator.triggers.work import WorkTrigger

        return self.wait_for(WorkTrigger(work.write()), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return result_of(event, self._limit)

    def needs_a_worker_after(self, end: End) -> bool:
        return type(self).execute_complete is not WorkOperator.execute_complete or super().needs_a_worker_after(end)
