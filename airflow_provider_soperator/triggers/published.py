"""What a task shows of its job while that runs: its id, and links to pages about it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm import job_report
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.triggers.task_sdk import push


class Published:
    """XComs of a task, pushed whenever there is something new to them; those that are links are noted in ``pushed``."""

    def __init__(
        self, ti: Any, client: AsyncSlurmClient, templates: Mapping[str, str], pushed: dict[str, str], log: Logger
    ) -> None:
        self.ti, self._client, self._log = ti, client, log
        self._templates = {job_report.xcom_key(field): template for field, template in templates.items()}
        self._values: dict[str, str] = {}
        self._pushed = pushed

    async def begin(self, job: JobId) -> None:
        """The job is submitted."""
        await self._push("job_id", str(job), XCom)
        if any(job_report.names_placeholder(template, "cluster") for template in self._templates.values()):
            # Links that want it are not shown without it, which is no reason to leave the job alone.
            with suppress(SlurmError, TransportError):
                self._values["cluster"] = (await self._client.config()).cluster
        await self.update(JobStatus(id=job))

    async def update(self, status: JobStatus) -> None:
        """Something about the job has changed."""
        # What is known of a job can be forgotten, as when it is told of by accounting.
        self._values |= {name: value for name, value in job_report.placeholder_values(status).items() if value}
        for key, template in self._templates.items():
            link = job_report.link_of(template, self._values)
            if link and link != self._pushed.get(key):
                # The API server reads it as it is stored, whatever keeps other XComs.
                await self._push(key, link, BaseXCom)
                self._pushed[key] = link

    async def _push(self, key: str, value: str, backend: type[BaseXCom]) -> None:
        # dag.test() runs triggers without telling them of their task.
        if self.ti is None:
            return
        try:
            await push(self.ti, key, value, backend)
        except AirflowRuntimeError as error:
            self._log.info("The XCom %s could not be stored, which does the job no harm: %s", key, error)
