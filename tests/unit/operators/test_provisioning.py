"""Tasks that make clusters: what is refused when DAGs are parsed, and what waits for its rendering."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.operators.cluster import (
    CompareClusterOperator,
    DestroyClusterOperator,
    ProvisionClusterOperator,
)
from airflow_provider_soperator.operators.provisioning import explained
from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake
from airflow_provider_soperator.provisioning.provisioner import ProvisioningPlan
from airflow_provider_soperator.provisioning.spec import Connections, KubernetesObjects, Recipe
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.terraform.failures import TERRAFORM_FAILED, UNAUTHENTICATED
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectRefused, Unreachable
from tests.unit.provisioning.clusters import cluster, workers
from tests.unit.provisioning.kubernetes import Namespace

RECIPE = Recipe("/opt/recipe")


@pytest.mark.parametrize(
    ("operator", "options", "said"),
    [
        (ProvisionClusterOperator, {"source": "/opt/recipe"}, "name a Recipe or KubernetesObjects"),
        (ProvisionClusterOperator, {"spec": {"name": "a"}}, "spec is incomplete"),
        (ProvisionClusterOperator, {"if_exists": "replace"}, "can be 'update' or 'fail'"),
        (ProvisionClusterOperator, {"smoke_job": {"nodes": -1}}, "smoke_job cannot be submitted: .*nodes"),
        (ProvisionClusterOperator, {"smoke_job": {"gpu_per_node": 8}}, "smoke_job cannot be submitted: .*gpu_per_node"),
        (
            ProvisionClusterOperator,
            {"smoke_job": "#!/bin/sh"},
            "smoke_job cannot be submitted: 'str' object is not a m",
        ),
        (ProvisionClusterOperator, {"connections": {"slurm": "x"}}, "connections is {'slurm': 'x'}: write Connections"),
        (DestroyClusterOperator, {"confirm": "", "remove_connections": True}, "name its connection as airflow_conn_id"),
    ],
)
def test_what_is_refused_when_the_dag_is_parsed(operator: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        operator(**{"task_id": "task", "spec": cluster(), "source": RECIPE, **options})


def test_a_description_is_rendered_and_may_come_from_a_file() -> None:
    said = cluster(name="{{ params.name }}", nodesets=(workers(size="{{ params.size }}"),)).write()
    with DAG("provisioning", schedule=None):
        task = ProvisionClusterOperator(task_id="task", spec=said, source=RECIPE)
    task.render_template_fields({"params": {"name": "research", "size": 4}})  # type: ignore[arg-type,typeddict-item]
    assert (task.spec["name"], task.spec["nodesets"][0]["size"]) == ("research", "4")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unreachable("login:22 does not answer"), AirflowException),
        (NotKnownYet("no address yet"), AirflowException),
        (TERRAFORM_FAILED.error("it failed"), AirflowException),
        (ConnectFailed("login:22 refuses the key"), AirflowFailException),
        (UNAUTHENTICATED.error("no token"), AirflowFailException),
        (SpecMistake("no name"), AirflowFailException),
    ],
)
def test_what_may_pass_is_left_to_the_retries_of_the_task(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(AirflowException) as failed, explained():
        raise error
    assert type(failed.value) is kind


def test_a_value_that_a_template_has_made_is_checked() -> None:
    task = ProvisionClusterOperator(task_id="task", spec=cluster(name="{{ params.name }}"), source=RECIPE)
    task.spec["name"] = "My Research"
    with pytest.raises(AirflowFailException, match="'My Research' is not a name of a cluster"):
        task.execute({})  # type: ignore[arg-type,typeddict-item]


@pytest.mark.parametrize("given", [None, ""])
def test_a_consent_that_has_not_come_is_none(given: Any) -> None:
    task = ProvisionClusterOperator(
        task_id="task", spec=cluster(), source=RECIPE, approved_plan="{{ ti.xcom_pull('plan') }}"
    )
    task.approved_plan = given
    planned = ProvisioningPlan("1 to create", {"a": "create"})
    # It has nothing with which a plan is applied.
    provisioner: Any = SimpleNamespace(
        plan=lambda: planned, guard=lambda allowed: None, is_begun_by=lambda owner: False
    )
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    with pytest.raises(SpecMistake, match="must be the result of a task with plan_only=True"):
        task._carry_out(context, provisioner, "owner")


class Planned:
    """A provisioner whose plan is known; it notes what is applied."""

    def __init__(self, planned: ProvisioningPlan, begun_by: str = "", kept_partitions: Any = None) -> None:
        self.planned, self.begun_by, self.kept_partitions, self.done = planned, begun_by, kept_partitions, 0

    def plan(self, **how: bool) -> ProvisioningPlan:
        return self.planned

    def guard(self, allowed: Any) -> None:
        pass

    def is_begun_by(self, owner: str) -> bool:
        return owner == self.begun_by

    def apply(self, owner: str) -> str:
        self.done += 1
        return "done"


def carry_out(maintenance: str | None, begun_by: str = "", exists: bool = True, **options: Any) -> tuple[Any, Planned]:
    """Of any source: what guards the jail and the jobs does not depend on it."""
    spec, kept = options.pop("spec", cluster(maintenance=maintenance)), options.pop("kept_partitions", None)
    task = ProvisionClusterOperator(task_id="task", spec=spec, source=options.pop("source", RECIPE), **options)
    provisioner = Planned(ProvisioningPlan("1 to update", {"a": "update"}, exists=exists), begun_by, kept)
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    return task._carry_out(context, provisioner, "owner"), provisioner  # type: ignore[arg-type]


OVERWRITING = "downscaleAndOverwritePopulateJail"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each connection to Kubernetes says of its backups; empty if one is young enough."""
    said: dict[str, str] = {}

    async def lacks(conn_id: str, namespace: str, max_age: timedelta) -> str:
        return said[conn_id]

    monkeypatch.setattr("airflow_provider_soperator.work.backups.lacks_backup", lacks)
    return said


