"""Every page in a browser: accessible, readable in light and dark, as wide as a desktop or a phone, and live."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
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
def test_a_page_is_accessible(browser: Browser, name: str) -> None:
    browser.sign_in("admin")

    browser.open_page(name)

    assert browser.run(STATUS) == 200
    # Of a user's page, only the links are ours.
    assert accessibility_errors(browser, ".object-tools" if name == "user" else "#content") == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_each_screen(browser: Browser, name: str) -> None:
    browser.sign_in("admin")
    browser.open_page(name)

    found = {}
    for screen in (DESK, PHONE):
        browser.set_screen(screen)
        found[screen.name] = overflow(browser, screen)

    assert found == {"desk": [], "phone": []}


@pytest.mark.parametrize(
    ("name", "columns"),
    [("overrides", "[class*=field-state], .field-created_by"), ("counters", ".field-refused")],
    ids=["overrides", "counters"],
)
def test_the_rows_of_a_list_fit_a_phone(browser: Browser, name: str, columns: str) -> None:
    """Nothing of a row is beside the screen, where one would have to scroll to it."""
    browser.sign_in("admin")
    browser.set_screen(PHONE)

    browser.open_page(name)

    cells = browser.find_all(f"#result_list tbody :is({columns})")
    assert cells
    assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= PHONE.width for cell in cells)
    box = "const box = document.querySelector('.results'); return box.scrollWidth - box.clientWidth"
    assert browser.run(box) <= 0


def test_the_caption_of_a_table_is_one_line_on_a_phone(browser: Browser) -> None:
    browser.sign_in("admin")
    browser.set_screen(PHONE)

    browser.open_page("rule")

    (caption,) = browser.visible("caption", "Refused last")
    assert caption.rect["width"] > caption.rect["height"] * 4


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, browser: Browser) -> Iterator[str]:
    browser.set_color_scheme(request.param)
    yield request.param
    browser.set_color_scheme("light")


@pytest.mark.usefixtures("scheme")
@pytest.mark.parametrize("path", ["/", "/refused/"])
def test_contrast_is_high_enough_on_a_page_for_visitors(browser: Browser, path: str) -> None:
    browser.open(path)

    assert low_contrast(browser) == []


@pytest.mark.parametrize(
    "name", ["subject", "banned subject", "usage", "overview", "override", "overrides", "counters", "rule"]
)
def test_contrast_is_high_enough_on_a_page_for_staff(browser: Browser, scheme: str, name: str) -> None:
    browser.sign_in("admin")

    browser.open_page(name)
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true")

    colour = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    shade = browser.run(colour)
    assert min(shade) > 200 if scheme == "light" else max(shade) < 60
    assert low_contrast(browser) == []


def test_a_scenario_counts_its_requests_by_answer(browser: Browser) -> None:
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


@pytest.fixture
def open_overview(browser: Browser) -> Browser:
    """The overview in the browser, where it has begun to refresh itself."""
    browser.sign_in("admin")
    browser.open_page("overview")
    browser.until(lambda: browser.find("[data-state]").text == "Live", "the script")
    browser.run("window.isTheSame = true")
    return browser


def test_an_open_overview_shows_refusals_of_other_processes(open_overview: Browser) -> None:
    refuse(open_overview, "203.0.113.150")

    open_overview.until(lambda: open_overview.visible("#quota-events li a", "ip:203.0.113.150"), "the refusal")
    assert open_overview.run("return window.isTheSame")


def test_an_overview_catches_up_after_a_pause(open_overview: Browser) -> None:
    open_overview.find("[data-pause]").click()
    assert open_overview.find("[data-state]").text == "Paused"
    refuse(open_overview, "203.0.113.151")
    assert not open_overview.visible("#quota-events li", "203.0.113.151")

    open_overview.find("[data-pause]").click()
    open_overview.run("document.activeElement.blur()")

    open_overview.until(lambda: open_overview.visible("#quota-events li", "ip:203.0.113.151"), "what it has missed")
    assert open_overview.run("return window.isTheSame")


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
        reply = emeka.get(SEARCH)

        assert browser.visible("td", "He asked for it.")
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


@pytest.fixture(params=["Raise", "Exempt", "Block", "Reset"])
def confirmation(request: pytest.FixtureRequest, browser: Browser) -> Browser:
    """The page that asks before an action on Kamala."""
    browser.sign_in("admin")
    open_subject(browser, "kamala")
    browser.press(browser.visible("button", request.param)[0])
    return browser


def test_a_confirmation_names_the_subject(confirmation: Browser) -> None:
    assert subject("kamala") in confirmation.find(".quota-warning").text


def test_a_confirmation_is_accessible(confirmation: Browser) -> None:
    assert accessibility_errors(confirmation) == []


def test_a_confirmation_fits_a_phone(confirmation: Browser) -> None:
    confirmation.set_screen(PHONE)

    assert overflow(confirmation, PHONE) == []


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


def set_ban(browser: Browser, address: str) -> list[WebElement]:
    """Ban an address as staff do; return the rows of the list, not of the history, that have it."""
    browser.sign_in("admin")
    browser.open_page("bans")
    browser.press(browser.visible("a", "Ban…")[0])
    for name, text in {"subject": address, "reason": "It guesses passwords."}.items():
        browser.find(f"[name={name}]").send_keys(text)
    browser.press(browser.visible("button", "Ban")[0])
    return [row for row in browser.visible("tr", address) if row.find_elements(By.CSS_SELECTOR, "input[type=checkbox]")]


def test_a_ban_can_be_set_in_the_admin(browser: Browser) -> None:
    (row,) = set_ban(browser, "192.0.2.221")

    assert "It guesses passwords. (by admin)" in row.text


def test_a_ban_can_be_lifted_in_the_admin(browser: Browser) -> None:
    (row,) = set_ban(browser, "192.0.2.222")

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
