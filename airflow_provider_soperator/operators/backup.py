"""Back the jail up before what cannot be undone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_provider_soperator.operators.work import WorkOperator, task_name
from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.values import NAMESPACE, check_durations

if TYPE_CHECKING:
    from airflow_provider_soperator.work.backups import JailBackup


class BackupJailOperator(WorkOperator):
    """Have k8up back the jail up, and wait until the backup is complete.

        BackupJailOperator(task_id="backup", max_backup_age=timedelta(hours=4), deferrable=True)

    A retry continues with the backup that the task has made. One that is under way goes on when the task ends.

    Returns the name of the ``backup``, when it was ``created``, whether it ``is_new``, and ``seconds``.

    :param max_backup_age: a complete backup up to this age is good enough; by default one is made in any case
    :param schedule: k8up's Schedule of the jail, whose bucket and credentials the backup has
    :param namespace: namespace of the SlurmCluster
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    """

    template_fields: Sequence[str] = ("schedule", "namespace", "kubernetes_conn_id")

    def __init__(
        self,
        *,
        max_backup_age: timedelta | None = None,
        schedule: str = "soperator-jail",
        namespace: str = NAMESPACE,
        kubernetes_conn_id: str = "kubernetes_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_durations(or_none=True, max_backup_age=max_backup_age)
        self.max_backup_age, self.schedule = max_backup_age, schedule
        self.namespace, self.kubernetes_conn_id = namespace, kubernetes_conn_id

    def work(self, context: Context) -> JailBackup:
        from airflow_provider_soperator.work.backups import JailBackup
        from airflow_provider_soperator.work.sbatch import keys_of

        return JailBackup(
            kubernetes_conn_id=self.kubernetes_conn_id,
            namespace=self.namespace,
            schedule=self.schedule,
            max_backup_age=self.max_backup_age,
            keys=tuple(key.text for key in keys_of(context, self.retries or 0)[1]),
            task=task_name(context["ti"]),
            **self.span(),
        )


def refuse_without_backup(conn_id: str | None, namespace: str, max_age: timedelta | None, maintenance: str) -> None:
    """Raise if a maintenance would overwrite the jail, and no complete backup of it is young enough."""
    if max_age is None:
        return
    from airflow_provider_soperator.client.sync import LOOP
    from airflow_provider_soperator.work.backups import lacks_backup

    lack = "connections.kubernetes is not named, so backups are not known"
    if conn_id:
        lack = LOOP.run(lacks_backup(conn_id, namespace, max_age))
    if lack:
        raise SpecMistake(
            f"rejected, nothing was changed: maintenance={maintenance!r} overwrites the jail, and {lack}; make one "
            "with BackupJailOperator, or set max_backup_age, None to do without"
        )
