"""A task of a DAG run, with as much of its course as Airflow keeps, and tells those who run it."""

from __future__ import annotations

import itertools
import json
import uuid
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

_SECONDS = itertools.count()


def now() -> float:
    """A moment after all that were asked for before."""
    return (datetime(2026, 11, 23, 7, tzinfo=timezone.utc) + timedelta(seconds=next(_SECONDS))).timestamp()


class Store:
    """The state of a task instance, which its tries share and which goes with the run (models/task_state_store)."""

    def __init__(self) -> None:
        self._stored: dict[str, str] = {}

    def get(self, key: str) -> Any:
        return json.loads(self._stored[key]) if key in self._stored else None

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        self._stored[key] = json.dumps(value)

    def clear(self) -> None:
        self._stored.clear()


class TaskRun:
    """What changes with a try, a clear, and a new run of the same id (models/taskinstance, clear_task_instances).

    ``airflow``: 3.3 keeps the state of tasks over a clear, 3.4 empties it then, and dag.test() may have none.
    """

    def __init__(self, task_id: str = "fit", *, retries: int = 2, airflow: str = "3.3", **instance: Any) -> None:
        self.task_id, self.airflow, self._instance = task_id, airflow, instance
        #: As the DAG has it, which can change.
        self.retries = retries
        self.try_number, self.max_tries, self.clear_number = 0, retries, 0
        self.start_date = datetime.fromtimestamp(now(), timezone.utc)
        #: When the instance of the next try was made: with the run, at a clear, or for a retry.
        self.made: float | None = now()
        self.store, self.xcoms = Store(), dict[str, Any]()
        #: What it is given of other tasks.
        self.pulled: Any = None

    def begin(self, *, start_from_trigger: bool = False) -> Any:
        """The context of the next try, in an Airflow worker."""
        self.try_number += 1
        # A new try has none of the one before.
        self.xcoms = {}
        made, self.made = self.made or now(), None
        ti = SimpleNamespace(
            **{"id": _uuid7(made), "dag_id": "d", "run_id": "scheduled__1", "task_id": self.task_id, "map_index": -1}
            | self._instance,
            try_number=self.try_number,
            max_tries=self.max_tries,
            xcom_push=self.xcoms.__setitem__,
            xcom_pull=lambda **_: self.pulled,
        )
        run = SimpleNamespace(start_date=self.start_date, clear_number=self.clear_number, conf={})
        task = SimpleNamespace(retries=self.retries, template_ext=(), start_from_trigger=start_from_trigger)
        key = f"{ti.dag_id}__{ti.task_id}__{ti.run_id}"
        context = {"ti": ti, "task_instance": ti, "task": task, "dag_run": run, "task_instance_key_str": key}
        return context if self.airflow == "no state" else {**context, "task_state_store": self.store}

    def begin_in_the_triggerer(self) -> Any:
        """The task instance of the first try, which a trigger begins: it has no number of tries, and no state."""
        context = self.begin()
        ti = context["ti"]
        ti.max_tries, ti.task = 0, context["task"]
        if self.airflow != "no state":
            # It is there, and the triggerer does not know what to do with its questions.
            context["task_state_store"] = object()
        ti.get_template_context = lambda: context
        return ti

    def clear(self) -> None:
        """As it waits in the triggerer, or has ended."""
        self.max_tries = self.try_number + self.retries
        self._count_clear()

    def clear_while_it_runs(self, *, in_a_pod: bool = False) -> None:
        """In an Airflow worker, whose end is a success for most executors: 3.3 grants it its tries then, 3.4 always."""
        if not in_a_pod or self.airflow == "3.4":
            self.max_tries = self.try_number + self.retries
        self._count_clear()

    def clear_another(self) -> None:
        """Clear another task of the run."""
        self.clear_number += 1

    def _count_clear(self) -> None:
        self.clear_another()
        self.made = now()
        if self.airflow == "3.4":
            self.store.clear()


def _uuid7(made: float) -> uuid.UUID:
    return uuid.UUID(int=int(made * 1000) << 80 | uuid.uuid4().int >> 48)
