"""Actions on the subject page apply to the next request of a real client."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.keys import Keys

from example_project.client import Visitor
from tests.e2e.accessibility import accessibility_errors, overflow
from tests.e2e.browser import DESK, PHONE, Browser
from tests.e2e.sites import Site, subject

pytestmark = pytest.mark.thorough("browser")

SEARCH = "/api/search/?limit=100"
"""It takes five of the thirty units a minute of the rule `api-search`."""


@contextmanager
def signed_in(site: Site, who: str) -> Iterator[Visitor]:
    """One of the people, with a client of their own."""
    with Visitor(site.port, headers={"X-Forwarded-For": "203.0.113.99"}) as visitor:
        visitor.get("/")
        assert visitor.post("/sign-in/", {"who": who}).status == 302
        yield visitor


def open_subject(browser: Browser, asked: str) -> None:
    browser.open_page("subject search")
    browser.find("#quota-find").send_keys(asked)
    browser.press(browser.visible("button", "Find")[0])


def assert_fits_a_phone(browser: Browser) -> None:
    assert accessibility_errors(browser) == []
    browser.set_screen(PHONE)
    assert overflow(browser, PHONE) == []
    browser.set_screen(DESK)


def test_a_raise_applies_with_the_next_request(browser: Browser) -> None:
    with signed_in(browser.site, "emeka") as emeka:
        assert any(emeka.get(SEARCH).status == 429 for _ in range(12))
        browser.sign_in("admin")
        open_subject(browser, "emeka")
        for summary in browser.find_all("details:not([open]) > summary"):
            summary.click()
        browser.press(browser.visible('section[aria-label="api-search"] button', "Raise")[0])
        for name, value in {"factor": "10", "span": "1d", "reason": "He asked for it."}.items():
            field = browser.find(f"[name={name}]")
            if field.tag_name == "select":
                browser.run("arguments[0].value = arguments[1]", field, value)
            else:
                field.clear()
                field.send_keys(value)
        browser.press(browser.visible("button", "Yes")[0])
        assert browser.visible("td", "He asked for it.")
        reply = emeka.get(SEARCH)
        assert (reply.status, reply.quotas["api-search"]) == (200, 300)


def test_actions_work_by_keyboard_alone(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open(f"/admin/django_quota/subject/?subject={subject('kamala')}")
    for _ in range(60):
        browser.chrome.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.chrome.switch_to.active_element
        if focused.text.startswith("Block"):
            break
    else:
        pytest.fail("No button that blocks within 60 tabs.")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    focused.send_keys(Keys.ENTER)
    browser.until(lambda: browser.visible("button", "Yes"), "the question whether to block")


def test_confirmations_are_accessible_and_fit_a_phone(browser: Browser) -> None:
    browser.sign_in("admin")
    for label in ("Raise", "Exempt", "Block", "Reset"):
        open_subject(browser, "kamala")
        browser.press(browser.visible("button", label)[0])
        assert subject("kamala") in browser.find(".quota-warning").text
        assert_fits_a_phone(browser)


def test_the_preview_follows_the_typing(browser: Browser) -> None:
    with signed_in(browser.site, "chiara") as chiara:
        assert [chiara.get(SEARCH).status for _ in range(2)] == [200, 200]
        browser.sign_in("admin")
        browser.open_page("new override")
        browser.find("[name=rule]").clear()
        for name, text in {"subject": subject("chiara"), "rule": "api-search", "rate": "77/m"}.items():
            browser.find(f"[name={name}]").send_keys(text)
        browser.until(lambda: browser.visible("#quota-preview", "10 of 77"), "the preview")
        assert browser.visible("#quota-preview", "10 of 30")
        assert_fits_a_phone(browser)
        assert chiara.get(SEARCH).quotas["api-search"] == 30  # nothing is saved
