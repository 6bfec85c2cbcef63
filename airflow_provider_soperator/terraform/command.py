"""The binary: its path, its environment, and short commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.failures import NO_TERRAFORM, Diagnostic, explain, from_text

#: Variables that would change Terraform's output, arguments or folders, and all of Airflow's: a recipe's scripts must
#: not see the password of Airflow's database.
_DROPPED = re.compile(r"TF_(LOG|CLI_ARGS|INPUT|WORKSPACE|DATA_DIR|REATTACH).*|_*AIRFLOW_.*")
_SET = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "GIT_TERMINAL_PROMPT": "0"}


def find(name: str | None) -> str:
    """The path of a binary, given by name or path; by default of Terraform or OpenTofu."""
    for one in [name] if name else ("terraform", "tofu"):
        if path := shutil.which(os.path.expanduser(one)):
            return path
    raise NO_TERRAFORM.error(f"{name or 'terraform'} is not on PATH of this machine")


def environment(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Environment for Terraform and a recipe's scripts: the Airflow worker's, cleaned, and ``added``."""
    kept = {name: value for name, value in base.items() if not _DROPPED.fullmatch(name)}
    return {**kept, **_SET, **added}


@dataclass(frozen=True)
class Terraform:
    """A binary with an environment."""

    path: str
    env: Mapping[str, str] = field(repr=False)

    def run(self, *args: str, cwd: Path) -> str:
        """Return the output of a short command, which may be interrupted without harm; raise its error if it fails."""
        # In its own session: a kill of the Airflow worker's process group must not leave a half-written file.
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "start_new_session": True}
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                [self.path, *args], cwd=cwd, env=dict(self.env), text=True, errors="replace", **how
            )
        except OSError as error:
            raise NO_TERRAFORM.error(f"{self.path} cannot be run ({error})") from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            untold = [Diagnostic("error", words.splitlines()[0], words)] if words else []
            raise explain(from_text(f"{done.stdout}\n{done.stderr}") or untold, args[0])
        return done.stdout

    def document(self, *args: str, cwd: Path) -> Any:
        return json.loads(self.run(*args, cwd=cwd))
