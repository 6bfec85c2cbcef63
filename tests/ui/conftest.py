"""One Airflow and one browser for all tests of its pages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.airflow.beside import DAGS
from tests.ui.browser import browser  # noqa: F401


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Airflow that knows the example DAGs; its pages need no more of it than the API server."""
    home = tmp_path_factory.mktemp("airflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    command = [sys.executable, "-m", "airflow"]
    for words in (["db", "migrate"], ["dags", "reserialize"]):
        subprocess.run([*command, *words], env=environment, check=True, capture_output=True)
    log = home / "api-server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "api-server", f"--port={port}", "--host=127.0.0.1", "--workers=1"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_up(server, url, log)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        with suppress(OSError), urllib.request.urlopen(f"{url}/api/v2/version", timeout=5):
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
