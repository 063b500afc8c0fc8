"""The overview while it is open: what another process refuses appears by itself, by ASGI and by WSGI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse

import pytest
from selenium.webdriver import Chrome

from django_quota.admin.live import MAX_VIEWERS
from example_project.client import Visitor
from tests.browser.sites import Site, served
from tests.browser.visits import Visits


def refuse(site: Site, address: str) -> None:
    """Be refused as somebody of this address."""
    with Visitor(site.port, headers={"X-Forwarded-For": address}) as visitor:
        assert [visitor.get("/try/download/").status for _ in range(6)] == [200] * 5 + [429]


def watch(visits: Visits, state: str, address: str) -> None:
    """Open the overview, wait until it follows in this way, and see a refusal appear in the very page."""
    visits.sign_in("admin")
    visits.open_page("overview")
    visits.until(lambda: visits.find("[data-state]").text == state, state)
    assert not visits.named("#quota-events li", address)
    visits.run("window.isTheSame = true")
    refuse(visits.site, address)
    visits.until(lambda: visits.named("#quota-events li", f"ip:{address}"), "the refusal")
    assert visits.run("return window.isTheSame")
    assert visits.named("#quota-events li a", f"ip:{address}")


def test_a_refusal_appears_by_a_stream(visits: Visits) -> None:
    watch(visits, "Live", "203.0.113.150")


def test_a_paused_page_keeps_still_and_shows_what_it_has_missed(visits: Visits) -> None:
    visits.sign_in("admin")
    visits.open_page("overview")
    visits.until(lambda: visits.find("[data-state]").text == "Live", "the stream")
    visits.find("[data-pause]").click()
    assert visits.find("[data-state]").text == "Paused"
    refuse(visits.site, "203.0.113.151")
    told = "return fetch(arguments[0]).then((reply) => reply.json()).then((news) => news.html)"
    url = visits.run("return document.querySelector('.quota-overview').dataset.eventsUrl")
    visits.until(lambda: "203.0.113.151" in visits.run(told, url + "?after=0-0"), "the event in the stream")
    assert not visits.named("#quota-events li", "203.0.113.151")
    visits.find("[data-pause]").click()
    visits.until(lambda: visits.named("#quota-events li", "ip:203.0.113.151"), "what it has missed")


def test_above_the_cap_the_page_says_why_it_is_not_live(visits: Visits) -> None:
    visits.sign_in("admin")
    cookies = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in visits.chrome.get_cookies())
    answers: list[HTTPResponse] = []
    with ExitStack() as stack:
        in_vain = 0
        while in_vain < 20:  # the site has several processes, each with a cap of its own
            connection = HTTPConnection("127.0.0.1", visits.site.port, timeout=30)
            stack.callback(connection.close)
            connection.request("GET", "/admin/django_quota/overview/stream/", headers={"Cookie": cookies})
            answers.append(connection.getresponse())
            in_vain = in_vain + 1 if answers[-1].readline() == b"event: full\n" else 0
            assert len(answers) < 10 * MAX_VIEWERS
        visits.open_page("overview")
        said = f"Not live: {MAX_VIEWERS} others are watching already. Trying again every minute."
        visits.until(lambda: visits.find("[data-state]").text == said, said)


@pytest.fixture
def wsgi(chrome: Chrome) -> Iterator[Visits]:
    with served("--wsgi") as site:
        yield Visits(chrome, site)


def test_a_refusal_appears_by_asking_where_nothing_streams(wsgi: Visits) -> None:
    watch(wsgi, "Live, asked every 2 seconds", "203.0.113.152")
