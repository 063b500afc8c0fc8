"""An open overview shows the refusals of other processes, under ASGI and WSGI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse

import pytest
from selenium.webdriver import Chrome

from example_project.client import Visitor
from tests.e2e.browser import Browser
from tests.e2e.sites import Site, run_site

pytestmark = pytest.mark.thorough("browser")


VIEWERS = 100
"""Who may watch the overview of one process at a time, as the page says."""


def refuse(site: Site, address: str) -> None:
    """Be refused as somebody of this address."""
    with Visitor(site.port, headers={"X-Forwarded-For": address}) as visitor:
        assert [visitor.get("/try/download/").status for _ in range(6)] == [200] * 5 + [429]


def watch(browser: Browser, state: str, address: str) -> None:
    """Open the overview, wait until it follows in this way, and see a refusal appear in the very page."""
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == state, state)
    assert not browser.visible("#quota-events li", address)
    browser.run("window.isTheSame = true")
    refuse(browser.site, address)
    browser.until(lambda: browser.visible("#quota-events li", f"ip:{address}"), "the refusal")
    assert browser.run("return window.isTheSame")
    assert browser.visible("#quota-events li a", f"ip:{address}")


def test_a_refusal_appears_by_streaming(browser: Browser) -> None:
    watch(browser, "Live", "203.0.113.150")


def test_a_paused_page_catches_up_when_it_resumes(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the stream")
    browser.find("[data-pause]").click()
    assert browser.find("[data-state]").text == "Paused"
    refuse(browser.site, "203.0.113.151")
    script = "return fetch(arguments[0]).then((reply) => reply.json()).then((news) => news.html)"
    url = browser.run("return document.querySelector('.quota-overview').dataset.eventsUrl")
    browser.until(lambda: "203.0.113.151" in browser.run(script, url + "?after=0-0"), "the event in the stream")
    assert not browser.visible("#quota-events li", "203.0.113.151")
    browser.find("[data-pause]").click()
    browser.until(lambda: browser.visible("#quota-events li", "ip:203.0.113.151"), "what it has missed")


def test_a_page_above_the_cap_says_why_it_is_not_live(browser: Browser) -> None:
    browser.sign_in("admin")
    cookies = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in browser.chrome.get_cookies())
    answers: list[HTTPResponse] = []
    with ExitStack() as stack:
        in_vain = 0
        while in_vain < 20:  # the site has several processes, each with a cap of its own
            connection = HTTPConnection("127.0.0.1", browser.site.port, timeout=30)
            stack.callback(connection.close)
            connection.request("GET", "/admin/django_quota/overview/stream/", headers={"Cookie": cookies})
            answers.append(connection.getresponse())
            in_vain = in_vain + 1 if answers[-1].readline() == b"event: full\n" else 0
            assert len(answers) < 10 * VIEWERS
        browser.open_page("overview")
        said = f"Not live: {VIEWERS} others are watching. Trying again every minute."
        browser.until(lambda: browser.find("[data-state]").text == said, said)


@pytest.fixture
def wsgi(chrome: Chrome) -> Iterator[Browser]:
    with run_site("--wsgi") as site:
        yield Browser(chrome, site)


def test_a_refusal_appears_by_polling_under_wsgi(wsgi: Browser) -> None:
    watch(wsgi, "Live, updated every 2 seconds", "203.0.113.152")
