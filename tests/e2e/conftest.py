"""Fixtures: one browser and one site for all browser tests."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest
from selenium.webdriver import Chrome

from tests.e2e.browser import Browser
from tests.e2e.chromium import DESK, chromium, console_errors, programs, set_screen
from tests.e2e.sites import Site, run_site


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    found = programs()
    if found is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium chromium-driver")
    with chromium(*found) as driver:
        yield driver


@pytest.fixture(scope="session")
def site(chrome: Chrome) -> Iterator[Site]:
    """The example site under ASGI; started only where there is a browser."""
    with run_site() as running:
        yield running


@pytest.fixture(scope="session")
def shared_browser(chrome: Chrome, site: Site) -> Browser:
    return Browser(chrome, site)


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser, signed out. An error in the console fails the test."""
    shared_browser.sign_out()
    set_screen(shared_browser.chrome, DESK)
    console_errors(shared_browser.chrome)  # drops the errors of earlier tests
    yield shared_browser
    refused = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN)
    assert console_errors(shared_browser.chrome, *refused) == []
