"""The fixture ``slurm_sandbox``, for tests of your own DAGs; pytest finds it once the sandbox is installed.

Nothing here is imported by a run that does not ask for the fixture.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sandbox.lifecycle import Sandbox

_VARIABLE = "AIRFLOW_CONN_"


@dataclass(frozen=True)
class SlurmSandbox:
    """A running sandbox, as tests need it."""

    sandbox: Sandbox
    #: URIs of Airflow connections, by their ids. They are in the environment as well, where Airflow finds them.
    connections: Mapping[str, str]

    @property
    def uri(self) -> str:
        """The connection to Slurm: ``soperator_default``."""
        return self.connections["soperator_default"]

    def run(self, *command: str) -> str:
        """What a command on the login node prints, such as ``run("squeue", "--noheader")``."""
        said = self.sandbox.init.run("sshd", [*command])
        if said.returncode:
            raise AssertionError(f"`{shlex.join(command)}` ended with {said.returncode}: {said.stderr or said.stdout}")
        return said.stdout


@pytest.fixture(scope="session")
def slurm_sandbox_options() -> dict[str, Any]:
    """Options of ``sandbox up`` for the fixture below, to be overridden in a conftest: ``{"workers": 2}``."""
    return {}


@pytest.fixture(scope="session")
def slurm_sandbox(slurm_sandbox_options: dict[str, Any]) -> Iterator[SlurmSandbox]:
    """A Slurm cluster for all tests of a run, or of each process of pytest-xdist; it ends with them."""
    from sandbox import access
    from sandbox.lifecycle import Sandbox
    from sandbox.settings import Settings

    # A name of its own: a sandbox that runs already stays out of it.
    sandbox = Sandbox(Settings(**{"name": f"pytest-{os.getpid()}", **slurm_sandbox_options}))
    with pytest.MonkeyPatch.context() as environment:
        try:
            sandbox.up()
            variables = access.describe(sandbox.settings)["airflow_connections"]
            for name, uri in variables.items():
                environment.setenv(name, uri)
            yield SlurmSandbox(sandbox, {name.removeprefix(_VARIABLE).lower(): uri for name, uri in variables.items()})
        finally:
            sandbox.down()
