"""The tasks of jobs, and the connections that the page offers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from airflow_provider_soperator.board.tasks import SUBMITTED, _submitted_by_executor, _type_of, find_tasks, match
from airflow_provider_soperator.executors.books import NewsKind
from airflow_provider_soperator.pipelines.plan import ahead_keys
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of_try

BEGUN = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)


@dataclass
class Instance:
    dag_id: str = "train"
    run_id: str = "manual__2026-11-24T08:00:00+00:00"
    task_id: str = "fit"
    map_index: int = -1
    try_number: int = 1
    #: Of its run.
    start_date: datetime = BEGUN
    clear_number: int = 0


def job_of(instance: Instance, number: int = 1, text: str = "7") -> Job:
    """The job that a try of the task submits on its own."""
    return Job(id=JobId.parse(text), name=key_of_try(instance, BEGUN, number).name("any"))


def test_a_job_is_of_the_task_whose_key_it_has() -> None:
    fit, other = Instance(), Instance(task_id="evaluate")
    found = match([job_of(fit), Job(id=JobId(8), name="by hand")], [other, fit])
    assert {str(job): (one.dag_id, one.task_id, one.try_number) for job, one in found.items()} == {
        "7": ("train", "fit", 1)
    }


def test_a_retry_may_go_on_with_an_earlier_job() -> None:
    [tasks] = match([job_of(Instance(), 1)], [Instance(try_number=3)]).values()
    assert tasks.try_number == 1


@pytest.mark.parametrize("index", [-1, 2])
def test_a_job_that_was_submitted_ahead_is_of_its_stage_also_after_a_clear(index: int) -> None:
    stage = Instance(task_id="model.fit", map_index=index, clear_number=1, try_number=2)
    keys = ahead_keys(stage, replace(stage, clear_number=2), stage.task_id, index)
    jobs = [Job(id=JobId(7 + number), name=key.name("any")) for number, key in enumerate(keys)]
    found = match(jobs, [stage])
    assert {str(job): (tasks.task_id, tasks.map_index, tasks.others) for job, tasks in found.items()} == {
        "7": ("model.fit", index, ()),
        "8": ("model.fit", index, ()),
    }


def test_a_run_that_was_made_again_does_not_have_the_jobs_of_the_old_one() -> None:
    assert match([job_of(Instance())], [Instance(start_date=BEGUN.replace(hour=9))]) == {}


def test_an_array_is_of_all_its_mapped_tasks() -> None:
    instances = [Instance(map_index=index) for index in range(5)]
    shared = key_of_try(instances[0], BEGUN, 1).shared
    jobs = [
        Job(id=JobId.parse("9_[1-4]"), name=shared.name("fit")),
        Job(id=JobId.parse("9_0"), name=shared.name("fit")),
    ]
    found = match(jobs, instances)
    waiting, running = found[jobs[0].id], found[jobs[1].id]
    assert (str(waiting), str(running)) == ("fit[1] and 3 more", "fit[0]")
    assert waiting.covers("train", instances[0].run_id, "fit", 3)
    # It has a job of its own, or has ended.
    assert not waiting.covers("train", instances[0].run_id, "fit", 0)
    assert not running.covers("train", instances[0].run_id, "fit", 3)


def test_the_page_of_a_task_has_its_ids_in_its_address() -> None:
    [tasks] = match([job_of(Instance(map_index=2))], [Instance(map_index=2)]).values()
    assert tasks.path == "dags/train/runs/manual__2026-11-24T08%3A00%3A00%2B00%3A00/tasks/fit/mapped/2"


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("soperator://root@login:22/?host_key=x", "soperator"),
        ('{"conn_type": "soperator", "host": "login"}', "soperator"),
        ("google-cloud-platform://", "google_cloud_platform"),
        ("{broken", ""),
        ("", ""),
    ],
)
def test_the_type_of_a_connection_is_read_however_it_is_written(written: str, kind: str) -> None:
    assert _type_of(written) == kind


@dataclass
class Told:
    """A row of the audit log, of a task that the executor runs in a job."""

    extra: str
    dag_id: str = "train"
    run_id: str = "r"
    task_id: str = "fit"
    map_index: int = -1
    try_number: int = 1


def test_the_jobs_of_the_executor_are_of_the_tasks_for_which_it_has_told_their_keys() -> None:
    alone, shared, array = (SubmissionKey.derive("executor", leg, "", -1, "") for leg in ("a", "b", "c"))
    told = [
        Told(f"Job 7 submitted as {alone.name('fit.train.r')}", task_id="alone"),
        *(Told(f"Job 8 submitted as {shared.name('3.train.r')}", task_id=f"shared-{number}") for number in range(3)),
        *(
            Told(f"Job 9_{index} submitted as {SubmissionKey(f'{array.text}_{index}').name('fit')}", map_index=index)
            for index in range(4)
        ),
        # By a scheduler that has adopted it.
        Told(f"Job 7 submitted as {alone.name('fit.train.r')}", task_id="alone"),
        Told(""),
    ]
    jobs = [
        Job(id=JobId(7), name=alone.name("fit.train.r")),
        Job(id=JobId(8), name=shared.name("3.train.r")),
        Job(id=JobId.parse("9_[2-3]"), name=array.name("fit")),
        Job(id=JobId.parse("9_1"), name=array.name("fit")),
        # Of another Airflow.
        Job(id=JobId(10), name=SubmissionKey.derive("executor", "d", "", -1, "").name("fit.train.r")),
    ]
    assert {str(job): str(tasks) for job, tasks in match(jobs, told).items()} == {
        "7": "alone",
        "8": "shared-0 and 2 more",
        "9_[2-3]": "fit[2] and 1 more",
        "9_1": "fit[1]",
    }


def test_the_executor_tells_of_a_job_by_the_event_that_is_looked_for() -> None:
    assert f"slurm job {NewsKind.SUBMITTED.value}" == SUBMITTED


def test_what_the_executor_told_before_airflow_had_ids_of_tries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base(DeclarativeBase):
        pass

    class Ids(MappedAsDataclass, kw_only=True):
        """What both tables of Airflow 3.4 have."""

        dag_id: Mapped[str] = mapped_column(default="train")
        run_id: Mapped[str] = mapped_column(default="r")
        task_id: Mapped[str] = mapped_column(default="fit")
        map_index: Mapped[int] = mapped_column(default=-1)
        try_number: Mapped[int] = mapped_column(default=1)

    class LaterInstance(Ids, Base, kw_only=True):
        __tablename__ = "task_instance"
        id: Mapped[int] = mapped_column(primary_key=True)

    class LaterLog(Ids, Base, kw_only=True):
        __tablename__ = "log"
        id: Mapped[int] = mapped_column(primary_key=True)
        task_instance_id: Mapped[int | None] = mapped_column(default=None)
        event: Mapped[str] = mapped_column(default=SUBMITTED)
        extra: Mapped[str]

    monkeypatch.setattr("airflow.models.taskinstance.TaskInstance", LaterInstance)
    monkeypatch.setattr("airflow.models.log.Log", LaterLog)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        # Two iterations, which have the same names and numbers in Airflow 3.4, and an older task.
        session.add_all([LaterInstance(id=1), LaterInstance(id=2), LaterInstance(id=3, task_id="old")])
        session.add_all([LaterLog(id=1, task_instance_id=2, extra="new"), LaterLog(id=2, task_id="old", extra="old")])
        found = session.execute(_submitted_by_executor()).all()
    assert sorted((row.task_id, row.extra) for row in found) == [("fit", "new"), ("old", "old")]


class Database:
    """Airflow's database: the instances that are at work, and those that have told the id of a job."""

    def __init__(self, *alive: Instance) -> None:
        self.alive, self.told, self.by_executor = list(alive), list(alive), list[Told]()
        #: Those that have no state yet, in runs that are at work.
        self.to_come: list[Instance] = []
        self.searched = 0
        self.queries: list[str] = []

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def execute(self, query: Any) -> Any:
        self.queries.append(str(query))
        if "FROM log" in str(query):
            return iter(self.by_executor)
        if "task_instance.state IS NULL" in str(query):
            return iter(self.to_come)
        is_search = "xcom" in str(query)
        self.searched += is_search
        return iter(self.told if is_search else self.alive)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    held = Database(Instance())
    monkeypatch.setattr("airflow.utils.session.create_session", lambda: held)
    return held


