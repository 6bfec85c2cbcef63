"""Actions from the page *Soperator*, in a real browser: with the rights of the one who looks, and no others."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.integration.cluster import Cluster
from tests.patience import PATIENCE
from tests.ui.page import IS_3_3_2, MOVING, Page

pytestmark = pytest.mark.sandbox
HOSTILE = "x<img src=x onerror=document.title='hit'>"
#: That of the example DAGs.
CONNECTION = "soperator_default"
NODE = f"connection={CONNECTION}&node=worker-0"

#: The answer to the next run that is triggered.
ONE_IS_LOST = """
    const [real, timeout] = [window.fetch, AbortSignal.timeout];
    AbortSignal.timeout = () => timeout.call(AbortSignal, 100);
    window.fetch = async (url, asked) => {
      if (asked.method !== "POST") return real(url, asked);
      [window.fetch, AbortSignal.timeout] = [real, timeout];
      await real(url, { ...asked, signal: null });
      %s
    };
"""
#: There is no answer to what the next form is asked for, until it is lost.
NEXT_FORM_IS_HELD = """
    const real = window.fetch;
    window.fetch = (...asked) => {
      if (!String(asked[0]).includes("/action?")) return real(...asked);
      window.fetch = real;
      return new Promise((_, lose) => { window.lose = lose; });
    };
"""
#: It is cut off, a proxy gives up, Airflow hangs.
WAYS = (
    'throw new TypeError("lost");',
    'return new Response("", { status: 504 });',
    "return new Promise((_, fail) => setInterval(() => asked.signal?.aborted && fail(asked.signal.reason), 50));",
)


class Api:
    """Airflow's API, for one user."""

    def __init__(self, url: str, user: str) -> None:
        self.url = url
        self.token = ""
        self.token = self.call("POST", "/auth/token", {"username": user, "password": user})["access_token"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        head = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, head, method=method)) as answer:
            return json.loads(answer.read() or "null")


class Board(Page):
    """The page in Airflow's frame, as a user sees it."""

    def __init__(self, browser: webdriver.Chrome, api: Api) -> None:
        browser.get(f"{api.url}/api/v2/version")
        browser.add_cookie({"name": "_token", "value": api.token, "path": "/"})
        super().__init__(browser, f"{api.url}/plugin/soperator/soperator/?{NODE}")
        self.enter_frame()
        if not IS_3_3_2:
            self.click("//a[@id = 'node-worker-0']")

    def open(self, action: str) -> None:
        """Press a button: once more after a while, as what a new picture has above it moves it away from the mouse."""
        again = 0.0

        def opened(browser: webdriver.Chrome) -> list[WebElement]:
            nonlocal again
            found: list[WebElement] = browser.find_elements(By.XPATH, "//dialog[@open]")
            if not found and time.monotonic() > again:
                browser.find_element(By.XPATH, f"//*[@id = 'node']//a[. = '{action}']").click()
                again = time.monotonic() + 30
            return found

        WebDriverWait(self._browser, PATIENCE, ignored_exceptions=MOVING).until(opened, f"{action} opens no form")

    def focused(self) -> str:
        """What has the focus, by its text or name."""
        said: str = self._browser.execute_script(
            "const on = document.activeElement; return on.name || on.textContent.trim()"
        )
        return said

    def wait_closed(self) -> None:
        WebDriverWait(self._browser, PATIENCE).until_not(lambda browser: browser.find_elements(By.TAG_NAME, "dialog"))


@pytest.fixture
def login(airflow_of_users: str, cluster: Cluster) -> Iterator[Callable[[str], Api]]:
    """A user's way to Airflow, which knows the sandbox by the connection of the example DAGs."""
    ssh = cluster.access["ssh"]
    extra = json.dumps({"key_file": ssh["key_file"], "host_key": ssh["host_key"]})
    body = {"connection_id": CONNECTION, "conn_type": "soperator", "host": ssh["host"], "login": ssh["user"]}
    admin = Api(airflow_of_users, "ann")
    admin.call("POST", "/api/v2/connections", {**body, "port": ssh["port"], "extra": extra})
    yield lambda user: Api(airflow_of_users, user)
    admin.call("DELETE", f"/api/v2/connections/{CONNECTION}")


