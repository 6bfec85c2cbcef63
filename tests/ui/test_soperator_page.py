"""The page *Soperator* and the tab of a task's job, in Airflow's own pages and a real browser, on a real Slurm."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.integration.cluster import Cluster
from tests.patience import PATIENCE
from tests.ui.page import Page

pytestmark = pytest.mark.sandbox
HOSTILE = "x<img src=x onerror=document.title='hit'>"


class Board(Page):
    """The page, in the frame that Airflow gives it."""

    def __init__(self, browser: webdriver.Chrome, url: str, query: str) -> None:
        super().__init__(browser, f"{url}/plugin/soperator/soperator/?{query}")
        self.enter_frame()

    def lights(self) -> str:
        """Whether it is light or dark, as it is drawn."""
        drawn: str = self._browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return "light" if drawn == "rgb(255, 255, 255)" else "dark"


@pytest.fixture
def connection(airflow: str, cluster: Cluster) -> str:
    """The sandbox as a connection in Airflow's database."""
    return add_connection(airflow, cluster, f"page-{uuid4().hex[:8]}")


def add_connection(airflow: str, cluster: Cluster, name: str) -> str:
    ssh = cluster.access["ssh"]
    extra = {"key_file": ssh["key_file"], "host_key": ssh["host_key"]}
    body = {"connection_id": name, "conn_type": "soperator", "host": ssh["host"], "login": ssh["user"]}
    _call(airflow, "POST", "/connections", {**body, "port": ssh["port"], "extra": json.dumps(extra)})
    return name


def _call(airflow: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with urllib.request.urlopen(f"{airflow}/auth/token") as answer:
        token = json.load(answer)["access_token"]
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{airflow}/api/v2{path}", data, head, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def test_one_sees_who_has_the_gpus_and_why_a_job_waits(
    browser: webdriver.Chrome, airflow: str, cluster: Cluster, connection: str
) -> None:
    running = cluster.held_job("--gres=gpu:8", "--time=20", f"--job-name={HOSTILE}")
    cluster.wait_job(running, "RUNNING")
    waiting = cluster.sbatch("--hold", wrap="true")
    board = Board(browser, airflow, f"connection={connection}")
    board.find(f"//tr[td[1] = '{running}'][td = 'worker-0'][td[. = '8']]//progress")
    board.find(f"//tr[td[1] = '{waiting}'][contains(., 'its owner holds it (JobHeldUser)')]")
    assert board.ask(f"//tr[td[1] = '{running}']/td[2]", lambda name: name.text) == HOSTILE
    assert browser.title != "hit"
    # Accounting is asked beside, and what it says comes with a refresh.
    board.find("//section[h2[@id = 'usage']]//tr[td[1] = 'root']")


def test_a_node_tells_who_has_drained_it(
    browser: webdriver.Chrome, airflow: str, cluster: Cluster, connection: str
) -> None:
    cluster.run("scontrol", "update", "nodename=worker-0", "state=drain", "reason=airflow:nightly: it is tested")
    cluster.drained.add("worker-0")
    board = Board(browser, airflow, f"connection={connection}")
    board.click("//a[@id = 'node-worker-0']")
    board.find("//*[@id = 'node']//dd[contains(., 'airflow:nightly: it is tested')][contains(., 'by nightly')]")
    board.find("//tr[contains(., 'drain of worker-0')][contains(., 'nightly')]")


@pytest.fixture
def mover(airflow: str, cluster: Cluster) -> Iterator[str]:
    """An example DAG that moves a block of the sandbox, with a shift by hand that has ended and an override."""
    nebius, names = cluster.access["nebius"], ["soperator_default", "nebius_default"]
    add_connection(airflow, cluster, names[0])
    host, _, port = nebius["endpoint"].partition(":")
    cloud = {"connection_id": names[1], "conn_type": "nebius", "host": host, "port": int(port)}
    _call(airflow, "POST", "/connections", cloud | {"password": nebius["token"], "extra": '{"insecure": true}'})
    run = _call(airflow, "POST", "/dags/gpu_shifts/dagRuns", {"logical_date": None})["dag_run_id"]
    figures = {"late_seconds": 28.0}
    report = {"state": "partial", "at": "2026-11-25T08:23:00+00:00", "seconds": 1423.0, "figures": figures}
    task = f"/dags/gpu_shifts/dagRuns/{quote(run)}/taskInstances/shift"
    _call(airflow, "POST", f"{task}/xcomEntries", {"key": "report", "value": report, "map_index": -1})
    override = {
        "when": "2026-11-01T00:00/2099-01-01T00:00",
        "allocation": {"training": 3, "inference": 1},
        "by": HOSTILE,
    }
    _call(airflow, "POST", "/variables", {"key": "gpu_shifts_overrides", "value": json.dumps([override])})
    yield names[0]
    _call(airflow, "DELETE", "/variables/gpu_shifts_overrides")
    _call(airflow, "DELETE", f"/dags/gpu_shifts/dagRuns/{quote(run)}")
    for name in names:
        _call(airflow, "DELETE", f"/connections/{name}")


