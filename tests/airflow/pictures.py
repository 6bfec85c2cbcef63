"""The pictures of the documentation, of a real Airflow's pages: ``make pictures`` takes them anew."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from sandbox.airflow.beside import DAGS
from tests.airflow.shifts import HEAD, NODES, Capacity
from tests.airflow.stack import Dag, Stack
from tests.patience import PATIENCE
from tests.ui.browser import browser  # noqa: F401
from tests.ui.page import Page
from tests.ui.test_connection_form import Connections

IMAGES = Path(__file__).parents[2] / "docs" / "images"

DAG = """
dag = capacity_dag(
    "gpu_shifts",
    CapacitySchedule(
        timezone="UTC",
        windows=[Window("daily {since:%H}:00 - {until:%H}:00", {{"training": 4, "inference": 0}}, name="night")],
        otherwise={{"training": 1, "inference": 3}},
        gpus_per_unit={{"training": 8, "inference": 8}},
        limit=32,
        lead="30m",
    ),
    [training, inference],
    BLOCK,
    approve=True,
    shift_args={{"poll_interval": 0.5, "deferrable": True, "transfer": timedelta(minutes=5)}},
    is_paused_upon_creation=False,
)
"""
WIDTH = 1200
#: Below the breadcrumbs.
TOP = 60
#: The part of the page that is about the task, by its tabs.
PANEL = """
const tabs = [...document.querySelectorAll("a")].find(one => one.textContent.trim() === "Details")?.parentElement;
if (!tabs) return null;
const {left, right} = tabs.getBoundingClientRect();
return [left, right - left];
"""
#: Where the log is shown, and its last line that begins a group, once the log is at its end.
LOG = """
const log = [...document.querySelectorAll("*")].filter(
  one => one.scrollHeight > one.clientHeight + 20 && one.querySelector("[data-index]")
    && /auto|scroll/.test(getComputedStyle(one).overflowY)).pop();
if (!log) return null;
log.scrollTop = log.scrollHeight;
if (!/The shift is partial/.test(log.textContent)) return null;
const lines = [...log.querySelectorAll("[data-index]")].filter(one => /Pre Execute/.test(one.textContent));
const {top, bottom} = log.getBoundingClientRect();
return lines.length ? [top, bottom, lines.pop().getBoundingClientRect().top] : null;
"""
#: Without the buttons that lie over the log.
BARE = """
for (const one of document.querySelectorAll("button[aria-label*='to scroll to']")) one.style.visibility = "hidden";
"""
#: The sections of the form.
FORM = """
const names = [...document.querySelectorAll("[role=dialog] h3, [role=dialog] button")];
const [first, last] = ["Run Parameters", "Advanced Options"].map(
  name => names.find(one => one.textContent.trim() === name)?.getBoundingClientRect());
return first && last ? [first.left - 2, first.top - 2, first.width + 4, last.top - first.top + 2] : null;
"""
#: The graph, once all of it is drawn.
GRAPH = """
const flow = document.querySelector(".react-flow");
if (!flow || flow.querySelectorAll(".react-flow__node").length < 7) return null;
const boxes = [...flow.querySelectorAll(".react-flow__node")].map(one => one.getBoundingClientRect());
const left = Math.min(...boxes.map(one => one.left)) - 16, top = Math.min(...boxes.map(one => one.top)) - 16;
return [left, top, Math.max(...boxes.map(one => one.right)) + 16 - left,
        Math.max(...boxes.map(one => one.bottom)) + 16 - top];
