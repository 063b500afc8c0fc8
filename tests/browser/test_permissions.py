"""Who may not do a thing is not shown how, and is refused where they know the address."""

from __future__ import annotations

import re

import pytest

from example_project.client import Reply, Visitor
from tests.browser.sites import PAGES, subject
from tests.browser.visits import Visits

ACTS = ("reset", "raise", "exempt", "block", "lift", "clear")
OURS = [name for name in PAGES if name not in ("index", "app", "user")]


def by_url(visits: Visits, path: str, **fields: str) -> Reply:
    """Post a form as whoever is signed in, with their cookies and a CSRF token, past all pages."""
    cookies = {cookie["name"]: cookie["value"] for cookie in visits.chrome.get_cookies()}
    with Visitor(visits.site.port, cookies) as visitor:
        return visitor.post(path, fields)


@pytest.mark.parametrize("name", ["subject", "overview", "counters", "usage", "overrides", "override"])
def test_a_clerk_sees_and_finds_no_button(visits: Visits, name: str) -> None:
    visits.sign_in("clerk")
    visits.open_page(name)
    assert visits.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 200
    words = [
        button.text + (button.get_attribute("value") or "") for button in visits.find_all("main button, main input")
    ]
    changing = re.compile("reset|raise|exempt|block|lift|clear|save|delete|expire", re.IGNORECASE)
    assert not [each for each in words if changing.search(each)]
    assert not visits.find_all("select[name=action] option[value=delete_selected]")


@pytest.mark.parametrize("who", ["clerk", "intern"])
@pytest.mark.parametrize("act", ACTS)
def test_an_act_is_refused_by_its_url(visits: Visits, who: str, act: str) -> None:
    visits.sign_in(who)
    visits.open("/admin/password_change/")  # a page with a CSRF token, for every staff user
    about = {"subject": subject("boris"), "on": '["api"]', "confirmed": "yes", "rate": "9/m"}
    assert by_url(visits, f"/admin/django_quota/subject/act/{act}/", **about).status == 403


@pytest.mark.parametrize("name", OURS)
def test_an_intern_is_refused_every_page(visits: Visits, name: str) -> None:
    visits.sign_in("intern")
    visits.open_page(name)
    assert visits.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 403


def test_an_intern_sees_nothing_of_it_in_the_index(visits: Visits) -> None:
    visits.sign_in("intern")
    visits.open_page("index")
    assert not visits.find_all("a[href*=django_quota]")
