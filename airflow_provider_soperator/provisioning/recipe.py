"""Provisioning through the published Terraform recipe."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.provisioning import tfvars
from airflow_provider_soperator.provisioning.connections import Reached
from airflow_provider_soperator.provisioning.provisioner import Provisioner, ProvisioningPlan
from airflow_provider_soperator.terraform.failures import TerraformError

if TYPE_CHECKING:
    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.provisioning.spec import ClusterSpec
    from airflow_provider_soperator.terraform.plan import TerraformPlan
    from airflow_provider_soperator.terraform.workspace import Workspace

#: The published recipe has no outputs; its state has the address of the login nodes here.
_LOGIN = "module.login_script.terraform_data.lb_service_ip"
#: Outputs by which a recipe can give the addresses directly.
_LOGIN_OUTPUT, _KUBECONFIG_OUTPUT = "login_address", "kubeconfig"
#: Actions without an effect.
_HARMLESS = ("no-op", "read")
_NOTE = "begun-by"


class RecipeProvisioner(Provisioner):
    """Makes a cluster with Terraform, in a folder that outlives the task."""

    def __init__(self, spec: ClusterSpec, workspace: Workspace, log: Logger) -> None:
        self._spec, self._workspace, self._log = spec, workspace, log
        self._plan: TerraformPlan | None = None

    def plan(self, *, destroy: bool = False) -> ProvisioningPlan:
        workspace = self._workspace
        workspace.init()
        plan = self._plan = workspace.plan(tfvars.variables(self._spec, workspace.recipe.variables), destroy=destroy)
        changes = {one.address: one.action for one in plan.changes if one.action not in _HARMLESS}
        return ProvisioningPlan(
            plan.summary,
            changes if changes or plan.is_empty else {f"output {name}": "update" for name in plan.outputs},
            exists=any(one.action not in ("create", "read") for one in plan.changes),
        )

    def guard(self, allowed: Sequence[str]) -> None:
        assert self._plan is not None, "it was planned"
        # Resources that an earlier apply has not finished were never in use.
        self._plan.refuse_destruction(allowed, unfinished=True)

    def apply(self) -> str:
        assert self._plan is not None, "it was planned"
        return str(self._workspace.apply(self._plan))

    def interrupt(self) -> str:
        return self._workspace.interrupt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A plan contains the values of all variables, so it must not stay.
        self._workspace.__exit__(kind, error, trace)

    def reached(self) -> Reached:
        outputs = self._workspace.outputs()
        return Reached(
            login=str(outputs.get(_LOGIN_OUTPUT) or self._login()),
            kubeconfig=str(outputs.get(_KUBECONFIG_OUTPUT) or ""),
            # The recipe adds this context to the kubeconfig of the account that applies it.
            context=f"nebius-{self._spec.name}-slurm",
        )

    def _login(self) -> str:
        try:
            seen: dict[str, Any] = self._workspace.show_state_address(_LOGIN)
        except TerraformError as error:
            self._log.info("The address of the login nodes is not known: %s", error.what)
            return ""
        return str(seen.get("output") or seen.get("input") or "")

    def is_begun_by(self, owner: str) -> bool:
        note = self._workspace.folder / _NOTE
        return note.exists() and note.read_text() == owner

    def begin(self, owner: str) -> None:
        super().begin(owner)
        self._workspace.folder.mkdir(parents=True, exist_ok=True)
        (self._workspace.folder / _NOTE).write_text(owner)
