"""Headless Chromium with chromedriver, both from the packages of the machine, on a site. Nothing is downloaded."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.e2e.sites import PAGES, Site

ARGUMENTS = (
    "headless=new no-sandbox disable-gpu disable-quic disable-dev-shm-usage disable-extensions "
    "disable-component-update disable-background-networking disable-sync no-first-run no-default-browser-check "
    "hide-scrollbars lang=en-US"
)
TIMEOUT = 60.0
"""Seconds to wait for something on a page."""


class Screen(NamedTuple):
    name: str
    width: int
    height: int


DESK = Screen("desk", 1440, 900)
PHONE = Screen("phone", 390, 844)


def programs() -> list[str] | None:
    """Return the paths of Chromium and chromedriver; None where one of them is not installed."""
    found = [shutil.which(name) or "" for name in ("chromium", "chromedriver")]
    return found if all(found) else None


@contextmanager
def chromium(browser: str, driver: str) -> Iterator[Chrome]:
    """Run a browser with an empty profile during the block."""
    with tempfile.TemporaryDirectory(prefix="q-chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = browser
        for argument in (*ARGUMENTS.split(), f"user-data-dir={profile}"):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = Chrome(options=options, service=Service(executable_path=driver))
        try:
            yield chrome
        finally:
            chrome.quit()


class Browser:
    """The browser on a site."""

    def __init__(self, chrome: Chrome, site: Site) -> None:
        self.chrome = chrome
        self.site = site
        self._cookies: dict[str, dict[str, Any]] = {}

    def set_screen(self, screen: Screen) -> None:
        """Set the size of the screen. A window cannot be as narrow as a phone."""
        size = {"width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": screen is PHONE}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def set_color_scheme(self, scheme: str) -> None:
        """Prefer `light` or `dark`, without animations, from the next page on."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def console_errors(self, *wanted: HTTPStatus) -> list[str]:
        """Return the errors in the console since the last call, except for responses of the `wanted` statuses."""
        entries: list[dict[str, Any]] = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]
        said = [
            f"{entry['source']}: {entry['message']}" for entry in entries if entry["level"] in ("SEVERE", "WARNING")
        ]
        return [words for words in said if not any(f"a status of {status.value} " in words for status in wanted)]

    def sign_out(self) -> None:
        self.chrome.get("about:blank")
        self.chrome.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def sign_in(self, who: str) -> None:
        """Sign in, by the form the first time and by the same cookie later."""
        self.sign_out()
        if who in self._cookies:
            self.open("/api/status/")
            self.chrome.add_cookie(self._cookies[who])
            return
        self.open("/admin/login/?next=/admin/")
        self.find("#id_username").send_keys(who)
        self.find("#id_password").send_keys(self.site.passwords[who])
        self.press(self.find("input[type=submit]"))
        cookie = self.chrome.get_cookie("sessionid")
        assert cookie is not None
        self._cookies[who] = cookie

    def open(self, path: str) -> None:
        self.chrome.get(f"http://127.0.0.1:{self.site.port}{path}")

    def open_page(self, name: str) -> None:
        """Open a page of the admin; see `sites.PAGES`."""
        self.open(f"/admin/{PAGES[name]}")

    def press(self, element: WebElement) -> None:
        """Press a button or a link, and wait for the next page."""
        self.run("window.isLeft = true")
        element.click()
        self.until(lambda: self.run("return !window.isLeft && document.readyState === 'complete'"), "another page")

    def find(self, selector: str) -> WebElement:
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def visible(self, selector: str, words: str) -> list[WebElement]:
        """Return the visible elements that hold these words, in any case."""

        def holds(element: WebElement) -> bool:
            said = element.text or element.get_attribute("value") or ""
            return words.casefold() in said.casefold() and element.is_displayed()

        return list(filter(holds, self.find_all(selector)))

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until a condition is true, and return its value."""
        # A driver fails in various ways while the page is changing.
        wait = WebDriverWait(self.chrome, TIMEOUT, 0.05, [WebDriverException])
        return wait.until(lambda _: holds(), f"Waited for {what}")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its value."""
        return self.chrome.execute_script(script, *arguments)
