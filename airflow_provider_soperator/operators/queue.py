"""Hold, release, put first, cancel and change jobs in the queue, of any user, as tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_provider_soperator.operators.work import StrictOperator, final_errors
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.job_ids import ids_in
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.values import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_provider_soperator.client.queue import JobSelection, OrderedJobs
    from airflow_provider_soperator.slurm.requests.commands import Steps

#: Jobs by their ids: a list, or a text with commas.
JobIds = str | Sequence[str | int]
#: What can be changed of a job.
_CHANGES = ("priority", "nice", "qos", "account", "partition", "time_limit")


class _QueueOperator(StrictOperator):
    """Changes jobs by their ids, or those that match a filter.

    Jobs that are in the wanted state already are left alone, so the task may run again; those that have started or
    ended in the meantime are left out. Returns ``{"jobs": […], "already": […]}``: all that are in the wanted state, and
    those that were before.

    :param job_ids: ids of jobs, in a list or a text with commas
    :param job_filter: conditions of a ``QueueFilter``: states, partition, user, account, qos, name, reason, waited
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "job_ids", "job_filter")
    ui_color = "#d9f2e6"
    #: What has been done to a job, for the log.
    done = ""
    #: The name of the order.
    order = ""

    def __init__(
        self,
        *,
        job_ids: JobIds | None = None,
        job_filter: Mapping[str, Any] | None = None,
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (job_ids is None) == (job_filter is None):
            raise ValueError("name jobs by their ids or by conditions: job_ids or job_filter, and not both")
        if isinstance(job_filter, Mapping):
            _filter(job_filter)
        self.job_ids = job_ids
        self.job_filter = job_filter
        self.slurm_conn_id = slurm_conn_id

    def steps(self, meant: JobSelection) -> Steps[OrderedJobs]:
        """The requests to Slurm."""
        from airflow_provider_soperator.client import queue

        orders = {"hold": queue.hold, "release": queue.release, "top": queue.top, "cancel": queue.cancel}
        return orders[self.order](meant)

    def execute(self, context: Context) -> dict[str, list[str]]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.requests.commands import run_steps

        with final_errors():
            meant = self._meant()
            if meant.ids == ():
                self.log.info("No job is named, so none is %s", self.done)
                return {"jobs": [], "already": []}
            steps = self.steps(meant)
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                ordered = run_steps(steps, slurm.ask)
        jobs, already, gone = (sorted(map(str, ids)) for ids in (ordered.jobs, ordered.already, ordered.gone))
        self.log.info("%s: %s (so before: %s)", self.done, ", ".join(jobs) or "none", ", ".join(already) or "none")
        if gone:
            self.log.warning("Not in the queue any more, or not waiting: %s", ", ".join(gone))
        return {"jobs": jobs, "already": already}

    def _meant(self) -> JobSelection:
        from airflow_provider_soperator.client.queue import JobSelection

        if self.job_filter is not None:
            return JobSelection(filter=_filter(self.job_filter))
        if self.job_ids is None:
            raise InvalidRequest("no jobs are named: what job_ids was to come from has returned nothing")
        said = [self.job_ids] if isinstance(self.job_ids, (str, int)) else self.job_ids
        try:
            return JobSelection(ids=tuple(job for one in said for job in ids_in(str(one))))
        except ValueError as error:
            raise InvalidRequest(f"job_ids: {error}") from None


class HoldJobsOperator(_QueueOperator):
    """Keep waiting jobs from starting until they are released. Jobs that run go on.

    HoldJobsOperator(task_id="hold", job_filter={"partition": "main", "user": "alice"})
    """

    done = "held"
    order = "hold"


class ReleaseJobsOperator(_QueueOperator):
    """Let held jobs start. What an administrator has held, its user cannot release.

    ReleaseJobsOperator(task_id="release", job_ids="{{ ti.xcom_pull('hold')['jobs'] | join(',') }}")
    """

    done = "released"
    order = "release"


class TopJobsOperator(_QueueOperator):
    """Put waiting jobs before all others of their user, without a gain for the user over others.

        TopJobsOperator(task_id="urgent", job_ids=["4711"])

    Slurm lets users do that where SlurmctldParameters has ``enable_user_top``, and operators of Slurm everywhere. An
    array goes as a whole. slurmrestd cannot do it.
    """

    done = "put first"
    order = "top"


class CancelJobsOperator(_QueueOperator):
    """End jobs, whether they run or wait. The task of Airflow that a job is of fails, and may be retried.

    CancelJobsOperator(task_id="cancel", job_ids=["4711"])
    """

    done = "cancelled"
    order = "cancel"


class UpdateJobsOperator(_QueueOperator):
    """Change jobs: their priority, niceness, QOS, account, partition or time limit.

        UpdateJobsOperator(task_id="later", job_filter={"user": "alice", "states": ["PENDING"]}, nice=1000)

    More priority, less niceness and longer limits need an operator of Slurm. A change is given here: what
    ``default_args`` say under these names are options of jobs that the DAG submits, and change no other.

    :param priority: a fixed priority, which no longer changes with time
    :param nice: number that Slurm subtracts from the priority it computes
    :param qos: quality of service
    :param account: account
    :param partition: partition
    :param time_limit: time limit
    :param include_running: change also running jobs, which Slurm allows for ``time_limit``
    """

    template_fields = (*_QueueOperator.template_fields, *_CHANGES)
    done = "changed"
    #: The parameters that the DAG's author has given to the task itself.
    _own: frozenset[str] = frozenset()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # In __init__ Airflow has added those of default_args. Its own __setattr__ needs what comes later.
        object.__setattr__(made, "_own", frozenset(kwargs))
        return made

    def __init__(
        self,
        *,
        priority: int | str | None = None,
        nice: int | str | None = None,
        qos: str | None = None,
        account: str | None = None,
        partition: str | None = None,
        time_limit: timedelta | str | None = None,
        include_running: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.priority, self.nice = priority, nice
        self.qos, self.account, self.partition = qos, account, partition
        self.time_limit = time_limit
        self.include_running = include_running
        defaults = kwargs.get("default_args") or {}
        for name in _CHANGES:
            # A class of the DAG's author may give one, too.
            if name not in self._own and getattr(self, name) == defaults.get(name):
                setattr(self, name, None)
        if all(getattr(self, name) is None for name in _CHANGES):
            raise ValueError(f"nothing to change: give {', '.join(_CHANGES)} (those of default_args do not count)")

    def steps(self, meant: JobSelection) -> Steps[OrderedJobs]:
        from airflow_provider_soperator.client import queue

        changes, known = self._changes()
        if not changes:
            raise InvalidRequest("nothing to change: what a template was to give is empty")
        # What a job's niceness is the queue does not tell.
        is_complete = len(known) == len(changes)
        self.done = "changed to " + ", ".join(f"{field}={value}" for field, value in changes.items())

        def is_so(job: Job) -> bool:
            return is_complete and queue.has_fields(job, known)

        return queue.update(meant, changes, is_so, self.include_running)

    def _changes(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Slurm's fields, and those of a job's record by which one is known to have them."""
        from airflow_provider_soperator.slurm.option_values import duration_text, in_seconds, is_unlimited
        from airflow_provider_soperator.slurm.requests.commands import plain_word

        changes: dict[str, str] = {}
        known: dict[str, Any] = {}
        for name, field in (("qos", "QOS"), ("account", "Account"), ("partition", "Partition")):
            if value := getattr(self, name):
                changes[field] = known[name] = plain_word(f"a {name}", value)
        for name, field in (("priority", "Priority"), ("nice", "Nice")):
            if (value := getattr(self, name)) is not None:
                changes[field] = str(whole_number(name, value))
        if "Priority" in changes:
            known["priority"] = int(changes["Priority"])
        if (limit := self.time_limit) is not None:
            try:
                changes["TimeLimit"] = duration_text(limit)
                known["time_limit"] = (
                    NoDuration.UNLIMITED if is_unlimited(limit) else timedelta(seconds=in_seconds(limit))
                )
            except ValueError as error:
                raise InvalidRequest(f"time_limit: {error}") from None
        return changes, known


def _filter(said: Any) -> QueueFilter:
    """Conditions that are some. A template that has made nothing of one must not order more jobs about than meant."""
    jobs = QueueFilter.of(said)
    if not any(dataclasses.astuple(jobs)):
        raise InvalidRequest(
            f'job_filter={said} is the whole queue: name a partition, a user or the like ({{"name": "*"}}: all)'
        )
    if empty := [name for name in said if not getattr(jobs, name) and name != "waited"]:
        raise InvalidRequest(
            f"job_filter={said}: {', '.join(empty)} is empty, so any would do: leave it out if that is meant"
        )
    return jobs
