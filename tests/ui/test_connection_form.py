"""The connection in Airflow's own pages, in a real browser: the form, what it saves, and the Test button."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from airflow_provider_soperator.hooks.form import FIELDS
from tests.integration.cluster import Cluster

#: Seconds that a page has to show something, on a machine that is busy with other tests.
PATIENCE = 30


STANDSTILL = """
addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = "* { animation: none !important; transition: none !important; }";
  document.head.append(style);
});
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Airflow with nothing in it; its pages need no more of it than the API server."""
    home = tmp_path_factory.mktemp("airflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    command = [sys.executable, "-m", "airflow"]
    subprocess.run([*command, "db", "migrate"], env=environment, check=True, capture_output=True)
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


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # The form is high; and root, as whom a sandbox runs, gets no sandbox of Chromium's own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,2600"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    # What moves cannot be clicked, or takes a click for another.
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": STANDSTILL})
    yield browser
    browser.quit()


class Page:
    """Airflow's page of connections."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self._browser = browser
        browser.get(f"{url}/connections")

    def find(self, xpath: str) -> WebElement:
        def found(browser: webdriver.Chrome) -> WebElement | None:
            shown = [element for element in browser.find_elements(By.XPATH, xpath) if element.is_displayed()]
            return shown[0] if shown else None

        element: WebElement = WebDriverWait(self._browser, PATIENCE).until(found, f"nothing is shown at {xpath}")
        return element

    def click(self, xpath: str) -> None:
        """What unfolds is in the way of others for a moment, and pages draw their elements anew."""

        def clicked(browser: webdriver.Chrome) -> bool:
            self.find(xpath).click()
            return True

        moving = [ElementClickInterceptedException, StaleElementReferenceException]
        WebDriverWait(self._browser, PATIENCE, ignored_exceptions=moving).until(clicked, f"in the way of {xpath}")

    def paste(self, xpath: str, text: str) -> None:
        """Put a text into a field at once: of keys that are pressed too fast the form loses some."""
        self.click(xpath)
        self._browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def choose(self, xpath: str, text: str) -> None:
        self.paste(xpath, text)
        self.click(f"//*[@role='option'][. = '{text}']")

    def add(self) -> None:
        """Begin a connection of our type."""
        self.click("//button[contains(., 'Add Connection')]")
        self.choose("//input[@role='combobox']", "Soperator (Slurm)")

    def open_extra(self) -> None:
        self.click("//button[contains(., 'Extra Fields') and not(contains(., 'JSON'))]")

    def save(self, name: str) -> None:
        self.click("//button[normalize-space() = 'Save']")
        self.find(self._row(name))

    def test(self, name: str) -> str:
        """What is said after the row's Test button was pressed."""
        self.click(f"{self._row(name)}//button[@aria-label = 'Test Connection']")
        return self.find("//*[@data-scope = 'toast'][contains(., 'Test Connection')]").text

    @staticmethod
    def _row(name: str) -> str:
        return f"//tr[.//td[. = '{name}']]"


@pytest.fixture
def page(browser: webdriver.Chrome, airflow: str) -> Page:
    return Page(browser, airflow)


def test_the_form_shows_each_field_with_its_help(page: Page) -> None:
    page.add()
    page.find("//*[. = 'Login node or slurmrestd']")
    page.open_extra()
    for field in FIELDS:
        page.find(f"//*[text() = '{field.label}']")
        page.find(f'//*[text() = "{field.help}"]')
    secret = {field.name for field in FIELDS if field.is_secret}
    plain = {field.name for field in FIELDS if not (field.is_secret or field.choices or field.is_flag)}
    for name, kind in {**dict.fromkeys(secret, "password"), **dict.fromkeys(plain, "text")}.items():
        assert (page.find(f"//input[@name='element_{name}']").get_attribute("type") or "text") == kind


@pytest.mark.sandbox
def test_what_is_pasted_is_saved_and_works(page: Page, cluster: Cluster) -> None:
    name = f"right-{cluster.settings.name}"
    fill_in(page, name, cluster.access["ssh"])
    page.save(name)
    said = page.test(name)
    assert "Test Connection Successful" in said
    assert "cluster soperator, over ssh as root" in said


@pytest.mark.sandbox
def test_what_is_wrong_is_said(page: Page, cluster: Cluster) -> None:
    name = f"wrong-{cluster.settings.name}"
    fill_in(page, name, {**cluster.access["ssh"], "port": 9})
    page.save(name)
    said = page.test(name)
    assert "Test Connection Failed" in said
    assert "Check host and port, and whether the login node is up." in said


def fill_in(page: Page, name: str, ssh: dict[str, Any]) -> None:
    page.add()
    standard = {"connection_id": name, "host": ssh["host"], "login": ssh["user"], "port": str(ssh["port"])}
    # Both as they are: the key with lines that the form does not keep, and the line of ssh-keyscan.
    extra = {"private_key": Path(ssh["key_file"]).read_text(), "host_key": f"{ssh['host']} {ssh['host_key']}"}
    for field, text in standard.items():
        page.paste(f"//input[@name = '{field}']", text)
    page.open_extra()
    page.choose("//*[@id = 'element_transport']//input", "ssh: commands on the login node")
    for field, text in extra.items():
        page.paste(f"//input[@name = 'element_{field}']", text)
