"""The pages of the example site in a browser: the front page and the refusal page."""

import pytest

from tests.e2e.accessibility import accessibility_errors, overflow
from tests.e2e.browser import Browser
from tests.e2e.chromium import PHONE, set_screen

pytestmark = pytest.mark.thorough("browser")


def test_a_scenario_counts_allowed_and_refused_requests(browser: Browser) -> None:
    browser.open("/")
    assert accessibility_errors(browser) == []
    scenario = browser.find("#download")
    scenario.find_element("css selector", "button.send").click()
    totals = browser.until(lambda: browser.visible("#download .totals", "5 admitted, 2 refused"), "seven answers")
    assert totals
    browser.until(lambda: browser.visible("#download .wait", "Room again in"), "until when")
    set_screen(browser.chrome, PHONE)
    assert overflow(browser, PHONE) == []


def test_every_scenario_shows_who_is_signed_in(browser: Browser) -> None:
    browser.open("/")
    pro = browser.visible("#tiers button", "Sign in as demo-pro")[0]
    pro.click()
    browser.until(lambda: browser.visible("#tiers .who", "signed in as demo-pro"), "the pro's name")
    assert browser.visible("#members .who", "signed in as demo-pro")
    assert browser.run("return document.activeElement.textContent") == "Sign out"
    browser.visible("#tiers button.send", "Send")[0].click()
    browser.until(lambda: browser.visible("#tiers .totals", "12 admitted"), "twelve answers")
    assert browser.visible("#tiers .limit", "1000 per minute")


def test_the_refusal_page_says_until_when(browser: Browser) -> None:
    browser.open("/refused/")
    assert browser.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 429
    assert "per minute" in browser.text
    assert "second" in browser.text
    assert accessibility_errors(browser) == []
    set_screen(browser.chrome, PHONE)
    assert overflow(browser, PHONE) == []
