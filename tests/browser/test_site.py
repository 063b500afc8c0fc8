"""The example site's own pages in a browser: its front page, the refusal, signing in."""

from __future__ import annotations

import pytest

from tests.browser.chromium import PHONE, look_on
from tests.browser.visits import Visits
from tests.browser.walk import barriers, overflow


def test_a_scene_shows_what_was_let_in_and_what_was_not(visits: Visits) -> None:
    visits.open("/")
    scene = visits.find("#download")
    scene.find_element("css selector", "button.send").click()
    tally = visits.until(lambda: visits.named("#download .tally", "5 admitted, 2 refused"), "seven answers")
    assert tally
    visits.until(lambda: visits.named("#download .wait", "Room again in"), "until when")


def test_the_front_page_tells_who_is_signed_in_at_every_scene(visits: Visits) -> None:
    visits.open("/")
    pro = visits.named("#tiers button", "Sign in as demo-pro")[0]
    pro.click()
    visits.until(lambda: visits.named("#tiers .who", "signed in as demo-pro"), "the pro's name")
    assert visits.named("#members .who", "signed in as demo-pro")
    assert visits.run("return document.activeElement.textContent") == "Sign out"
    visits.named("#tiers button.send", "Send")[0].click()
    visits.until(lambda: visits.named("#tiers .tally", "12 admitted"), "twelve answers")
    assert visits.named("#tiers .limit", "1000 per minute")


def test_a_refused_visitor_sees_a_page_that_says_until_when(visits: Visits) -> None:
    visits.open("/refused/")
    assert visits.run("return performance.getEntriesByType('navigation')[0].responseStatus") == 429
    assert "per minute" in visits.text
    assert "second" in visits.text
    assert barriers(visits) == []
    look_on(visits.chrome, PHONE)
    assert overflow(visits, PHONE) == []


@pytest.mark.parametrize("path", ["/"])
def test_the_front_page_is_fit_for_everybody(visits: Visits, path: str) -> None:
    visits.open(path)
    assert barriers(visits) == []
    look_on(visits.chrome, PHONE)
    assert overflow(visits, PHONE) == []


def test_signing_in_to_the_admin(visits: Visits) -> None:
    visits.sign_in_by_form("admin", "not it")
    assert visits.named(".errornote", "Please enter the correct username and password")
    visits.sign_in_by_form("admin")
    assert visits.named("#user-tools strong", "admin")
