"""What an operator does on the subject page binds the very next request: of real clients, in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.keys import Keys

from example_project.client import Visitor
from tests.browser.chromium import PHONE, look_on
from tests.browser.sites import Site, subject
from tests.browser.visits import Visits
from tests.browser.walk import barriers, overflow

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


def find_subject(visits: Visits, asked: str) -> None:
    visits.open_page("subject search")
    visits.find("#quota-find").send_keys(asked)
    visits.press(visits.named("button", "Find")[0])


def act(visits: Visits, label: str, rule: str = "", **fields: str) -> None:
    """Press the button of an act, of a rule or of all, fill in what it asks, and confirm."""
    within = f'section[aria-label="{rule}"] ' if rule else ""
    for summary in visits.find_all("details:not([open]) > summary"):
        summary.click()
    visits.press(visits.named(f"{within}button", label)[0])
    for name, value in fields.items():
        field = visits.find(f"[name={name}]")
        if field.tag_name == "select":
            visits.run("arguments[0].value = arguments[1]", field, value)
        else:
            field.clear()
            field.send_keys(value)
    visits.press(visits.named("button", "Yes")[0])


@pytest.mark.parametrize(
    "asked", ["emeka", "emeka@example.com", subject("emeka"), subject("emeka").removeprefix("user:")]
)
def test_a_user_is_found_by_name_address_subject_or_key(visits: Visits, asked: str) -> None:
    visits.sign_in("admin")
    find_subject(visits, asked)
    assert visits.named("h1, h2", subject("emeka"))


def test_an_address_is_found_in_any_spelling(visits: Visits) -> None:
    visits.sign_in("admin")
    find_subject(visits, "2001:0DB8:0007:0000::9")
    assert visits.named("h1, h2", "ip:2001:db8:7::")
    assert visits.named("button", "Lift ban")


def test_who_is_raised_for_a_day_is_admitted_with_the_next_request(visits: Visits) -> None:
    with signed_in(visits.site, "emeka") as emeka:
        assert refused_at_last(emeka, SEARCH)
        visits.sign_in("admin")
        find_subject(visits, "emeka")
        act(visits, "Raise", "api-search", rate="600/m", span="1d", reason="He asked for it.")
        assert visits.named("td", "He asked for it.")
        reply = emeka.get(SEARCH)
        assert reply.status == 200
        assert reply.quotas["api-search"] == 600


def test_who_is_blocked_sees_429_until_it_is_cleared(visits: Visits) -> None:
    with signed_in(visits.site, "freya") as freya:
        assert freya.get("/api/items/").status == 200
        visits.sign_in("admin")
        find_subject(visits, "freya")
        act(visits, "Block", "api", span="1h", reason="To see it.")
        refused = freya.get("/api/items/")
        assert refused.status == 429
        act(visits, "Clear override", "")
        assert freya.get("/api/items/").status == 200
        assert visits.named("td", "admin")  # the log says who did it


def test_a_reset_gives_all_back(visits: Visits) -> None:
    with signed_in(visits.site, "jonas") as jonas:
        assert refused_at_last(jonas, SEARCH)
        visits.sign_in("admin")
        find_subject(visits, "jonas")
        act(visits, "Reset", "api-search")
        assert jonas.get(SEARCH).status == 200


def test_whose_ban_is_lifted_may_try_again(visits: Visits) -> None:
    with Visitor(visits.site.port, headers={"X-Forwarded-For": "192.0.2.91"}) as guesser:
        guesser.get("/")
        tries = [guesser.post("/try/login/", {"password": "guess"}).status for _ in range(6)]
        assert tries == [403] * 5 + [429]
        visits.sign_in("admin")
        find_subject(visits, "192.0.2.91")
        act(visits, "Lift ban")
        assert not visits.named("button", "Lift ban")
        act(visits, "Reset", "login")  # what was counted stays when a ban ends
        assert guesser.post("/try/login/", {"password": "guess"}).status == 403


def test_acts_are_reached_and_pressed_by_keyboard_alone(visits: Visits) -> None:
    visits.sign_in("admin")
    visits.open(f"/admin/django_quota/subject/?subject={subject('kamala')}")
    for _ in range(60):
        visits.chrome.switch_to.active_element.send_keys(Keys.TAB)
        focused = visits.chrome.switch_to.active_element
        if focused.text.startswith("Block"):
            break
    else:
        pytest.fail("No button that blocks within 60 tabs.")
    assert visits.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    focused.send_keys(Keys.ENTER)
    visits.until(lambda: visits.named("button", "Yes"), "the question whether to block")


@pytest.mark.parametrize("label", ["Raise", "Exempt", "Block", "Reset"])
def test_a_question_whether_to_do_it_is_fit_for_everybody(visits: Visits, label: str) -> None:
    visits.sign_in("admin")
    find_subject(visits, "kamala")
    visits.press(visits.named("button", label)[0])
    assert subject("kamala") in visits.find(".quota-warning").text
    assert barriers(visits) == []
    look_on(visits.chrome, PHONE)
    assert overflow(visits, PHONE) == []


def test_an_override_shows_what_it_would_do_while_it_is_typed(visits: Visits) -> None:
    with signed_in(visits.site, "chiara") as chiara:
        assert [chiara.get(SEARCH).status for _ in range(2)] == [200, 200]
        visits.sign_in("admin")
        visits.open_page("new override")
        visits.find("[name=subject]").send_keys(subject("chiara"))
        visits.find("[name=rule]").clear()
        visits.find("[name=rule]").send_keys("api-search")
        visits.find("[name=rate]").send_keys("77/m")
        visits.until(lambda: visits.named("#quota-preview", "10 of 77"), "the preview")
        assert visits.named("#quota-preview", "10 of 30")
        assert barriers(visits) == []
        look_on(visits.chrome, PHONE)
        assert overflow(visits, PHONE) == []
        assert chiara.get(SEARCH).quotas["api-search"] == 30  # nothing is saved
