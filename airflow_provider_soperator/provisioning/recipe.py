"""A cluster by the published Terraform recipe: its variables, in their newest form, and the provisioner."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.provisioning import guards
from airflow_provider_soperator.provisioning.fields import SpecMistake, digest, given
from airflow_provider_soperator.provisioning.parts import RACKED, Filesystem, NodeSet, PartitionSpec, ServiceNodes
from airflow_provider_soperator.provisioning.provisioner import OUTPUT, Provisioner, ProvisioningPlan, Reached
from airflow_provider_soperator.provisioning.recipe_needs import RecipeNeeds
from airflow_provider_soperator.provisioning.spec import ClusterSpec
from airflow_provider_soperator.terraform.failures import UNPREPARED, TerraformError
from airflow_provider_soperator.terraform.plan import TerraformPlan

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.terraform.workspace import Workspace

Variables = dict[str, Any]

#: The recipe's names of fields of disks and file systems.
_NAMES = {
    "size_gib": "size_gibibytes",
    "block_size_kib": "block_size_kibibytes",
    "devices": "device_count",
    "device_gb": "device_capacity_gigabytes",
    "limit_gib": "size_limit_gibibytes",
}
#: Names in older recipes of variables that have kept their form.
_FORMERLY = {"filesystem_jail": "filestore_jail", "filesystem_jail_submounts": "filestore_jail_submounts"}
#: What types of the newest recipe require; the values are those of its example.
_DEFAULTS = {"node_local_image_disk": {"enabled": False}, "node_local_jail_submounts": list[Any](), "topology": "flat"}
#: Variables that identify a recipe for Soperator clusters.
ITS_OWN = ("company_name", "slurm_nodeset_workers", "slurm_operator_version", "slurm_login_ssh_root_public_keys")
#: The published recipe has no outputs; its state has the address of the login nodes here.
_LOGIN = "module.login_script.terraform_data.lb_service_ip"
#: File with the task that has begun an apply, and what was wanted.
_NOTE, _DONE = "begun-by", "\ndone"
#: In what a person approves.
NO_BUCKET = "; its state stays on this machine, and not in the bucket of the recipe's .envrc: set Recipe(backend=…)"
UNLOCKED = "; its state has no lock against a second apply at the same time: set use_lockfile in the backend"
_KUBERNETES = "nebius_mk8s_v1_cluster"
#: What holds data: it stays when its cluster is destroyed, unless it may go, too.
_HOLD_DATA = ("nebius_compute_v1_filesystem", "nebius_compute_v1_disk", "nebius_storage_v1_bucket")


class RecipeProvisioner(Provisioner):
    """Makes a cluster with Terraform, in a folder that outlives the task."""

    def __init__(
        self, spec: ClusterSpec, workspace: Workspace, log: Logger, unused_programs: Collection[str] = ()
    ) -> None:
        self._spec, self._workspace, self._log = spec, workspace, log
        self._unused_programs = unused_programs
        self._plan = TerraformPlan(())
        self._changes: dict[str, str] = {}

    def plan(self, *, destroy: bool = False, keep_data: bool = True) -> ProvisioningPlan:
        workspace = self._workspace
        workspace.init(self._check_needs)
        values = variables(self._spec, workspace.recipe.fields)
        # Without a refresh it is quick; that of the destruction follows.
        plan = workspace.plan(values, refresh=not destroy)
        self._refuse_another(plan)
        if destroy:
            plan = self._planned_end(values, plan, keep_data)
        self._plan = plan
        changes = self._changes = {one.label: one.action for one in plan.news if one.action not in ("no-op", "read")}
        there = plan.standing.difference(_HOLD_DATA)
        # With data stays what it depends on, such as the check of the variables.
        is_kept = there != plan.standing
        # Flux makes partitions of the values of a release.
        is_told = any(one.type == guards.RELEASE and one.action in ("update", "replace") for one in plan.changes)
        self.kept_partitions = self._spec.partition_names if is_told and self._spec.partitions else None
        exists = any(one.type in there and not (is_kept and one.holds_nothing) for one in plan.changes)
        if plan.is_empty:
            return ProvisioningPlan(plan.summary, changes, exists)
        recipe = workspace.recipe
        notes = UNLOCKED * (not recipe.is_locked) + NO_BUCKET * recipe.is_without_bucket
        notes += "".join(f"; {how}" for _, how in guards.lost_nodes(plan))
        notes += "".join(f"; Soperator {was} becomes {becomes}" for _, was, becomes in guards.other_releases(plan))
        told = changes or {f"{OUTPUT}{name}": "update" for name in plan.outputs}
        return ProvisioningPlan(plan.summary + notes, told, exists, self._digest if told else "")

    def _check_needs(self) -> None:
        """Raise if something is missing that Terraform would name only one by one, or late, or wait for forever."""
        recipe = self._workspace.recipe
        values, env = variables(self._spec, recipe.fields), self._workspace.terraform.env
        needs = RecipeNeeds(recipe, values, env, self._unused_programs)
        missing, doubts = list(needs.missing()), list(needs.doubts())
        self.maintenance = needs.maintenance
        if missing:
            said = "".join(f"\n- {one}" for one in (*missing, *doubts))
            raise UNPREPARED.error(f"nothing was planned or changed, as the recipe cannot work here:{said}")
        for one in doubts:
            self._log.warning("%s", one)

    def _refuse_another(self, plan: TerraformPlan) -> None:
        """Raise if the state is that of another cluster, which would be renamed, or destroyed in its place."""
        for one in plan.changes:
            was, becomes = one.before.get("name"), one.after.get("name")
            if one.type == _KUBERNETES and was and becomes and was != becomes:
                raise SpecMistake(
                    f"the state in Terraform's workspace is that of the cluster {was}, and {self._spec.name} would be "
                    f"{becomes}: nothing was changed; set Recipe(workspace=…) to that of {self._spec.name}, or change "
                    "the name in the spec"
                )

    def _planned_end(self, values: Variables, there: TerraformPlan, keep_data: bool) -> TerraformPlan:
        """The plan of a destruction, of all that is there, or of all but the data."""
        found = [one for one in there.changes if one.action not in ("create", "read")]
        kept = [one.address for one in found if keep_data and one.type in _HOLD_DATA]
        if not kept:
            return self._workspace.plan(values, destroy=True)
        self._log.info("What holds data stays, and stays in the state: %s", ", ".join(kept))
        # With a target goes all that depends on it: in the recipe, file systems depend on the check of the variables.
        needed = {name for one in kept for name in there.needs.get(one, ())}
        going = [one for one in found if one.address not in kept]
        stay = [one for one in going if one.holds_nothing and one.address_in_recipe in needed]
        targets = [one.address for one in going if one not in stay]
        end = self._workspace.plan(values, destroy=True, targets=targets) if targets else TerraformPlan(())
        data = [one.address for one in end.changes if one.is_loss and one.address in kept]
        if data:
            raise SpecMistake(
                f"nothing was changed: Terraform destroys {', '.join(data)} with what it depends on: set "
                f"keep_data=False, or keep it by `terraform state rm '{data[0]}'` in {self._workspace.root}, which "
                "leaves it out of the state of the next cluster"
            )
        return end

    def guard(self, allowed: Sequence[str]) -> None:
        if self.maintenance and not self._spec.maintenance:
            raise SpecMistake(
                f"rejected, nothing was changed: maintenance is {self.maintenance!r} by the recipe's own values or "
                "TF_VAR_maintenance, and the spec has none: set it in the spec, by which the jail and jobs are guarded"
            )
        self._plan.refuse_destruction(allowed, unfinished=guards.RELEASE not in self._plan.standing)
        guards.refuse_lost_nodes(self._plan, allowed)
        guards.refuse_older_release(self._plan, allowed)

    def apply(self, owner: str) -> str:
        before, begun = self._noted, f"{owner}\n{self._digest}"
        # Before the apply, during which the process may die.
        self._note.write_text(begun)
        try:
            done = str(self._workspace.apply(self._plan))
        except TerraformError:
            if not self._workspace.has_begun:
                # Another may have worked in the state meanwhile: the next try is checked like a first one.
                self._note.write_text(before)
            raise
        self._note.write_text(begun + _DONE)
        return done

    def interrupt(self) -> str:
        return self._workspace.interrupt()

    def close(self) -> None:
        self._workspace.close()

    def reached(self) -> Reached:
        # The outputs by which a recipe can give the addresses directly.
        outputs = self._workspace.outputs()
        login = outputs.get("login_address")
        if not login:
            seen = self._workspace.show_state_address(_LOGIN)
            login = seen.get("output") or seen.get("input")
        # The recipe adds this context to the kubeconfig of the account that applies it.
        context = f"nebius-{self._spec.name}-slurm"
        return Reached(
            login=str(login or ""),
            kubeconfig=str(outputs.get("kubeconfig") or self._workspace.kubeconfig(context)),
            context=context,
        )

    def is_begun_by(self, owner: str) -> bool:
        said, begun = self._noted, f"{owner}\n{self._digest}"
        # What changes after a success is nothing that was left of it.
        return said == begun or (said == begun + _DONE and not self._changes)

    @property
    def _note(self) -> Path:
        return self._workspace.folder / _NOTE

    @property
    def _noted(self) -> str:
        return self._note.read_text() if self._note.exists() else ""

    @property
    def _digest(self) -> str:
        """Of what is wanted; what is left to change becomes less with each try."""
        return digest(self._spec, self._workspace.recipe_digest)


def variables(spec: ClusterSpec, known: Mapping[str, Any] | None = None) -> Variables:
    """Variables for the fields that are set; the recipe has defaults for the rest.

    ``known`` are the variables of the recipe with their fields, if they could be read.
    """
    known = known or {}
    workers = known.get("slurm_nodeset_workers")
    if known and (missing := [name for name in ITS_OWN if name not in known]):
        raise SpecMistake(
            f"this recipe is not for Soperator clusters, or very old: it has no variable {missing[0]}; use the folder "
            "of an installation, such as soperator/installations/example"
        )
    rendered = given(
        company_name=spec.name,
        slurm_operator_version=spec.operator_version,
        region=spec.region,
        iam_tenant_id=spec.tenant,
        iam_project_id=spec.project,
        vpc_subnet_id=spec.subnet,
        production=spec.production,
        k8s_version=spec.k8s_version,
        slurm_nodeset_workers=[_had(_workers(one, workers), workers) for one in spec.nodesets],
        slurm_nodeset_system=_service(spec.system),
        slurm_nodeset_controller=_service(spec.controller, size=1),
        slurm_nodeset_login=_service(spec.login, size=1),
        slurm_nodeset_accounting=_service(spec.accounting_nodes),
        slurm_nodeset_nfs=_service(spec.nfs, size=1),
        slurm_nodesets_partitions=[
            _had(_partition(one), known.get("slurm_nodesets_partitions")) for one in spec.partitions
        ]
        or None,
        filesystem_jail=_filesystem(spec.jail),
        filesystem_jail_submounts=[
            {"name": one.name, "mount_path": one.mount_path, **(_filesystem(one.filesystem) or {})}
            for one in spec.submounts
        ]
        or None,
        filestore_controller_spool=_filesystem(spec.controller_spool),
        filestore_accounting=_filesystem(spec.accounting_filesystem),
        slurm_login_ssh_root_public_keys=list(spec.login_keys),
        slurm_login_public_ip=spec.public_login,
        accounting_enabled=spec.accounting,
        slurm_rest_enabled=spec.rest,
        maintenance=spec.maintenance,
        active_checks_scope=spec.active_checks_scope,
    )
    for new, old in _FORMERLY.items():
        if new in rendered and known and new not in known and old in known:
            rendered[old] = rendered.pop(new)
    return _merged(rendered, spec.extra, "the description of the cluster")


def _workers(one: NodeSet, known: Collection[str] | None) -> Variables:
    always = {name: _DEFAULTS[name] for name in ("node_local_image_disk", "node_local_jail_submounts")}
    if one.platform == RACKED:
        always["nvlink"] = {"enabled": True}
    rendered = given(
        name=one.name,
        size=one.size,
        autoscaling={"enabled": one.autoscaling, "min_size": one.min_size},
        resource={"platform": one.platform, "preset": one.preset},
        boot_disk=_renamed(one.boot_disk),
        gpu_cluster={"id": one.gpu_cluster, "infiniband_fabric": one.fabric},
        preemptible={} if one.preemptible else None,
        reservation_policy={"policy": one.policy, "reservation_ids": list(one.blocks) or None},
        features=list(one.features) or None,
        ephemeral_nodes=True if one.ephemeral else None,
        initial_number_ephemeral_nodes=one.initial,
        auto_resume=one.auto_resume,
        drain_timeout=one.drain_timeout,
        max_pods=one.max_pods,
        local_nvme={"enabled": True, **_renamed(one.local_nvme)} if one.local_nvme else None,
    )
    is_to_keep = one.keeps_by_default and "autoscaling" not in one.extra and (known is None or "autoscaling" in known)
    if one.min_size == "all" or is_to_keep:
        # As a number: the recipe's default is 0, and Terraform takes null for that.
        rendered["autoscaling"] = {"enabled": True, "min_size": one.size}
    return {**always, **_merged(rendered, one.extra, f"node set {one.name}")}


def _had(part: Variables, fields: Collection[str] | None) -> Variables:
    """A part without the defaults for which an older recipe has no field."""
    return {
        name: value
        for name, value in part.items()
        if fields is None or name in fields or (name, value) not in _DEFAULTS.items()
    }


def _service(one: ServiceNodes | None, **default: int) -> Variables | None:
    if one is None:
        return None
    resource = {"platform": one.platform, "preset": one.preset}
    numbers = {"size": one.size, "min_size": one.min_size, "max_size": one.max_size}
    return {**default, **given(**numbers, resource=resource, boot_disk=_renamed(one.boot_disk))}


def _partition(one: PartitionSpec) -> Variables:
    nodesets = {"is_all": not one.nodesets, "slurm_nodeset_refs": list(one.nodesets)}
    return {"name": one.name, **nodesets, "topology": one.topology, "config": one.config}


def _filesystem(one: Filesystem | None) -> Variables | None:
    if one is None:
        return None
    return {"existing": {"id": one.id}} if one.id is not None else {"spec": _renamed(one)}


def _renamed(one: Any) -> Variables:
    """The fields of a part that are set, by the recipe's names."""
    found = {_NAMES.get(field.name, field.name): getattr(one, field.name) for field in fields(one)}
    return given(**found)


def _merged(rendered: Variables, extra: Any, where: str) -> Variables:
    if twice := sorted(rendered.keys() & extra.keys()):
        raise SpecMistake(f"{where} and its extra both set {twice[0]}: omit one of them")
    return {**rendered, **extra}
