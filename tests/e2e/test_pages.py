"""Every page in a browser: accessible, readable in light and dark, as wide as a desktop or a phone, and live."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from example_project.client import Visitor
from tests.e2e.accessibility import accessibility_errors, low_contrast, overflow
from tests.e2e.browser import DESK, PHONE, Browser, Screen, chromium, programs
from tests.e2e.sites import PAGES, Site, run_site, subject

pytestmark = pytest.mark.thorough("browser")

SEARCH = "/api/search/?limit=100"
"""It takes five of the thirty units a minute of the rule `api-search`."""
STATUS = "return performance.getEntriesByType('navigation')[0].responseStatus"


@pytest.fixture(scope="module")
def shared_browser() -> Iterator[Browser]:
    """The browser on the example site under ASGI, which is started only where there is a browser."""
    found = programs()
    if found is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium chromium-driver")
    with chromium(*found) as chrome, run_site() as site:
        yield Browser(chrome, site)


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser, signed out. An error in the console fails the test, also one of `default-src 'self'`."""
    shared_browser.sign_out()
    shared_browser.set_screen(DESK)
    shared_browser.console_errors()  # drops the errors of earlier tests
    yield shared_browser
    assert shared_browser.console_errors(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN) == []


def assert_fits_a_phone(browser: Browser) -> None:
    assert accessibility_errors(browser) == []
    browser.set_screen(PHONE)
    assert overflow(browser, PHONE) == []
    browser.set_screen(DESK)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits_its_screen(browser: Browser, name: str) -> None:
    browser.sign_in("admin")
    browser.open_page(name)
    assert browser.run(STATUS) == 200
    # Of a user's page, only the links are ours.
    assert accessibility_errors(browser, ".object-tools" if name == "user" else "#content") == []
    for screen in (DESK, PHONE):
        browser.set_screen(screen)
        assert overflow(browser, screen) == []


def test_lists_and_headings_fit_a_phone(browser: Browser) -> None:
    """Nothing of a row is beside the screen, where one would have to scroll to it."""
    browser.sign_in("admin")
    browser.set_screen(PHONE)
    for name, columns in (("overrides", "[class*=field-state], .field-created_by"), ("counters", ".field-refused")):
        browser.open_page(name)
        cells = browser.find_all(f"#result_list tbody :is({columns})")
        assert cells
        assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= PHONE.width for cell in cells)
        box = "const box = document.querySelector('.results'); return box.scrollWidth - box.clientWidth"
        assert browser.run(box) <= 0
    browser.open_page("rule")
    (caption,) = browser.visible("caption", "Refused last")
    assert caption.rect["width"] > caption.rect["height"] * 4  # it is one line


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, browser: Browser) -> Iterator[str]:
    browser.set_color_scheme(request.param)
    yield request.param
    browser.set_color_scheme("light")


def test_contrast_is_high_enough_in_light_and_dark(browser: Browser, scheme: str) -> None:
    for path in ("/", "/refused/"):
        browser.open(path)
        assert low_contrast(browser) == [], path
    browser.sign_in("admin")
    for name in ("subject", "banned subject", "usage", "overview", "override", "overrides", "counters", "rule"):
        browser.open_page(name)
        colour = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        shade = browser.run(colour)
        assert min(shade) > 200 if scheme == "light" else max(shade) < 60
        browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
        assert low_contrast(browser) == [], name


def test_a_scenario_counts_allowed_and_refused_requests(browser: Browser) -> None:
    browser.open("/")
    browser.find("#download button.send").click()
    browser.until(lambda: browser.visible("#download .totals", "5 admitted, 2 refused"), "seven answers")
    browser.until(lambda: browser.visible("#download .wait", "Room again in"), "until when")
    assert_fits_a_phone(browser)


