"""Runs of ActiveChecks: which objects they make, and what a check's status says of jobs that end in different ways."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sandbox.cloud.active_checks import WITHOUT_JOBS, shipped
from sandbox.cloud.check_runs import CheckRuns
from sandbox.cloud.slurm import AccountedJob, Said, Slurm, SlurmNode
from sandbox.kube.schemas import shape_of
from sandbox.kube.store import ObjectStore
from sandbox.kube.structure import check, unknown
from sandbox.settings import NAMESPACE

PENDING = AccountedJob("", "gpu-checks", "PENDING", "None", "2026-01-01T00:00:00Z", False, "")


class BookedSlurm(Slurm):
    """Takes scripts, and has jobs end as a test decides."""

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self.options: list[tuple[str, ...]] = []
        self.commands: list[tuple[str, ...]] = []
        self.ends: dict[str, str] = {}
        self.reservations: list[str] = []
        names = {"worker-0": {"IDLE"}, "worker-1": {"IDLE", "DRAIN"}, "worker-2": {"MIXED"}, "worker-cpu-0": {"IDLE"}}
        self.listed = [
            SlurmNode(name, frozenset(state), "", 0, "", 0 if "cpu" in name else 8) for name, state in names.items()
        ]

    async def nodes(self) -> list[SlurmNode]:
        return self.listed

    async def sbatch(self, script: str, *options: str) -> Said:
        self.scripts.append(script)
        self.options.append(options)
        return Said(0, f"{100 + len(self.scripts)}\n", "")

    async def run(self, *argv: str, text: str = "", timeout: float = 30) -> Said:
        if argv[1:3] == ("show", "reservation"):
            lines = [f"ReservationName={name} StartTime=now State=ACTIVE\n" for name in self.reservations]
            return Said(0 if argv[-1] in (*self.reservations, "--oneliner") else 1, "".join(lines), "")
        if argv[1:3] == ("show", "hostnames"):
            return Said(0, argv[3], "")
        self.commands.append(argv)
        return Said(0, "", "")

    async def accounted(self, ids: list[str]) -> list[AccountedJob]:
        waiting = [replace(PENDING, id=id_, nodes=f"on-{id_}") for id_ in ids]
        return [
            replace(one, state=self.ends[one.id], has_ended=True) if one.id in self.ends else one for one in waiting
        ]


class Checked:
    def __init__(self, soperator: str = "5.0") -> None:
        self.store, self.slurm = ObjectStore(), BookedSlurm()
        self.store.create("namespace", {"metadata": {"name": NAMESPACE}})
        for made in shipped(soperator):
            self.store.create("activecheck", made, NAMESPACE)
        self.runs = CheckRuns(self.store, self.slurm)
        self.look()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.runs.look())

    def run(self, name: str, job: str = "manual", **labels: str) -> None:
        """As `kubectl create job --from=cronjob/NAME` does, which gives it no labels."""
        cron_job = self.store.get("cronjob", name, NAMESPACE)
        owner = {"kind": "CronJob", "name": name, "uid": cron_job["metadata"]["uid"], "controller": True}
        metadata = {"name": job, "labels": labels, "ownerReferences": [{"apiVersion": "batch/v1", **owner}]}
        self.store.create("job", {"metadata": metadata, "spec": cron_job["spec"]["jobTemplate"]["spec"]}, NAMESPACE)

    def status(self, name: str, part: str = "slurmJobsStatus") -> dict[str, Any]:
        found: dict[str, Any] = self.store.get("activecheck", name, NAMESPACE).get("status", {}).get(part, {})
        return found

    def job(self, name: str = "manual") -> dict[str, Any]:
        return self.store.get("job", name, NAMESPACE)


@pytest.fixture
def checked() -> Checked:
    return Checked()


@pytest.mark.parametrize("soperator", ["4.1", "5.0"])
def test_every_check_has_a_cron_job_and_none_has_run(soperator: str) -> None:
    checked = Checked(soperator)
    names = {one["metadata"]["name"] for one in shipped(soperator)}
    assert {one["metadata"]["name"] for one in checked.store.list("cronjobs", NAMESPACE)} == names
    assert checked.store.list("jobs", NAMESPACE) == []
    cron_job = checked.store.get("cronjob", WITHOUT_JOBS, NAMESPACE)["spec"]
    assert (cron_job["suspend"], cron_job["concurrencyPolicy"]) == (True, "Forbid")
    kind = checked.store.kind("activecheck")
    wanted = shape_of(kind)
    assert wanted is not None
    for one in checked.store.list("activechecks", NAMESPACE):
        check(kind, one, wanted)
        assert unknown(one, wanted) == []


def test_a_changed_check_changes_its_cron_job(checked: Checked) -> None:
    checked.store.patch("activecheck", WITHOUT_JOBS, {"spec": {"suspend": False, "schedule": "1 * * * *"}}, NAMESPACE)
    checked.look()
    spec = checked.store.get("cronjob", WITHOUT_JOBS, NAMESPACE)["spec"]
    assert (spec["suspend"], spec["schedule"]) == (False, "1 * * * *")


def test_a_check_may_run_after_its_creation_once(checked: Checked) -> None:
    spec = {"name": "mine", "slurmClusterRefName": "soperator", "runAfterCreation": True}
    checked.store.create("activecheck", {"metadata": {"name": "mine"}, "spec": spec}, NAMESPACE)
    checked.look(3)
    assert checked.status("mine", "k8sJobsStatus")["lastJobName"] == "mine-initial-run"
    checked.store.delete("job", "mine-initial-run", NAMESPACE)
    checked.look()
    assert checked.store.list("jobs", NAMESPACE) == []


@pytest.mark.parametrize(("fails", "outcome", "count"), [(False, "Complete", "succeeded"), (True, "Failed", "failed")])
def test_a_kubernetes_job(checked: Checked, fails: bool, outcome: str, count: str) -> None:
    if fails:
        checked.runs.failing[WITHOUT_JOBS] = ""
    checked.run(WITHOUT_JOBS)
    checked.look()
    assert checked.status(WITHOUT_JOBS, "k8sJobsStatus")["lastJobStatus"] == "Active"
    assert checked.job()["metadata"]["labels"]["app.kubernetes.io/component"] == "soperatorchecks"
    checked.look()
    assert checked.status(WITHOUT_JOBS, "k8sJobsStatus")["lastJobStatus"] == outcome
    assert (checked.job()["status"][count], "active" in checked.job()["status"]) == (1, False)


def test_a_job_with_labels_of_its_own_is_run_and_not_followed(checked: Checked) -> None:
    checked.run("gpu-checks", mine="yes")
    checked.look(2)
    checked.slurm.ends = {"101": "COMPLETED", "102": "COMPLETED"}
    checked.look(2)
    assert checked.job()["status"]["succeeded"] == 1
    assert checked.job()["metadata"]["annotations"]["unhandled-slurm-job-id"] == "101,102"
    assert checked.status("gpu-checks") == {}


def test_a_job_for_each_usable_worker_with_gpus(checked: Checked) -> None:
    checked.run("gpu-checks")
    checked.look(2)
    assert [options[-1] for options in checked.slurm.options] == ["--nodelist=worker-0", "--nodelist=worker-2"]
    assert checked.slurm.commands == [("scancel", "--partition=hidden", "--name=gpu-checks")]
    annotations = checked.job()["metadata"]["annotations"]
    assert (annotations["slurm-job-id"], annotations["unhandled-slurm-job-id"]) == ("101,102", "101,102")
    assert checked.status("gpu-checks")["lastRunStatus"] == "InProgress"
    checked.slurm.ends["101"] = "COMPLETED"
    checked.look()
    assert checked.job()["metadata"]["annotations"]["unhandled-slurm-job-id"] == "102"
    assert checked.status("gpu-checks")["lastRunStatus"] == "InProgress"


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        (("COMPLETED", "COMPLETED"), "Complete"),
        (("COMPLETED", "FAILED"), "Failed"),
        (("TIMEOUT", "FAILED"), "Failed"),
        (("NODE_FAIL", "CANCELLED"), "Error"),
        (("CANCELLED", "COMPLETED"), "Cancelled"),
    ],
)
def test_what_a_run_comes_to(checked: Checked, ends: tuple[str, str], outcome: str) -> None:
    checked.run("gpu-checks")
    checked.look(2)
    checked.slurm.ends = {"101": ends[0], "102": ends[1]}
    checked.look()
    status = checked.status("gpu-checks")
    assert (status["lastRunStatus"], status["lastRunId"], status["lastRunName"]) == (outcome, "101", "gpu-checks")
    failed = [id_ for id_, end in checked.slurm.ends.items() if end == "FAILED"]
    assert [one["jobID"] for one in status.get("lastRunFailJobsAndReasons", [])] == failed
    reason = "reason=[node_problem] gpu-checks: job {} [slurm_job]"
    drains = [("scontrol", "update", f"nodename=on-{id_}", "state=drain", reason.format(id_)) for id_ in failed]
    assert checked.slurm.commands[1:] == drains


def test_a_run_that_no_node_can_have(checked: Checked) -> None:
    checked.slurm.listed = []
    checked.run("gpu-checks")
    checked.look(2)
    status = checked.status("gpu-checks")
    assert (status["lastRunStatus"], status["lastRunId"]) == ("Error", "No slurm job")
    assert checked.job()["status"]["conditions"][0]["message"] == "no node can run the check"


def test_a_failure_is_put_behind_the_options_of_the_script(checked: Checked) -> None:
    checked.runs.failing["gpu-checks"] = "worker-2"
    checked.run("gpu-checks")
    checked.look(2)
    lines = checked.slurm.scripts[0].splitlines()
    [at] = [number for number, line in enumerate(lines) if "made to fail" in line]
    assert '"worker-2"' in lines[at]
    assert all(line.startswith("#") for line in lines[:at])
    assert not any(line.startswith("#SBATCH") for line in lines[at:])


def test_history_is_kept_as_long_as_a_check_says(checked: Checked) -> None:
    checked.store.patch("activecheck", WITHOUT_JOBS, {"spec": {"successfulJobsHistoryLimit": 1}}, NAMESPACE)
    for name in ("first", "second"):
        checked.run(WITHOUT_JOBS, name)
        checked.look(3)
    assert [job["metadata"]["name"] for job in checked.store.list("jobs", NAMESPACE)] == ["second"]


SUSPECT = "suspicious-node-worker-2"


@pytest.mark.parametrize(("end", "is_drained"), [("COMPLETED", False), ("FAILED", True)])
def test_a_suspicious_node_is_tested_in_its_reservation(end: str, is_drained: bool) -> None:
    checked = Checked("4.1")
    checked.slurm.reservations = ["airflow-shift", SUSPECT]
    checked.look(10)
    assert [one for one in checked.slurm.options if "--job-name=extensive-check" in one] == [
        ("--job-name=extensive-check", "--partition=hidden", f"--reservation={SUSPECT}")
    ]
    # One at a time, for as long as it runs.
    checked.look(20)
    assert len(checked.slurm.scripts) == 1
    checked.slurm.ends["101"] = end
    checked.look()
    node = "on-101"
    said = "reason=[hardware_problem] extensive-check: job 101 [slurm_job]"
    drained = ("scontrol", "update", f"nodename={node}", "state=drain", said)
    assert (drained in checked.slurm.commands) == is_drained
    assert ("scontrol", "delete", f"reservationname=suspicious-node-{node}") in checked.slurm.commands
    # While there is the reservation, it is tested again.
    checked.look(10)
    assert len(checked.slurm.scripts) == 2


def test_a_check_may_reserve_the_nodes_of_its_jobs(checked: Checked) -> None:
    reactions = {"addReservation": {"prefix": "suspicious-node"}}
    checked.store.patch("activecheck", "gpu-checks", {"spec": {"failureReactions": reactions}}, NAMESPACE)
    checked.run("gpu-checks")
    checked.look(3)
    checked.slurm.ends["101"] = "FAILED"
    checked.look()
    created = [one for one in checked.slurm.commands if one[1] == "create"]
    assert [(one[2], one[3]) for one in created] == [("reservationname=suspicious-node-on-101", "nodes=on-101")]
