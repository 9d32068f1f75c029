"""One headless Chromium for all tests that open pages, and what they do with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1400,1000",
)


class Browser:
    """A page that is opened, clicked and read."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, address: str = "") -> None:
        """Open a file, and wait until it says that it is drawn."""
        self.driver.get("about:blank")
        self.driver.get(f"{path.as_uri()}{address}")
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def wait(self, script: str) -> Any:
        """What a script returns as soon as it is true."""
        return self._until(lambda _: self.run(script))

    def _until(self, what: Callable[[Any], Any]) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 60, poll_frequency=0.05).until(what)

    def _seen(self, selector: str, text: str) -> Any:
        found = self.driver.find_elements("css selector", selector)
        return next((one for one in found if one.is_displayed() and text in one.text), None)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str, text: str = "") -> None:
        """Click what a person would: the first element in sight that matches, with that text if one is given."""
        one = self._until(lambda driver: self._seen(selector, text))
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", one)
        one.click()

    def text(self, selector: str) -> str:
        return self.driver.find_element("css selector", selector).text

    def keys(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def complaints(self) -> list[str]:
        """What stands in the console since last asked."""
        return [one["message"] for one in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What was asked of the net since last asked."""
        messages = [one["message"] for one in self.driver.get_log("performance")]
        return [one for one in messages if "Network.requestWillBeSent" in one and '"url":"http' in one]

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
        )

    def picture(self, name: str) -> None:
        """Keep a screenshot, where AUTOSHARD_SCREENSHOTS names a folder."""
        if folder := os.environ.get("AUTOSHARD_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for one in (*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    made = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(made)
    finally:
        made.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser; afterwards the console must be empty, and nothing may have been asked of the net."""
    chromium.complaints()
    chromium.requests()
    yield chromium
    assert chromium.complaints() == []
    assert chromium.requests() == []
