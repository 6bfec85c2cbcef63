"""The page *Soperator* and the tab of a task's job, in Airflow's own pages and a real browser, on a real Slurm."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from uuid import uuid4

import pytest
from selenium import webdriver

from tests.integration.cluster import Cluster
from tests.ui.page import Page

pytestmark = pytest.mark.sandbox
HOSTILE = "x<img src=x onerror=document.title='hit'>"


class Board(Page):
    """The page, in the frame that Airflow gives it."""

    def __init__(self, browser: webdriver.Chrome, url: str, query: str) -> None:
        super().__init__(browser, f"{url}/plugin/soperator/soperator/?{query}")
        browser.switch_to.frame(self.find("//iframe"))

    def lights(self) -> str:
        """Whether it is light or dark, as it is drawn."""
        drawn: str = self._browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return "light" if drawn == "rgb(255, 255, 255)" else "dark"


@pytest.fixture
def connection(airflow: str, cluster: Cluster) -> str:
    """The sandbox as a connection in Airflow's database."""
    ssh = cluster.access["ssh"]
    name = f"page-{uuid4().hex[:8]}"
    extra = {"key_file": ssh["key_file"], "host_key": ssh["host_key"]}
    body = {"connection_id": name, "conn_type": "soperator", "host": ssh["host"], "login": ssh["user"]}
    _post(airflow, "/api/v2/connections", {**body, "port": ssh["port"], "extra": json.dumps(extra)})
    return name


def _post(airflow: str, path: str, body: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{airflow}/auth/token") as answer:
        token = json.load(answer)["access_token"]
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(airflow + path, json.dumps(body).encode(), head)
    urllib.request.urlopen(request).close()


def test_one_sees_who_has_the_gpus_and_why_a_job_waits(
    browser: webdriver.Chrome, airflow: str, cluster: Cluster, connection: str
) -> None:
    running = cluster.held_job("--gres=gpu:8", "--time=20", f"--job-name={HOSTILE}")
    cluster.wait_job(running, "RUNNING")
    waiting = cluster.sbatch("--hold", wrap="true")
    board = Board(browser, airflow, f"connection={connection}")
    board.find(f"//tr[td[1] = '{running}'][td = 'worker-0'][td[. = '8']]//progress")
    board.find(f"//tr[td[1] = '{waiting}'][contains(., 'its owner holds it (JobHeldUser)')]")
    assert board.find(f"//tr[td[1] = '{running}']/td[2]").text == HOSTILE
    assert browser.title != "hit"


def test_a_node_tells_who_has_drained_it(
    browser: webdriver.Chrome, airflow: str, cluster: Cluster, connection: str
) -> None:
    cluster.run("scontrol", "update", "nodename=worker-0", "state=drain", "reason=airflow:nightly: it is tested")
    cluster.drained.add("worker-0")
    board = Board(browser, airflow, f"connection={connection}")
    board.click("//a[@id = 'node-worker-0']")
    board.find("//*[@id = 'node']//dd[contains(., 'airflow:nightly: it is tested')][contains(., 'by nightly')]")
    board.find("//tr[contains(., 'drain of worker-0')][contains(., 'nightly')]")


def test_it_is_as_dark_as_airflow(browser: webdriver.Chrome, airflow: str, connection: str) -> None:
    query = f"connection={connection}"
    found = {}
    for theme in ("light", "dark"):
        browser.get(airflow)
        browser.execute_script("localStorage.theme = arguments[0]", theme)
        board = Board(browser, airflow, query)
        board.find("//h2[. = 'Nodes']")
        found[theme] = board.lights()
    browser.execute_script("localStorage.theme = 'light'")
    assert found == {"light": "light", "dark": "dark"}
