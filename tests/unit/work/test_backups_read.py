"""What k8up says of a backup, what counts as one that is young enough, and what a Schedule gives to one by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.work.backups import BackupSeen, backup_of, too_old
from tests.unit.soperator.objects import NOW, condition, said

DAY = timedelta(days=1)
READY = condition("Ready", "True", "Ready")


def backup(*conditions: dict[str, str], hours_ago: float = 1, name: str = "one") -> BackupSeen:
    created = said(NOW - timedelta(hours=hours_ago))
    return BackupSeen.read(
        {"metadata": {"name": name, "creationTimestamp": created}, "status": {"conditions": list(conditions)}}
    )


def completed(reason: str = "Succeeded", message: str = "1 succeeded", **fields: Any) -> BackupSeen:
    return backup(
        condition("Completed", "True", reason, message), condition("Progressing", "False", "Finished"), **fields
    )


@pytest.mark.parametrize(
    ("seen", "state", "why"),
    [
        (backup(), "running", "k8up has not begun it"),
        (
            backup(READY, condition("Progressing", "True", "Started", "The job is progressing")),
            "running",
            "progressing",
        ),
        (completed(), "complete", "1 succeeded"),
        # k8up says True of one that has failed, too.
        (completed("Failed", "1 failed"), "failed", "1 failed"),
        (completed(message="nothing to backup"), "failed", "needs k8up.io/backup=true"),
        (backup(condition("PreBackupPodReady", "False", "CreationFailed", "no Pod")), "failed", "no Pod"),
        (backup(condition("PreBackupPodReady", "False", "NoPreBackupPodsFound")), "running", "not begun"),
        (backup(condition("PreBackupPodReady", "Unknown", "Waiting")), "running", "not begun"),
    ],
)
def test_what_k8up_says_of_a_backup(seen: BackupSeen, state: str, why: str) -> None:
    assert (seen.state, why in seen.why) == (state, True)


@pytest.mark.parametrize(
    ("backups", "lack"),
    [
        ([], "there is no backup"),
        ([backup(), completed("Failed")], "none of 2 backups is complete"),
        ([completed(hours_ago=23)], ""),
        # Whatever comes after it counts for nothing until it is complete.
        (
            [completed(hours_ago=30, name="old"), backup(hours_ago=1), completed("Failed", hours_ago=2)],
            "old, is 1 day, 6",
        ),
        ([completed(hours_ago=30), completed(hours_ago=1)], ""),
    ],
)
def test_only_a_complete_backup_that_is_young_enough_counts(backups: list[BackupSeen], lack: str) -> None:
    words = too_old(backups, DAY, NOW)
    assert bool(words) == bool(lack)
    assert lack in words


def test_a_backup_by_hand_is_as_the_schedule_makes_it_but_is_not_pruned_with_its_own() -> None:
    backend = {"s3": {"bucket": "jail"}, "repoPasswordSecretRef": {"name": "jail-backup", "key": "backup-password"}}
    schedule = {
        "spec": {
            "backend": backend,
            "podSecurityContext": {"runAsUser": 0},
            "backup": {
                "schedule": "@daily-random",
                "concurrentRunsAllowed": False,
                "successfulJobsHistoryLimit": 2,
                "tags": ["soperator-jail-schedule"],
            },
            "prune": {"schedule": "@daily-random", "retention": {"tags": ["soperator-jail-schedule"]}},
        }
    }
    assert backup_of(schedule, "jail-1", "dag/run/task/-1") == {
        "apiVersion": "k8up.io/v1",
        "kind": "Backup",
        "metadata": {"name": "jail-1", "annotations": {"airflow.apache.org/task": "dag/run/task/-1"}},
        "spec": {
            "backend": backend,
            "podSecurityContext": {"runAsUser": 0},
            "successfulJobsHistoryLimit": 2,
            "tags": ["airflow"],
        },
    }
