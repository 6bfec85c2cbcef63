"""Folder of one cluster, in which a recipe is planned and applied: exactly once, even if processes die."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.terraform import runs
from airflow_provider_soperator.terraform.failures import (
    BACKEND_CHANGED,
    INTERRUPTED,
    NOT_A_RECIPE,
    PLAN_OUTDATED,
    PROVIDER_OUTDATED,
    STATE_LOCKED,
    STATE_NOT_SAVED,
    TERRAFORM_FAILED,
    UNKNOWN_VARIABLE,
    WORKSPACE_BUSY,
    Lock,
    TerraformError,
    explain,
)
from airflow_provider_soperator.terraform.plan import TerraformPlan, resources_of
from airflow_provider_soperator.terraform.progress import Applied
from airflow_provider_soperator.terraform.root_module import RootModule
from airflow_provider_soperator.terraform.runs import Run, Terraform
from airflow_provider_soperator.terraform.sources import Source, bring
from airflow_provider_soperator.values import texts_in

_BACKEND = "terraform_backend_override.tf.json"
_VARIABLES = "variables.tfvars.json"
#: Terraform leaves it beside the recipe if the backend rejects the state.
_ERRORED = "errored.tfstate"


@dataclass(eq=False, repr=False)
class Workspace:
    """A recipe for one cluster, in its own folder, which outlives tasks.

    with workspace:
        workspace.init()
        plan = workspace.plan({"company_name": "acme"})
        plan.refuse_destruction()
        workspace.apply(plan)
    """

    folder: Path
    source: Source
    terraform: Terraform
    log: Logger
    mask: Callable[[str], None]
    #: Terraform's workspace, one of several states of one recipe.
    terraform_workspace: str | None = None
    #: A backend instead of the recipe's: its type and its settings.
    backend: Mapping[str, Mapping[str, Any]] | None = None
    parallelism: int | None = None
    lock_timeout: float = 600.0
    #: Of the files of the recipe, as they were brought.
    recipe_digest: str = field(default="", init=False)
    _recipe: RootModule | None = field(default=None, init=False)
    _following: Run | None = field(default=None, init=False)
    #: The last run that this process has started.
    _own: Run | None = field(default=None, init=False)
    _is_interrupted: bool = field(default=False, init=False)

    def __enter__(self) -> Workspace:
        self.settle()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the folder, without a plan in it; a run that is in progress continues."""
        # A plan contains the values of all variables, including secrets. An apply reads its plan at its start.
        for path in self._runs.glob(f"*-plan/{runs.PLAN}"):
            path.unlink(missing_ok=True)

    def settle(self) -> None:
        """Follow a run that an earlier try has left, and log its outcome.

        An apply that fails while it is followed raises its error; what had failed before can be planned again.
        """
        latest = self._latest_run()
        if latest and not latest.was_noticed:
            self._settle(latest)
            latest.notice()
        self._rescue()

    def init(self, check: Callable[[], None] = lambda: None) -> None:
        """Copy the recipe, ``check`` it, and initialize its backend, modules and providers."""
        self.settle()
        version = self.terraform.run("version", cwd=Path("/")).partition("\n")[0].replace(" v", " ")
        self.log.info("%s, in %s", version, self.folder)
        with self._alone():
            copy = self.folder / "recipe"
            root, self.recipe_digest = bring(self.terraform, self.source, copy, self.terraform_workspace)
            backend = root / _BACKEND
            backend.unlink(missing_ok=True)
            if self.backend:
                _write_privately(backend, {"terraform": {"backend": self.backend}})
            self._recipe = RootModule.read(root)
        check()
        init = ("init", "-input=false", "-no-color")
        try:
            self.terraform.run(*init, cwd=self.root)
        except TerraformError as error:
            if error.cause is BACKEND_CHANGED:
                raise BACKEND_CHANGED.error(
                    error.what,
                    f"run `terraform init -migrate-state` in {self.root}, with the backend's keys in the environment, "
                    "or set the backend that it had before",
                    error.diagnostics,
                ) from None
            if error.cause is not PROVIDER_OUTDATED:
                raise
            self.log.info("This release of the recipe needs newer providers: %s", error.what)
            self.terraform.run(*init, "-upgrade", cwd=self.root)
        name = self.terraform_workspace
        # A backend without workspaces, such as http, has the default one, and lets none be selected.
        if name and name != self.terraform.run("workspace", "show", cwd=self.root).strip():
            self.terraform.run("workspace", "select", "-or-create", name, cwd=self.root)
        if self.recipe.backend == "local":
            self.log.warning(
                "The recipe keeps its state in %s, which is lost with this machine or container unless it is on "
                "storage that all Airflow workers share; without it the cluster cannot be changed or destroyed. Set a "
                "backend, or a home on persistent storage.",
                self.root,
            )
        elif not self.recipe.is_locked:
            self.log.warning("The backend has no lock against concurrent applies: set use_lockfile.")

    def plan(
        self, variables: Mapping[str, Any], *, destroy: bool = False, targets: Sequence[str] = (), refresh: bool = True
    ) -> TerraformPlan:
        """Plan the recipe with these values; other variables have the recipe's defaults.

        With ``targets``, only these addresses. Without ``refresh`` it is a look at the state as it is, and not logged.
        Earlier plans can no longer be applied.
        """
        self.settle()
        self.close()
        self.recipe.check(variables)
        arguments = [
            f"-out={{run}}/{runs.PLAN}",
            f"-var-file={self.folder / _VARIABLES}",
            *["-destroy"] * destroy,
            *["-refresh=false"] * (not refresh),
            *(f"-target={one}" for one in targets),
        ]
        run = self._run("plan", arguments, variables)
        # Those of a recipe that cannot be parsed here: Terraform itself ignores them.
        if ignored := [one for one in run.diagnostics if UNKNOWN_VARIABLE.is_in(one.summary)]:
            raise UNKNOWN_VARIABLE.error("; ".join(one.words for one in ignored), diagnostics=ignored)
        path = run.folder / runs.PLAN
        document = self.terraform.document("show", "-json", str(path), cwd=self.root)
        plan = TerraformPlan.read(document, path=path, root=self.root)
        for line in plan.lines() if refresh else ():
            self.log.info("%s", line)
        return plan

    def apply(self, plan: TerraformPlan) -> Applied:
        """Carry out a plan, once: work that an earlier try has done or begun is not repeated."""
        self.settle()
        if plan.is_empty:
            self.log.info("There is nothing to do.")
            return Applied()
        if plan.path is None or not plan.path.exists():
            raise PLAN_OUTDATED.error("there is a newer plan, or this one was already applied")
        applied = self._run("apply", [str(plan.path)]).progress.applied
        self.close()
        self.log.info("Apply complete: %s.", applied)
        return applied

    @property
    def has_begun(self) -> bool:
        """True if an apply of this process has come to a step of its plan, and not failed for a lock or before."""
        return self._own is not None and self._own.record.kind == "apply" and self._own.progress.last_sign > 0

    def outputs(self) -> dict[str, Any]:
        """The recipe's outputs. Sensitive ones are masked in logs from here on."""
        said = self.terraform.document("output", "-json", cwd=self.root)
        for one in said.values():
            if one["sensitive"]:
                for text in texts_in(one["value"]):
                    self.mask(text)
        return {name: one["value"] for name, one in said.items()}

    def kubeconfig(self, context: str) -> str:
        """A context that a recipe has added on this machine, as a kubeconfig for others; empty if it has added none."""
        kubectl = replace(self.terraform, path="kubectl")
        try:
            # With certificates in the place of their files. It may have a token, and so is for a connection alone.
            return kubectl.run(
                "config", "view", "--raw", "--minify", "--flatten", f"--context={context}", cwd=self.folder
            )
        except TerraformError:
            self.log.warning("The kubeconfig of this machine has no context %s to be put into a connection", context)
            return ""

    def show_state_address(self, address: str) -> dict[str, Any]:
        """The attributes of a resource in the state, such as ``module.login_script.terraform_data.lb_service_ip``."""
        there = resources_of(self.terraform.document("show", "-json", cwd=self.root))
        return next((dict(one["values"]) for one in there if one["address"] == address), {})

    def interrupt(self) -> str:
        """Make Terraform finish what it has begun, save the state, release its lock and end; returns a description.

        Returns at once, and may be called by a signal handler. A caller that waits gets an error in the end.
        """
        self._is_interrupted = True
        if (run := self._following) is None:
            return "Terraform was not running; one that has just started ends in good order, too"
        run.interrupt()
        if run.is_attended:
            return f"Terraform continues for the task that has started it; see {run.folder}"
        if not run.is_here:
            return f"Terraform continues on {run.record.host}, and can be interrupted only there; see {run.folder}"
        return f"Terraform finishes what it has begun, saves the state and releases its lock; see {run.folder}"

    @property
    def recipe(self) -> RootModule:
        """The recipe's root module, in whose folder Terraform runs."""
        if self._recipe is None:
            raise NOT_A_RECIPE.error(f"{self.folder} has no recipe yet", "call init() first")
        return self._recipe

    @property
    def root(self) -> Path:
        return self.recipe.folder

    @property
    def _runs(self) -> Path:
        return self.folder / "runs"

    def _latest_run(self) -> Run | None:
        return next(iter(runs.earlier(self._runs)), None)

    def _settle(self, latest: Run) -> None:
        kind = latest.record.kind
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(latest.record.started))
        if latest.is_running:
            host = latest.record.host
            self.log.info("Following the %s of an earlier try, which runs on %s since %s", kind, host, at)
            self._follow(latest, is_late=True)
            # A run that dies while it is followed is planned again, like one that had died before.
            if kind == "apply" and latest.status is not None:
                self._checked(latest)
                return
        latest.read()
        progress = latest.progress
        if latest.status == 0:
            if kind == "apply":
                self.log.info("The apply of an earlier try, of %s, has succeeded meanwhile: %s", at, progress.applied)
            return
        how = f"{'died' if latest.status is None else 'failed'} after {progress.done} of {progress.total} steps"
        self.log.warning("The %s of an earlier try, of %s, %s; see %s", kind, at, how, latest.folder)
        for address in progress.current:
            self.log.warning("It was working on %s, which may exist without being in the state", address)

    def _run(self, kind: str, arguments: Sequence[str], variables: Mapping[str, Any] | None = None) -> Run:
        """Run plan or apply to its end. A lock of the state that others hold is waited for by Terraform itself."""
        seconds = 0.0
        while True:
            self._own = self._start(kind, arguments, seconds, variables)
            self._follow(self._own)
            try:
                return self._checked(self._own)
            except TerraformError as error:
                if error.cause is not STATE_LOCKED:
                    raise
                lock = Lock.read(error.diagnostics)
                if lock and self._is_ours(lock):
                    self.log.warning("%s, but is a run of ours that has died: removing the lock", lock)
                    self.terraform.run("force-unlock", "-force", lock.id, cwd=self.root)
                elif seconds < self.lock_timeout:
                    seconds = self.lock_timeout
                    self.log.info("%s: waiting for at most %.0f s", lock or error.what, seconds)
                elif lock is None:
                    raise
                else:
                    raise STATE_LOCKED.error(
                        f"{lock}, still after {self.lock_timeout:.0f} s",
                        "wait for it to end; if that process has certainly died, run "
                        f"`terraform force-unlock {lock.id}` in {self.root}, with the backend's keys in the "
                        "environment",
                        error.diagnostics,
                    ) from None

    def _start(
        self, kind: str, arguments: Sequence[str], lock_timeout: float, variables: Mapping[str, Any] | None
    ) -> Run:
        options = ["-json", "-input=false", f"-lock-timeout={lock_timeout:.0f}s"]
        if self.parallelism:
            options.append(f"-parallelism={self.parallelism}")
        if self._is_interrupted:
            raise INTERRUPTED.error(f"{kind} was not started: the task was interrupted")
        with self._alone():
            latest = self._latest_run()
            if latest and latest.is_running:
                raise WORKSPACE_BUSY.error(f"another task is working in {self.folder}")
            if variables is not None:
                # Just before the start, as another task may have written its own since the last one. JSON has no
                # interpolation, so values arrive unchanged.
                _write_privately(self.folder / _VARIABLES, variables)
            argv = [self.terraform.path, kind, *options, *arguments]
            return runs.start(self._runs, kind, argv, self.root, self.terraform.env)

    def _follow(self, run: Run, *, is_late: bool = False) -> Run:
        self._following = run
        if self._is_interrupted:
            run.interrupt()
        try:
            run.follow(self.log, is_late=is_late)
        finally:
            self._following = None
        return run

    def _checked(self, run: Run) -> Run:
        """The run if it is a success; otherwise raises its error."""
        if run.status == 0:
            return run
        kind = run.record.kind
        if kind == "apply":
            self._rescue()
        if run.was_interrupted:
            progress = run.progress
            raise INTERRUPTED.error(
                f"terraform {kind} was interrupted after {progress.done} of {progress.total} steps",
                "what it has made is in the state, and the next try continues from there",
                run.diagnostics,
            )
        raise explain(run.diagnostics, kind)

    def _is_ours(self, lock: Lock) -> bool:
        for run in runs.earlier(self._runs):
            if run.is_here and run.was_killed:
                run.read()
                if lock.belongs_to(run.record.who, run.record.started, run.progress.last_sign):
                    return True
        return False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder against other changes and runs."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TERRAFORM_FAILED.error(
                f"the folder {self.folder} cannot be created ({error.strerror})",
                "set a home for workspaces to which the Airflow worker may write",
            ) from error
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _rescue(self) -> None:
        """Push a state that an earlier run could not save.

        Terraform itself rejects it if the backend's state is newer, or of another cluster.
        """
        if not self._recipe or not (path := self.root / _ERRORED).exists():
            return
        try:
            self.terraform.run("state", "push", _ERRORED, cwd=self.root)
        except TerraformError as error:
            raise STATE_NOT_SAVED.error(
                f"the state of an earlier run is only in {path}, and cannot be pushed to the backend ({error.what})",
                f"fix the cause, then run `terraform state push {_ERRORED}` in {self.root}; until then nothing is "
                "changed",
            ) from error
        kept = path.rename(f"{path}.{time.strftime('%Y%m%d-%H%M%S')}.pushed")
        self.log.warning("Pushed the state that an earlier run could not save to the backend; it is kept as %s", kept)


def _write_privately(path: Path, document: Mapping[str, Any]) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(document, file, indent=1)
