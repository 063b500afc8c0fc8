"""Fixtures: one browser and one site for all browser tests."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from tests.e2e.browser import DESK, Browser, chromium, programs
from tests.e2e.sites import run_site


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    """The browser on the example site under ASGI, which is started only where there is a browser."""
    found = programs()
    if found is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium chromium-driver")
    with chromium(*found) as chrome, run_site() as site:
        yield Browser(chrome, site)


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser, signed out. An error in the console fails the test."""
    shared_browser.sign_out()
    shared_browser.set_screen(DESK)
    shared_browser.console_errors()  # drops the errors of earlier tests
    yield shared_browser
    assert shared_browser.console_errors(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN) == []
