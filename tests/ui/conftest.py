"""One Airflow and one browser for all tests of its pages."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from sandbox.airflow.api import AirflowApi
from sandbox.airflow.beside import DAGS
from sandbox.airflow.home import AirflowHome, airflow, without_airflow
from sandbox.settings import AirflowPorts
from tests.airflow.processes import Component
from tests.airflow.stack import free_ports
from tests.ui.browser import browser  # noqa: F401

#: Seconds that Airflow has to come up, on a machine that is busy with other tests.
PATIENCE = 240


@pytest.fixture(scope="session", name="airflow")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Airflow that knows the example DAGs; its pages need no more of it than the API server."""
    home = AirflowHome(tmp_path_factory.mktemp("airflow") / "home", DAGS, AirflowPorts(*free_ports(3)))
    environment = without_airflow() | home.environment({"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"})
    home.make(environment)
    subprocess.run(airflow("dags", "reserialize"), env=environment, check=True, capture_output=True)
    server = Component("api-server", environment, home.folder)
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
