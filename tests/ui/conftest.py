"""One Airflow and one browser for all tests of its pages."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping

import pytest

from sandbox.airflow.api import AirflowApi
from sandbox.airflow.beside import DAGS
from sandbox.airflow.home import AirflowHome, airflow, without_airflow
from sandbox.private import write_private
from sandbox.settings import AirflowPorts
from tests.airflow.processes import Component
from tests.airflow.stack import free_ports
from tests.patience import PATIENCE
from tests.ui.browser import browser  # noqa: F401


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    """The folder of an Airflow that knows the example DAGs."""
    home = AirflowHome(tmp_path_factory.mktemp("airflow") / "home", DAGS, AirflowPorts(*free_ports(3)))
    environment = without_airflow() | home.environment({})
    home.make(environment)
    subprocess.run(airflow("dags", "reserialize"), env=environment, check=True, capture_output=True)
    return home


@pytest.fixture(scope="session", name="airflow")
def address(home: AirflowHome) -> Iterator[str]:
    """The address of the Airflow, whose users are all administrators; its pages need no more than the API server."""
    yield from serve(home, {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"})


@pytest.fixture(scope="session")
def airflow_of_users(home: AirflowHome) -> Iterator[str]:
    """The address at which the same Airflow asks for a login: of ``ann``, an administrator, and ``vic``, a viewer."""
    passwords = home.folder / "passwords.json"
    write_private(passwords, json.dumps({"ann": "ann", "vic": "vic"}).encode())
    users = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,vic:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    yield from serve(AirflowHome(home.folder, DAGS, AirflowPorts(*free_ports(3))), users)


def serve(home: AirflowHome, more: Mapping[str, str]) -> Iterator[str]:
    """The address of an API server while it runs."""
    server = Component("api-server", without_airflow() | home.environment(more), home.folder)
    server.start()
    api = AirflowApi(home.url)
    try:
        deadline = time.monotonic() + PATIENCE
        while not api.is_healthy(server.name):
            assert server.is_running, server.last_lines()
            assert time.monotonic() < deadline, server.last_lines()
            time.sleep(0.2)
        yield home.url
    finally:
        api.close()
        # It has nothing to keep, and on a busy machine it would take its time to end.
        server.end(signal.SIGKILL)
