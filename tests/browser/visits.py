"""Somebody in front of the browser: signs in, opens pages, presses buttons, waits for what is to be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.sites import Site

PATIENCE = 60.0
"""Seconds within which a page must show what it is waited for."""


class Visits:
    """The browser on a site."""

    def __init__(self, chrome: Chrome, site: Site) -> None:
        self.chrome = chrome
        self.site = site
        self._cookies: dict[str, dict[str, Any]] = {}

    # --- who ---

    def sign_out(self) -> None:
        """Be nobody."""
        self.chrome.get("about:blank")
        self.chrome.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def sign_in(self, who: str) -> None:
        """Be one of those who may sign in; by the admin's form the first time, later by the same cookie."""
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
        """Fill in the admin's form and send it."""
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
        """Press a button or a link that leads to another page, and wait until that is there."""
        self.run("window.isLeft = true")
        element.click()
        self.until(lambda: self.run("return !window.isLeft && document.readyState === 'complete'"), "another page")

    # --- what ---

    @property
    def text(self) -> str:
        """What the page shows."""
        return self.find("body").text

    def find(self, selector: str) -> WebElement:
        """Return the first element that a CSS selector finds."""
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        """Return all elements that a CSS selector finds."""
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def named(self, tag: str, words: str) -> list[WebElement]:
        """Return the elements of this kind that are seen and say these words, in capitals or not: styles differ."""
        wanted = words.casefold()
        return [found for found in self.find_all(tag) if wanted in _words(found).casefold() and found.is_displayed()]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until something holds, and return it."""
        # The driver cannot look at a page that is changing just then; each of its versions says so in its own way.
        wait = WebDriverWait(self.chrome, PATIENCE, 0.05, [WebDriverException])
        return wait.until(lambda _: holds(), f"Waited for {what}")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.chrome.execute_script(script, *arguments)


def _words(element: WebElement) -> str:
    return element.text or element.get_attribute("value") or ""
