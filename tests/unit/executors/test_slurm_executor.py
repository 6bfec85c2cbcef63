"""What Airflow's scheduler sees of the executor, whose jobs are left out."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from airflow.exceptions import AirflowConfigException
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.executor_utils import ExecutorName
from airflow.executors.workloads import ExecuteCallback, ExecuteTask
from airflow.models import import_all_models
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import CallbackState, TaskInstanceState
from sqlalchemy import create_engine, select
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_provider_soperator.cli.executor_checks import trial
from airflow_provider_soperator.executors import SlurmExecutor, slurm
from airflow_provider_soperator.executors.books import News, NewsKind
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder, JobDefaults, QueuedTask
from tests.patience import PATIENCE

PATH = "airflow_provider_soperator.executors.SlurmExecutor"


class Keeper:
    """Takes tasks and does nothing with them."""

    def __init__(self) -> None:
        self.submitted: list[QueuedTask] = []
        self.later: list[str] = []
        self.ended: list[str] = []
        self.dropped: list[str] = []
        self.looks = 0

    async def submit(self, tasks: Sequence[QueuedTask]) -> None:
        self.submitted += tasks

    async def adopt_later(self, legs: Sequence[str]) -> None:
        self.later += legs

    async def drop(self, legs: Collection[str]) -> None:
        self.dropped += legs
        self.looks += 1

    async def close(self) -> None: ...


class Database:
    """The states of tasks, by their legs: those that are not there have ended."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.put_back: list[str] = []
        self.is_away = False

    def read(self, legs: Collection[str]) -> Mapping[str, str]:
        if self.is_away:
            raise ConnectionError("the database is away")
        return {leg: self.states[leg] for leg in legs if leg in self.states}

    def schedule_again(self, legs: Collection[str]) -> None:
        self.put_back += (leg for leg in legs if self.states.get(leg) == "queued")
        self.states = {leg: state for leg, state in self.states.items() if leg not in self.put_back}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(slurm, "_states", made.read)
    monkeypatch.setattr(slurm, "_schedule_again", made.schedule_again)
    return made


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, database: Database) -> Iterator[SlurmExecutor]:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of sixty-four letters" * 3)
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__SOPERATOR__EXECUTOR_QUEUES", '{"gpu": {"gpus": 1}}')
    # It looks when a test lets it.
    monkeypatch.setattr(slurm, "LOOK", 10 * PATIENCE)
    made = SlurmExecutor()
    made.name = ExecutorName(PATH, "SlurmExecutor")
    made.start()
    made._keeper = Keeper()  # type: ignore[assignment]
    yield made
    if "_for_logs" in vars(made):
        # What its thread still had to write would be written among the logs of the next test.
        is_idle = threading.Event()
        monkeypatch.setattr(made, "_append_to_log", lambda *_: is_idle.set())
        # While it waits for the first, it has looked up already what writes it.
        for _ in range(2):
            made._for_logs.put(("", "", ()), timeout=PATIENCE)
        assert is_idle.wait(PATIENCE)


def workload(leg: str | None, task_id: str = "fit", ti_id: UUID | None = None) -> ExecuteTask:
    ti = {
        "id": ti_id or uuid4(),
        "dag_version_id": uuid4(),
        "task_id": task_id,
        "dag_id": "train",
        "run_id": "manual",
        "try_number": 1,
        "map_index": -1,
        "pool_slots": 1,
        "queue": "gpu",
        "priority_weight": 1,
        "external_executor_id": leg,
        "executor_config": {"mem": "1G"},
    }
    bundle = {"name": "dags-folder", "version": None}
    said = {"token": "stock", "ti": ti, "dag_rel_path": "train.py", "bundle_info": bundle, "log_path": f"{leg}.log"}
    return ExecuteTask.model_validate(said)


def queue(executor: SlurmExecutor, *workloads: ExecuteTask) -> None:
    database: Database = slurm._states.__self__  # type: ignore[attr-defined]
    for one in workloads:
        database.states[str(one.ti.external_executor_id)] = "queued"
        executor.queue_workload(one, session=None)  # type: ignore[arg-type]
    executor.heartbeat()


