"""The buttons on the page of a task: to the job, to its output and to its measurements.

Their URLs are templates in the connection, which are filled in as the job becomes known.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        return (_shown(operator) or {}).get(self.xcom_key, "")


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


def known_links(operator: BaseOperator) -> Sequence[SlurmLink]:
    """The buttons of a task; once it runs those with a URL, as a worker stores each when it releases the task."""
    shown = _shown(operator)
    return LINKS if shown is None else [link for link in LINKS if link.xcom_key in shown]


def _shown(operator: BaseOperator) -> dict[str, str] | None:
    """The URLs by their keys; None before the task runs."""
    return getattr(operator, "shown_links", None)
