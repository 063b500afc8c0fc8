"""The accessibility checks find each error that a test puts into a page."""

from __future__ import annotations

import pytest

from tests.e2e.accessibility import accessibility_errors, low_contrast, overflow
from tests.e2e.browser import Browser
from tests.e2e.chromium import PHONE, console_errors, set_screen

pytestmark = pytest.mark.thorough("browser")

ERRORS = {
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


@pytest.mark.parametrize("html", ERRORS)
def test_an_accessibility_error_is_found(browser: Browser, html: str) -> None:
    browser.sign_in("admin")
    browser.open_page("subject search")
    assert accessibility_errors(browser) == []
    browser.run("document.getElementById('content').insertAdjacentHTML('beforeend', arguments[0])", html)
    assert [each for each in accessibility_errors(browser) if ERRORS[html] in each]


def test_an_overflow_is_found(browser: Browser) -> None:
    browser.open("/")
    set_screen(browser.chrome, PHONE)
    assert overflow(browser, PHONE) == []
    browser.run("document.body.insertAdjacentHTML('beforeend', '<svg width=400 height=1></svg>')")
    assert "svg" in overflow(browser, PHONE)[0]


def test_low_contrast_is_found(browser: Browser) -> None:
    browser.open("/")
    assert low_contrast(browser) == []
    browser.run("document.querySelector('h1').style.color = 'rgb(150 150 150 / .5)'")
    assert "h1" in low_contrast(browser)[0]


@pytest.mark.parametrize("html", ['<p style="color: red">x</p>', '<img src="http://127.0.0.1:1/x.png" alt="x">'])
def test_a_violation_of_the_policy_is_found(browser: Browser, html: str) -> None:
    browser.open("/admin/login/")
    assert console_errors(browser.chrome) == []
    browser.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", html)
    said = browser.until(lambda: console_errors(browser.chrome), "the violation")
    assert "Content Security Policy" in said[0]
