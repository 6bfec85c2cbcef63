"""k8up's Backups and Schedules: how a backup goes, what it takes to fail, and what looks like a success."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sandbox.cloud.backups import BackupController
from sandbox.cloud.charts import render
from sandbox.cloud.volumes import VolumeController
from sandbox.kube.objects import Object, dig
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings

BACKUP: Object = {
    "metadata": {"name": "before-upgrade"},
    "spec": {
        "tags": ["before-upgrade"],
        "backend": {
            "repoPasswordSecretRef": {"name": "jail-backup", "key": "backup-password"},
            "s3": {"accessKeyIDSecretRef": {"name": "jail-backup", "key": "aws-access-key-id"}},
        },
        "podSecurityContext": {"runAsUser": 0},
    },
}


class K8up:
    """What an installation has, on a clock that is moved."""

    def __init__(self) -> None:
        self.now = datetime.now(timezone.utc)
        self.store = ObjectStore(now=lambda: self.now)
        self.store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        for chart in ("slurm-cluster-storage", "soperator-backup-config"):
            for thing in render(f"helm-{chart}", "4.1.7", {}, Settings(port_base=30000)):
                self.store.create(thing["kind"], thing, NAMESPACE)
        self.volumes, self.controller = VolumeController(self.store), BackupController(self.store, 60)
        self.look()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.volumes.sync()
            self.controller.sync()

    def back_up(self, **metadata: Any) -> None:
        self.store.create("backups", {**BACKUP, "metadata": {**BACKUP["metadata"], **metadata}}, NAMESPACE)
        self.look(3)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.look(3)

    def status(self, name: str = "before-upgrade") -> Any:
        return self.store.get("backups", name, NAMESPACE)["status"]

    def conditions(self, name: str = "before-upgrade") -> dict[str, tuple[str, str]]:
        return {one["type"]: (one["status"], one["reason"]) for one in self.status(name)["conditions"]}

    def names(self, kind: str) -> list[str]:
        return [one["metadata"]["name"] for one in self.store.list(kind, NAMESPACE)]


@pytest.fixture
def k8up() -> K8up:
    return K8up()


def test_a_backup_takes_its_time_and_succeeds(k8up: K8up) -> None:
    k8up.back_up()
    none = {"PreBackupPodReady": ("True", "NoPreBackupPodsFound")}
    assert k8up.conditions() == {**none, "Ready": ("True", "Ready"), "Progressing": ("True", "Started")}
    job = k8up.store.get("jobs", "backup-before-upgrade-0", NAMESPACE)
    assert job["metadata"]["labels"]["k8up.io/owned-by"] == "backup_before-upgrade"
    # The one claim that is marked for it.
    assert [volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]] == ["jail-pvc"]
    k8up.wait(50)
    assert "Completed" not in k8up.conditions()
    k8up.wait(11)
    assert k8up.conditions() == {
        **none,
        "Completed": ("True", "Succeeded"),
        "Progressing": ("False", "Finished"),
        "Scrubbed": ("True", "Succeeded"),
    }
    assert (k8up.status()["started"], k8up.status()["finished"]) == (True, True)
    said = '"backup_before-upgrade" has 1 succeeded, 0 failed, and 0 started jobs'
    assert dig(k8up.status(), "conditions[Completed].message") == said


def test_a_backup_that_failed_is_completed_as_well(k8up: K8up) -> None:
    k8up.controller.failing = True
    k8up.back_up()
    k8up.wait(61)
    assert k8up.conditions()["Completed"] == ("True", "Failed")
    assert k8up.conditions()["Progressing"] == ("False", "Finished")
    k8up.controller.failing = False
    k8up.wait(61)
    assert k8up.conditions()["Completed"] == ("True", "Failed")


def test_without_a_claim_that_is_marked_nothing_is_a_success(k8up: K8up) -> None:
    k8up.store.patch("pvc", "jail-pvc", {"metadata": {"annotations": None}}, NAMESPACE)
    k8up.back_up()
    assert k8up.conditions()["Completed"] == ("True", "Succeeded")
    assert dig(k8up.status(), "conditions[Completed].message") == "nothing to backup"
    assert k8up.names("jobs") == []
    assert "Progressing" not in k8up.conditions()


def test_a_backup_waits_for_its_secret_for_ever(k8up: K8up) -> None:
    k8up.store.delete("secrets", "jail-backup", NAMESPACE)
    k8up.back_up()
    k8up.wait(86_400)
    assert k8up.conditions()["Progressing"] == ("True", "Started")


def test_a_backup_that_has_ended_sweeps_older_ones_away(k8up: K8up) -> None:
    for number in range(4):
        k8up.wait(1)
        k8up.back_up(name=f"number-{number}")
        k8up.wait(61)
    # Three stay, no matter who made them.
    assert k8up.names("backups") == ["number-1", "number-2", "number-3"]
    assert k8up.names("jobs") == [f"backup-number-{number}-0" for number in (1, 2, 3)]
    assert dig(k8up.status("number-3"), "conditions[Scrubbed].message") == "Deleted 1 resources"


def test_a_schedule_says_when_and_is_held_by_k8up(k8up: K8up) -> None:
    schedule = k8up.store.get("schedules", "soperator-jail", NAMESPACE)
    assert dig(schedule, "status.conditions[Ready].message") == "The resource is ready"
    assert [one["jobType"] for one in schedule["status"]["effectiveSchedules"]] == ["backup", "prune"]
    assert schedule["metadata"]["finalizers"] == ["k8up.io/schedule"]
    k8up.store.create("namespaces", {"metadata": {"name": "k8up-system"}})
    plan = {"metadata": {"name": "my-scheduled-backup"}, "spec": {"backup": {"schedule": "@weekly-random"}}}
    k8up.store.create("schedules", plan, "k8up-system")
    k8up.look()
    made = k8up.store.get("schedules", "my-scheduled-backup", "k8up-system")
    # The one that k8up's own tests have.
    assert dig(made, "status.effectiveSchedules") == [{"jobType": "backup", "generatedSchedule": "52 4 * * 4"}]
    k8up.store.delete("schedules", "my-scheduled-backup", "k8up-system")
    k8up.look()
    assert k8up.store.list("schedules", "k8up-system") == []


def test_claims_are_bound(k8up: K8up) -> None:
    claim = k8up.store.get("pvc", "jail-pvc", NAMESPACE)
    assert (claim["status"]["phase"], claim["spec"]["volumeName"]) == ("Bound", "jail-pv")
    assert k8up.store.get("pv", "jail-pv")["status"]["phase"] == "Bound"
    lonely = {"storageClassName": "slurm-local-pv", "accessModes": ["ReadWriteMany"]}
    k8up.store.create("pvc", {"metadata": {"name": "lonely"}, "spec": lonely}, NAMESPACE)
    made = {"metadata": {"name": "fast"}, "provisioner": "compute.csi.nebius.com"}
    k8up.store.create("storageclasses", made)
    wanted = {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}
    k8up.store.create("pvc", {"metadata": {"name": "scratch"}, "spec": wanted}, NAMESPACE)
    k8up.look()
    phases = [k8up.store.get("pvc", name, NAMESPACE)["status"]["phase"] for name in ("lonely", "scratch")]
    assert phases == ["Pending", "Bound"]
