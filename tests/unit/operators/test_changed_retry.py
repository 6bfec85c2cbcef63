"""A try whose job is changed by how those of the earlier tries have ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.decorators.sbatch import sbatch_task
from airflow_provider_soperator.hooks import slurm as hooks
from airflow_provider_soperator.operators.sbatch import SbatchOperator, retry, settle
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_failures import JobOutOfMemory, Policy
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of_try
from airflow_provider_soperator.transports.transport_errors import Unreachable
from airflow_provider_soperator.work.sbatch import given
from tests.unit.client.tracking import Slurm, past, queued, run_without_waiting
from tests.unit.operators.dags import taken
from tests.unit.operators.test_outcome import ended

POLICY: Policy = {"OUT_OF_MEMORY": retry(mem="x2"), "NODE_FAIL": retry(exclude_nodes=True), "TIMEOUT": "retry"}


def task_instance(tries: int) -> Any:
    return SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=tries, max_tries=3)


def context_of(tries: int) -> Any:
    return {"ti": task_instance(tries), "dag_run": SimpleNamespace(start_date=None)}


KEYS = [key_of_try(task_instance(4), None, number) for number in range(1, 5)]


def named(key: SubmissionKey) -> str:
    return key.name("t.d.r")


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes all connections lead to a cluster."""

    def to(slurm: Slurm) -> None:
        class Hook:
            reaches_files = True

            def __init__(self, conn_id: str) -> None: ...

            @contextmanager
            def client(self) -> Iterator[Any]:
                def of(client: AsyncSlurmClient) -> Any:
                    def waited(method: Any) -> Any:
                        return lambda given: run_without_waiting(method(given), monkeypatch)

                    ask, with_lines = waited(client.ask), waited(client.with_lines)
                    return SimpleNamespace(ask=ask, with_lines=with_lines, patient=lambda log: of(client.patient(log)))

                yield of(AsyncSlurmClient(slurm))

        monkeypatch.setattr(hooks, "SlurmHook", Hook)

    return to


@pytest.fixture
def changed(connect: Any) -> Any:
    """The job of a try that follows others, on a cluster that knows these."""

    def made(slurm: Slurm, tries: int, policy: Policy = POLICY, **fields: Any) -> dict[str, Any]:
        connect(slurm)
        body = {} if "remote_script" in fields else {"command": "true"}
        task = SbatchOperator(task_id="t", on_finish=policy, **body, **fields)
        found = task._changed(context_of(tries), KEYS[: tries - 1]).items()
        return {name: value for name, value in found if name not in ("command", "remote_script")}

    return made


def oom(*keys: SubmissionKey) -> Sequence[Job]:
    return [queued(str(7 + place), "OUT_OF_MEMORY", name=named(key)) for place, key in enumerate(keys)]


def test_what_it_has_waited_for_an_answer_is_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    # The cluster was back after half an hour.
    monkeypatch.setattr(signal, "getitimer", lambda _: (1800.0, 0.0))
    task = SbatchOperator(task_id="t", command="true", execution_timeout=timedelta(hours=1))
    assert task._trigger(context_of(1)).deadline == 1000 + 1800


def test_the_first_try_asks_nothing(changed: Any) -> None:
    slurm = Slurm()
    assert changed(slurm, 1, mem="8G") == {"mem": "8G"}
    assert slurm.asked_at == []


def test_without_changes_nothing_is_asked(changed: Any) -> None:
    slurm = Slurm(*oom(KEYS[0]))
    assert changed(slurm, 2, {"OUT_OF_MEMORY": "retry"}, mem="8G") == {"mem": "8G"}
    assert slurm.asked_at == []


def test_a_job_grows_with_each_try(changed: Any) -> None:
    slurm = Slurm(*oom(*KEYS[:2]), accounting=[])
    assert changed(slurm, 2, mem="8G") == {"mem": 16384}
    assert changed(slurm, 3, mem="8G") == {"mem": 32768}


def test_each_earlier_end_counts_for_what_it_was(changed: Any) -> None:
    # The queue has forgotten the first one.
    slurm = Slurm(
        queued("8", "NODE_FAIL", name=named(KEYS[1]), nodelist="worker-[2-3]"),
        queued("9", "TIMEOUT", name=named(KEYS[2]), nodelist="worker-4"),
        accounting=[past("7", "OUT_OF_MEMORY", name=named(KEYS[0]))],
    )
    slurm.nodes = [Node(name=f"worker-{number}", state=NodeState.parse("DOWN")) for number in (2, 3)]
    assert changed(slurm, 4, mem="1G") == {"mem": 2048, "exclude": "worker-[2-3]"}