def tell(executor: SlurmExecutor, *news: News) -> dict[Any, Any]:
    """The events that Airflow reads after some news."""
    for one in news:
        executor._news.put(one)
    executor.sync()
    return executor.get_event_buffer()


def submitted(executor: SlurmExecutor) -> list[QueuedTask]:
    # What was begun in the loop before this has come to its end.
    async def nothing() -> None: ...

    executor._loop.run(nothing())
    return executor._keeper.submitted  # type: ignore[union-attr,no-any-return]


def test_a_task_is_handed_over_with_a_token_for_days(executor: SlurmExecutor) -> None:
    import jwt

    one = workload("leg")
    queue(executor, one)
    [task] = submitted(executor)
    assert (task.leg, task.queue, task.asked) == ("leg", "gpu", {"mem": "1G"})
    claims = jwt.decode(task.workload["token"], options={"verify_signature": False})
    assert (claims["sub"], claims["scope"]) == (str(one.ti.id), "workload")
    assert claims["exp"] - claims["iat"] == 7 * 86400
    assert "external_executor_id" not in task.workload["ti"]


def test_the_end_of_a_leg_that_another_has_followed_is_not_told(executor: SlurmExecutor) -> None:
    before = workload("before")
    queue(executor, before)
    queue(executor, one := workload("after", ti_id=before.ti.id))
    key = executor._key(one.ti)
    assert tell(executor, News("before", NewsKind.FAILED)) == {}
    assert key in executor.running
    assert tell(executor, News("after", NewsKind.FAILED, "said")) == {key: (TaskInstanceState.FAILED, "said")}
    assert key not in executor.running


def test_a_task_that_has_told_its_state_is_not_told_of_again(executor: SlurmExecutor, database: Database) -> None:
    """Airflow would fail it if it was rescheduled, and is scheduled again by now."""
    queue(executor, one := workload("leg"))
    database.states = {}
    assert tell(executor, News("leg", NewsKind.SUCCEEDED, "said")) == {}
    assert executor._key(one.ti) not in executor.running


@pytest.mark.parametrize(
    ("kind", "event", "said"),
    [
        (NewsKind.SUCCEEDED, "slurm job ended", "Job 7 is over: it was ended, as its task was cleared"),
        (NewsKind.FAILED, "slurm job failed", "Job 7 is over"),
    ],
)
def test_a_task_that_was_cleared_while_it_ran_has_not_failed(
    executor: SlurmExecutor, database: Database, kind: NewsKind, event: str, said: str
) -> None:
    """Airflow runs it again at once after a success, and as a retry, with its delay and callbacks, after a failure."""
    queue(executor, workload("leg"))
    database.states = {"leg": "restarting"}
    assert [state for state, _ in tell(executor, News("leg", kind, "Job 7 is over")).values()] == ["success"]
    assert [(row.event, row.extra) for row in executor._task_event_logs] == [(event, said)]


def test_a_task_whose_supervisor_has_told_no_state_has_failed(executor: SlurmExecutor, database: Database) -> None:
    queue(executor, workload("leg"))
    database.states = {"leg": "running"}
    [(state, said)] = tell(executor, News("leg", NewsKind.SUCCEEDED, "Job 7 is COMPLETED")).values()
    assert (state, said) == (TaskInstanceState.FAILED, "Job 7 is COMPLETED, and its task has told no state")


def test_a_failure_is_told_in_both_logs(executor: SlurmExecutor, tmp_path: Any) -> None:
    queue(executor, one := workload("leg"))
    failed = News("leg", NewsKind.FAILED, "Job 7 is TIMEOUT", ("Diagnosis",), "dag/leg.log")
    assert tell(executor, failed) == {executor._key(one.ti): (TaskInstanceState.FAILED, "Job 7 is TIMEOUT")}
    [row] = executor._task_event_logs
    assert (row.event, row.extra) == ("slurm job failed", "Job 7 is TIMEOUT\nDiagnosis")
    log, until = tmp_path / "dag/leg.log", time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < until:
        time.sleep(0.01)
    assert "Job 7 is TIMEOUT" in log.read_text()


def test_a_log_that_cannot_be_written_is_no_more_than_told(executor: SlurmExecutor, tmp_path: Path) -> None:
    queue(executor, workload("leg"))
    (tmp_path / "leg.log").mkdir()
    events = tell(executor, News("leg", NewsKind.FAILED, "said", (), "leg.log"))
    assert [state for state, _ in events.values()] == [TaskInstanceState.FAILED]


