"""Actions on the subject page apply to the next request of a real client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.keys import Keys

from example_project.client import Visitor
from tests.e2e.accessibility import accessibility_errors, overflow
from tests.e2e.browser import Browser
from tests.e2e.chromium import PHONE, set_screen
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


def refused_at_last(visitor: Visitor, url: str) -> bool:
    """Send requests until one is refused, and no more than any limit here has room for."""
    return any(visitor.get(url).status == 429 for _ in range(12))


def open_subject(browser: Browser, asked: str) -> None:
    browser.open_page("subject search")
    browser.find("#quota-find").send_keys(asked)
    browser.press(browser.visible("button", "Find")[0])


def run_action(browser: Browser, label: str, rule: str = "", **fields: str) -> None:
    """Press the button of an action, fill in its form, and confirm."""
    within = f'section[aria-label="{rule}"] ' if rule else ""
    for summary in browser.find_all("details:not([open]) > summary"):
        summary.click()
    browser.press(browser.visible(f"{within}button", label)[0])
    for name, value in fields.items():
        field = browser.find(f"[name={name}]")
        if field.tag_name == "select":
            browser.run("arguments[0].value = arguments[1]", field, value)
        else:
            field.clear()
            field.send_keys(value)
    browser.press(browser.visible("button", "Yes")[0])


@pytest.mark.parametrize(
    "asked", ["emeka", "emeka@example.com", subject("emeka"), subject("emeka").removeprefix("user:")]
)
def test_a_user_is_found_by_name_address_subject_or_key(browser: Browser, asked: str) -> None:
    browser.sign_in("admin")
    open_subject(browser, asked)
    assert browser.visible("h1, h2", subject("emeka"))


def test_an_address_is_found_in_any_spelling(browser: Browser) -> None:
    browser.sign_in("admin")
    open_subject(browser, "2001:0DB8:0007:0000::9")
    assert browser.visible("h1, h2", "ip:2001:db8:7::")
    assert browser.visible("button", "Lift ban")


def test_a_raise_applies_with_the_next_request(browser: Browser) -> None:
    with signed_in(browser.site, "emeka") as emeka:
        assert refused_at_last(emeka, SEARCH)
        browser.sign_in("admin")
        open_subject(browser, "emeka")
        run_action(browser, "Raise", "api-search", rate="600/m", span="1d", reason="He asked for it.")
        assert browser.visible("td", "He asked for it.")
        reply = emeka.get(SEARCH)
        assert reply.status == 200
        assert reply.quotas["api-search"] == 600


def test_a_block_applies_until_it_is_cleared(browser: Browser) -> None:
    with signed_in(browser.site, "freya") as freya:
        assert freya.get("/api/items/").status == 200
        browser.sign_in("admin")
        open_subject(browser, "freya")
        run_action(browser, "Block", "api", span="1h", reason="To see it.")
        refused = freya.get("/api/items/")
        assert refused.status == 429
        run_action(browser, "Clear override", "")
        assert freya.get("/api/items/").status == 200
        assert browser.visible("td", "admin")  # the log says who did it


def test_a_reset_frees_the_limit(browser: Browser) -> None:
    with signed_in(browser.site, "jonas") as jonas:
        assert refused_at_last(jonas, SEARCH)
        browser.sign_in("admin")
        open_subject(browser, "jonas")
        run_action(browser, "Reset", "api-search")
        assert jonas.get(SEARCH).status == 200


def test_a_lifted_ban_lets_the_next_request_in(browser: Browser) -> None:
    with Visitor(browser.site.port, headers={"X-Forwarded-For": "192.0.2.91"}) as guesser:
        guesser.get("/")
        tries = [guesser.post("/try/login/", {"password": "guess"}).status for _ in range(6)]
        assert tries == [403] * 5 + [429]
        browser.sign_in("admin")
        open_subject(browser, "192.0.2.91")
        run_action(browser, "Lift ban")
        assert not browser.visible("button", "Lift ban")
        run_action(browser, "Reset", "login")  # what was counted stays when a ban ends
        assert guesser.post("/try/login/", {"password": "guess"}).status == 403


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


@pytest.mark.parametrize("label", ["Raise", "Exempt", "Block", "Reset"])
def test_confirmations_are_accessible_and_fit_a_phone(browser: Browser, label: str) -> None:
    browser.sign_in("admin")
    open_subject(browser, "kamala")
    browser.press(browser.visible("button", label)[0])
    assert subject("kamala") in browser.find(".quota-warning").text
    assert accessibility_errors(browser) == []
    set_screen(browser.chrome, PHONE)
    assert overflow(browser, PHONE) == []


def test_the_preview_follows_the_typing(browser: Browser) -> None:
    with signed_in(browser.site, "chiara") as chiara:
        assert [chiara.get(SEARCH).status for _ in range(2)] == [200, 200]
        browser.sign_in("admin")
        browser.open_page("new override")
        browser.find("[name=subject]").send_keys(subject("chiara"))
        browser.find("[name=rule]").clear()
        browser.find("[name=rule]").send_keys("api-search")
        browser.find("[name=rate]").send_keys("77/m")
        browser.until(lambda: browser.visible("#quota-preview", "10 of 77"), "the preview")
        assert browser.visible("#quota-preview", "10 of 30")
        assert accessibility_errors(browser) == []
        set_screen(browser.chrome, PHONE)
        assert overflow(browser, PHONE) == []
        assert chiara.get(SEARCH).quotas["api-search"] == 30  # nothing is saved
