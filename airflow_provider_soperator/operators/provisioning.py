"""Make a cluster by its source, and destroy it, as tasks that show what they will do and do not do it twice."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.errors import ClusterError, ConnectionMistake
from airflow_provider_soperator.operators.backup import refuse_without_backup
from airflow_provider_soperator.operators.work import StrictOperator, WorkOperator, task_name
from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake, check_part
from airflow_provider_soperator.provisioning.object_limits import check_objects
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Connections, KubernetesObjects, Recipe, Source
from airflow_provider_soperator.slurm.job import job_of
from airflow_provider_soperator.values import check_durations, is_on, listed

if TYPE_CHECKING:
    from airflow_provider_soperator.provisioning.provisioner import Provisioner, ProvisioningPlan
    from airflow_provider_soperator.slurm.job_records import Job
    from airflow_provider_soperator.work.clusters import ClusterStart

T = TypeVar("T")

#: In ``allow_destroy``: the data in the jail, and running jobs.
JAIL, JOBS = "jail", "jobs"


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
        self.source, self.nebius_conn_id = source, nebius_conn_id

    def on_kill(self) -> None:
        """The worker is told to end the task: what has begun ends in good order, and stays."""
        super().on_kill()
        if self._provisioner:
            self.log.warning("The task was told to end: %s", self._provisioner.interrupt())

    @contextmanager
    def _open(self, spec: ClusterSpec, context: Context) -> Iterator[Provisioner]:
        source = self.source
        if isinstance(source, Recipe):
            self._provisioner = self._by_recipe(source, spec, context)
        else:
            from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
            from airflow_provider_soperator.provisioning.objects import ObjectsProvisioner

            hook = SoperatorClusterHook(source.kubernetes_conn_id, source.namespace)
            self._provisioner = ObjectsProvisioner(source, spec, hook.objects, self.log)
        try:
            yield self._provisioner
        finally:
            self._provisioner.close()
            self._provisioner = None

    def _by_recipe(self, recipe: Recipe, spec: ClusterSpec, context: Context) -> Provisioner:
        from airflow_provider_soperator.hooks.terraform import TerraformHook
        from airflow_provider_soperator.provisioning.recipe import RecipeProvisioner

        # Templates are rendered here, so that secrets are not among the rendered fields of the task.
        env = self.render_template(dict(recipe.env), context)
        how = {"env": env, "parallelism": recipe.parallelism, "lock_timeout": recipe.lock_timeout}
        workspace = TerraformHook(recipe.terraform, self.nebius_conn_id, **how).workspace(
            recipe.source,
            spec.name,
            subfolder=recipe.subfolder,
            ref=recipe.ref,
            home=recipe.home,
            backend=recipe.backend,
            # In a backend that clusters share, each has a state of its own.
            terraform_workspace=recipe.workspace or spec.name,
        )
        return RecipeProvisioner(spec, workspace, self.log, recipe.unused_programs)


@contextmanager
def explained() -> Iterator[None]:
    """Fail the task at once for errors that no retry can mend; leave the others to its retries."""
    from airflow_provider_soperator.terraform.failures import TerraformError

    try:
        yield
    except (SpecMistake, NotKnownYet, ConnectionMistake, TerraformError, ClusterError) as error:
        may_pass = getattr(error, "passing", getattr(error, "retryable", False))
        raise (AirflowException if may_pass else AirflowFailException)(str(error)) from error


class _ProvisioningOperator(ClusterOperator):
    """Plans a cluster, and applies the plan.

    :param connections: Airflow connections to the cluster
    :param plan_only: show and return the plan, and change nothing
    :param approved_plan: result of a task with ``plan_only``; a plan that does more is rejected
    """

    def __init__(
        self,
        *,
        connections: Connections | None = None,
        plan_only: bool | str = False,
        approved_plan: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_part("connections", connections, Connections)
        self.connections = connections or Connections()
        self.plan_only, self.approved_plan = plan_only, approved_plan
        # A missing plan of another task is not an approval.
        self._needs_consent = approved_plan is not None

    def _carry_out(self, context: Context, provisioner: Provisioner, owner: str, **how: bool) -> dict[str, Any]:
        """Plan, and apply the plan unless it is only asked for; returns what the task does."""
        planned = self._planned(provisioner.plan(**how))
        context["ti"].xcom_push("plan", planned.write())
        self._refuse(planned, provisioner, owner)
        if self._needs_consent:
            planned.check_agreed(self.approved_plan)
        if is_on(self.plan_only):
            return planned.write()
        done = provisioner.apply(owner)
        self.log.info("Done: %s.", done)
        self._conclude(provisioner)
        return {"plan": planned.write(), "done": done}

    def _planned(self, planned: ProvisioningPlan) -> ProvisioningPlan:
        return planned

    def _jobs(self) -> list[Job]:
        """The jobs that run, or wait."""
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.requests import ListJobs

        with SlurmHook(str(self.connections.slurm)).client() as client:
            return [job for job in client.ask(ListJobs()) if not job.state.is_finished]

    @abstractmethod
    def _refuse(self, planned: ProvisioningPlan, provisioner: Provisioner, owner: str) -> None:
        """Raise for a plan that must not be applied."""

    @abstractmethod
    def _conclude(self, provisioner: Provisioner) -> None:
        """What is to be done with connections in the end."""

    @property
    def _place(self) -> tuple[str, str]:
        name = self.source.cluster if isinstance(self.source, Recipe) else str(self.spec["name"])
        return name, self.source.namespace


class ProvisionClusterOperator(_ProvisioningOperator, WorkOperator):
    """Make a cluster, or change it to its description, and wait until jobs run on it.

        ProvisionClusterOperator(
            task_id="provision",
            spec=ClusterSpec(
                name="research",
                operator_version="4.1.7",
                nodesets=(NodeSet("worker", 2, platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb"),),
                login_keys=("ssh-ed25519 AAAAC3…",),
            ),
            source=Recipe("/opt/recipes/soperator", subfolder="installations/research"),
            connections=Connections(kubernetes="research_kubernetes", slurm="research"),
        )

    Returns the ``plan``, and, without ``plan_only``, what was ``done``, the ``seconds`` it took to come up, and
    where it was ``tried``.

    :param allow_destroy: addresses of what a plan may destroy, ``"jail"`` for a maintenance that overwrites it, and
        ``"jobs"`` for one that ends them and for partitions that go; any other plan that destroys something is rejected
    :param ready_timeout: time for the cluster to become ready and run the smoke job; None does not wait
    :param smoke_job: run a job on each node set at the end; a dict has parameters of ``SbatchOperator`` for it
    :param if_exists: ``"update"`` a cluster that exists, or ``"fail"``
    :param max_backup_age: most age of the newest complete backup of the jail, before a maintenance that overwrites it;
        None does without a backup
    """

    template_fields: Sequence[str] = ("spec", "allow_destroy", "plan_only", "approved_plan", "nebius_conn_id")
    ui_color = "#fde8c8"
    #: False once it is known that there is nothing to change.
    _may_change = True

    def __init__(
        self,
        *,
        allow_destroy: Sequence[str] = (),
        ready_timeout: timedelta | None = timedelta(hours=1),
        smoke_job: bool | Mapping[str, Any] = True,
        if_exists: Literal["update", "fail"] = "update",
        max_backup_age: timedelta | None = timedelta(days=1),
        **kwargs: Any,
    ) -> None:
        check_durations(or_none=True, ready_timeout=ready_timeout, max_backup_age=max_backup_age)
        # The work is the waiting.
        super().__init__(timeout=ready_timeout or timedelta(0), **kwargs)
        if if_exists not in ("update", "fail"):
            raise SpecMistake(f"if_exists is {if_exists!r}, but can be 'update' or 'fail'")
        if not isinstance(smoke_job, bool | None):
            # It runs in the very end: what is wrong with it is to be seen before.
            try:
                job_of({"script": "#!/bin/sh\n", **smoke_job}).check()
            except (TypeError, ValueError) as error:
                raise SpecMistake(f"smoke_job cannot be submitted: {error}") from None
        self.allow_destroy = listed(allow_destroy)
        self.ready_timeout, self.smoke_job = ready_timeout, smoke_job
        self.if_exists, self.max_backup_age = if_exists, max_backup_age

    def execute(self, context: Context) -> Any:
        with explained():
            spec = ClusterSpec.read(self.spec)
            for warning in spec.warnings if isinstance(self.source, Recipe) else spec.own_warnings:
                self.log.warning("%s", warning)
            self._check_connections()
            with self._open(spec, context) as provisioner:
                result = self._carry_out(context, provisioner, task_name(context["ti"]))
        if is_on(self.plan_only) or self.ready_timeout is None:
            return result
        down = provisioner.maintenance
        why = f"maintenance={down!r} keeps it down, until the spec has maintenance='none'" if down else ""
        if not (self.connections.kubernetes or self.connections.slurm):
            why = why or "connections names neither kubernetes nor slurm"
        if why:
            self.log.warning("Not waiting for the cluster: %s", why)
            return result
        context["ti"].xcom_push("made", result)
        return self.carry_out(self.work(context), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The cluster is ready, or will not be."""
        from airflow_provider_soperator.work.protocols import result_of

        result = result_of(event, self._limit)
        made = context["ti"].xcom_pull(task_ids=self.task_id, key="made", map_indexes=context["ti"].map_index)
        return {**made, **result}

    def _planned(self, planned: ProvisioningPlan) -> ProvisioningPlan:
        if not ClusterSpec.read(self.spec).overwrites_jail:
            return planned
        words = f"{planned.summary}; the jail is overwritten: all that is in it and not in its image is deleted"
        self.log.warning("Plan: %s", words)
        return replace(planned, summary=words, changes={**planned.changes, JAIL: "overwrite"})

    def _refuse(self, planned: ProvisioningPlan, provisioner: Provisioner, owner: str) -> None:
        from airflow_provider_soperator.provisioning import guards
        from airflow_provider_soperator.work.clusters import is_known, seen_by

        maintenance = self.spec.get("maintenance")
        is_begun = provisioner.is_begun_by(owner)
        begins = not is_on(self.plan_only) and not is_begun
        # What an earlier try has begun may still be under way, by Flux.
        self._may_change = is_begun or bool(planned.changes)

        if JAIL in planned.changes and JAIL not in self.allow_destroy:
            raise SpecMistake(
                f"rejected, nothing was changed: maintenance={maintenance!r} deletes all that users have "
                'put into the jail; use "downscale", or set allow_destroy=["jail"] after a backup'
            )
        if JAIL in planned.changes and begins:
            source = self.source
            conn_id = self.connections.kubernetes if isinstance(source, Recipe) else source.kubernetes_conn_id
            refuse_without_backup(conn_id, self._place[1], self.max_backup_age, str(maintenance))
        spec = ClusterSpec.read(self.spec)
        ends_jobs = planned.exists and (spec.is_taken_down or provisioner.kept_partitions is not None)
        if ends_jobs and planned.changes and self.connections.slurm and JOBS not in self.allow_destroy and begins:
            guards.refuse_ended_jobs(self._jobs(), spec, provisioner.kept_partitions)
        must_be_new = self.if_exists == "fail" and not is_begun
        if must_be_new and (planned.exists or self._of_kubernetes(is_known)):
            behind = f"behind {self.connections.kubernetes}, while Terraform's state knows none: set "
            where = planned.summary if planned.exists else f"{behind}Recipe(backend=…) to its state"
            raise SpecMistake(
                f"there is a cluster {self.spec['name']} already ({where}), and if_exists is 'fail': choose another "
                "name, or set if_exists='update'"
            )
        may_end = planned.exists and planned.changes and any(one.ephemeral for one in spec.nodesets)
        if may_end and not is_begun and (seen := self._of_kubernetes(seen_by)):
            guards.refuse_ended_nodes(guards.ended_by_recipe(seen, spec), self.allow_destroy)
        provisioner.guard(self.allow_destroy)

    def _of_kubernetes(self, ask: Callable[..., Coroutine[Any, Any, T]]) -> T | None:
        """What Kubernetes tells of a recipe's cluster."""
        from airflow_provider_soperator.client.sync import LOOP

        conn_id, (name, namespace) = self.connections.kubernetes, self._place
        is_asked = conn_id is not None and isinstance(self.source, Recipe)
        return LOOP.run(ask(str(conn_id), namespace, name, self.log)) if is_asked else None

    def _check_connections(self) -> None:
        """Raise, while nothing has been done yet, if a connection is missing, or cannot be written."""
        from airflow_provider_soperator.hooks.airflow_api import AirflowApiHook
        from airflow_provider_soperator.hooks.connections import known

        wanted = self.connections
        if wanted.airflow_conn_id:
            AirflowApiHook(wanted.airflow_conn_id).check()
            return
        for conn_id in wanted.ids:
            with known(conn_id):
                BaseHook.get_connection(conn_id)

    def _conclude(self, provisioner: Provisioner) -> None:
        wanted = self.connections
        if not wanted.airflow_conn_id:
            return
        from airflow_provider_soperator.hooks.airflow_api import AirflowApiHook

        api = AirflowApiHook(wanted.airflow_conn_id)
        for body in provisioner.reached().connections(wanted, self._place[1]):
            is_new = api.put_connection(body)
            self.log.info("Connection %s was %s", body["connection_id"], "added" if is_new else "changed")

    def work(self, context: Context) -> ClusterStart:
        from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, submitted_since
        from airflow_provider_soperator.soperator.readiness import Wanted
        from airflow_provider_soperator.work.clusters import JOB, ClusterStart
        from airflow_provider_soperator.work.sbatch import keys_of

        spec = ClusterSpec.read(self.spec)
        counts = {name: count for one in spec.nodesets for name, count in one.slurm_nodes.items()}
        gpus = {name: one.gpus for one in spec.nodesets for name in one.slurm_names}
        # Of the tries since the task was last cleared: what ran before that says nothing about the cluster of now.
        tries = keys_of(context, self.retries or 0)[1]
        job = {**JOB, **self.smoke_job} if isinstance(self.smoke_job, Mapping) else JOB
        cluster, namespace = self._place
        return ClusterStart(
            kubernetes_conn_id=self.connections.kubernetes,
            namespace=namespace,
            cluster=cluster,
            wanted=Wanted(spec.operator_version, counts, gpus, self._may_change),
            slurm_conn_id=self.connections.slurm,
            smoke_job=job if self.smoke_job else None,
            keys={
                name: tuple(SubmissionKey.derive("smoke", own.text, name, -1, 1).text for own in tries)
                for name in counts
            },
            submitted_since=submitted_since(context["dag_run"].start_date),
            **self.span(),
        )


class DestroyClusterOperator(_ProvisioningOperator):
    """Destroy a cluster; its data stays unless it may go, too.

        DestroyClusterOperator(task_id="destroy", spec=research, source=recipe, confirm="research",
                               connections=Connections(slurm="research"))

    :param confirm: name of the cluster, once more
    :param keep_data: file systems, disks and buckets stay, and Terraform's state keeps them: the cluster that is made
        next from the same recipe has them again
    :param end_jobs: destroy the cluster also while jobs are in its queue, which is checked by ``connections.slurm``
    :param remove_connections: delete at the end the Airflow connections that ``connections`` names
    """

    template_fields: Sequence[str] = (
        "spec", "confirm", "keep_data", "plan_only", "approved_plan", "nebius_conn_id", "end_jobs",
    )  # fmt: skip
    ui_color = "#f8d2c8"

    def __init__(
        self,
        *,
        confirm: str,
        keep_data: bool | str = True,
        end_jobs: bool | str = False,
        remove_connections: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if remove_connections and not self.connections.airflow_conn_id:
            raise SpecMistake("remove_connections goes through Airflow's API: name its connection as airflow_conn_id")
        self.confirm, self.keep_data = confirm, keep_data
        self.end_jobs, self.remove_connections = end_jobs, remove_connections

    def execute(self, context: Context) -> Any:
        with explained():
            spec = ClusterSpec.read(self.spec)
            if self.confirm != spec.name:
                raise SpecMistake(
                    f"confirm is {self.confirm!r}, and the cluster is called {spec.name}: nothing was done"
                )
            if self.connections.slurm is None and not is_on(self.end_jobs) and not is_on(self.plan_only):
                raise SpecMistake("it is unknown whether jobs run there: name connections.slurm, or set end_jobs=True")
            with self._open(spec, context) as provisioner:
                how = {"destroy": True, "keep_data": is_on(self.keep_data)}
                return self._carry_out(context, provisioner, f"destroy {task_name(context['ti'])}", **how)

    def _refuse(self, planned: ProvisioningPlan, provisioner: Provisioner, owner: str) -> None:
        from airflow_provider_soperator.provisioning import guards

        # An earlier try may have taken the login nodes away already.
        if planned.changes and not (is_on(self.plan_only) or is_on(self.end_jobs) or provisioner.is_begun_by(owner)):
            guards.refuse_jobs(self._jobs(), "jobs in the queue", "set end_jobs=True")

    def _conclude(self, provisioner: Provisioner) -> None:
        from airflow_provider_soperator.hooks.airflow_api import AirflowApiHook

        for conn_id in self.connections.ids if self.remove_connections else ():
            if AirflowApiHook(str(self.connections.airflow_conn_id)).delete_connection(conn_id):
                self.log.info("Connection %s was deleted", conn_id)
