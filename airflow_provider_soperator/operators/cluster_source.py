"""Base of the operators that read or change a cluster by its source: its provisioner, opened for one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.work import StrictOperator
from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake
from airflow_provider_soperator.provisioning.object_limits import check_objects
from airflow_provider_soperator.provisioning.spec import ClusterSpec, KubernetesObjects, Recipe, Source

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.provisioning.provisioner import Provisioner
    from airflow_provider_soperator.terraform.workspace import Workspace


class ClusterOperator(StrictOperator):
    """Opens the provisioner of a cluster.

    :param spec: description of the cluster, or the same as plain data
    :param source: ``Recipe`` or ``KubernetesObjects`` that makes the cluster
    :param nebius_conn_id: Airflow connection with the credentials for Terraform
    """

    _provisioner: Provisioner | None = None

    def __init__(
        self,
        *,
        spec: ClusterSpec | Mapping[str, Any],
        source: Source,
        nebius_conn_id: str | None = "nebius_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(source, (Recipe, KubernetesObjects)):
            raise SpecMistake(f"source is {source!r}: name a Recipe or KubernetesObjects")
        said = spec if isinstance(spec, ClusterSpec) else ClusterSpec.read(spec)
        if isinstance(source, KubernetesObjects):
            check_objects(said, source.installation)
        # Airflow renders templates in plain data.
        self.spec = said.write()
        self.source = source
        self.nebius_conn_id = nebius_conn_id

    def on_kill(self) -> None:
        """The worker is told to end the task: what has begun ends in good order, and stays."""
        super().on_kill()
        if self._provisioner:
            self.log.warning("The task was told to end: %s", self._provisioner.interrupt())

    @contextmanager
    def _open(self, spec: ClusterSpec, context: Context) -> Iterator[Provisioner]:
        opened: Provisioner
        if isinstance(self.source, Recipe):
            from airflow_provider_soperator.provisioning.recipe import RecipeProvisioner

            # Templates are rendered here, so that secrets are not among the rendered fields of the task.
            env = self.render_template(dict(self.source.env), context)
            workspace = _workspace(replace(self.source, env=env), spec.name, self.nebius_conn_id)
            opened = RecipeProvisioner(spec, workspace, self.log)
        else:
            from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
            from airflow_provider_soperator.provisioning.objects import ObjectsProvisioner

            hook = SoperatorClusterHook(self.source.kubernetes_conn_id, self.source.namespace)
            opened = ObjectsProvisioner(self.source, spec, hook.objects, self.log)
        self._provisioner = opened
        try:
            yield opened
        finally:
            opened.close()
            self._provisioner = None


def _workspace(recipe: Recipe, cluster: str, nebius_conn_id: str | None) -> Workspace:
    """The folder in which the recipe is planned and applied for a cluster."""
    from airflow_provider_soperator.hooks.terraform import TerraformHook

    hook = TerraformHook(
        recipe.terraform,
        nebius_conn_id,
        env=recipe.env,
        parallelism=recipe.parallelism,
        lock_timeout=recipe.lock_timeout,
    )
    return hook.workspace(
        recipe.source,
        cluster,
        subfolder=recipe.subfolder,
        ref=recipe.ref,
        home=recipe.home,
        backend=recipe.backend,
        # In a backend that clusters share, each has a state of its own.
        terraform_workspace=recipe.workspace or cluster,
    )


@contextmanager
def explained() -> Iterator[None]:
    """Fail the task at once for errors that no retry can mend; leave the others to its retries."""
    from airflow_provider_soperator.errors import ConnectionMistake
    from airflow_provider_soperator.slurm.errors import SlurmError
    from airflow_provider_soperator.terraform.failures import TerraformError
    from airflow_provider_soperator.transports.transport_errors import TransportError

    try:
        yield
    except (SpecMistake, NotKnownYet, ConnectionMistake, TerraformError, TransportError, SlurmError) as error:
        may_pass = getattr(error, "retryable", False)
        raise (AirflowException if may_pass else AirflowFailException)(str(error)) from error
