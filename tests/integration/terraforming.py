"""A recipe for tests of Terraform: its true variables, steps that can be held, and a ledger of what was made.

Run as a program it is a worker's task that plans and applies, and can be killed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.terraform.progress import Applied
from airflow_provider_soperator.terraform.runs import Terraform, environment, find
from airflow_provider_soperator.terraform.sources import Source
from airflow_provider_soperator.terraform.workspace import Workspace
from tests.patience import PATIENCE

RECIPES = Path(__file__).parents[2] / "dags/provision_cluster/recipe"
RECIPE = RECIPES / "soperator"
STEPS = ["cluster", "jail", "slurm", "worker-0"]
LOGIN = "module.login_script.terraform_data.lb_service_ip"

#: Terraform is in no package registry, so a machine of CI may be without it.
needs_terraform = [
    pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform on PATH"),
    pytest.mark.terraform,
]


def worker(name: str = "worker", size: int = 2, **other: Any) -> dict[str, Any]:
    """A node set, as the recipe wants it."""
    return {
        "name": name,
        "size": size,
        "resource": {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"},
        "boot_disk": {"type": "NETWORK_SSD", "size_gibibytes": 512, "block_size_kibibytes": 4},
        "gpu_cluster": {"infiniband_fabric": "fabric-3"},
        "node_local_image_disk": {"enabled": False},
        "node_local_jail_submounts": [],
        **other,
    }


def variables(**other: Any) -> dict[str, Any]:
    """All that the recipe wants to know."""
    said = {
        "company_name": "acme",
        "production": False,
        "region": "eu-north1",
        "iam_tenant_id": "tenant-e00stub",
        "iam_project_id": "project-e00stub",
        "vpc_subnet_id": "vpcsubnet-e00stub",
        "o11y_iam_tenant_id": "tenant-e00o11y",
        "o11y_profile": "telemetry",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "not-told",
        "filesystem_jail": {"existing": {"id": "computefilesystem-e00stub"}},
        "allow_empty_jail_submounts": True,
        "slurm_operator_version": "4.1.11",
        "slurm_login_ssh_root_public_keys": ["ssh-ed25519 AAAA somebody"],
        "slurm_nodeset_workers": [worker()],
    }
    return {name: value for name, value in {**said, **other}.items() if value is not None}


class Said(logging.Handler):
    """What was written into the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.log = logging.Logger("terraform")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Bench:
    """A home for workspaces, and the steps of the stub in it."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    said: Said = field(default_factory=Said)
    masked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held.mkdir(exist_ok=True)
        self.env = {"STUB_LEDGER": str(self.home / "ledger"), "STUB_HOLD": str(self.held), **self.env}

    @property
    def held(self) -> Path:
        return self.home / "held"

    @property
    def ledger(self) -> list[str]:
        """What was made and destroyed, in order."""
        path = self.home / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def made(self) -> list[str]:
        return sorted(line.removeprefix("create ") for line in self.ledger if line.startswith("create "))

    def hold(self, step: str) -> None:
        (self.held / step).touch()

    def release(self, step: str) -> None:
        (self.held / step).unlink()

    def workspace(
        self,
        source: str | Path = RECIPE,
        name: str = "training",
        *,
        subfolder: str = "",
        ref: str | None = None,
        **options: Any,
    ) -> Workspace:
        terraform = Terraform(find("terraform"), environment(os.environ, self.env))
        where = Source(str(source), subfolder, ref)
        options = {"lock_timeout": 0.0, **options}
        return Workspace(self.home / name, where, terraform, self.said.log, self.masked.append, **options)

    def provision(self, workspace: Workspace, values: Mapping[str, Any] | None = None) -> Applied:
        with workspace:
            workspace.init()
            plan = workspace.plan(values or variables())
            plan.refuse_destruction(unfinished=True)
            return workspace.apply(plan)

    def state(self, name: str = "training") -> list[str]:
        """The steps that the state has as finished."""
        path = next((self.home / name / "recipe").rglob("terraform.tfstate"))
        found = json.loads(path.read_text())["resources"]
        return sorted(
            instance["attributes"]["input"]["value"]["name"]
            for one in found
            for instance in one["instances"]
            if one["name"] == "this" and instance.get("status") != "tainted"
        )

    @contextmanager
    def task(self, **options: Any) -> Iterator[Task]:
        """A worker's task, in a process group of its own as Airflow has it."""
        told = {"home": str(self.home), "env": self.env, "options": options}
        program = [sys.executable, "-m", "tests.integration.terraforming", json.dumps(told)]
        process = subprocess.Popen(program, cwd=Path(__file__).parents[2], start_new_session=True)
        try:
            yield Task(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Task:
    """A task that plans and applies."""

    process: subprocess.Popen[bytes]

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """The task with its process group, as Airflow ends one."""
        os.killpg(self.process.pid, sig)
        self.process.wait(PATIENCE)


def wait_for(what: Callable[[], Any], message: str, within: float = PATIENCE) -> Any:
    deadline = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < deadline, message
        time.sleep(0.05)
    return found


def main() -> None:
    told = json.loads(sys.argv[1])
    bench = Bench(Path(told["home"]), told["env"])
    bench.said.log.addHandler(logging.FileHandler(bench.home / "task.log"))
    bench.provision(bench.workspace(**told["options"]))


if __name__ == "__main__":
    main()
