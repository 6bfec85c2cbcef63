"""Terraform for clusters, with the credentials of a Nebius connection."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.terraform.runs import Terraform, environment, find
from airflow_provider_soperator.terraform.sources import Source
from airflow_provider_soperator.terraform.workspace import Workspace


class TerraformHook(BaseHook):
    """Terraform, or OpenTofu, with which a recipe such as Soperator's is planned and applied.

        hook = TerraformHook(nebius_conn_id="nebius_default")
        with hook.workspace("/opt/recipes/soperator/installations/example", "training") as workspace:
            workspace.init()
            plan = workspace.plan({"company_name": "acme"})
            plan.refuse_destruction()
            print(workspace.apply(plan))

    :param terraform: The binary's name or path; if none, ``terraform`` on PATH, or ``tofu``.
    :param nebius_conn_id: The connection whose token Terraform gets, as ``NEBIUS_IAM_TOKEN`` and ``TF_VAR_iam_token``;
        with none it has those of the Airflow worker's environment.
    :param env: What else is in Terraform's environment, such as ``AWS_ACCESS_KEY_ID`` for a backend on object storage,
        or ``TF_VAR_backups_password`` for a secret that must not be written to a file.
    :param parallelism: Number of resources that Terraform works on at a time; the published recipe suggests 20.
    :param lock_timeout: Time to wait for the state's lock.
    """

    conn_name_attr = "nebius_conn_id"
    default_conn_name = NebiusHook.default_conn_name

    def __init__(
        self,
        terraform: str | None = None,
        nebius_conn_id: str | None = default_conn_name,
        *,
        env: Mapping[str, str] | None = None,
        parallelism: int | None = None,
        lock_timeout: timedelta = timedelta(minutes=10),
    ) -> None:
        super().__init__()
        self.terraform = terraform
        self.nebius_conn_id = nebius_conn_id
        self.env = dict(env or {})
        self.parallelism = parallelism
        self.lock_timeout = lock_timeout

    def workspace(
        self,
        source: str,
        name: str,
        *,
        subfolder: str = "",
        ref: str | None = None,
        home: str | Path | None = None,
        backend: Mapping[str, Mapping[str, Any]] | None = None,
        terraform_workspace: str | None = None,
    ) -> Workspace:
        """The folder in which one cluster is kept, with all that Terraform leaves there.

        :param source: A folder with the recipe, a git repository, or a module of a registry.
        :param name: Name of the cluster.
        :param subfolder: Path of the root module in the source.
        :param ref: A tag, a commit or a branch of the repository, or the version of a registry's module. It is fetched
            once; without it the recipe is fetched anew each time.
        :param home: Folder of all workspaces; if none, ``soperator/terraform`` under Airflow's home. All Airflow
            workers that may run the task have to see it, unless the recipe has a backend elsewhere.
        :param backend: A backend in place of the recipe's, such as ``{"s3": {"bucket": ...}}``. It has no secrets.
        :param terraform_workspace: Terraform's own workspace, which is made if it is not there.
        """
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise ValueError(
                f"{name!r} is not a name of a workspace: use letters, digits, dots, hyphens and underscores"
            )
        home = home or Path(os.environ.get("AIRFLOW_HOME") or "~/airflow", "soperator/terraform")
        binary = Terraform(find(self.terraform), environment(os.environ, {**self._credentials(), **self.env}))
        for key, value in self.env.items():
            # Masked in logs only if Airflow takes its name for that of a secret.
            mask_secret(value, key)
        return Workspace(
            Path(home, name).expanduser().absolute(),
            Source(source, subfolder, ref),
            binary,
            self.log,
            mask_secret,
            terraform_workspace=terraform_workspace,
            backend=backend,
            parallelism=self.parallelism,
            lock_timeout=self.lock_timeout.total_seconds(),
        )

    def _credentials(self) -> dict[str, str]:
        if self.nebius_conn_id is None:
            return {}
        token = asyncio.run(NebiusHook(self.nebius_conn_id).async_token())
        mask_secret(token)
        # Providers and the command line tool read the first; old recipes have a variable for it.
        return {"NEBIUS_IAM_TOKEN": token, "TF_VAR_iam_token": token}
