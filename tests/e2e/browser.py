"""A browser on a site: sign in, open pages, press buttons, and wait for what the page shows."""

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.e2e.sites import Site

TIMEOUT = 60.0
"""Seconds to wait for something on a page."""


class Browser:
    """The browser on a site."""

    def __init__(self, chrome: Chrome, site: Site) -> None:
        self.chrome = chrome
        self.site = site
        self._cookies: dict[str, dict[str, Any]] = {}

    # --- who ---

    def sign_out(self) -> None:
        """Sign out."""
        self.chrome.get("about:blank")
        self.chrome.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def sign_in(self, who: str) -> None:
        """Sign in, by the form the first time and by the same cookie later."""
        self.sign_out()
        if who not in self._cookies:
            self.sign_in_by_form(who)
            cookie = self.chrome.get_cookie("sessionid")
            assert cookie is not None
            self._cookies[who] = cookie
            return
        self.open("/api/status/")
        self.chrome.add_cookie(self._cookies[who])

    def sign_in_by_form(self, who: str, password: str = "") -> None:
        """Fill in and send the login form of the admin."""
        self.open("/admin/login/?next=/admin/")
        self.find("#id_username").send_keys(who)
        self.find("#id_password").send_keys(password or self.site.passwords[who])
        self.press(self.find("input[type=submit]"))

    # --- where ---

    def open(self, path: str) -> None:
        """Open an address of the site."""
        self.chrome.get(self.site.url(path))

    def open_page(self, name: str) -> None:
        """Open a page of the admin; see `sites.PAGES`."""
        self.chrome.get(self.site.page(name))

    def press(self, element: WebElement) -> None:
        """Press a button or a link, and wait for the next page."""
        self.run("window.isLeft = true")
        element.click()
        self.until(lambda: self.run("return !window.isLeft && document.readyState === 'complete'"), "another page")

    # --- what ---

    @property
    def text(self) -> str:
        """The text of the page."""
        return self.find("body").text

    def find(self, selector: str) -> WebElement:
        """Return the first element that a CSS selector finds."""
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        """Return all elements that a CSS selector finds."""
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def visible(self, tag: str, words: str) -> list[WebElement]:
        """Return the visible elements of a tag or selector that hold these words, in any case."""
        wanted = words.casefold()
        return [found for found in self.find_all(tag) if wanted in _words(found).casefold() and found.is_displayed()]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until a condition is true, and return its value."""
        # A driver fails in various ways while the page is changing.
        wait = WebDriverWait(self.chrome, TIMEOUT, 0.05, [WebDriverException])
        return wait.until(lambda _: holds(), f"Waited for {what}")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its value."""
        return self.chrome.execute_script(script, *arguments)


def _words(element: WebElement) -> str:
    return element.text or element.get_attribute("value") or ""
