"""Work and watches: values that a task builds, and that travel as JSON to the worker or triggerer that runs them.

A ``Work`` goes step by step to a result. A ``Watch`` looks until its condition is met. Neither remembers anything
between two processes: each step and each look starts from the state of the cluster.

The task goes on with an event: ``{"status": "success", "result": ...}``, or a ``message`` with one of the statuses
``failed`` (another try may help), ``refused`` (no other try can) and ``timeout``. Its figures go to Airflow's metrics.
"""

from __future__ import annotations

import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.values import Plain

if TYPE_CHECKING:
    from typing_extensions import Self


C = TypeVar("C")


class WorkFailed(Exception):
    """The work cannot be completed; another try may succeed."""


class WorkRefused(WorkFailed):
    """The work cannot be completed, and no other try can help before the task or the cluster is changed."""


class Stored(Plain):
    """A dataclass that travels as JSON, with its class, to the process that carries it out."""

    def write(self) -> dict[str, Any]:
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}", **super().write()}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        """Read a value that ``write`` has written: of this class or a subclass."""
        fields = dict(said)
        module, _, name = fields.pop("class").rpartition(".")
        derived: type[Self] = getattr(importlib.import_module(module), name)
        if not issubclass(derived, cls):
            raise TypeError(f"expected a {cls.__name__}, got {module}.{name}")
        return super(Stored, derived).read(fields)


@dataclass(kw_only=True)
class Work(Stored, ABC, Generic[C]):
    """The work of a task, until its deadline. Another process that begins it goes on from what it finds."""

    #: Time at which it began.
    since: datetime
    deadline: datetime
    poll_interval: float = 10.0

    #: True once a step has been completed, so that there may be something to undo.
    has_begun = False
    #: How far it has come, and its reason to wait.
    place = ""
    #: When this process has begun it, by its own clock.
    _opened = 0.0

    def begin(self, log: Logger) -> Self:
        """Have the steps of this process log there. Nothing is done before the first of them."""
        self._log, self._opened = log, time.monotonic()
        #: What was logged last about nodes, by their names.
        self._told: dict[str, str] = {}
        self._warned: set[str] = set()
        return self

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return round((datetime.now(timezone.utc) - self.since).total_seconds(), 1)

    @property
    def max_age(self) -> float:
        """Seconds that a shared answer may be old: none is from before the work began, and lacks what was done then."""
        # Of another try, or of what was found before, it has begun long ago.
        return min(self.poll_interval / 2, self.seconds, time.monotonic() - self._opened)

    def _reach(self, place: str, line: str = "%s") -> None:
        """Log the place of the work, if it is a new one."""
        if place != self.place:
            self.place = place
            self._log.info(line, place)

    def _warn_once(self, said: str) -> None:
        if said not in self._warned:
            self._warned.add(said)
            self._log.warning("%s", said)

    def _tell_nodes(self, said: Mapping[str, str]) -> None:
        """Log what is new about nodes, worded to follow their names."""
        from airflow_provider_soperator.slurm.node_conditions import in_lines

        for line in in_lines({name: text for name, text in said.items() if self._told.get(name) != text}):
            self._log.info("%s", line)
        self._told = dict(said)

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[C]:
        """Open the clients that the steps need."""

    @abstractmethod
    async def step(self, client: C) -> dict[str, Any] | None:
        """Do what can be done now; the result, once nothing is left to do.

        Raises ``WorkFailed`` when waiting no longer helps.
        """

    @abstractmethod
    async def undo(self, client: C) -> str:
        """Undo all that must not outlast the task; returns sentences about the rest."""

    def left(self, error: Exception) -> str:
        """Sentence about all that is left behind if the undo fails."""
        return f"What was begun stays as it is, as that could not be undone: {error}"


@dataclass(frozen=True)
class Look:
    """The result of one look of a watch."""

    is_reached: bool
    #: Return value of the sensor once it is reached, as JSON.
    result: Any = None
    #: Lines for the log; a line is logged when the look before did not have it.
    says: tuple[str, ...] = ()

    def tell(self, log: Logger, before: tuple[str, ...]) -> tuple[str, ...]:
        """Log the lines that the look before did not have; returns its own for the next one."""
        for line in self.says:
            if line not in before:
                log.info("%s", line)
        return self.says


@dataclass(kw_only=True)
class Watch(Stored, ABC, Generic[C]):
    """The condition of a sensor."""

    poll_interval: float = 60.0

    @property
    def pause(self) -> float:
        """Seconds from a look to the next one; from a failure it is the interval."""
        return self.poll_interval

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[C]:
        """Open the clients that the looks need."""

    @abstractmethod
    async def look(self, client: C, max_age: float) -> Look:
        """Look at the cluster; shared answers may be at most ``max_age`` seconds old."""


class WorkTimeout(AirflowException):
    """A task was not done within its ``timeout`` or ``execution_timeout``."""


def succeeded(result: Any) -> dict[str, Any]:
    return {"status": "success", "result": result}


def failed(message: str) -> dict[str, Any]:
    return {"status": "failed", "message": message}


def refused(message: str) -> dict[str, Any]:
    return {"status": "refused", "message": message}


def timed_out(message: str) -> dict[str, Any]:
    return {"status": "timeout", "message": message}


def exception_of(event: dict[str, Any], within: timedelta | None = None) -> AirflowException:
    """The exception that an event without a result stands for."""
    if event["status"] == "refused":
        return AirflowFailException(event["message"])
    if event["status"] == "timeout":
        return WorkTimeout(f"not done within {within}: {event['message']}" if within else event["message"])
    return AirflowException(event["message"])


def result_of(event: dict[str, Any], within: timedelta | None = None) -> Any:
    """The result, or the exception that the event stands for."""
    if event["status"] == "success":
        return event["result"]
    raise exception_of(event, within)


End = Literal["success", "failed"]


class EndsAnywhere:
    """A task that ends in the triggerer, unless something is left to do for an Airflow worker."""

    def endings(self, ti: Any = None) -> dict[str, bool]:
        """Arguments of a trigger: whether the triggerer ends the task after a success, and after a failure.

        Airflow may make a retry of any failure there: only an exception in a worker can say that none helps.

        :param ti: this try of the task; without it, the first one
        """
        task: Any = self
        is_last_try = ti.try_number > ti.max_tries if ti else not task.retries
        # The number of tasks that are mapped over a result goes with an XCom from a worker only.
        is_mapped_over = (
            not getattr(ti, "is_mapped", False) and task.has_dag() and any(True for _ in task.iter_mapped_dependants())
        )
        return {
            "end_from_trigger": not (is_mapped_over or self.needs_a_worker_after("success")),
            "fail_from_trigger": is_last_try and not self.needs_a_worker_after("failed"),
        }

    def needs_a_worker_after(self, end: End) -> bool:
        """True if something is left to do for an Airflow worker once the work has ended this way."""
        from airflow.sdk.listener import get_listener_manager

        task: Any = self
        # Such as OpenLineage's.
        if getattr(get_listener_manager().hook, f"on_task_instance_{end}").get_hookimpls():
            return True
        if end == "failed":
            # A sensor that fails softly is skipped, and a policy may reschedule a task after its last try.
            names = ("on_failure_callback", "email", "soft_fail", "never_fail", "retry_policy")
            return any(getattr(task, name, None) for name in names) or bool(task.has_dag() and task.dag.fail_fast)
        return bool(
            task.outlets
            or getattr(task, "returns_dag_result", False)
            or task.on_success_callback
            or task._post_execute_hook
            or type(task).post_execute is not BaseOperator.post_execute
            or task.multiple_outputs
            or not task.do_xcom_push
        )


#: What the name of each of this provider's metrics begins with.
PREFIX = "soperator"


def emit(gauges: Iterable[tuple[str, float | None, Mapping[str, str]]], **tags: str) -> None:
    """Set gauges by their names, values and tags, each with ``tags`` as well; what has no value is left out."""
    for name, value, own in gauges:
        if value is not None:
            _stats().gauge(f"{PREFIX}.{name}", value, tags={**tags, **own})


def count(name: str, **tags: str) -> None:
    """Add one to a counter."""
    _stats().incr(f"{PREFIX}.{name}", tags=tags)


def _stats() -> Any:
    from airflow.providers.common.compat.sdk import Stats

    # Airflow 3.3 has it twice: an Airflow worker sets up the one above, the triggerer the other one. A worker that
    # LocalExecutor has forked from the scheduler has both.
    if getattr(sys.modules[Stats.__module__], "_factory", Stats) is None:
        with suppress(ImportError):
            from airflow.observability.stats import Stats as OfTriggerer

            return OfTriggerer
    return Stats
