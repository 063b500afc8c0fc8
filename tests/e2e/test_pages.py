"""Every admin page in a browser: accessible, readable in light and dark, and as wide as a desktop or a phone.

The fixture `browser` fails a test when the console has an error or a violation of `default-src 'self'`.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.accessibility import accessibility_errors, low_contrast, overflow
from tests.e2e.browser import Browser
from tests.e2e.chromium import DESK, PHONE, set_color_scheme, set_screen
from tests.e2e.sites import PAGES

pytestmark = pytest.mark.thorough("browser")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits_its_screen(browser: Browser, name: str) -> None:
    browser.sign_in("admin")
    browser.open_page(name)
    assert browser.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 200
    # Of a user's page, only the links are ours.
    assert accessibility_errors(browser, ".object-tools" if name == "user" else "#content") == []
    for screen in (DESK, PHONE):
        set_screen(browser.chrome, screen)
        assert overflow(browser, screen) == []


@pytest.mark.parametrize(
    ("name", "column"),
    [("overrides", "[class*=field-state]"), ("overrides", ".field-created_by"), ("counters", ".field-refused")],
)
def test_a_row_of_a_list_is_a_card_on_a_phone(browser: Browser, name: str, column: str) -> None:
    """Nothing of it is beside the screen, where one would have to scroll to it."""
    browser.sign_in("admin")
    set_screen(browser.chrome, PHONE)
    browser.open_page(name)
    cells = browser.find_all(f"#result_list tbody {column}")
    assert cells
    assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= PHONE.width for cell in cells)
    (inner, outer) = browser.run(
        "const box = document.querySelector('.results'); return [box.scrollWidth, box.clientWidth]"
    )
    assert inner <= outer


def test_a_heading_of_a_table_is_one_line_on_a_phone(browser: Browser) -> None:
    browser.sign_in("admin")
    set_screen(browser.chrome, PHONE)
    browser.open_page("rule")
    (caption,) = browser.visible("caption", "Refused last")
    assert caption.rect["width"] > caption.rect["height"] * 4


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, browser: Browser) -> Iterator[str]:
    set_color_scheme(browser.chrome, request.param)
    yield request.param
    set_color_scheme(browser.chrome, "light")


@pytest.mark.parametrize(
    "name", ["subject", "banned subject", "usage", "overview", "override", "overrides", "counters", "rule"]
)
def test_contrast_is_high_enough_in_light_and_dark(browser: Browser, scheme: str, name: str) -> None:
    browser.sign_in("admin")
    browser.open_page(name)
    shade = browser.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert min(shade) > 200 if scheme == "light" else max(shade) < 60
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
    assert low_contrast(browser) == []


@pytest.mark.parametrize("path", ["/", "/refused/"])
def test_contrast_is_high_enough_on_the_pages_of_the_site(browser: Browser, scheme: str, path: str) -> None:
    browser.open(path)
    assert low_contrast(browser) == []
