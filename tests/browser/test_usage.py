"""The usage page: a year of days, drawn, and told in words and in a table."""

from __future__ import annotations

import re
from calendar import isleap
from datetime import timedelta

from django.utils import timezone
from selenium.webdriver.remote.webelement import WebElement

from tests.browser.sites import subject
from tests.browser.visits import Visits

USAGE = "/admin/django_quota/dailycounter/usage/?subject="


def cells(visits: Visits, subject: str, year: int) -> list[str]:
    """Open the page, and return what the cells of its heat map say."""
    visits.open(f"{USAGE}{subject}&year={year}")
    found: list[str] = visits.run("""
        const drawn = [...document.querySelectorAll("#content .quota-heat[role=img] g > title")];
        return drawn.map((title) => title.textContent);
    """)
    return found


def test_the_heat_map_has_a_cell_for_every_day(visits: Visits) -> None:
    visits.sign_in("admin")
    before = timezone.localdate()
    assert len(cells(visits, subject("ada"), before.year - 1)) == 365 + isleap(before.year - 1)
    shown = len(cells(visits, subject("ada"), before.year))
    assert shown in {before.timetuple().tm_yday, timezone.localdate().timetuple().tm_yday}  # midnight may be between


def test_the_cells_tell_the_history(visits: Visits) -> None:
    visits.sign_in("admin")
    yesterday = timezone.localdate() - timedelta(days=1)  # the history's last day
    told = [cell.partition(": ")[2] for cell in cells(visits, subject("hana"), yesterday.year)]
    assert any(re.search(r"[1-9]", words) for words in told)


def test_the_year_is_told_in_words_too(visits: Visits) -> None:
    visits.sign_in("admin")
    visits.open(f"{USAGE}{subject('goran')}")
    names = visits.run("""
        const words = (id) => document.getElementById(id).textContent;
        const name = (svg) => svg.getAttribute("aria-label")
            || svg.getAttribute("aria-labelledby").split(/\\s+/).map(words).join(" ");
        return [...document.querySelectorAll("#content svg[role=img]")].map(name);
    """)
    assert any(str(timezone.localdate().year) in name and re.search(r"\d", name) for name in names)
    summary = visits.named("summary", "The same figures as a table")[0]
    summary.click()
    assert visits.named("details[open] th", "Day")
    assert len(visits.find_all("details[open] tbody tr")) > 10  # of thirty days


def test_the_user_page_leads_to_the_usage_and_back(visits: Visits) -> None:
    visits.sign_in("admin")
    visits.open_page("user")
    visits.press(tool(visits, "usage"))
    assert visits.named(".usage-subject", "user:1")
    visits.press(tool(visits, "limits"))
    assert visits.named("h1, h2", "user:1")


def tool(visits: Visits, word: str) -> WebElement:
    """Return the object tool with this word."""
    return visits.named(".object-tools a", word)[0]