@pytest.mark.parametrize("named", ["{victim}", "../victim", "link", "dangling", "folder/victim", "folder/new", "pipe"])
def test_what_a_job_names_as_its_log_or_puts_there_leads_nowhere_else(
    executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    """An executor that adopts a job has the path of its log from a file that the user of the jobs can write."""
    logs, victim = tmp_path / "logs", tmp_path / "victim"
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(logs))
    logs.mkdir()
    victim.write_text("as it was")
    for name, target in (("link", victim), ("dangling", tmp_path / "made"), ("folder", tmp_path)):
        (logs / name).symlink_to(target)
    os.mkfifo(logs / "pipe")
    # Someone listens, so that it can be opened.
    listener = os.open(logs / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    executor._append_to_log(named.format(victim=victim), "said", ())
    assert os.read(listener, 100) == b""
    os.close(listener)
    assert ({*tmp_path.iterdir()}, victim.read_text()) == ({logs, victim}, "as it was")


def test_logs_that_hang_stop_nothing_else_and_are_not_waited_for(
    executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, written = threading.Event(), list[str]()

    def hang(log_path: str, *_: Any) -> None:
        goes_on.wait(PATIENCE)
        assert threading.current_thread().daemon
        written.append(log_path)

    monkeypatch.setattr(slurm, "MOST_NEWS", 50)
    monkeypatch.setattr(executor, "_append_to_log", hang)
    queue(executor, *(workload(f"leg-{number}", f"task-{number}") for number in range(100)))
    for number in range(100):
        tell(executor, News(f"leg-{number}", NewsKind.FAILED, "said", (), f"{number}.log"))
    # What the loop leaves to threads still has some.
    executor._loop.begin(asyncio.to_thread(goes_on.set)).result(PATIENCE)
    until = time.monotonic() + PATIENCE
    while len(written) < 50 and time.monotonic() < until:
        time.sleep(0.01)
    assert written[:50] == [f"{number}.log" for number in range(50)]
    assert len(executor._task_event_logs) == 100


def test_a_task_that_is_not_wanted_has_no_event(executor: SlurmExecutor, database: Database) -> None:
    queue(executor, workload("leg"))
    database.states = {}
    assert tell(executor, News("leg", NewsKind.NOT_WANTED)) == {}
    assert not executor.running


@pytest.mark.parametrize("state", ["queued", "running", None])
def test_a_refused_start_of_a_task_that_is_queued_has_failed(
    executor: SlurmExecutor, database: Database, state: str | None
) -> None:
    queue(executor, workload("leg"))
    database.states = {"leg": state} if state else {}
    events = tell(executor, News("leg", NewsKind.NOT_WANTED, "Job 7 is FAILED"))
    assert not executor.running
    assert [state for state, _ in events.values()] == [TaskInstanceState.FAILED] * (state == "queued")
    assert all("knows no such task" in said for _, said in events.values())


def test_a_job_that_ends_badly_after_its_task_has_told_its_state_fails_nothing(
    executor: SlurmExecutor, database: Database
) -> None:
    """Such as a sensor that has been rescheduled: Airflow would fail its next look."""
    queue(executor, workload("leg"))
    database.states = {}
    assert tell(executor, News("leg", NewsKind.FAILED, "Job 7 is TIMEOUT")) == {}
    assert not executor.running
    # Of one that Slurm has ended it tells why, though its supervisor was quicker.
    assert [row.extra for row in executor._task_event_logs] == ["Job 7 is TIMEOUT"]


def test_news_wait_for_the_database(executor: SlurmExecutor, database: Database) -> None:
    queue(executor, workload("leg"))
    database.is_away = True
    assert tell(executor, News("leg", NewsKind.STARTED), News("leg", NewsKind.FAILED, "said")) == {}
    database.is_away = False
    assert [said for _, said in tell(executor).values()] == ["said"]
    assert [row.event for row in executor._task_event_logs] == ["slurm job started", "slurm job failed"]


def test_what_airflow_does_not_wait_for_at_two_looks_is_dropped(executor: SlurmExecutor, database: Database) -> None:
    queue(executor, workload("cleared", "a"), workload("started", "b"), workload("wanted", "c"))
    keeper: Keeper = executor._keeper  # type: ignore[assignment]
    keeper.ended = ["ended"]
    for leg in ("cleared", "started"):
        del database.states[leg]

    def look() -> list[str]:
        keeper.looks = 0
        executor._looked_at -= 2 * slurm.LOOK
        before, until = executor._unwanted, time.monotonic() + PATIENCE
        executor.sync()
        # Each look leaves a set of its own, from another thread.
        while executor._unwanted is before and time.monotonic() < until:
            time.sleep(0.01)
        submitted(executor)
        # By a look it also finds a connection that was changed.
        assert keeper.looks == 1
        return sorted(keeper.dropped)

    assert look() == []
    # A poll has seen it, after the task was through.
    tell(executor, News("started", NewsKind.STARTED))
    assert look() == ["cleared", "ended"]
    # Its node could not start it, so that no task can tell it that it is not wanted.
    tell(executor, News("started", NewsKind.WAITING))
    look()
    assert "started" in look()


def test_the_tasks_of_a_trial_have_a_job_each_also_where_tasks_share_one(
    executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_QUEUE", "celery")
    assert asyncio.run(trial(executor, {"mem": "1G"}, 0.01)) == []
    defaults = JobDefaults({"share": 20}, default_queue="celery")
    jobs, _ = ExecutorFolder("/", "/bin/sh").plan(submitted(executor), defaults, {})
    assert [(one.job.mem, one.job.partition) for one in jobs] == [("1G", None)] * 2


def test_tasks_that_cannot_be_handed_over_have_failed(executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "queued_task", lambda workload: 1 / 0)
    queue(executor, workload("a", "a"), workload("b", "b"))
    assert submitted(executor) == []
    assert [state for state, _ in tell(executor).values()] == [TaskInstanceState.FAILED] * 2


def test_jobs_that_wait_in_slurm_take_no_slots(executor: SlurmExecutor) -> None:
    queue(executor, workload("a", "a"), workload("b", "b"))
    assert (executor.slots_occupied, executor.slots_available) == (2, 9998)
    tell(executor, News("a", NewsKind.SUBMITTED), News("b", NewsKind.WAITING))
    assert executor.slots_occupied == 1
    tell(executor, News("b", NewsKind.SUBMITTED))
    assert executor.slots_occupied == 0


def test_a_cluster_that_is_away_leaves_slots_to_other_executors(executor: SlurmExecutor) -> None:
    queue(executor, *(workload(f"leg-{number}", f"task-{number}") for number in range(40)))
    assert executor.slots_occupied == executor.conf.getint("core", "parallelism") // 2 < 40


def test_a_key_without_a_row_in_the_audit_log_ends_no_scheduler(executor: SlurmExecutor) -> None:
    executor._tell(uuid4(), "failed", "said")
    assert not executor._task_event_logs


def test_news_that_cannot_be_taken_up_end_no_scheduler(
    executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = workload("a", "a"), workload("b", "b")
    queue(executor, one, other)
    monkeypatch.setattr(executor, "_tell", lambda *_: 1 / 0)
    events = tell(executor, News("a", NewsKind.FAILED), News("b", NewsKind.FAILED))
    assert events.keys() == {executor._key(one.ti), executor._key(other.ti)}


def test_a_callback_fails_in_words_and_ends_no_scheduler(executor: SlurmExecutor) -> None:
    callback = {"id": str(uuid4()), "fetch_method": "import_path", "data": {"path": "alerts.page"}}
    bundle = {"name": "dags-folder", "version": None}
    said = {"token": "stock", "callback": callback, "dag_rel_path": "train.py", "bundle_info": bundle, "log_path": None}
    one = ExecuteCallback.model_validate(said)
    executor.queue_workload(one, session=None)  # type: ignore[arg-type]
    executor.heartbeat()
    words = "SlurmExecutor runs no callbacks: name another executor in SyncCallback"
    assert executor.get_event_buffer() == {one.key: (CallbackState.FAILED, words)}


@pytest.mark.parametrize(
    ("scheduler", "why"), [(7, "by its alias"), (None, "tasks of `dags test --use-executor` cannot run here")]
)
def test_a_task_without_an_id_fails_in_words(executor: SlurmExecutor, scheduler: int | None, why: str) -> None:
    executor.job_id = scheduler
    queue(executor, workload(None))
    [(state, said)] = executor.get_event_buffer().values()
    assert state == TaskInstanceState.FAILED
    assert why in said
    assert said == executor._task_event_logs[0].extra


def test_all_that_may_have_a_job_is_adopted_once(executor: SlurmExecutor) -> None:
    tis: list[Any] = [workload(leg, leg).ti for leg in ("a", "b")] + [workload(None, "c").ti]
    for _ in range(2):
        assert [ti.task_id for ti in executor.try_adopt_task_instances(tis)] == ["c"]
        assert {executor._key(ti) for ti in tis[:2]} == executor.running
        submitted(executor)
        assert executor._keeper.later == ["a", "b"]  # type: ignore[union-attr]


def test_a_task_that_turns_out_to_have_no_job_is_put_back(executor: SlurmExecutor, database: Database) -> None:
    queue(executor, workload("a", "a"), workload("b", "b"))
    database.states["b"] = "running"
    # That one is alive as long as there are heartbeats.
    assert tell(executor, News("a", NewsKind.NOT_SUBMITTED), News("b", NewsKind.NOT_SUBMITTED)) == {}
    assert (database.put_back, executor.running) == (["a"], set())
    assert not executor._task_event_logs


def test_a_task_that_waits_in_slurm_is_not_stuck(executor: SlurmExecutor) -> None:
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("EXECUTOR_JOB", '{"gpu": 1}', "executor_job: .*did you mean 'gpus'"),
        ("EXECUTOR_QUEUES", '{"q": {"time_limit": "soon"}}', "executor_queues, q: time_limit"),
        ("EXECUTOR_JOB", "[1]", "executor_job: write an object in JSON, not .1"),
        ("EXECUTOR_QUEUES", '{"q": null}', "executor_queues: write an object in JSON with one for each queue"),
        ("EXECUTOR_TOKEN_DAYS", "a week", "executor_token_days"),
        ("EXECUTOR_TOKEN_DAYS", "0", "executor_token_days: 0 lets no task run"),
        ("EXECUTOR_PARALLELISM", "0", "executor_parallelism: 0 lets no task run"),
    ],
)
def test_options_that_no_job_could_ask_for_are_refused_at_start(
    executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch, option: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW__SOPERATOR__{option}", value)
    with pytest.raises((ValueError, AirflowConfigException), match=said):
        executor.start()


def test_without_an_alias_it_does_not_start() -> None:
    executor = SlurmExecutor()
    executor.name = ExecutorName(PATH)
    with pytest.raises(ValueError, match="give it an alias: SlurmExecutor:airflow_provider_soperator"):
        executor.start()
    executor.end()


def test_airflow_has_all_that_it_builds_upon() -> None:
    # Without the first two a try would have several jobs.
    assert "pre_assigns_external_executor_id" in vars(BaseExecutor)
    assert hasattr(BaseExecutor, "run_workload")


def test_what_is_queued_is_put_back_in_airflows_database(monkeypatch: pytest.MonkeyPatch) -> None:
    import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool)
    monkeypatch.setattr("airflow.utils.session.create_session", sessionmaker(engine).begin)
    table: Any = TaskInstance.__table__
    table.create(engine)
    states = {"a": "queued", "b": "running", "c": "queued", "d": "success"}
    same = {"dag_id": "train", "run_id": "manual", "map_index": -1, "try_number": 1, "pool": "p", "queued_by_job_id": 7}
    rows = [
        same | {"id": uuid4(), "task_id": leg, "state": state, "external_executor_id": leg, "pool_slots": 1}
        for leg, state in states.items()
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
    slurm._schedule_again({"a", "b", "d"})
    assert slurm._states(states.keys()) == {"b": "running", "c": "queued"}
    columns = [table.c[name] for name in ("state", "try_number", "external_executor_id", "queued_by_job_id")]
    with engine.begin() as connection:
        [row] = connection.execute(select(*columns).where(table.c.task_id == "a"))
    assert tuple(row) == ("scheduled", 1, None, None)