def test_a_job_keeps_its_task_after_that_has_ended(database: Database) -> None:
    job = replace(job_of(Instance()), submitted=BEGUN)
    found = find_tasks([job], {}, {job.id})
    assert not found[job.id].has_ended
    database.alive.clear()
    again = find_tasks([job], found, ())
    assert again[job.id] == replace(found[job.id], has_ended=True)
    assert find_tasks([job], again, ()) == again
    assert database.searched == 0


def test_a_job_that_was_submitted_ahead_is_of_a_task_whose_turn_has_not_come(database: Database) -> None:
    database.to_come.append(Instance(task_id="evaluate"))
    jobs = [job_of(Instance()), job_of(Instance(task_id="evaluate"), text="8")]
    found = find_tasks(jobs, {}, {job.id for job in jobs})
    assert {str(job): (str(tasks), tasks.has_ended) for job, tasks in found.items()} == {
        "7": ("fit", False),
        "8": ("evaluate", False),
    }
    # If all are known, or were there before and are another Airflow's, it is not asked.
    database.queries.clear()
    find_tasks([jobs[0], job_of(Instance(dag_id="of another Airflow"), text="9")], found, ())
    assert not any("IS NULL" in query for query in database.queries)


def test_a_task_that_ended_before_anyone_looked_is_searched_once(database: Database) -> None:
    database.alive.clear()
    job = replace(job_of(Instance()), submitted=BEGUN)
    stranger = replace(job_of(Instance(dag_id="of another Airflow"), text="8"), submitted=BEGUN)
    found: dict[JobId, Any] = {}
    for new in ({job.id, stranger.id}, (), ()):
        found = find_tasks([job, stranger], found, new)
        assert {str(one): tasks.has_ended for one, tasks in found.items()} == {"7": True}
    assert database.searched == 1
    by_hand = Job(id=JobId(9), name="by hand")
    assert find_tasks([by_hand], {}, {by_hand.id}) == {}


@pytest.mark.parametrize("restarts", [0, 1])
def test_the_task_of_a_job_that_was_requeued_may_have_ended_before_its_new_submission(
    database: Database, restarts: int
) -> None:
    database.alive.clear()
    job = replace(job_of(Instance()), submitted=BEGUN, restarts=restarts)
    assert {*find_tasks([job], {}, {job.id})} == {job.id}
    [search] = [query for query in database.queries if "xcom" in query]
    assert ("xcom.timestamp >=" in search) == (not restarts)


def test_a_search_is_among_the_newest_and_reads_few_columns(database: Database) -> None:
    old = replace(job_of(Instance(dag_id="of another Airflow")), submitted=BEGUN.replace(year=2020))
    assert find_tasks([old], {}, {old.id}) == {}
    [search] = [query for query in database.queries if "xcom" in query]
    assert "ORDER BY xcom.timestamp DESC" in search
    assert "LIMIT" in search
    assert "task_instance.executor_config" not in search
