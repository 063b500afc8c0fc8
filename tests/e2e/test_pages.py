"""Every page in a browser: accessible, readable in light and dark, as wide as a desktop or a phone, and live.

The fixture `browser` fails a test when the console has an error or a violation of `default-src 'self'`.
"""

from collections.abc import Iterator

import pytest

from example_project.client import Visitor
from tests.e2e.accessibility import accessibility_errors, low_contrast, overflow
from tests.e2e.browser import DESK, PHONE, Browser
from tests.e2e.sites import PAGES

pytestmark = pytest.mark.thorough("browser")

STATUS = "return performance.getEntriesByType('navigation')[0].responseStatus"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits_its_screen(browser: Browser, name: str) -> None:
    browser.sign_in("admin")
    browser.open_page(name)
    assert browser.run(STATUS) == 200
    # Of a user's page, only the links are ours.
    assert accessibility_errors(browser, ".object-tools" if name == "user" else "#content") == []
    for screen in (DESK, PHONE):
        browser.set_screen(screen)
        assert overflow(browser, screen) == []


def test_lists_and_headings_fit_a_phone(browser: Browser) -> None:
    """Nothing of a row is beside the screen, where one would have to scroll to it."""
    browser.sign_in("admin")
    browser.set_screen(PHONE)
    for name, columns in (
        ("overrides", "[class*=field-state], .field-created_by"),
        ("counters", ".field-refused"),
    ):
        browser.open_page(name)
        cells = browser.find_all(f"#result_list tbody :is({columns})")
        assert cells
        assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= PHONE.width for cell in cells)
        box = "const box = document.querySelector('.results'); return box.scrollWidth - box.clientWidth"
        assert browser.run(box) <= 0
    browser.open_page("rule")
    (caption,) = browser.visible("caption", "Refused last")
    assert caption.rect["width"] > caption.rect["height"] * 4  # it is one line


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, browser: Browser) -> Iterator[str]:
    browser.set_color_scheme(request.param)
    yield request.param
    browser.set_color_scheme("light")


def test_contrast_is_high_enough_in_light_and_dark(browser: Browser, scheme: str) -> None:
    for path in ("/", "/refused/"):
        browser.open(path)
        assert low_contrast(browser) == [], path
    browser.sign_in("admin")
    for name in ("subject", "banned subject", "usage", "overview", "override", "overrides", "counters", "rule"):
        browser.open_page(name)
        colour = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        shade = browser.run(colour)
        assert min(shade) > 200 if scheme == "light" else max(shade) < 60
        browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
        assert low_contrast(browser) == [], name


def test_a_scenario_counts_allowed_and_refused_requests(browser: Browser) -> None:
    browser.open("/")
    assert accessibility_errors(browser) == []
    browser.find("#download button.send").click()
    browser.until(lambda: browser.visible("#download .totals", "5 admitted, 2 refused"), "seven answers")
    browser.until(lambda: browser.visible("#download .wait", "Room again in"), "until when")
    browser.set_screen(PHONE)
    assert overflow(browser, PHONE) == []


def test_every_scenario_shows_who_is_signed_in(browser: Browser) -> None:
    browser.open("/")
    browser.visible("#tiers button", "Sign in as demo-pro")[0].click()
    browser.until(lambda: browser.visible("#tiers .who", "signed in as demo-pro"), "the pro's name")
    assert browser.visible("#members .who", "signed in as demo-pro")
    assert browser.run("return document.activeElement.textContent") == "Sign out"
    browser.visible("#tiers button.send", "Send")[0].click()
    browser.until(lambda: browser.visible("#tiers .totals", "12 admitted"), "twelve answers")
    assert browser.visible("#tiers .limit", "1000 per minute")


def test_the_refusal_page_says_until_when(browser: Browser) -> None:
    browser.open("/refused/")
    assert browser.run(STATUS) == 429
    assert "per minute" in browser.text
    assert "second" in browser.text
    assert accessibility_errors(browser) == []
    browser.set_screen(PHONE)
    assert overflow(browser, PHONE) == []


def refuse(browser: Browser, address: str) -> None:
    """Be refused as somebody of this address."""
    with Visitor(browser.site.port, headers={"X-Forwarded-For": address}) as visitor:
        assert [visitor.get("/try/download/").status for _ in range(6)] == [200] * 5 + [429]


def test_an_open_overview_shows_refusals_of_other_processes_and_catches_up_after_a_pause(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the script")
    browser.run("window.isTheSame = true")
    refuse(browser, "203.0.113.150")
    browser.until(lambda: browser.visible("#quota-events li a", "ip:203.0.113.150"), "the refusal")
    browser.find("[data-pause]").click()
    assert browser.find("[data-state]").text == "Paused"
    refuse(browser, "203.0.113.151")
    assert not browser.visible("#quota-events li", "203.0.113.151")
    browser.find("[data-pause]").click()
    browser.run("document.activeElement.blur()")
    browser.until(lambda: browser.visible("#quota-events li", "ip:203.0.113.151"), "what it has missed")
    assert browser.run("return window.isTheSame")
