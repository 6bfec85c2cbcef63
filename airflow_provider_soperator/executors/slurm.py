"""The executor: what Airflow's scheduler calls, none of which waits for the cluster.

Submissions and polls are in the event loop of a thread (``job_keeper``). Its news are taken up in ``sync``.
"""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow.executors.base_executor import BaseExecutor, get_execution_api_server_url

from airflow_provider_soperator.executors.books import Books, Phase
from airflow_provider_soperator.executors.settings import OPTIONS, SECTION

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteTask
    from airflow.executors.workloads.types import WorkloadKey
    from airflow.models.taskinstance import TaskInstance

    from airflow_provider_soperator.client.sync import LoopThread
    from airflow_provider_soperator.executors.job_keeper import JobKeeper, News
    from airflow_provider_soperator.executors.task_jobs import QueuedTask

#: Seconds between two looks for tasks that were cleared or marked while their jobs wait.
LOOK = 15.0
#: Seconds that adoption may take of the scheduler's time, a log of the API server's, and submissions at the exit.
ADOPTION, OF_LOG, AT_EXIT = 5.0, 3.0, 10.0
#: News that are taken up at once.
MOST_NEWS = 2000


class SlurmExecutor(BaseExecutor):
    """Runs each task as a Slurm job, whose supervisor is Airflow's own.

    What a job asks for are fields of ``BatchJob``: of the options, of the task's queue, and of its ``executor_config``.

        [core]
        executor = LocalExecutor,SlurmExecutor:airflow_provider_soperator.executors.SlurmExecutor

        @task(executor="SlurmExecutor", executor_config={"gpus": 1, "time_limit": "1:00:00"})
        def train(): ...
    """

    # The scheduler writes a new one with each QUEUED: two legs of a try have the same key otherwise.
    pre_assigns_external_executor_id = True
    # Airflow 3.4: keys are the ids of task instances.
    supports_task_instance_uuid = True
    is_local = False
    serve_logs = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Most slots of the scheduler that tasks take while the cluster does not answer.
        self._most_occupied = max(1, self.parallelism // 2)
        # Not that of the whole scheduler: most of these tasks wait in Slurm.
        default = OPTIONS["executor_parallelism"][1]
        self.parallelism = int(cast(str, self.conf.get(SECTION, "executor_parallelism", fallback=default)))
        self._books = Books()
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._keeper: JobKeeper | None = None
        self._looked_at = time.monotonic()
        #: The newest rows of audit logs: the scheduler loses those without another reference before it saves them.
        self._rows: deque[Any] = deque(maxlen=2 * MOST_NEWS)

    def start(self) -> None:
        """Read the options, and refuse what cannot work."""
        if self.name is not None and not self.name.alias:
            # Airflow would compare the name that tasks give with the alias and the path only, and pre-assign no id.
            raise ValueError(f"[core] executor: give it an alias: SlurmExecutor:{self.name.module_path}")
        from airflow_provider_soperator.executors.job_keeper import JobKeeper
        from airflow_provider_soperator.executors.options import ExecutorOptions

        env = {
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": get_execution_api_server_url(self.conf),
            # A DAG file that names an executor is not read where that is unknown.
            "AIRFLOW__CORE__EXECUTOR": cast(str, self.conf.get("core", "executor")),
        }
        options = ExecutorOptions.read(self.conf)
        self._token_life = options.token_days * 86400.0
        self._keeper = JobKeeper(options, env, self._news.put, self.log)

    # What the scheduler hands over

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        accepted: list[ExecuteTask] = []
        for workload in workload_items:
            key = self._key(workload.ti)
            del self._queued[key]
            self.running.add(key)
            if leg := workload.ti.external_executor_id:
                self._books.accept(leg, key)
                accepted.append(workload)
            else:
                self._tell(key, "failed", "Airflow assigned no external_executor_id: name the executor by its alias")
                self.fail(key)
        if accepted:
            self._loop.begin(self._submit(accepted))

    async def _submit(self, workloads: Sequence[ExecuteTask]) -> None:
        from airflow_provider_soperator.executors.job_keeper import News, NewsKind

        # Tokens are signed here, as that may take a millisecond each.
        try:
            tasks = [self._queued_task(workload) for workload in workloads]
        except Exception as error:
            # Nothing else would end these tasks: for Airflow they wait in Slurm.
            self.log.exception("Tasks could not be handed over")
            said = f"The job could not be submitted: {error!r}"
            for workload in workloads:
                self._news.put(News(str(workload.ti.external_executor_id), NewsKind.FAILED, said))
            return
        await self._started_keeper.submit(tasks)

    def _queued_task(self, workload: ExecuteTask) -> QueuedTask:
        from airflow_provider_soperator.executors.task_jobs import QueuedTask

        ti = workload.ti
        # Airflow's own token expires when a task has been queued for ten minutes. This one, too, can only start this
        # task, once, while it is queued.
        token = self.jwt_generator.generate({"sub": str(ti.id), "scope": "workload"}, valid_for=self._token_life)
        return QueuedTask(
            str(ti.external_executor_id),
            ti.dag_id,
            ti.run_id,
            ti.task_id,
            -1 if ti.map_index is None else ti.map_index,
            ti.queue,
            ti.executor_config or {},
            workload.model_copy(update={"token": token}).model_dump(mode="json"),
        )

    @property
    def slots_occupied(self) -> int:
        """Tasks that Slurm does not have yet: the others keep no other executor from its work."""
        return len(self._queued) + min(self._books.unsubmitted, self._most_occupied)

    # What the scheduler is told

    def sync(self) -> None:
        """Take up the news; never waits, and never raises, which would end the scheduler."""
        for _ in range(MOST_NEWS):
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                break
            try:
                self._take_up(news)
            except Exception:
                self.log.exception("News of %s could not be taken up: %s", news.leg, news.text)
        if time.monotonic() - self._looked_at > LOOK and (legs := self._books.unstarted):
            self._looked_at = time.monotonic()
            self._loop.begin(self._drop_unwanted(legs))

    def _take_up(self, news: News) -> None:
        from airflow_provider_soperator.executors.job_keeper import NewsKind

        kind = news.kind
        if kind is NewsKind.NOT_WANTED and news.text:
            self._loop.begin(self._ask_if_wanted(news))
            return
        if kind in (NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED):
            if kind is not NewsKind.WAITING:
                self._books.move(news.leg, Phase.STARTED if kind is NewsKind.STARTED else Phase.SUBMITTED)
            if key := self._books.key_of(news.leg):
                self._tell(key, kind.value, news.text)
            return
        key = self._books.end(news.leg)
        if key is None:
            return
        if kind in (NewsKind.NOT_WANTED, NewsKind.SUCCEEDED):
            # The task has told its state itself. The end of its job would fail a sensor that has been rescheduled, and
            # that Airflow has scheduled again since.
            self.running.discard(cast("WorkloadKey", key))
            return
        self.fail(cast("WorkloadKey", key), info=news.text)
        self._tell(key, kind.value, "\n".join((news.text, *news.lines)))
        self._append_to_log(news)

    def _tell(self, key: Any, event: str, said: str) -> None:
        """Add a row to the task's audit log."""
        self.log_task_event(event=f"slurm job {event}", extra=said, ti_key=key)
        # There is no row for a key that Airflow cannot log.
        if self._task_event_logs:
            self._rows.append(self._task_event_logs[-1])

    def _append_to_log(self, news: News) -> None:
        """Add lines to the task's log, where the API server reads it."""
        if not news.log_path:
            return
        at = datetime.now(timezone.utc).isoformat()
        levels = ["error", *["warning"] * len(news.lines)]
        lines = (
            json.dumps({"timestamp": at, "level": level, "event": line, "logger": "slurm"}) + "\n"
            for level, line in zip(levels, (news.text, *news.lines), strict=True)
        )
        path = Path(cast(str, self.conf.get("logging", "base_log_folder")), news.log_path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.writelines(lines)

    async def _ask_if_wanted(self, news: News) -> None:
        """A task whose start was refused has failed if it is queued still: it was no Airflow that has answered."""
        import asyncio

        from airflow.utils.state import TaskInstanceState

        from airflow_provider_soperator.executors.job_keeper import NewsKind

        try:
            is_queued = await asyncio.to_thread(_wanted, [news.leg], [TaskInstanceState.QUEUED])
        except Exception:
            self.log.exception("Whether a task is wanted could not be found out")
            await asyncio.sleep(LOOK)
            self._news.put(news)
            return
        said = f"{news.text}: what answered its node knows no such task: see whether execution_api_server_url is right"
        kind, text = (NewsKind.FAILED, said) if is_queued else (NewsKind.NOT_WANTED, "")
        self._news.put(replace(news, kind=kind, text=text))

    async def _drop_unwanted(self, legs: Sequence[str]) -> None:
        import asyncio

        try:
            wanted = await asyncio.to_thread(_wanted, legs)
            await self._started_keeper.drop(leg for leg in legs if leg not in wanted)
        except Exception:
            self.log.exception("Tasks that were cleared could not be looked for")

    # Schedulers that end, and others that go on

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Go on with the jobs of a scheduler that has ended, also if they have ended meanwhile."""
        legs = {ti.external_executor_id: ti for ti in tis if ti.external_executor_id}
        ours = [leg for leg in legs if leg not in self._books]
        for leg in ours:
            self._books.accept(leg, self._key(legs[leg]), Phase.SUBMITTED)
        if not ours:
            return [ti for ti in tis if not ti.external_executor_id]
        adoption = self._loop.begin(self._started_keeper.adopt(ours))
        try:
            found = adoption.result(ADOPTION)
        except Exception as error:
            # What is not adopted is run again. Whether all of these have jobs is found later.
            adoption.cancel()
            found = set(ours)
            self.log.warning("%s tasks are taken to have jobs, as Slurm does not answer: %r", len(ours), error)
            self._loop.begin(self._started_keeper.adopt_later(ours))
        for leg in ours:
            if leg in found:
                self.running.add(self._key(legs[leg]))
            else:
                self._books.end(leg)
        return [ti for ti in tis if (ti.external_executor_id or "") not in self._books]

    def end(self) -> None:
        """Complete submissions that are under way; jobs go on, for the next scheduler to adopt."""
        until = time.monotonic() + AT_EXIT
        while self._books.unsubmitted and time.monotonic() < until:
            self.sync()
            time.sleep(0.1)
        closing = self._loop.begin(self._started_keeper.close())
        with suppress(Exception):
            closing.result(max(1.0, until - time.monotonic()))

    def terminate(self) -> None:
        """Cancel nothing."""

    # ``revoke_task`` stays as it is, which Airflow takes for: a task that Slurm has queued is not stuck.

    # Logs

    def get_task_log(self, ti: TaskInstance, try_number: int) -> tuple[list[str], list[str]]:
        """The log of a task that runs, from the shared file system; the API server calls it."""
        leg = ti.external_executor_id
        # With any source Airflow does not look for a log server on the node.
        if not leg or ti.try_number != try_number:
            return ["No log on the cluster"], []
        from airflow_provider_soperator.executors.job_keeper import read_log
        from airflow_provider_soperator.executors.options import ExecutorOptions

        try:
            reading = self._loop.begin(read_log(ExecutorOptions.read(self.conf), leg))
            text, path = reading.result(OF_LOG)
        except NotInTime:
            reading.cancel()
            return [f"The cluster did not answer within {OF_LOG:g} s"], []
        except Exception as error:
            return [f"The log on the cluster cannot be read: {error}"], []
        return [f"On the cluster: {path}"], [text] if text else []

    # Airflow 3.3 and 3.4

    @property
    def _queued(self) -> dict[Any, Any]:
        queues = getattr(self, "executor_queues", None)
        if queues is None:
            return self.queued_tasks
        # Its kinds of workloads are texts.
        return cast("dict[Any, Any]", queues["ExecuteTask"])

    def _key(self, ti: Any) -> WorkloadKey:
        key_of = getattr(self, "get_task_key", None)
        return cast("WorkloadKey", key_of(ti) if key_of else ti.key)

    @property
    def _loop(self) -> LoopThread:
        from airflow_provider_soperator.client.sync import LOOP

        return LOOP

    @property
    def _started_keeper(self) -> JobKeeper:
        assert self._keeper is not None, "the scheduler starts the executor"
        return self._keeper


def _wanted(legs: Sequence[str], states: Collection[Any] = ()) -> set[str]:
    """Those of some legs that Airflow still waits for, in some states or any."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import State
    from sqlalchemy import select

    known = TaskInstance.external_executor_id
    with create_session() as session:
        asked = select(known).where(known.in_(legs), TaskInstance.state.in_(states or State.adoptable_states))
        return {leg for leg in session.scalars(asked) if leg}