@pytest.fixture
def board(browser: webdriver.Chrome, login: Callable[[str], Api]) -> Iterator[Callable[[str], Board]]:
    """The page with a node's panel, as a user sees it."""
    yield lambda user: Board(browser, login(user))
    browser.delete_all_cookies()


def test_an_administrator_drains_a_node(
    browser: webdriver.Chrome, board: Callable[[str], Board], login: Callable[[str], Api], cluster: Cluster
) -> None:
    job = cluster.held_job("--gres=gpu:8", f"--job-name={HOSTILE}", "--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    page = board("ann")
    # A picture from before is drawn anew.
    page.find(f"//*[@id = 'node']//dd[starts-with(., '{job}')]")
    page.open("Drain")
    page.find(f'//dialog//li[contains(., "Job {job} ({HOSTILE}, root) runs on worker-0 with 8 GPUs")]')
    page.paste("//dialog//input[@name = 'reason']", HOSTILE)
    page.click("//dialog//button[. = 'Trigger cluster_drain']")
    link = page.find("//dialog//a[contains(., 'was triggered')]")
    assert page.focused() == link.text
    run = login("ann").call("GET", "/api/v2/dags/cluster_drain/dagRuns?order_by=-id")["dag_runs"][0]
    assert run["conf"] == {"nodes": "worker-0", "reason": HOSTILE, "wait_for_jobs": False}
    assert run["triggering_user_name"] == "ann"
    link.click()
    browser.switch_to.default_content()
    WebDriverWait(browser, PATIENCE).until(lambda browser: unquote(browser.current_url).endswith(run["dag_run_id"]))
    assert browser.title != "hit"


def test_no_click_is_lost_as_the_page_is_drawn_anew(browser: webdriver.Chrome, board: Callable[[str], Board]) -> None:
    page = board("ann")
    drain = "//*[@id = 'node']//a[. = 'Drain']"
    page.find(drain)
    # Until all sections are there, the page renews itself every other second.
    whole = "return Number(document.body.dataset.refresh) > 2"
    WebDriverWait(browser, PATIENCE).until(lambda browser: browser.execute_script(whole), "the page is not whole")
    asked = "return performance.getEntriesByType('resource').filter((one) => one.initiatorType === 'fetch').length"
    before = browser.execute_script(asked)
    page.ask(drain, lambda link: ActionChains(browser).click_and_hold(link).perform())
    browser.execute_script("refresh()")
    WebDriverWait(browser, PATIENCE).until(lambda browser: browser.execute_script(asked) > before)
    ActionChains(browser).release().perform()
    page.find("//dialog[@open]")


def test_what_airflow_refuses_is_told(
    browser: webdriver.Chrome, board: Callable[[str], Board], login: Callable[[str], Api]
) -> None:
    api, runs = login("ann"), "/api/v2/dags/cluster_drain/dagRuns"
    before = api.call("GET", runs)["total_entries"]
    page = board("ann")
    page.open("Drain")
    # What the form itself would not send.
    browser.execute_script("document.querySelector('dialog form').noValidate = true")
    page.click("//dialog//button[. = 'Trigger cluster_drain']")
    page.find("//dialog//*[@role = 'status'][contains(., 'Airflow refuses it (400): Invalid input for param reason')]")
    browser.delete_all_cookies()
    page.click("//dialog//button[. = 'Trigger cluster_drain']")
    page.find("//dialog//*[@role = 'status'][contains(., 'Your session has ended')]")
    assert api.call("GET", runs)["total_entries"] == before


def trigger_and_lose_the_answer(
    browser: webdriver.Chrome, page: Board, dag_id: str, said: str, way: str = WAYS[0]
) -> None:
    browser.execute_script(ONE_IS_LOST % way)
    page.click(f"//dialog//button[. = 'Trigger {dag_id}']")
    page.find(f"//dialog//*[@role = 'status'][contains(., '{said}')]")


def test_a_second_try_after_a_lost_answer_makes_no_second_run(
    browser: webdriver.Chrome, board: Callable[[str], Board], login: Callable[[str], Api]
) -> None:
    api, runs = login("ann"), "/api/v2/dags/cluster_check/dagRuns"
    page = board("ann")
    page.click("//a[. = 'Run a check']")
    page.paste("//dialog//input[@name = 'check']", "ssh-check")
    trigger_and_lose_the_answer(browser, page, "cluster_check", "To try again makes no second run")
    page.click("//dialog//button[. = 'Trigger cluster_check']")
    page.find("//dialog//a[contains(., 'was triggered')]")
    assert [run["conf"]["check"] for run in api.call("GET", runs)["dag_runs"]] == ["ssh-check"]


def test_what_is_corrected_after_a_lost_answer_is_another_run(
    browser: webdriver.Chrome, board: Callable[[str], Board], login: Callable[[str], Api]
) -> None:
    page = board("ann")
    page.open("Drain")
    for number, way in enumerate(WAYS):
        page.paste("//dialog//input[@name = 'reason']", f"wrong {number}")
        trigger_and_lose_the_answer(browser, page, "cluster_drain", "may have begun the run", way)
        page.ask("//dialog//input[@name = 'reason']", WebElement.clear)
    page.paste("//dialog//input[@name = 'reason']", "right")
    page.click("//dialog//button[. = 'Trigger cluster_drain']")
    page.find("//dialog//a[contains(., 'was triggered')]")
    runs = login("ann").call("GET", "/api/v2/dags/cluster_drain/dagRuns?order_by=-id")["dag_runs"]
    assert [run["conf"]["reason"] for run in runs[:4]] == ["right", "wrong 2", "wrong 1", "wrong 0"]


def test_the_form_tells_nothing_of_former_nodes_once_others_are_named(
    browser: webdriver.Chrome, board: Callable[[str], Board]
) -> None:
    def name(node: str) -> None:
        field = page.find("//dialog//input[@name = 'nodes']")
        browser.execute_script("arguments[0].value = arguments[1]", field, node)
        browser.execute_script("arguments[0].dispatchEvent(new Event('change', {bubbles: true}))", field)

    page = board("ann")
    page.open("Drain")
    effects = page.find("//dialog//*[@aria-live][contains(., 'worker-0 is')]")
    browser.execute_script(NEXT_FORM_IS_HELD)
    name("worker-1")
    assert effects.text == "Being read …"
    browser.execute_script("lose(new TypeError('lost'))")
    page.find("//dialog//*[@aria-live][. = 'Not told: Airflow does not answer.']")
    name("worker-1")
    page.find("//dialog//*[@aria-live]//li[starts-with(., 'worker-1 is')]")
    # It is the element that a screen reader listens to.
    assert "worker-1 is" in effects.text
    assert "worker-0" not in effects.text


def test_the_form_of_another_site_triggers_nothing(login: Callable[[str], Api]) -> None:
    api, runs = login("ann"), "/api/v2/dags/cluster_power_up/dagRuns"
    body = json.dumps({"logical_date": None, "conf": {"nodes": "worker-0"}}).encode()
    # All that it can send without leave, if a browser gave it the cookie.
    head = {"Content-Type": "text/plain", "Cookie": f"_token={api.token}"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(api.url + runs, body, head))
    assert refused.value.code == 422
    assert api.call("GET", runs)["total_entries"] == 0


def test_who_is_not_logged_in_logs_in_and_comes_back(browser: webdriver.Chrome, login: Callable[[str], Api]) -> None:
    browser.get(f"{login('ann').url}/api/v2/version")
    browser.delete_all_cookies()
    page = Page(browser, f"{login('ann').url}/soperator/?{NODE}")
    page.click("//a[. = 'Log in']")
    for name in ("username", "password"):
        page.paste(f"//input[@name = '{name}']", "vic")
    page.click("//button[@type = 'submit']")
    page.find("//*[@id = 'node']//h3[contains(., 'worker-0')]")
    browser.delete_all_cookies()


def test_a_viewer_has_no_buttons_and_is_told_why(board: Callable[[str], Board]) -> None:
    page = board("vic")
    for action in ("Drain", "Replace machine", "Power down"):
        assert not page.ask(f"//*[@id = 'node']//button[. = '{action}']", WebElement.is_enabled)
    page.find("//*[@id = 'node']//*[contains(., 'You may not trigger cluster_drain')]")


def test_it_is_done_by_keyboard(browser: webdriver.Chrome, board: Callable[[str], Board]) -> None:
    page = board("ann")
    page.ask("//*[@id = 'node']//a[. = 'Drain']", lambda link: link.send_keys(Keys.SPACE))
    page.find("//dialog[@open]")
    assert page.focused() == "reason"
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.wait_closed()
    assert page.focused() == "Drain"
