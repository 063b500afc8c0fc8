"""The usage page in a browser: its charts, their words and the table."""

from __future__ import annotations

import re
from calendar import isleap
from datetime import timedelta

import pytest
from django.utils import timezone
from selenium.webdriver.remote.webelement import WebElement

from tests.e2e.browser import Browser
from tests.e2e.sites import subject

pytestmark = pytest.mark.thorough("browser")

USAGE = "/admin/django_quota/dailycounter/usage/?subject="


def cells(browser: Browser, subject: str, year: int) -> list[str]:
    """Open the page, and return what the cells of its heat map say."""
    browser.open(f"{USAGE}{subject}&year={year}")
    found: list[str] = browser.run("""
        const drawn = [...document.querySelectorAll("#content .quota-heat[role=img] g > title")];
        return drawn.map((title) => title.textContent);
    """)
    return found


def test_the_heat_map_has_a_cell_for_every_day(browser: Browser) -> None:
    browser.sign_in("admin")
    before = timezone.localdate()
    assert len(cells(browser, subject("ada"), before.year - 1)) == 365 + isleap(before.year - 1)
    shown = len(cells(browser, subject("ada"), before.year))
    assert shown in {before.timetuple().tm_yday, timezone.localdate().timetuple().tm_yday}  # midnight may be between


def test_the_cells_hold_the_history(browser: Browser) -> None:
    browser.sign_in("admin")
    yesterday = timezone.localdate() - timedelta(days=1)  # the history's last day
    titles = [cell.partition(": ")[2] for cell in cells(browser, subject("hana"), yesterday.year)]
    assert any(re.search(r"[1-9]", words) for words in titles)


def test_the_charts_have_words_and_a_table(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open(f"{USAGE}{subject('goran')}")
    names = browser.run("""
        const words = (id) => document.getElementById(id).textContent;
        const name = (svg) => svg.getAttribute("aria-label")
            || svg.getAttribute("aria-labelledby").split(/\\s+/).map(words).join(" ");
        return [...document.querySelectorAll("#content svg[role=img]")].map(name);
    """)
    assert any(str(timezone.localdate().year) in name and re.search(r"\d", name) for name in names)
    summary = browser.visible("summary", "Show as a table")[0]
    summary.click()
    assert browser.visible("details[open] th", "Day")
    assert len(browser.find_all("details[open] tbody tr")) > 10  # of thirty days


def test_the_page_of_a_user_links_to_usage_and_limits(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("user")
    browser.press(tool(browser, "usage"))
    assert browser.visible(".usage-subject", "user:1")
    browser.press(tool(browser, "limits"))
    assert browser.visible("h1, h2", "user:1")


def tool(browser: Browser, word: str) -> WebElement:
    """Return the object tool with this word."""
    return browser.visible(".object-tools a", word)[0]
