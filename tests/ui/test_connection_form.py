"""The connection in Airflow's own pages, in a real browser: the form, what it saves, and the Test button."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from airflow_provider_soperator.hooks.forms import SOPERATOR
from tests.integration.cluster import Cluster
from tests.ui.page import IS_3_3_2, Page


class Connections(Page):
    """Airflow's page of connections."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        super().__init__(browser, f"{url}/connections")

    def add(self) -> None:
        """Begin a connection of our type."""
        self.click("//button[contains(., 'Add Connection')]")
        self.choose("//input[@role='combobox']", "Soperator (Slurm)")

    def open_extra(self) -> None:
        """Show our own fields: in Airflow 3.3 they are in a part that unfolds, in 3.4 they are there."""
        self.find("//*[contains(text(), 'Extra Fields JSON')]")
        part = "//button[contains(., 'Extra Fields') and not(contains(., 'JSON'))]"
        if self._browser.find_elements(By.XPATH, part):
            self.click(part)

    def save(self, name: str) -> None:
        self.click("//button[normalize-space() = 'Save']")
        self.find(self._row(name))

    def test(self, name: str) -> str:
        """What is said after the row's Test button was pressed."""
        self.click(f"{self._row(name)}//button[@aria-label = 'Test Connection']")
        return self.hear("Test Connection")

    @staticmethod
    def _row(name: str) -> str:
        return f"//tr[.//td[. = '{name}']]"


@pytest.fixture
def page(browser: webdriver.Chrome, airflow: str) -> Connections:
    return Connections(browser, airflow)


def test_the_form_shows_each_field_with_its_help(page: Connections) -> None:
    page.add()
    page.find("//*[. = 'Login node or slurmrestd']")
    page.open_extra()
    for field in SOPERATOR.fields:
        page.find(f"//*[text() = '{field.label}']")
        page.find(f'//*[text() = "{field.help}"]')
    secret = {field.name for field in SOPERATOR.fields if field.is_secret}
    plain = {field.name for field in SOPERATOR.fields if not (field.is_secret or field.choices or field.is_flag)}
    masked = "password" if IS_3_3_2 else "text"
    for name, kind in {**dict.fromkeys(secret, masked), **dict.fromkeys(plain, "text")}.items():
        assert page.ask(f"//input[@name='element_{name}']", lambda field: field.get_attribute("type") or "text") == kind


@pytest.mark.sandbox
def test_what_is_pasted_is_saved_and_works(page: Connections, cluster: Cluster) -> None:
    name = f"right-{cluster.settings.name}"
    fill_in(page, name, cluster.access["ssh"])
    page.save(name)
    said = page.test(name)
    assert "Test Connection Successful" in said
    assert "cluster soperator, over ssh as root" in said


@pytest.mark.sandbox
def test_what_is_wrong_is_said(page: Connections, cluster: Cluster) -> None:
    name = f"wrong-{cluster.settings.name}"
    fill_in(page, name, {**cluster.access["ssh"], "port": 9})
    page.save(name)
    said = page.test(name)
    assert "Test Connection Failed" in said
    assert "Check host and port, and whether the login node is up." in said


def fill_in(page: Connections, name: str, ssh: dict[str, Any]) -> None:
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
