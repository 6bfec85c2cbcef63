"""What tests do on any of Airflow's pages, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

from packaging.version import Version
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import frame_to_be_available_and_switch_to_it
from selenium.webdriver.support.ui import WebDriverWait

from tests.patience import PATIENCE

T = TypeVar("T")

#: What is told of an element that is drawn anew, has no place yet, or that another one is in the way of.
MOVING = (ElementClickInterceptedException, ElementNotInteractableException, StaleElementReferenceException)
#: Before that, Airflow's frame does not hand the page the query of its address, and forms do not mask secrets.
IS_3_3_2 = Version(version("apache-airflow-core")) >= Version("3.3.2")


class Page:
    """One of Airflow's pages; elements are told by XPath."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self._browser = browser
        browser.get(address)

    def find(self, xpath: str) -> WebElement:
        return self.ask(xpath, lambda element: element)

    def ask(self, xpath: str, question: Callable[[WebElement], T]) -> T:
        """The answer of an element that is shown. Pages draw their elements anew, also while one is being asked."""

        def answered(browser: webdriver.Chrome) -> tuple[T] | None:
            shown = (element for element in browser.find_elements(By.XPATH, xpath) if element.is_displayed())
            return next(((question(element),) for element in shown), None)

        wait = WebDriverWait(self._browser, PATIENCE, ignored_exceptions=MOVING)
        [answer] = wait.until(answered, f"nothing is shown at {xpath}")
        return answer

    def enter_frame(self) -> None:
        """Go on in the page that is in a frame of this one."""
        entered = frame_to_be_available_and_switch_to_it((By.XPATH, "//iframe"))
        WebDriverWait(self._browser, PATIENCE, ignored_exceptions=MOVING).until(entered, "there is no frame")

    def hear(self, words: str) -> str:
        """The message with these words, which may have faded since."""
        find = "return [...said].findLast((text) => text.includes(arguments[0]))"
        message: str = WebDriverWait(self._browser, PATIENCE).until(
            lambda browser: browser.execute_script(find, words), f"nothing is said of {words}"
        )
        return message

    def click(self, xpath: str) -> None:
        """Click an element once it can be.

        What unfolds is in the way of others for a moment, pages draw their elements anew, and a form's buttons are
        disabled until it has read its fields.
        """

        def clicked(browser: webdriver.Chrome) -> bool:
            element = self.find(xpath)
            if element.is_enabled():
                element.click()
                return True
            return False

        WebDriverWait(self._browser, PATIENCE, ignored_exceptions=MOVING).until(clicked, f"{xpath} cannot be clicked")

    def paste(self, xpath: str, text: str) -> None:
        """Put a text into a field at once: of keys that are pressed too fast the form loses some."""
        self.click(xpath)
        self._browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def choose(self, xpath: str, text: str) -> None:
        self.paste(xpath, text)
        self.click(f"//*[@role='option'][. = '{text}']")
