"""The buttons on the page of a task: to the job, to its output and to its measurements.

Their URLs are templates in the connection, which are filled in as the job becomes known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_provider_soperator.slurm import links

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SlurmLink(BaseOperatorLink):
    """A button whose URL is a template in the connection."""

    #: The field.
    template: ClassVar[str]

    @property
    def xcom_key(self) -> str:
        return links.xcom_key(self.template)

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The URL as far as it is known; an Airflow worker stores it whenever it releases a task."""
        shown: dict[str, str] | None = getattr(operator, "shown_links", None)
        return (shown or {}).get(self.xcom_key, "")


class JobLink(SlurmLink):
    """The page that a portal has of the job."""

    name = "Job"
    template = "job_link"


class OutputLink(SlurmLink):
    """The file that the job writes to, in a browser of files."""

    name = "Output"
    template = "output_link"


class GrafanaLink(SlurmLink):
    """A dashboard of the job's nodes during its time."""

    name = "Grafana"
    template = "grafana_link"


LINKS: tuple[SlurmLink, ...] = (JobLink(), OutputLink(), GrafanaLink())
