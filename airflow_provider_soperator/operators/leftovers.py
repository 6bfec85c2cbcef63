"""Release what runs of this provider have left on a cluster, as a task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_provider_soperator.operators.work import StrictOperator, final_errors

if TYPE_CHECKING:
    from airflow_provider_soperator.board.picture import Picture
    from airflow_provider_soperator.client.sync import SlurmClient


class ReleaseLeftOversOperator(StrictOperator):
    """Release what a run of this provider has left; what is gone is a success.

        ReleaseLeftOversOperator(task_id="release", name="/root/.airflow-soperator")

    These are reservations of shifts and of power downs, and files of function calls in the user's home that are a day
    old and have no job in the queue. Drains are undone by ``UndrainNodesOperator``.

    Returns what has been released, as ``airflow soperator leftovers`` names it.

    :param name: name of the reservation, path of the file, or folder of the files
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "name")
    ui_color = "#fde8c8"

    def __init__(self, *, name: str, slurm_conn_id: str = "soperator_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.slurm_conn_id = slurm_conn_id

    def execute(self, context: Context) -> list[str]:
        from airflow_provider_soperator.board.leftovers import left_overs
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        with final_errors(), SlurmHook(self.slurm_conn_id).client() as slurm:
            left = [one.of({self.name}) for one in left_overs(self._look(slurm)) if self.name in one.names]
            for one in left:
                slurm.ask(one.release)
                self.log.info("Released: %s", one.what)
        if not left:
            self.log.info("Nothing that is left over is called %s", self.name)
        return [one.what for one in left]

    def _look(self, slurm: SlurmClient) -> Picture:
        from airflow_provider_soperator.board.picture import OldFiles, Picture
        from airflow_provider_soperator.slurm.requests import ListJobs, ListReservations

        # Not every way to the cluster has files.
        seen: dict[str, Any] = (
            {"files": slurm.ask(OldFiles()), "jobs": slurm.ask(ListJobs())}
            if "/" in self.name
            else {"reservations": slurm.ask(ListReservations())}
        )
        return Picture(connection=self.slurm_conn_id, taken=datetime.now(timezone.utc), **seen)
