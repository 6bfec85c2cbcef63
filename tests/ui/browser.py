"""A real browser, for tests that click through Airflow's pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.remote.remote_connection import RemoteConnection

from tests.patience import PATIENCE

#: What moves cannot be clicked, or takes a click for another; and what is said in passing stays in ``said``.
EACH_PAGE = """
window.said = new Set();
const toasts = () => document.querySelectorAll("[data-scope=toast][data-part=root]");
const listen = () => toasts().forEach((toast) => said.add(toast.textContent));
new MutationObserver(listen).observe(document, {subtree: true, childList: true, characterData: true});
addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = "* { animation: none !important; transition: none !important; }";
  document.head.append(style);
});
"""


@pytest.fixture(scope="session")
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
    browser.set_script_timeout(PATIENCE)
    browser.set_page_load_timeout(PATIENCE)
    # Who asks the driver gives up later than the driver does.
    assert isinstance(browser.command_executor, RemoteConnection)
    browser.command_executor.client_config.timeout = PATIENCE + 60
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": EACH_PAGE})
    yield browser
    browser.quit()
