"""The executor: what Airflow's scheduler calls, none of which waits for the cluster.

Submissions and polls are in the event loop of a thread (``job_keeper``). Its news are taken up in ``sync``.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.executors.base_executor import BaseExecutor, get_execution_api_server_url
from airflow.executors.workloads import ExecuteCallback

from airflow_provider_soperator.executors.books import Books, News, NewsKind, Phase
from airflow_provider_soperator.executors.settings import OPTIONS, SECTION

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteTask, ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

    from airflow_provider_soperator.client.sync import LoopThread
    from airflow_provider_soperator.executors.job_keeper import JobKeeper
    from airflow_provider_soperator.executors.task_jobs import QueuedTask

#: Seconds between two looks for tasks that were cleared or marked while their jobs wait.
LOOK = 15.0
#: Seconds that a log may take of the API server's time, and submissions at the exit.
OF_LOG, AT_EXIT = 3.0, 10.0
#: News that are taken up at once, and ends that wait to be written to logs.
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
        self.parallelism = self.conf.getint(SECTION, "executor_parallelism", fallback=default)  # type: ignore[no-untyped-call]
        self._books = Books()
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._keeper: JobKeeper | None = None
        #: News that are not taken up yet, as Airflow's database did not answer.
        self._untaken: list[News] = []
        #: Legs that Airflow did not wait for at the last look, and when that was.
        self._unwanted: set[str] = set()
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

    def queue_workload(self, workload: ExecutorWorkload, session: Session) -> None:
        """Queue a task; a callback fails, as an error would end the scheduler, and each that is started after it."""
        if isinstance(workload, ExecuteCallback):
            self.fail(workload.key, info="SlurmExecutor runs no callbacks: name another executor in SyncCallback")
        else:
            super().queue_workload(workload, session)

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
                # A scheduler has given the executor its own id.
                no_scheduler = "tasks of `dags test --use-executor` cannot run here"
                why = "name the executor by its alias" if self.job_id else no_scheduler
                said = f"Airflow's scheduler assigned no external_executor_id: {why}"
                self._tell(key, "failed", said)
                self.fail(key, info=said)
        if accepted:
            self._loop.begin(self._submit(accepted))

    async def _submit(self, workloads: Sequence[ExecuteTask]) -> None:
        # Tokens are signed here, as that may take a millisecond each.
        try:
            tasks = [self.queued_task(workload) for workload in workloads]
        except Exception as error:
            # Nothing else would end these tasks: for Airflow they wait in Slurm.
            self.log.exception("Tasks could not be handed over")
            said = f"The job could not be submitted: {error!r}"
            for workload in workloads:
                self._news.put(News(str(workload.ti.external_executor_id), NewsKind.FAILED, said))
            return
        await self.keeper.submit(tasks)

    def queued_task(self, workload: ExecuteTask) -> QueuedTask:
        """The task, with a token to start it."""
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

    def news(self) -> Iterator[News]:
        """Take the news of jobs, the oldest first."""
        while not self._news.empty():
            yield self._news.get_nowait()

    def sync(self) -> None:
        """Take up the news; never waits for the cluster, and never raises, which would end the scheduler."""
        self._untaken += islice(self.news(), MOST_NEWS - len(self._untaken))
        try:
            _schedule_again({news.leg for news in self._untaken if news.kind is NewsKind.NOT_SUBMITTED})
            states = _states({news.leg for news in self._untaken if news.is_end})
        except Exception:
            self.log.exception("The states of tasks cannot be read or changed at present")
            return
        news_of_jobs, self._untaken = self._untaken, []
        for news in news_of_jobs:
            try:
                self._take_up(news, states.get(news.leg))
            except Exception:
                self.log.exception("News of %s could not be taken up: %s", news.leg, news.text)
        if time.monotonic() - self._looked_at > LOOK:
            self._looked_at = time.monotonic()
            self._loop.begin(self._drop_unwanted(self._books.unstarted))

    def _take_up(self, news: News, state: str | None) -> None:
        kind, said = news.kind, news.text
        if not news.is_end:
            if kind is NewsKind.WAITING:
                # Slurm puts back what its node could not start, and its task may be cleared meanwhile.
                self._books.put_back(news.leg)
            else:
                self._books.move(news.leg, Phase.STARTED if kind is NewsKind.STARTED else Phase.SUBMITTED)
            if key := self._books.key_of(news.leg):
                self._tell(key, kind.value, said)
            return
        key = self._books.end(news.leg)
        if key is None:
            return
        # Of a task that is not wanted another job may run; and one without a job that runs is for heartbeats to miss.
        is_waited_for = state == "queued" or (state is not None and kind in (NewsKind.SUCCEEDED, NewsKind.FAILED))
        is_cleared = is_waited_for and state == "restarting"
        if is_cleared:
            # Airflow then runs it again at once; after a failure it would wait as for a retry.
            self.success(cast("WorkloadKey", key), info=said)
            if kind is NewsKind.SUCCEEDED:
                self._tell(key, "ended", f"{said}: it was ended, as its task was cleared")
        elif is_waited_for:
            said += self._WHY.get(kind.value, "")
            self.fail(cast("WorkloadKey", key), info=said)
        else:
            # It has told its state itself. The end of its job would fail a sensor that has been rescheduled, and that
            # Airflow has scheduled again since.
            self.running.discard(cast("WorkloadKey", key))
        if kind is NewsKind.FAILED or (is_waited_for and not is_cleared):
            self._tell(key, NewsKind.FAILED.value, "\n".join((said, *news.lines)))
            if news.log_path:
                # Of what does not fit, the audit log alone tells.
                with suppress(queue.Full):
                    self._for_logs.put_nowait((news.log_path, said, news.lines))

    #: Why a task has failed whose job has not: another server has answered its node, or its supervisor was lost.
    _WHY: ClassVar = {
        "not wanted": ": what answered its node knows no such task: see whether execution_api_server_url is right",
        "succeeded": ", and its task has told no state",
    }

    def _tell(self, key: Any, event: str, said: str) -> None:
        """Add a row to the task's audit log."""
        self.log_task_event(event=f"slurm job {event}", extra=said, ti_key=key)
        # There is no row for a key that Airflow cannot log.
        if self._task_event_logs:
            self._rows.append(self._task_event_logs[-1])

    @cached_property
    def _for_logs(self) -> queue.Queue[tuple[str, str, Sequence[str]]]:
        """Ends of jobs for tasks' logs, which a thread of their own writes.

        The folder of logs may be on the cluster, whose file system may hang: no exit waits for it then.
        """
        ends: queue.Queue[tuple[str, str, Sequence[str]]] = queue.Queue(MOST_NEWS)

        def write() -> None:
            while True:
                self._append_to_log(*ends.get())

        threading.Thread(target=write, name="soperator-logs", daemon=True).start()
        return ends

    def _append_to_log(self, log_path: str, said: str, more: Sequence[str]) -> None:
        """Add lines to the task's log, where the API server reads it."""
        at, events = datetime.now(timezone.utc).isoformat(), [("error", said), *(("warning", line) for line in more)]
        lines = [{"timestamp": at, "level": level, "event": line, "logger": "slurm"} for level, line in events]
        try:
            with open(_opened(log_path), "a") as log:
                log.writelines(json.dumps(line) + "\n" for line in lines)
        except Exception as error:
            self.log.warning("%s cannot be written, so the audit log alone tells of the end: %s", log_path, error)

    async def _drop_unwanted(self, legs: Collection[str]) -> None:
        keeper = self.keeper
        try:
            legs = {*legs, *keeper.ended}
            unwanted = legs - {*await asyncio.to_thread(_states, legs)}
            # The task of a job that has just started may be through before a poll has seen the start.
            seen_twice, self._unwanted = unwanted & self._unwanted, unwanted
            await keeper.drop(seen_twice)
        except Exception:
            self.log.exception("Tasks that were cleared could not be looked for")

    # Schedulers that end, and others that go on

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Go on with the jobs of a scheduler that has ended, also if they have ended meanwhile."""
        ours = {leg: self._key(ti) for ti in tis if (leg := ti.external_executor_id) and leg not in self._books}
        for leg, key in ours.items():
            self._books.accept(leg, key, Phase.SUBMITTED)
            self.running.add(key)
        if ours:
            self._loop.begin(self.keeper.adopt_later([*ours]))
        # What is not adopted is a new try. Those that have no job are put back once that is known.
        return [ti for ti in tis if not ti.external_executor_id]

    def end(self) -> None:
        """Complete submissions that are under way; jobs go on, for the next scheduler to adopt."""
        if self._keeper is None:
            # Airflow ends what has refused to start, too.
            return
        until = time.monotonic() + AT_EXIT
        while self._books.unsubmitted and time.monotonic() < until:
            self.sync()
            time.sleep(0.1)
        closing = self._loop.begin(self.keeper.close())
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
        from airflow_provider_soperator.executors.environment import read_log
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
    def keeper(self) -> JobKeeper:
        """The jobs of the tasks, once it is started."""
        assert self._keeper is not None, "the scheduler starts the executor"
        return self._keeper


def _opened(log_path: str) -> int:
    """Open a task's log to append to it, below the folder of logs.

    What runs as the user of the jobs may have named any path, and put a link or a pipe there: neither is followed.
    """
    from airflow.sdk.configuration import conf

    def modes(of: str, usual: str) -> int:
        # Those of Airflow's own: the user of the jobs has the logs of further tries beside it.
        return int(conf.get("logging", f"file_task_handler_new_{of}_permissions", fallback=usual), 8)

    path = PurePosixPath(log_path)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it is not below base_log_folder")
    *folders, name = path.parts
    folder = os.open(conf.get("logging", "base_log_folder"), os.O_DIRECTORY)
    try:
        for one in folders:
            with suppress(FileExistsError):
                os.mkdir(one, modes("folder", "0o775"), dir_fd=folder)
            outer = folder
            folder = os.open(one, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
            os.close(outer)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        log = os.open(name, flags, modes("file", "0o664"), dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(log).st_mode):
        os.close(log)
        raise ValueError("it is no regular file")
    return log


def _schedule_again(legs: Collection[str]) -> None:
    """Put back those of some legs that Airflow has queued: it queues their tasks again, in the same try."""
    if not legs:
        return
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import update

    known, state = TaskInstance.external_executor_id, TaskInstance.state
    # As the scheduler does with tasks that are stuck in its queue.
    values: dict[str, Any] = dict.fromkeys(("queued_dttm", "queued_by_job_id", "external_executor_id"))
    values |= {"state": TaskInstanceState.SCHEDULED, "scheduled_dttm": datetime.now(timezone.utc)}
    with create_session() as session:
        changed = update(TaskInstance).where(known.in_(legs), state == TaskInstanceState.QUEUED)
        session.execute(changed.values(**values).execution_options(synchronize_session=False))


def _states(legs: Collection[str]) -> Mapping[str, str]:
    """The states of those of some legs that Airflow still waits for."""
    if not legs:
        return {}
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import State
    from sqlalchemy import select

    known, state = TaskInstance.external_executor_id, TaskInstance.state
    with create_session() as session:
        rows = session.execute(select(known, state).where(known.in_(legs), state.in_(State.adoptable_states)))
        return {str(leg): str(state) for leg, state in rows}