@pytest.mark.parametrize("source", [RECIPE, KubernetesObjects()])
def test_the_jail_is_overwritten_only_after_a_backup(source: Any, asked: dict[str, str]) -> None:
    known = Connections(kubernetes="kubernetes_default")
    options: dict[str, Any] = {"source": source, "connections": known, "allow_destroy": ["jail"]}
    asked["kubernetes_default"] = "there is no backup"
    with pytest.raises(
        SpecMistake, match="and there is no backup; make one with BackupJailOperator, or set max_backup"
    ):
        carry_out(OVERWRITING, **options)
    # A plan is shown without it; a try that has begun is not refused half-way; and it can be done without.
    assert carry_out(OVERWRITING, plan_only=True, **options)[1].done == 0
    assert carry_out(OVERWRITING, begun_by="owner", **options)[1].done == 1
    assert carry_out(OVERWRITING, max_backup_age=None, **options)[1].done == 1
    assert carry_out("downscale", **options)[1].done == 1
    asked["kubernetes_default"] = ""
    assert carry_out(OVERWRITING, **options)[1].done == 1


def test_of_a_recipe_backups_are_known_by_the_connection_to_its_kubernetes(asked: dict[str, str]) -> None:
    with pytest.raises(SpecMistake, match=r"connections\.kubernetes is not named, so backups are not known"):
        carry_out(OVERWRITING, allow_destroy=["jail"])


