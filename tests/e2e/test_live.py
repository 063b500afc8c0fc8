"""An open overview shows the refusals of other processes."""

import pytest

from example_project.client import Visitor
from tests.e2e.browser import Browser
from tests.e2e.sites import Site

pytestmark = pytest.mark.thorough("browser")


def refuse(site: Site, address: str) -> None:
    """Be refused as somebody of this address."""
    with Visitor(site.port, headers={"X-Forwarded-For": address}) as visitor:
        assert [visitor.get("/try/download/").status for _ in range(6)] == [200] * 5 + [429]


def test_a_refusal_appears_in_the_open_page(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the script")
    assert not browser.visible("#quota-events li", "203.0.113.150")
    browser.run("window.isTheSame = true")
    refuse(browser.site, "203.0.113.150")
    browser.until(lambda: browser.visible("#quota-events li", "ip:203.0.113.150"), "the refusal")
    assert browser.run("return window.isTheSame")
    assert browser.visible("#quota-events li a", "ip:203.0.113.150")


def test_a_paused_page_catches_up_when_it_resumes(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the script")
    browser.find("[data-pause]").click()
    assert browser.find("[data-state]").text == "Paused"
    refuse(browser.site, "203.0.113.151")
    assert not browser.visible("#quota-events li", "203.0.113.151")
    browser.find("[data-pause]").click()
    browser.run("document.activeElement.blur()")
    browser.until(lambda: browser.visible("#quota-events li", "ip:203.0.113.151"), "what it has missed")
