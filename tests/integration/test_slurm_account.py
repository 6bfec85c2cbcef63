"""The accounts of docs/connection.md: what works with each AdminLevel, and with that of the account as it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.errors import NotPermitted
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import (
    CancelJobs,
    CreateReservation,
    DeleteReservation,
    Drain,
    HoldJobs,
    PowerDown,
    PowerUp,
    ReleaseJobs,
    ShowRights,
    Undrain,
    UpdateJob,
)
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections

pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("drains", "jobs")]

LEVELS = ("None", "Operator", "Administrator")


class Airflow:
    """A user whose level in accounting a test sets."""

    def __init__(self, cluster: Cluster, slurm: SlurmClient, level: str) -> None:
        self.cluster, self.slurm, self.level = cluster, slurm, level
        self.set_level(level)
        self._runs = iter(range(100))

    def set_level(self, level: str) -> None:
        self.cluster.run("sacctmgr", "-i", "modify", "user", "alice", "set", f"adminlevel={level}")

    def submit(self) -> JobId:
        key = SubmissionKey.derive("a_dag", f"{self.level}-{datetime.now()}", f"task-{next(self._runs)}", -1, "1")
        job = BatchJob(command="sleep 600", name="own", output="/home/alice/%j.out", hold=True)
        return self.slurm.submit(job, key).id

    def foreign(self) -> JobId:
        return JobId.parse(self.cluster.sbatch("--hold", wrap="sleep 600"))

    def may(self, *requests: Any) -> bool:
        """True if Slurm carries all of them out, False if it permits none of them."""
        allowed = set()
        for request in requests:
            try:
                self.slurm.ask(request)
                allowed.add(True)
            except NotPermitted:
                allowed.add(False)
        assert len(allowed) == 1
        return allowed.pop()


@pytest.fixture(params=LEVELS)
def airflow(request: pytest.FixtureRequest, cluster: Cluster, connections: Connections) -> Iterator[Airflow]:
    with connections.login_node(login="alice").client() as slurm:
        account = Airflow(cluster, slurm, request.param)
        yield account
        account.set_level("None")


def own_job(airflow: Airflow) -> bool:
    job = airflow.submit()
    return airflow.may(ReleaseJobs((job,)), CancelJobs(ids=(job,)))


def job_of_another(airflow: Airflow) -> bool:
    job = airflow.foreign()
    return airflow.may(UpdateJob(job, {"Nice": "100"}), ReleaseJobs((job,)), HoldJobs((job,)), CancelJobs(ids=(job,)))


def reservation(airflow: Airflow) -> bool:
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    end, users = start + timedelta(hours=1), ("root", "alice")
    wanted = CreateReservation(name="mine", nodes=("worker-0",), start=start, end=end, users=users)
    return airflow.may(wanted, DeleteReservation("mine"))


def drain(airflow: Airflow) -> bool:
    airflow.cluster.drained.add("worker-cpu-0")
    return airflow.may(Drain(("worker-cpu-0",), "a look at it"), Undrain(("worker-cpu-0",)))


def power(airflow: Airflow) -> bool:
    may = airflow.may(PowerUp(("worker-1",)))
    if may:
        airflow.cluster.wait_node("worker-1", lacks=("POWERED_DOWN", "POWERING_UP", "POWER_UP"))
    return airflow.may(PowerDown(("worker-1",))) if may else may


#: The lowest level at which each of them may be done.
NEEDED: dict[Callable[[Airflow], bool], str] = {
    own_job: "None",
    job_of_another: "Operator",
    reservation: "Operator",
    drain: "Administrator",
    power: "Administrator",
}


def test_an_account_may_do_what_the_docs_say_and_no_more(airflow: Airflow) -> None:
    rights = airflow.slurm.ask(ShowRights("alice"))
    assert rights.admin_level == airflow.level
    found = {action.__name__: action(airflow) for action in NEEDED}
    reached = LEVELS.index(airflow.level)
    assert found == {action.__name__: LEVELS.index(needed) <= reached for action, needed in NEEDED.items()}
    assert rights.may_change_nodes == found["power"] == found["drain"]


def test_the_account_of_the_docs_is_made_by_their_commands(cluster: Cluster, connections: Connections) -> None:
    page = (Path(__file__).parents[2] / "docs" / "connection.md").read_text()
    commands = [line.split() for line in page.splitlines() if line.startswith("sacctmgr -i add ")]
    assert len(commands) == 2
    with connections.login_node().client() as slurm:
        try:
            for command in commands:
                cluster.run(*command)
            made = slurm.ask(ShowRights("airflow"))
            assert (made.admin_level, made.default_account) == ("None", "airflow")
        finally:
            for command in (("user", "airflow"), ("account", "airflow")):
                cluster.run("sacctmgr", "-i", "delete", *command)


def test_the_test_button_says_what_an_operator_may_not(airflow: Airflow, connections: Connections) -> None:
    works, said = connections.login_node(login="alice").test_connection()
    assert works
    words = {
        "None": "The user may not power, drain or reserve nodes, for which",
        "Operator": "The user may reserve nodes, but not power or drain them, for which",
        "Administrator": "The user may power, drain and reserve nodes",
    }
    assert words[airflow.level] in said