def test_every_scenario_shows_who_is_signed_in(browser: Browser) -> None:
    browser.open("/")
    browser.visible("#tiers button", "Sign in as demo-pro")[0].click()
    browser.until(lambda: browser.visible("#tiers .who", "signed in as demo-pro"), "the pro's name")
    assert browser.visible("#members .who", "signed in as demo-pro")
    assert browser.run("return document.activeElement.textContent") == "Sign out"
    browser.visible("#tiers button.send", "Send")[0].click()
    browser.until(lambda: browser.visible("#tiers .totals", "12 admitted"), "twelve answers")
    assert browser.visible("#tiers .limit", "1000 per minute")


def test_the_refusal_page_says_until_when(browser: Browser) -> None:
    browser.open("/refused/")
    assert browser.run(STATUS) == 429
    assert browser.visible("body", "per minute")
    assert browser.visible("body", "second")
    assert_fits_a_phone(browser)


def refuse(browser: Browser, address: str) -> None:
    """Be refused as somebody of this address."""
    with Visitor(browser.site.port, headers={"X-Forwarded-For": address}) as visitor:
        assert [visitor.get("/try/download/").status for _ in range(6)] == [200] * 5 + [429]


def test_an_open_overview_shows_refusals_of_other_processes_and_catches_up_after_a_pause(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the script")
    browser.run("window.isTheSame = true")
    refuse(browser, "203.0.113.150")
    browser.until(lambda: browser.visible("#quota-events li a", "ip:203.0.113.150"), "the refusal")
    browser.find("[data-pause]").click()
    assert browser.find("[data-state]").text == "Paused"
    refuse(browser, "203.0.113.151")
    assert not browser.visible("#quota-events li", "203.0.113.151")
    browser.find("[data-pause]").click()
    browser.run("document.activeElement.blur()")
    browser.until(lambda: browser.visible("#quota-events li", "ip:203.0.113.151"), "what it has missed")
    assert browser.run("return window.isTheSame")


@contextmanager
def signed_in(site: Site, who: str) -> Iterator[Visitor]:
    """One of the people, with a client of their own."""
    with Visitor(site.port, headers={"X-Forwarded-For": "203.0.113.99"}) as visitor:
        visitor.get("/")
        assert visitor.post("/sign-in/", {"who": who}).status == 302
        yield visitor


def open_subject(browser: Browser, asked: str) -> None:
    browser.open_page("subject search")
    browser.find("#quota-find").send_keys(asked)
    browser.press(browser.visible("button", "Find")[0])


def test_a_raise_applies_with_the_next_request(browser: Browser) -> None:
    with signed_in(browser.site, "emeka") as emeka:
        assert any(emeka.get(SEARCH).status == 429 for _ in range(12))
        browser.sign_in("admin")
        open_subject(browser, "emeka")
        for summary in browser.find_all("details:not([open]) > summary"):
            summary.click()
        browser.press(browser.visible('section[aria-label="api-search"] button', "Raise")[0])
        for name, value in {"factor": "10", "span": "1d", "reason": "He asked for it."}.items():
            field = browser.find(f"[name={name}]")
            if field.tag_name == "select":
                browser.run("arguments[0].value = arguments[1]", field, value)
            else:
                field.clear()
                field.send_keys(value)
        browser.press(browser.visible("button", "Yes")[0])
        assert browser.visible("td", "He asked for it.")
        reply = emeka.get(SEARCH)
        assert (reply.status, reply.quotas["api-search"]) == (200, 300)


def test_actions_work_by_keyboard_alone(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open(f"/admin/django_quota/subject/?subject={subject('kamala')}")
    for _ in range(60):
        browser.chrome.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.chrome.switch_to.active_element
        if focused.text.startswith("Block"):
            break
    else:
        pytest.fail("No button that blocks within 60 tabs.")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    focused.send_keys(Keys.ENTER)
    browser.until(lambda: browser.visible("button", "Yes"), "the question whether to block")


def test_confirmations_are_accessible_and_fit_a_phone(browser: Browser) -> None:
    browser.sign_in("admin")
    for label in ("Raise", "Exempt", "Block", "Reset"):
        open_subject(browser, "kamala")
        browser.press(browser.visible("button", label)[0])
        assert subject("kamala") in browser.find(".quota-warning").text
        assert_fits_a_phone(browser)


def test_the_preview_follows_the_typing(browser: Browser) -> None:
    with signed_in(browser.site, "chiara") as chiara:
        assert [chiara.get(SEARCH).status for _ in range(2)] == [200, 200]
        browser.sign_in("admin")
        browser.open_page("new override")
        browser.find("[name=rule]").clear()
        for name, text in {"subject": subject("chiara"), "rule": "api-search", "rate": "77/m"}.items():
            browser.find(f"[name={name}]").send_keys(text)
        browser.until(lambda: browser.visible("#quota-preview", "10 of 77"), "the preview")
        assert browser.visible("#quota-preview", "10 of 30")
        assert_fits_a_phone(browser)
        assert chiara.get(SEARCH).quotas["api-search"] == 30  # nothing is saved


def box(browser: Browser, selector: str) -> dict[str, float]:
    """Return where the first element of a selector is on the page."""
    found: dict[str, float] = browser.run(
        "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
    )
    return found


def test_only_the_mode_another_rate_has_the_field_of_a_rate(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("new override")
    browser.find("[name=rate]").send_keys("100/m")

    Select(browser.find("[name=mode]")).select_by_value("exempt")

    assert not browser.find("[name=rate]").is_displayed()
    assert not browser.find("[name=rate]").is_enabled()
    Select(browser.find("[name=mode]")).select_by_value("rate")
    assert browser.find("[name=rate]").is_displayed()


def test_on_a_phone_the_feed_comes_after_the_summary(browser: Browser) -> None:
    browser.set_screen(PHONE)
    browser.sign_in("admin")
    browser.open_page("overview")

    tops = [box(browser, selector)["top"] for selector in (".quota-summary", ".quota-live", ".quota-rules")]

    assert tops == sorted(tops)


def test_on_a_desk_the_feed_is_beside_the_figures(browser: Browser) -> None:
    browser.set_screen(DESK)
    browser.sign_in("admin")
    browser.open_page("overview")

    live, summary = box(browser, ".quota-live"), box(browser, ".quota-summary")

    assert live["left"] >= summary["right"]
    assert abs(live["top"] - summary["top"]) < 2


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_the_peak_is_beside_its_bars(browser: Browser, screen: Screen) -> None:
    browser.set_screen(screen)
    browser.sign_in("admin")
    browser.open_page("overview")

    bars, peak = box(browser, ".quota-beside svg"), box(browser, ".quota-beside .quota-quiet")

    assert peak["left"] >= bars["right"]
    assert bars["top"] <= peak["bottom"]
    assert peak["top"] <= bars["bottom"]


@pytest.mark.parametrize("name", ["overrides", "counters"])
def test_the_box_that_selects_all_is_whole_on_a_phone(browser: Browser, name: str) -> None:
    browser.set_screen(PHONE)
    browser.sign_in("admin")
    browser.open_page(name)

    toggle, row = box(browser, "#action-toggle"), box(browser, "#result_list thead tr")

    assert row["top"] <= toggle["top"]
    assert toggle["bottom"] <= row["bottom"]


def test_a_ban_is_set_in_the_admin_and_lifted_there(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.open_page("bans")
    browser.press(browser.visible("a", "Ban…")[0])
    for name, text in {"subject": "192.0.2.222", "reason": "It guesses passwords."}.items():
        browser.find(f"[name={name}]").send_keys(text)
    browser.press(browser.visible("button", "Ban")[0])
    (row,) = browser.visible("tr", "192.0.2.222")
    assert "It guesses passwords. (by admin)" in row.text

    row.find_element(By.CSS_SELECTOR, "input[type=checkbox]").click()
    browser.press(browser.visible("button", "Lift selected bans")[0])
    browser.press(browser.visible("button", "Yes")[0])

    assert not browser.visible("tr", "192.0.2.222")


def test_usage_fills_the_page(browser: Browser) -> None:
    browser.set_screen(DESK)
    browser.sign_in("admin")
    browser.open_page("usage")

    page = box(browser, "#content-main")["width"]

    assert all(
        box(browser, chart)["width"] > 0.9 * page
        for chart in (".quota-heat", ".usage-scroll .quota-bars", ".usage-totals")
    )
