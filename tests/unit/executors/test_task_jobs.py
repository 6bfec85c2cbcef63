"""What the jobs of tasks ask for, and which of them go together."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_soperator.executors.task_jobs import ExecutorFolder, JobDefaults, QueuedTask, TaskJob
from airflow_provider_soperator.slurm.packs import packable_of, packs

FOLDER = ExecutorFolder("/shared/executor", "/venv/bin/python")


def task(leg: str, task_id: str = "fit", index: int = -1, queue: str = "default", **asked: Any) -> QueuedTask:
    return QueuedTask(leg, "train", "manual", task_id, index, queue, asked, {"log_path": f"{leg}.log"})


def plan(
    *tasks: QueuedTask, defaults: JobDefaults | None = None, env: Mapping[str, str] | None = None
) -> list[TaskJob]:
    jobs, rejected = FOLDER.plan(tasks, defaults or JobDefaults(), env or {})
    assert not rejected
    return jobs


def calls(jobs: list[TaskJob]) -> list[list[str]]:
    """The tasks of each call of sbatch."""
    named = [one.job.replace(name=one.key.name(one.job.name or "")) for one in jobs]
    made = packs(map(packable_of, named))
    in_arrays = {place for pack in made for place in pack.places.values()}
    legs = [[task.leg for task in one.tasks] for one in jobs]
    arrays = [[leg for place in pack.places.values() for leg in legs[place]] for pack in made]
    return arrays + [legs[place] for place in range(len(jobs)) if place not in in_arrays]


def test_a_job_runs_the_runner_with_the_python_of_the_nodes() -> None:
    [one] = plan(task("a", gpus=1), env={"SERVER": "http://api"})
    assert (one.job.script or "").startswith("#!/venv/bin/python\n")
    assert one.job.args == ("/shared/executor/tasks", "a")
    assert (one.job.name, one.job.gpus, one.job.requeue) == ("fit.train.manual", 1, False)
    assert one.job.env == {"SERVER": "http://api"}
    assert "--no-requeue" in one.job.argv()


def test_what_a_task_asks_for_counts_more_than_its_queue_and_that_more_than_the_defaults() -> None:
    defaults = JobDefaults({"mem": "1G", "time_limit": 10, "env": {"A": "1"}}, {"gpu": {"mem": "2G", "gpus": 1}})
    [one] = plan(task("a", queue="gpu", mem="3G", env={"B": "2"}), defaults=defaults, env={"A": "0", "C": "3"})
    assert (one.job.mem, one.job.gpus, one.job.time_limit) == ("3G", 1, 10)
    assert one.job.env == {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        *[({}, None), ({"gpus": 8}, 1), ({"gpus": 8, "ntasks": 1}, 1)],
        *[({"gpus": 16, "nodes": 2}, 2), ({"gpus": 16, "gpus_per_node": 8}, None)],
    ],
)
def test_the_gpus_of_a_task_are_on_its_node_unless_it_asks_for_more_nodes(asked: dict[str, Any], nodes: Any) -> None:
    [one] = plan(task("a", queue="gpu", **asked), defaults=JobDefaults(queues={"gpu": {"nodes": None}}))
    assert one.job.nodes == nodes


def test_no_variables_are_those_of_all_jobs() -> None:
    [one] = plan(task("a", env=None), env={"SERVER": "http://api"})
    assert one.job.env == {"SERVER": "http://api"}


def test_a_queue_that_is_not_configured_is_a_partition() -> None:
    ours, other = plan(task("a"), task("b", "other", queue="long"))
    assert (ours.job.partition, other.job.partition) == (None, "long")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"script": "x"}, "set by the executor"),
        ({"clusters": "other"}, "clusters: set by the executor"),
        ({"gpu": 1}, "no such field; did you mean"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"share": 0}, "share"),
        ({"pod_override": object()}, "pod_override: no such field; there are those of SbatchOperator"),
        ({"env": "A=1"}, "env: 'A=1' is no mapping"),
        ({"signal": ["TERM"]}, "signal: takes a text, got ['TERM']"),
        ({"comment": {"a": object()}}, "comment: takes a text"),
    ],
)
def test_what_cannot_be_asked_for_is_rejected_alone(asked: dict[str, Any], said: str) -> None:
    jobs, rejected = FOLDER.plan([task("bad", **asked), task("good")], JobDefaults(), {})
    assert [one.tasks[0].leg for one in jobs] == ["good"]
    assert said in str(rejected["bad"])


def test_mapped_tasks_that_ask_for_the_same_go_as_one_array() -> None:
    jobs = plan(
        *(task(f"leg-{index}", index=index) for index in range(5)), task("large", index=5, mem="1G"), task("x", "x")
    )
    assert sorted(calls(jobs)) == [["large"], [f"leg-{index}" for index in range(5)], ["x"]]
    assert len({one.key.text for one in jobs}) == 7


def test_the_array_of_a_thousand_mapped_tasks_is_one_call() -> None:
    jobs = plan(*(task(f"leg-{index}", index=index) for index in range(1100)))
    assert [len(one) for one in calls(jobs)] == [1000, 100]


def test_many_tasks_that_ask_for_the_same_go_as_one_array_and_few_under_their_names() -> None:
    few = plan(*(task(f"leg-{index}", f"t{index}") for index in range(20)))
    assert len(calls(few)) == 20
    assert few[0].job.name == "t0.train.manual"
    many = plan(
        *(task(f"leg-{index}", f"t{index}") for index in range(1000)), task("mapped", "m", 1), task("too", "m", 2)
    )
    assert sorted(map(len, calls(many))) == [2, 1000]
    assert {one.job.name for one in many} == {"m.train.manual", "1000.train.manual"}


def test_tasks_that_may_share_are_in_one_job() -> None:
    jobs = plan(*(task(f"leg-{index}", f"t{index}", share=3) for index in range(4)))
    assert [[one.leg for one in job.tasks] for job in jobs] == [["leg-0", "leg-1", "leg-2"], ["leg-3"]]
    assert jobs[0].job.args == ("/shared/executor/tasks", "leg-0", "leg-1", "leg-2")
    assert [job.job.name for job in jobs] == ["3.train.manual", "t3.train.manual"]


def test_each_leg_of_a_try_has_a_key_of_its_own() -> None:
    first, second = plan(task("before"))[0].key, plan(task("after"))[0].key
    assert first != second


def test_only_the_owner_reads_the_files_and_they_tell_which_job_it_is() -> None:
    [one] = plan(task("a"))
    with tarfile.open(fileobj=io.BytesIO(FOLDER.archive([one]))) as archive:
        [member] = archive.getmembers()
        data = archive.extractfile(member)
        assert data is not None
        said = json.load(data)
    assert (member.name, member.mode) == ("a", 0o600)
    assert said == {"name": "fit.train.manual", "key": one.key.text, "tasks": 1, "workload": {"log_path": "a.log"}}