"""
#: The dialog, once our fields are in it.
DIALOG = """
const dialog = document.querySelector("[role=dialog]");
if (!/Transport/.test(dialog?.textContent)) return null;
const {left, top, width} = dialog.getBoundingClientRect();
return [left, top, width, 900];
"""


class Camera(Page):
    """A page as it is shown on a screen with two pixels for one."""

    def resize(self, height: int) -> None:
        screen = {"width": WIDTH, "height": height, "deviceScaleFactor": 2, "mobile": False}
        self._browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def look(self, script: str) -> list[float]:
        """What a script finds, once it finds the same twice: pages grow while they are drawn."""
        before = list[float]()

        def found(driver: webdriver.Chrome) -> list[float] | None:
            nonlocal before
            now, before = before, driver.execute_script(script)  # type: ignore[no-untyped-call]
            return now if now and now == before else None

        return WebDriverWait(self._browser, PATIENCE, poll_frequency=1).until(found, f"not found: {script}")

    def take(self, name: str, x: float, y: float, width: float, height: float) -> None:
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        shot = self._browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 60, "clip": clip})
        (IMAGES / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.leaves("jobs")
def test_pictures_of_jobs(stack: Stack, browser: webdriver.Chrome) -> None:  # noqa: F811
    run = stack.add_file(DAGS / "train_pipeline.py").trigger()
    run.wait("best", "success")
    camera = Camera(browser, f"{run.page}/tasks/model.train")
    camera.resize(800)
    camera.find("//*[contains(text(), '4 COMPLETED of 4')]")
    left, width = camera.look(PANEL)
    camera.take("job-log", left, TOP, width, 620 - TOP)

    # Airflow remembers the graph, beside which a task's panel has no room for its tabs.
    camera = Camera(browser, run.page)
    camera.resize(900)
    camera.click("//button[starts-with(@aria-label, 'Show Graph')]")
    camera.click("//button[@aria-label = 'Expand all task groups']")
    camera.take("pipeline-graph", *camera.look(GRAPH))

    Camera(browser, stack.api.url).resize(1300)
    form = Connections(browser, stack.api.url)
    form.add()
    form.open_extra()
    camera.take("connection-form", *camera.look(DIALOG))


@pytest.fixture
def dag(stack: Stack, capacity: Capacity) -> Iterator[Dag]:
    """Four nodes train: one of them runs a job, one has been drained."""
    capacity.bring(4, 0)
    cluster = capacity.cluster
    busy = [
        cluster.sbatch(f"--nodelist={node}", "--exclusive", "--time=60", "--job-name=train-llm", wrap="sleep 30000")
        for node in NODES[1:3]
    ]
    awake = [cluster.sbatch(f"--nodelist={NODES[ordinal]}", "--exclusive", wrap="true") for ordinal in (0, 3)]
    for each in awake:
        cluster.wait_job(each, "COMPLETED")
    for each in busy:
        cluster.wait_job(each, "RUNNING")
    cluster.run("scontrol", "update", "nodename=worker-1", "state=drain", "reason=disk is full")
    now = datetime.now(timezone.utc)
    night = {"since": now - timedelta(hours=6), "until": now + timedelta(hours=6)}
    added = stack.add_source("gpu_shifts", HEAD + DAG.format(**night))
    stack.call("PATCH", "/dags/gpu_shifts", json={"is_paused": False})
    yield added
    stack.call("PATCH", "/dags/gpu_shifts", json={"is_paused": True})
    capacity.end()


@pytest.mark.leaves("jobs", "drains")
def test_pictures(dag: Dag, stack: Stack, browser: webdriver.Chrome) -> None:  # noqa: F811
    until = datetime.now(timezone.utc) + timedelta(seconds=90)
    run = dag.trigger(training="0", until=until.isoformat(), because="a demo for the board")
    run.wait("approve", "awaiting_input")
    task = f"{run.page}/tasks"

    camera = Camera(browser, f"{task}/approve/required_actions")
    camera.resize(800)
    answer = camera.find("//button[normalize-space() = 'Reject']")
    left, width = camera.look(PANEL)
    camera.take("capacity-approval", left, TOP, width, answer.rect["y"] + answer.rect["height"] + 24 - TOP)

    camera = Camera(browser, f"{stack.api.url}/dags/gpu_shifts")
    camera.resize(1700)
    while not browser.find_elements(By.XPATH, "//input[@name = 'element_training']"):
        camera.click("//button[contains(., 'Trigger')]")
        time.sleep(1)
    camera.take("capacity-form", *camera.look(FORM))

    run.answer("approve", "Approve")
    run.wait("shift", "success")
    camera = Camera(browser, f"{task}/shift")
    camera.resize(900)
    camera.click("//button[@aria-label = 'Log Settings']")
    camera.click("//*[@role = 'menuitem'][contains(., 'Wrap')]")
    top, _, begins = camera.look(LOG)
    # The log fills what the page has: less of it, and it begins with the shift's end.
    camera.resize(round(900 - (begins - top)))
    _, bottom, _ = camera.look(LOG)
    browser.execute_script(BARE)  # type: ignore[no-untyped-call]
    left, width = camera.look(PANEL)
    camera.take("capacity-partial", left, TOP, width, bottom + 8 - TOP)


@pytest.mark.leaves("jobs", "drains")
def test_pictures_of_the_page(dag: Dag, stack: Stack, browser: webdriver.Chrome) -> None:  # noqa: F811
    """After a shift by hand: two tasks wait with their jobs, and a check has found a slow node."""
    driver, until = browser, datetime.now(timezone.utc) + timedelta(hours=3)
    run = dag.trigger(training="2", until=until.isoformat(), because="a demo for the board")
    run.wait("approve", "awaiting_input")
    run.answer("approve", "Approve")
    run.wait("shift", "success")
    fit = 'SbatchOperator.partial(task_id="fit", command="sleep 600", deferrable=True, gpus_per_node=8, nodes=1)'
    training = stack.add_dag("train_llm", fit + ".expand(nice=[1, 2])").trigger()
    for index in (0, 1):
        training.wait("fit", "deferred", index=index)
    runs = {f"worker-{node}": [[day, {"busbw": 480.0 - node}] for day in range(20)] for node in range(4)}
    runs["worker-3"][-1][1]["busbw"] = 312.0
    figures = {"key": "soperator_figures_all-reduce-perf", "value": json.dumps(runs)}
    stack.call("POST", "/variables", json=figures)
    page = f"{stack.api.url}/plugin/soperator/soperator/?connection=soperator_default"
    for theme, query, height in (("light", "", 1150), ("dark", "&node=worker-1", 900)):
        driver.get(stack.api.url)
        driver.execute_script("localStorage.theme = arguments[0]", theme)  # type: ignore[no-untyped-call]
        camera = Camera(driver, page + query)
        camera.resize(height)
        driver.switch_to.frame(camera.find("//iframe"))
        camera.find("//tr[contains(., 'train_llm')]")
        camera.find("//h2[@id = 'block']")
        camera.find("//table[contains(@class, 'usage')]")
        if theme == "dark":
            driver.execute_script("document.getElementById('nodes').scrollIntoView()")  # type: ignore[no-untyped-call]
        driver.switch_to.default_content()
        camera.take(f"page-{theme}", 0, 0, WIDTH, height)
    driver.execute_script("localStorage.theme = 'light'")  # type: ignore[no-untyped-call]
    training.end("failed")
