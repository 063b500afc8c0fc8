"""Every page of the admin that shows something of ours: on a desk and on a phone, by eye, by ear and by policy.

That the console stays silent, of errors and of violations of `default-src 'self'`, is held by the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import DESK, PHONE, look_on, prefer
from tests.browser.sites import PAGES
from tests.browser.visits import Visits
from tests.browser.walk import barriers, faint, overflow


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_fit_for_everybody(visits: Visits, name: str) -> None:
    visits.sign_in("admin")
    visits.open_page(name)
    assert visits.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 200
    # Of a user's page, only the links are ours.
    assert barriers(visits, ".object-tools" if name == "user" else "#content") == []
    for screen in (DESK, PHONE):
        look_on(visits.chrome, screen)
        assert overflow(visits, screen) == []


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, visits: Visits) -> Iterator[str]:
    prefer(visits.chrome, request.param)
    yield request.param
    prefer(visits.chrome, "light")


@pytest.mark.parametrize("name", ["subject", "usage", "overview", "override", "overrides", "counters"])
def test_every_text_can_be_read_where_light_or_dark_is_preferred(visits: Visits, scheme: str, name: str) -> None:
    visits.sign_in("admin")
    visits.open_page(name)
    shade = visits.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert min(shade) > 200 if scheme == "light" else max(shade) < 60
    visits.run("for (const details of document.querySelectorAll('details')) details.open = true")
    assert faint(visits) == []


@pytest.mark.parametrize("path", ["/", "/refused/"])
def test_the_sites_own_pages_can_be_read_too(visits: Visits, scheme: str, path: str) -> None:
    visits.open(path)
    assert faint(visits) == []
