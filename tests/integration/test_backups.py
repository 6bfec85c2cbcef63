"""Backups of the jail by a sandbox's k8up: made, taken over by a retry, and what counts as one."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.cluster import BackupJailOperator
from airflow_provider_soperator.work.backups import lacks_backup
from sandbox.settings import NAMESPACE
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.usefixtures("connections")

_RUNS = itertools.count()
Perform = Callable[..., Any]


@pytest.fixture
def perform() -> Perform:
    """Executes a task as an Airflow worker would, in a run of its own for each test."""
    number = next(_RUNS)

    def perform(attempt: int = 1, **options: Any) -> Any:
        said: dict[str, Any] = {"poll_interval": 0.2, "retries": 3, "deferrable": False, **options}
        names = {"dag_id": "upgrade", "run_id": f"run-{number}", "task_id": "backup", "map_index": -1}
        ti = SimpleNamespace(**names, try_number=attempt, max_tries=3)
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}
        return BackupJailOperator(task_id="backup", **said).execute(context)

    return perform


def lack(max_age: timedelta) -> str:
    return asyncio.run(lacks_backup("kubernetes_default", NAMESPACE, max_age))


def annotate(cluster: Cluster, value: str) -> None:
    cluster.kubectl("annotate", "pvc", "jail-pvc", f"k8up.io/backup{value}", "--overwrite")


def test_a_backup_is_made_as_the_schedule_would_and_is_young_then(cluster: Cluster, perform: Perform) -> None:
    done = perform()
    assert done["is_new"]
    made = json.loads(cluster.kubectl("get", "backup", done["backup"], "--output=json"))
    schedule = json.loads(cluster.kubectl("get", "schedule", "soperator-jail", "--output=json"))
    assert made["spec"]["backend"] == schedule["spec"]["backend"]
    assert made["spec"]["podSecurityContext"] == {"runAsUser": 0}
    assert made["metadata"]["annotations"]["airflow.apache.org/task"].endswith("/backup/-1")
    # A retry of a task whose end got lost has nothing to do; nor has another task that allows for some age.
    assert perform(attempt=2)["backup"] == done["backup"]
    assert lack(timedelta(hours=1)) == ""
    assert done["backup"] in lack(timedelta(0))


def test_another_task_may_do_with_one_that_is_young(perform: Perform) -> None:
    first = perform()
    again = BackupJailOperator(task_id="again", max_backup_age=timedelta(hours=1), deferrable=False)
    names = {"dag_id": "upgrade", "run_id": "another", "task_id": "again", "map_index": -1}
    ti = SimpleNamespace(**names, try_number=1, max_tries=0)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}
    found = again.execute(context)
    assert (found["backup"], found["is_new"]) == (first["backup"], False)


def test_one_that_fails_fails_the_task_and_the_retry_makes_another(cluster: Cluster, perform: Perform) -> None:
    cluster.fault("backup-fails")
    with pytest.raises(AirflowException, match=r"of the jail has failed: Failed: .* 1 failed"):
        perform()
    cluster.fault("clear")
    assert perform(attempt=2)["is_new"]


def test_a_success_without_the_jail_is_none(cluster: Cluster, perform: Perform) -> None:
    annotate(cluster, "-")
    try:
        with pytest.raises(AirflowException, match="k8up has found nothing to back up: the claim of the jail needs"):
            perform()
    finally:
        annotate(cluster, "=true")


def test_an_unknown_schedule_is_refused_at_once(perform: Perform) -> None:
    with pytest.raises(AirflowFailException, match=r"no Schedule nightly in namespace soperator.*backups_enabled"):
        perform(schedule="nightly")