@pytest.mark.parametrize("source", [RECIPE, KubernetesObjects()])
def test_the_jail_is_overwritten_only_where_that_is_allowed_by_name(source: Any) -> None:
    overwriting = OVERWRITING
    with pytest.raises(SpecMistake, match=r'deletes all that users have put into the jail.*allow_destroy=\["jail"\]'):
        carry_out(overwriting, source=source, allow_destroy=["module.*"])
    done, provisioner = carry_out(overwriting, source=source, allow_destroy=["jail"], max_backup_age=None)
    assert provisioner.done == 1
    assert "the jail is overwritten" in done["plan"]["summary"]
    # Whoever has approved the same plan without it has not approved that.
    approved = {"changes": {"a": "update"}}
    with pytest.raises(SpecMistake, match=r"has changed since it was approved: jail \(overwrite\)"):
        carry_out(overwriting, source=source, allow_destroy=["jail"], max_backup_age=None, approved_plan=approved)
    assert carry_out("downscale", source=source)[1].done == 1


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Jobs that Slurm lists, behind any connection."""
    jobs: list[Any] = []
    client = SimpleNamespace(ask=lambda request: jobs)
    monkeypatch.setattr(
        "airflow_provider_soperator.hooks.slurm.SlurmHook",
        lambda conn_id: SimpleNamespace(client=lambda: nullcontext(client)),
    )
    return jobs


def job(id: str, user: str, state: str, partition: str = "main") -> Any:
    return SimpleNamespace(id=id, user=user, state=JobState.parse(state), partition=partition)


def test_a_maintenance_that_ends_jobs_asks_for_them(queue: list[Any]) -> None:
    queue += [job("7", "ann", "RUNNING"), job("8", "bob", "PENDING")]
    known = Connections(slurm="research")
    with pytest.raises(SpecMistake, match=r"there are running jobs \(7 of ann\).*allow_destroy=\['jobs'\]"):
        carry_out("downscale", connections=known)
    assert carry_out("downscale", connections=known, allow_destroy=["jobs"])[1].done == 1
    # An earlier try may have taken the login nodes down already; modes in which all runs end nothing.
    assert carry_out("downscale", begun_by="owner", connections=known)[1].done == 1
    assert carry_out("skipPopulateJail", connections=known)[1].done == 1
    # What waits in the queue waits on.
    queue.pop(0)
    assert carry_out("downscale", connections=known)[1].done == 1


def test_jobs_whose_partition_goes_are_asked_for(queue: list[Any]) -> None:
    stay = job("5", "ann", "RUNNING", "gpu"), job("6", "ann", "PENDING", "main,gpu"), job("7", "ann", "FAILED")
    queue += [*stay, job("8", "bob", "PENDING"), job("9", "eve", "RUNNING", "gpu,main")]
    options: dict[str, Any] = {"kept_partitions": {"gpu", "hidden"}, "connections": Connections(slurm="research")}
    # A running job is in any one of its partitions.
    said = r"there are jobs in other partitions than gpu, hidden \(8 of bob, 9 of eve\).*allow_destroy=\['jobs'\]"
    with pytest.raises(SpecMistake, match=said):
        carry_out(None, **options)
    assert carry_out(None, allow_destroy=["jobs"], **options)[1].done == 1
    assert carry_out(None, begun_by="owner", **options)[1].done == 1
    # Where no partition goes, Slurm is not asked: it may not be there yet.
    assert carry_out(None, **{**options, "kept_partitions": None})[1].done == 1
    queue[:] = stay
    assert carry_out(None, **options)[1].done == 1


def test_a_cluster_that_the_state_does_not_know_is_seen_by_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Namespace()
    monkeypatch.setattr(SoperatorClusterHook, "objects", lambda self, max_age: there.open())
    options: dict[str, Any] = {"if_exists": "fail", "connections": Connections(kubernetes="kubernetes_default")}
    assert carry_out(None, exists=False, **options)[1].done == 1
    there.put("SlurmCluster", "soperator", {})
    with pytest.raises(SpecMistake, match=r"cluster research already \(behind kubernetes_default, while Terraform's"):
        carry_out(None, exists=False, **options)
    # The next try of the same task goes on; a connection that is not there yet tells nothing.
    assert carry_out(None, begun_by="owner", exists=False, **options)[1].done == 1
    monkeypatch.undo()
    assert carry_out(None, exists=False, **{**options, "connections": Connections(kubernetes="none_yet")})[1].done == 1


def test_a_static_node_set_that_a_recipe_makes_ephemeral_is_seen_by_kubernetes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Namespace()
    monkeypatch.setattr(SoperatorClusterHook, "objects", lambda self, max_age: there.open())
    there.put("SlurmCluster", "soperator", {})
    there.put("NodeSet", "worker", {"replicas": 4})
    there.run("worker", *range(4))
    options: dict[str, Any] = {"connections": Connections(kubernetes="kubernetes_default")}

    def done(**changed: Any) -> int:
        return carry_out(None, spec=cluster(nodesets=(workers(size=4, **changed),)), **options)[1].done

    for first, lost in ({}, r"worker-\[1-3\]"), ({"initial": 2}, r"worker-\[2-3\]"):
        with pytest.raises(SpecMistake, match=rf"NodeSet/worker would become ephemeral and lose {lost}, which are on"):
            done(ephemeral=True, **first)
    assert done() == done(ephemeral=True, initial=4) == 1
    for allowed in {"allow_destroy": ["NodeSet/worker"]}, {"begun_by": "owner"}:
        assert carry_out(None, spec=cluster(nodesets=(workers(ephemeral=True),)), **options, **allowed)[1].done == 1

    # One that was never finished, or may not be looked at, can be gone on with; one that is away for a moment is
    # looked at by another try.
    def refuses(error: Exception) -> Any:
        def fail(self: Any, max_age: float) -> Any:
            raise error

        return fail

    monkeypatch.setattr(SoperatorClusterHook, "objects", refuses(ConnectFailed("the account has no right to list")))
    assert done(ephemeral=True) == 1
    assert "Not checked which nodes are on, as Kubernetes cannot be asked: the account" in capsys.readouterr().out
    monkeypatch.setattr(SoperatorClusterHook, "objects", refuses(ConnectRefused("could not list nodesets")))
    with pytest.raises(ConnectRefused):
        done(ephemeral=True)


def test_the_place_of_a_cluster_is_that_of_its_way() -> None:
    def place(source: Any) -> tuple[str, str]:
        return ProvisionClusterOperator(task_id="task", spec=cluster(), source=source)._place

    assert place(RECIPE) == ("soperator", "soperator")
    assert place(KubernetesObjects(namespace="mine")) == ("research", "mine")


def test_connections_are_named_as_a_whole() -> None:
    with pytest.raises(SpecMistake, match="needs another one as transport"):
        Connections(slurm="research", airflow_conn_id="airflow_api")


def test_what_others_have_changed_by_hand_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    there, objects = Namespace(), KubernetesObjects()
    monkeypatch.setattr(SoperatorClusterHook, "objects", property(lambda self: there.open))
    made = ProvisionClusterOperator(task_id="make", spec=cluster(), source=objects, ready_timeout=None)
    task = {"dag_id": "care", "run_id": "run", "task_id": "make", "map_index": -1}
    context: Any = {"ti": SimpleNamespace(**task, xcom_push=lambda key, value: None), "outlet_events": {}}
    made.execute(context)
    compare = CompareClusterOperator(task_id="compare", spec=cluster(), source=objects)
    assert compare.execute(context)["changes"] == {}
    # By `kubectl patch`, which is the owner of the field from then on.
    there.put("NodeSet", "worker", {"replicas": 1}, "kubectl-patch")
    assert compare.execute(context)["changes"] == {"NodeSet/worker": "update"}
    assert there.spec("NodeSet", "worker")["replicas"] == 1
    with pytest.raises(AirflowException, match=r"conflict with .kubectl-patch"):
        made.execute(context)


def test_a_cluster_that_stays_in_maintenance_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, known = Namespace(), Connections(kubernetes="kubernetes_default")
    monkeypatch.setattr(SoperatorClusterHook, "objects", property(lambda self: there.open))
    for name, does in {"_check_connections": None, "work": None, "carry_out": {"waited": True}}.items():
        monkeypatch.setattr(ProvisionClusterOperator, name, lambda *args, does=does: does)
    task = {"dag_id": "care", "run_id": "run", "task_id": "make", "map_index": -1}
    context: Any = {"ti": SimpleNamespace(**task, xcom_push=lambda key, value: None)}

    def is_waited_for(maintenance: str | None) -> bool:
        spec = cluster(maintenance=maintenance)
        made = ProvisionClusterOperator(task_id="make", spec=spec, source=KubernetesObjects(), connections=known)
        return "waited" in made.execute(context)

    assert is_waited_for(None)
    assert not is_waited_for("downscale")
    # What the spec does not say stays.
    capsys.readouterr()
    assert not is_waited_for(None)
    assert "maintenance='downscale' keeps it down, until the spec has maintenance='none'" in capsys.readouterr().out
    assert is_waited_for("none")


def test_what_no_plan_of_this_task_changes_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    there, begun = Namespace(), datetime(2026, 11, 22, tzinfo=timezone.utc)
    monkeypatch.setattr(SoperatorClusterHook, "objects", property(lambda self: there.open))
    monkeypatch.setattr(BaseHook, "get_connection", lambda conn_id: None)
    monkeypatch.setattr(ProvisionClusterOperator, "carry_out", lambda self, work, context: work.wanted.is_changed)

    def is_changed(run: str, number: int) -> Any:
        known = Connections(kubernetes="kubernetes_default")
        task = ProvisionClusterOperator(
            task_id="make", spec=cluster(), source=KubernetesObjects(), connections=known, retries=1
        )
        names = {"dag_id": "care", "run_id": run, "task_id": "make", "map_index": -1}
        ti = SimpleNamespace(**names, try_number=number, max_tries=1, xcom_push=lambda key, value: None)
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=begun)}
        return task.execute(context)

    # The try before may have changed it, minutes ago; it may have been cleared since.
    assert [is_changed("first", 1), is_changed("first", 2), is_changed("first", 1)] == [True, True, True]
    assert not is_changed("second", 1)