def test_one_sees_who_has_the_block_and_what_comes_next(browser: webdriver.Chrome, airflow: str, mover: str) -> None:
    board = Board(browser, airflow, f"connection={mover}")
    block = "//section[h2[@id = 'block']]"
    board.find(f"{block}//h3[contains(., 'capacityblockgroup-e00sandbox')]")
    board.find(f"{block}//*[local-name() = 'svg'][contains(@aria-label, 'training ')][contains(@aria-label, 'free ')]")
    schedule = "//section[h2[@id = 'schedule']]"
    board.find(f"{schedule}//h3[contains(., 'gpu_shifts')][contains(., 'paused')]")
    board.find(f"{schedule}//p[contains(., 'Now override by x<img')][contains(., 'training 3, inference 1')]")
    board.find(f"{schedule}//p[contains(., 'partial after 23 min 43 s, 28 s late')]")
    assert browser.title != "hit"


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


def refreshed(browser: webdriver.Chrome) -> bool:
    """Whether the page would go on to renew itself."""
    said = browser.execute_async_script("refresh().then(arguments[0], (error) => arguments[0](String(error)))")
    return said is True


def test_what_is_typed_stays_and_it_is_told_that_all_else_gets_old(
    browser: webdriver.Chrome, airflow: str, connection: str
) -> None:
    board = Board(browser, airflow, f"connection={connection}")
    field = "//input[@name = 'search']"
    board.ask(field, lambda search: search.send_keys("fit"))
    board.click("//input[@name = 'on_node']")
    assert refreshed(browser)
    search = board.find(field)
    assert search.get_attribute("value") == "fit"
    notice = board.find("//*[@id = 'notice'][contains(., 'is getting old while a form is filled in')]")
    search.send_keys(Keys.BACKSPACE * 3)
    assert refreshed(browser)
    # Who has only clicked into a field sees what is new.
    assert not notice.is_displayed()
    # The page goes on to renew itself, and each time the field is another one.
    assert browser.execute_script("return document.activeElement.name") == "search"


def test_what_is_selected_and_what_has_the_focus_stay(browser: webdriver.Chrome, airflow: str, connection: str) -> None:
    board = Board(browser, airflow, f"connection={connection}")
    for xpath in ("//nav//a[. = 'Usage']", "//button[. = 'Show']"):
        board.ask(xpath, lambda one: browser.execute_script("arguments[0].focus()", one))
        assert refreshed(browser)
        assert board.ask(
            xpath, lambda one: browser.execute_script("return document.activeElement === arguments[0]", one)
        )
    browser.execute_script("getSelection().selectAllChildren(document.querySelector('h1'))")
    assert refreshed(browser)
    assert browser.execute_script("return String(getSelection())").strip() == connection
    notice = board.find("//*[@id = 'notice'][contains(., 'is getting old while a form is filled in, or text')]")
    browser.execute_script("getSelection().removeAllRanges()")
    assert refreshed(browser)
    assert not notice.is_displayed()


#: Airflow takes requests, and answers none.
HANGS = """
    [window.real, window.timeout] = [fetch, AbortSignal.timeout];
    window.fetch = (url, { signal }) => new Promise((_, fail) => {
      signal.addEventListener("abort", () => fail(signal.reason));
    });
    AbortSignal.timeout = () => timeout.call(AbortSignal, 100);
    document.body.dataset.refresh = 86400;
"""
LOOK_AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"


def test_an_airflow_that_hangs_is_told_and_a_tab_that_is_looked_at_again_is_renewed_at_once(
    browser: webdriver.Chrome, airflow: str, connection: str
) -> None:
    board = Board(browser, airflow, f"connection={connection}")
    board.find("//h2[. = 'Nodes']")
    browser.execute_script(HANGS)
    browser.execute_script(LOOK_AGAIN)
    notice = board.find("//*[@id = 'notice'][contains(., 'Airflow does not answer')]")
    browser.execute_script("[window.fetch, AbortSignal.timeout] = [real, timeout]")
    browser.execute_script(LOOK_AGAIN)
    WebDriverWait(browser, PATIENCE).until_not(lambda _: notice.is_displayed(), "the page is not renewed")


def test_one_who_may_not_see_the_page_any_more_is_told_so(
    browser: webdriver.Chrome, airflow: str, connection: str
) -> None:
    board = Board(browser, airflow, f"connection={connection}")
    board.find("//h2[. = 'Nodes']")
    browser.execute_script("window.fetch = async () => new Response('', { status: 403 })")
    browser.execute_script(LOOK_AGAIN)
    board.find("//*[@id = 'notice'][contains(., 'Airflow does not show you this page any more: your rights')]")


def test_on_a_phone_tables_are_moved_and_not_squeezed(
    browser: webdriver.Chrome, airflow: str, cluster: Cluster, connection: str
) -> None:
    cluster.run("scontrol", "update", "nodename=worker-0", "state=drain", "reason=airflow:nightly: it is tested")
    cluster.drained.add("worker-0")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        board = Page(browser, f"{airflow}/soperator/?connection={connection}")
        assert board.ask("//td[. = 'it is tested']", lambda reason: reason.size["width"]) > 80
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth && innerWidth == 390")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_is_gone_is_not_said_to_be_an_airflow_that_does_not_answer(
    browser: webdriver.Chrome, airflow: str, connection: str
) -> None:
    board = Board(browser, airflow, f"connection={connection}")
    board.find("//h2[. = 'Nodes']")
    # As that of a job whose output is looked at while it leaves the queue.
    browser.execute_script("history.replaceState(null, '', '?connection=gone')")
    assert refreshed(browser)
    board.find("//h1[. = 'No connection gone']")