def test_the_lines_of_a_script_on_the_cluster_count(changed: Any) -> None:
    lines = b"#!/bin/sh\n#SBATCH -J fit --mem-per-cpu=2G --exclude=worker-0\n"
    slurm = Slurm(
        queued("7", "OUT_OF_MEMORY", name=KEYS[0].name("fit"), tres="cpu=8,mem=64G,node=1"),
        queued("8", "NODE_FAIL", name=KEYS[1].name("fit"), nodelist="worker-1"),
        accounting=[],
    )
    slurm.files["/root/fit"] = lines
    options = {"remote_script": "fit", "chdir": "jobs"}
    assert changed(slurm, 3, **options) == {"chdir": "jobs", "mem_per_cpu": 4096, "exclude": "worker-[0-1]"}


def test_an_amount_of_memory_takes_the_place_of_each_other_kind(changed: Any) -> None:
    slurm = Slurm(*oom(*KEYS[:2]), queued("9", "TIMEOUT", name=named(KEYS[2])), accounting=[])
    policy: Policy = {"OUT_OF_MEMORY": retry(mem="64G"), "TIMEOUT": retry(mem="x2")}
    assert given(changed(slurm, 4, policy, mem_per_cpu="4G")) == {"mem": 131072}


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETED", "CANCELLED"])
def test_a_job_that_the_try_goes_on_with_or_that_ended_otherwise_changes_nothing(changed: Any, state: str) -> None:
    slurm = Slurm(queued("7", state, name=named(KEYS[0])), accounting=[])
    assert changed(slurm, 2, mem="8G") == {"mem": "8G"}


def test_a_cluster_that_is_away_is_waited_for(changed: Any) -> None:
    slurm = Slurm(*oom(KEYS[0]), accounting=[])

    def away() -> None:
        if time.monotonic() < 1000 + 3600:
            raise Unreachable("nothing listens there")

    slurm.before = away
    assert changed(slurm, 2, mem="8G") == {"mem": 16384}


def test_a_job_that_is_not_known_any_more_changes_nothing(changed: Any) -> None:
    assert changed(Slurm(), 2, mem="8G") == {"mem": "8G"}


def test_only_the_array_of_the_task_counts_and_not_another_job_with_the_name(changed: Any) -> None:
    name = named(KEYS[0])
    slurm = Slurm(
        queued("7_0", "NODE_FAIL", name=name, nodelist="worker-0"),
        queued("7_1", "COMPLETED", name=name, nodelist="worker-1"),
        queued("9", "NODE_FAIL", name=name, nodelist="worker-9"),
        accounting=[],
    )
    assert changed(slurm, 2) == {"exclude": "worker-0"}


def test_where_slurm_does_not_say_which_node_was_lost_none_is_left_out(
    changed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Slurm(queued("7", "NODE_FAIL", name=named(KEYS[0]), nodelist="worker-[0-15]"), accounting=[])
    assert changed(slurm, 2) == {}
    assert "Slurm does not say which node of job 7 has failed: none is left out" in capsys.readouterr().out


def test_the_container_of_a_function_changes_where_the_function_is_started(connect: Any) -> None:
    connect(Slurm(*oom(KEYS[0]), accounting=[]))
    policy: Policy = {"OUT_OF_MEMORY": retry(container_image="large", mem="x2", ntasks=2)}
    container = {"container_image": "small", "container_workdir": "/work"}
    with DAG("d", schedule=None):
        task = sbatch_task(lambda: 1, task_id="t", retries=3, on_finish=policy, mem="8G", **container)().operator
    trigger = task._trigger(context_of(2))
    # Outside of it the batch script runs, which starts the function.
    assert (trigger.job["mem"], trigger.job["ntasks"]) == (16384, 2)
    assert not container.keys() & trigger.job.keys()
    assert "--container-image=large --container-workdir=/work" in trigger.job["script"].splitlines()[-1]


@pytest.mark.parametrize(("options", "ranks"), [({}, 2), ({"ntasks": 16}, 8)])
def test_the_ranks_of_a_function_change_with_the_tasks_that_they_are(
    connect: Any, options: dict[str, Any], ranks: int
) -> None:
    connect(Slurm(*oom(KEYS[0]), accounting=[]))
    policy: Policy = {"OUT_OF_MEMORY": retry(ntasks=2)}
    with DAG("d", schedule=None):
        task = sbatch_task(lambda: 1, task_id="t", retries=3, on_finish=policy, ranks=8, **options)().operator
    trigger = task._trigger(context_of(2))
    assert trigger.job["ntasks"] == 2
    assert f"srun --ntasks={ranks} " in trigger.job["script"].splitlines()[-1]


def test_such_an_end_is_tried_again() -> None:
    with pytest.raises(JobOutOfMemory):
        settle(ended("OUT_OF_MEMORY"), POLICY)
    with pytest.raises(AirflowFailException):
        settle(ended("DEADLINE"), POLICY)


def test_airflow_can_store_it_in_a_dag() -> None:
    with taken():
        SbatchOperator(task_id="one", command="true", on_finish=POLICY)
        SbatchOperator.partial(task_id="many", command="true", on_finish=POLICY).expand(env=[{"A": "1"}])
