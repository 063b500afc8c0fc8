"""Fixtures: one browser and one site for all of these tests, and a way to be somebody in it."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import pytest
from selenium.webdriver import Chrome

from tests.browser.chromium import DESK, chromium, complaints, look_on, programs
from tests.browser.sites import Site, served
from tests.browser.visits import Visits


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    found = programs()
    if found is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium chromium-driver")
    with chromium(*found) as browser:
        yield browser


@pytest.fixture(scope="session")
def site(chrome: Chrome) -> Iterator[Site]:
    """The site by ASGI; not started where there is no browser to look at it."""
    with served() as running:
        yield running


@pytest.fixture(scope="session")
def everybody(chrome: Chrome, site: Site) -> Visits:
    return Visits(chrome, site)


@pytest.fixture
def visits(everybody: Visits) -> Iterator[Visits]:
    """The browser with nobody signed in; whatever a page complained of during the test fails it."""
    everybody.sign_out()
    look_on(everybody.chrome, DESK)
    complaints(everybody.chrome)  # what a test before has left
    yield everybody
    refused = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN)
    assert complaints(everybody.chrome, *refused) == []
