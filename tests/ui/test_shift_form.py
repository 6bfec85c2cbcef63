"""The form with which people shift capacity by hand, on Airflow's page of the DAG."""

from __future__ import annotations

import json
import urllib.request
from contextlib import suppress
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.patience import PATIENCE
from tests.ui.page import MOVING, Page

DAG_ID = "gpu_shifts"


class Form(Page):
    """What one gets with the button that triggers the DAG."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        super().__init__(browser, f"{url}/dags/{DAG_ID}")
        self._url = url
        WebDriverWait(browser, PATIENCE).until(lambda _: self._is_open(), "the form does not open")

    def _is_open(self) -> bool:
        """Until the page has its script the button does nothing; behind the form it cannot be clicked.

        The form may be there before its fields: what is clicked then is in the way, and is not waited for.
        """
        if self._browser.find_elements(By.XPATH, "//input[@name = 'element_training']"):
            return True
        with suppress(*MOVING):
            buttons = self._browser.find_elements(By.XPATH, "//button[contains(., 'Trigger')]")
            for button in [button for button in buttons if button.is_displayed()][:1]:
                button.click()
        return False

    def fill_in(self, target: str, amount: str) -> None:
        self.paste(f"//input[@name = 'element_{target}']", amount)

    def send(self) -> None:
        self.click("//*[@role = 'dialog']//button[normalize-space() = 'Trigger']")

    def wait_for_run(self) -> dict[str, Any]:
        """What is asked for in the newest run, once there is one."""
        return WebDriverWait(self._browser, PATIENCE).until(lambda _: self.runs()[:1], "there is no run")[0]

    def runs(self) -> list[dict[str, Any]]:
        """What was asked for in each run that there is, the newest first."""
        with urllib.request.urlopen(f"{self._url}/auth/token") as answer:
            token = json.load(answer)["access_token"]
        request = urllib.request.Request(
            f"{self._url}/api/v2/dags/{DAG_ID}/dagRuns?order_by=-id", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request) as answer:
            return [run["conf"] for run in json.load(answer)["dag_runs"]]


@pytest.fixture
def form(browser: webdriver.Chrome, airflow: str) -> Form:
    return Form(browser, airflow)


def test_each_target_has_a_field_that_says_what_it_takes(form: Form) -> None:
    for target in ("training", "inference"):
        form.find(f"//*[contains(text(), '{target}: how many nodes')]")
        assert form.ask(f"//input[@name = 'element_{target}']", lambda field: field.get_attribute("value")) == ""
    form.find('//*[contains(text(), \'As "2" or "16 gpus". It can have 0 to 4. By the schedule it has: night \')]')
    form.find("//*[contains(text(), 'Overrides the schedule until then')]")
    form.find("//*[contains(text(), 'Only show the plan')]")


def test_what_is_filled_in_is_asked_for(form: Form) -> None:
    form.fill_in("inference", "16 gpus")
    form.send()
    steering = {"steer": None, "nodes": None, "extend_by": "1h"}
    rest = {"training": None, "until": None, "because": None, "plan_only": False, **steering}
    assert form.wait_for_run() == {**rest, "inference": "16 gpus"}


def test_what_is_no_amount_is_refused(form: Form) -> None:
    before = form.runs()
    form.fill_in("training", "abc")
    form.send()
    form.find("//*[@role = 'dialog']//*[contains(., \"Invalid input for param training: 'abc'\")]")
    assert form.runs() == before
