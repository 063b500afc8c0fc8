"""Without a permission, buttons are missing and their URLs answer 403."""

from __future__ import annotations

import re

import pytest

from example_project.client import Reply, Visitor
from tests.e2e.browser import Browser
from tests.e2e.sites import PAGES, subject

pytestmark = pytest.mark.thorough("browser")

ACTIONS = ("reset", "raise", "exempt", "block", "lift", "clear")
OURS = [name for name in PAGES if name not in ("index", "app", "user")]


def by_url(browser: Browser, path: str, **fields: str) -> Reply:
    """Post a form as the user that is signed in, with their cookies and a CSRF token, past all pages."""
    cookies = {cookie["name"]: cookie["value"] for cookie in browser.chrome.get_cookies()}
    with Visitor(browser.site.port, cookies) as visitor:
        return visitor.post(path, fields)


@pytest.mark.parametrize("name", ["subject", "overview", "counters", "usage", "overrides", "override"])
def test_a_clerk_sees_no_button(browser: Browser, name: str) -> None:
    browser.sign_in("clerk")
    browser.open_page(name)
    assert browser.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 200
    words = [
        button.text + (button.get_attribute("value") or "") for button in browser.find_all("main button, main input")
    ]
    changing = re.compile("reset|raise|exempt|block|lift|clear|save|delete|expire", re.IGNORECASE)
    assert not [each for each in words if changing.search(each)]
    assert not browser.find_all("select[name=action] option[value=delete_selected]")


@pytest.mark.parametrize("who", ["clerk", "intern"])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_url_of_an_action_needs_its_permission(browser: Browser, who: str, action: str) -> None:
    browser.sign_in(who)
    browser.open("/admin/password_change/")  # a page with a CSRF token, for every staff user
    about = {"subject": subject("boris"), "on": '["api"]', "confirmed": "yes", "rate": "9/m"}
    assert by_url(browser, f"/admin/django_quota/subject/action/{action}/", **about).status == 403


@pytest.mark.parametrize("name", OURS)
def test_an_intern_may_see_no_page(browser: Browser, name: str) -> None:
    browser.sign_in("intern")
    browser.open_page(name)
    assert browser.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 403


def test_the_index_shows_an_intern_nothing(browser: Browser) -> None:
    browser.sign_in("intern")
    browser.open_page("index")
    assert not browser.find_all("a[href*=django_quota]")
