"""The tests' own eyes: each barrier that they are to find is put into a page, and found."""

from __future__ import annotations

import pytest

from tests.browser.chromium import PHONE, complaints, look_on
from tests.browser.visits import Visits
from tests.browser.walk import barriers, faint, overflow

BARRIERS = {
    '<input name="x">': "a control without a label",
    "<button></button>": "nothing to press by name",
    '<a href="/"><span></span></a>': "nothing to press by name",
    '<img src="/favicon.ico">': "a picture without a text",
    "<svg width=9 height=9></svg>": "a drawing without a text",
    '<svg width=9 height=9 role="img" aria-labelledby="nothing"></svg>': "a drawing without a text",
    "<meter value=1></meter>": "a bar without a label",
    "<table><tr><td>1</td></tr></table>": "a table without headings",
    "<h1>Another</h1>": "2 h1",
    '<i id="quota-find"></i>': "share the id quota-find",
}


@pytest.mark.parametrize("html", BARRIERS)
def test_a_barrier_is_found(visits: Visits, html: str) -> None:
    visits.sign_in("admin")
    visits.open_page("subject search")
    assert barriers(visits) == []
    visits.run("document.getElementById('content').insertAdjacentHTML('beforeend', arguments[0])", html)
    assert [each for each in barriers(visits) if BARRIERS[html] in each]


def test_what_is_too_wide_is_found(visits: Visits) -> None:
    visits.open("/")
    look_on(visits.chrome, PHONE)
    assert overflow(visits, PHONE) == []
    visits.run("document.body.insertAdjacentHTML('beforeend', '<svg width=400 height=1></svg>')")
    assert "svg" in overflow(visits, PHONE)[0]


def test_what_is_too_faint_is_found(visits: Visits) -> None:
    visits.open("/")
    assert faint(visits) == []
    visits.run("document.querySelector('h1').style.color = 'rgb(150 150 150 / .5)'")
    assert "h1" in faint(visits)[0]


@pytest.mark.parametrize("html", ['<p style="color: red">x</p>', '<img src="http://127.0.0.1:1/x.png" alt="x">'])
def test_what_the_policy_refuses_is_found(visits: Visits, html: str) -> None:
    visits.open("/admin/login/")
    assert complaints(visits.chrome) == []
    visits.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", html)
    said = visits.until(lambda: complaints(visits.chrome), "the violation")
    assert "Content Security Policy" in said[0]
