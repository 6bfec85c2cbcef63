"""What runs have left, released by a task: only what is left, and only what is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_soperator.board.picture import OldFiles
from airflow_provider_soperator.hooks import slurm
from airflow_provider_soperator.operators.leftovers import ReleaseLeftOversOperator
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.files import RemoveFiles
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import DeleteReservation, ListJobs, ListReservations, Request

HOME = "/root/.airflow-soperator"
LEFT = "airflow-handover-1"


class Cluster:
    """A cluster with a reservation, two old files, and a job that still has one of a third call."""

    def __init__(self, connection: str) -> None:
        self.changed: list[Any] = []

    @contextmanager
    def client(self) -> Iterator[Cluster]:
        yield self

    def ask(self, request: Request[Any]) -> Any:
        found = {
            OldFiles: tuple(f"{HOME}/{key * 12}.zip" for key in "abc"),
            ListJobs: (Job(id=JobId(7), name="x.af-aaaaaaaaaaaa"),),
            ListReservations: (Reservation(name=LEFT), Reservation(name="airflow-training")),
        }
        if type(request) not in found:
            self.changed.append(request)
        return found.get(type(request))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (LEFT, [DeleteReservation(LEFT)]),
        (HOME, [RemoveFiles((f"{HOME}/bbbbbbbbbbbb.zip", f"{HOME}/cccccccccccc.zip"))]),
        (f"{HOME}/bbbbbbbbbbbb.zip", [RemoveFiles((f"{HOME}/bbbbbbbbbbbb.zip",))]),
        # Of a job in the queue; what is not left over; and what is gone.
        (f"{HOME}/aaaaaaaaaaaa.zip", []),
        ("/root", []),
        ("/", []),
        ("airflow-training", []),
        ("airflow-handover-2", []),
    ],
)
def test_what_is_named_is_released_if_it_is_left_over(
    name: str, changed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("soperator_default")
    monkeypatch.setattr(slurm, "SlurmHook", lambda connection: cluster)
    released = ReleaseLeftOversOperator(task_id="release", name=name).execute({})  # type: ignore[typeddict-item]
    assert cluster.changed == changed
    assert len(released) == len(changed)
