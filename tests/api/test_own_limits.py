"""The caller's own limits: the page of `django_quota.urls`, and `{% quota_limits %}`."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import HttpRequest
from django.template import engines
from django.test import RequestFactory
from django.urls import include, path, reverse

from django_quota import Rule, Subject, ban, check, limits_of
from django_quota.http.limits import _log_left_out, limit_in_words, limits_view
from django_quota.testing import freeze
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START

pytestmark = pytest.mark.usefixtures("either_store")

urlpatterns = [path("limits/", include("django_quota.urls"))]


def by_org(request: HttpRequest) -> Subject:
    return Subject("org", "7")


RULES: dict[str, Any] = {
    "plan": {"rate": "10000/month", "algorithm": "calendar", "key": f"{__name__}.by_org", "match": "/api/"},
    "uploads": {"rate": "5/m", "key": "user", "methods": ["POST"]},
    "flood": {"rate": "100/h", "algorithm": "fixed_window"},
    "staff": {"rate": "1/m", "key": "user", "exempt": ["192.0.2.0/24"]},
    "trial": {"rate": "1/m", "key": "user", "shadow": True},
    "site": {"rate": "9/s", "key": "global"},
    "codes": {"rate": "1/m", "key": ["ip", "post:phone"]},
    "closed": {"rate": "0/m", "key": "user"},
}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    settings.ROOT_URLCONF = __name__


def request_of_ann() -> HttpRequest:
    request = RequestFactory().get("/limits/", REMOTE_ADDR="192.0.2.1")
    request.user = User(pk=7)
    return request


def shown() -> dict[str, str]:
    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())
    row = r'(?s)<strong>(\w+)</strong>.*?aria-label="(\w+)">(.*?)</meter>\s*<span>(.*?)</span>'
    said = re.findall(row, text)
    assert all(rule == label and bar == left for rule, label, bar, left in said)
    return {rule: left for rule, *_, left in said}


def test_the_page_has_the_limits_about_the_caller_wherever_they_match(client: Any) -> None:
    with freeze(START):
        check("plan", "org:7", 5)
        check("flood", "ip:192.0.2.1")
        response = limits_view(request_of_ann())
        assert response.headers["Cache-Control"] == "private, no-store"
        assert [client.get("/limits/").status_code, client.post("/limits/").status_code] == [200, 405]
    plan, *others = json.loads(response.content)["limits"]
    assert (plan["rule"], plan["rate"], plan["limit"], plan["used"]) == ("plan", "10000/month", 10000, 5)
    assert (plan["remaining"], plan["until"], plan["state"]) == (9995, "2025-12-01T00:00:00+00:00", "")
    found = [(each["rule"], each["limit"], each["used"]) for each in others]
    assert found == [("uploads", 5, 0), ("flood", 100, 1), ("closed", 0, 0)]
    assert others[0]["until"] is None
    with no_answer():
        assert limits_view(request_of_ann()).status_code == 503


def test_the_page_is_a_list_of_objects(settings: Any) -> None:
    rules = {"flood": RULES["flood"], "uploads": {"rate": "5/m"}}
    settings.QUOTA, settings.TIME_ZONE = {**settings.QUOTA, "RULES": rules}, "UTC"
    with freeze(START + 1):
        check("flood", "ip:192.0.2.1", 3)
        found = json.loads(limits_view(request_of_ann()).content)

    flood = {"rule": "flood", "rate": "100/h", "limit": 100, "used": 3, "remaining": 97}
    uploads = {"rule": "uploads", "rate": "5/m", "limit": 5, "used": 0, "remaining": 5}
    assert found == {
        "limits": [
            {**flood, "until": "2025-11-21T05:40:00+00:00", "state": ""},
            {**uploads, "until": None, "state": ""},
        ]
    }


@pytest.mark.parametrize(("mode", "state"), [("b 0 0 -", "blocked"), ("x 0 0 -", "exempt")], ids=["blocked", "exempt"])
def test_the_page_says_what_an_override_does(mode: str, state: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"uploads": {"rate": "5/m"}}}
    override(mode, "uploads", "ip:192.0.2.1")

    (found,) = json.loads(limits_view(request_of_ann()).content)["limits"]

    assert (found["rule"], found["state"], found["until"]) == ("uploads", state, None)


def test_the_tag_is_a_list_in_html(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"a<b>": {"rate": "5000/m"}}}

    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())

    assert [line.strip() for line in text.splitlines()] == [
        '<ul class="quota-limits">',
        "<li>",
        "<strong>a&lt;b&gt;</strong> <span>5,000 per minute</span><br>",
        '<meter min="0" max="5000" value="5000" aria-label="a&lt;b&gt;">5,000 of 5,000 left</meter>',
        "<span>5,000 of 5,000 left</span>",
        "</li>",
        "</ul>",
    ]


@pytest.fixture
def unlimited(either_store: None, rules: None, settings: Any) -> None:
    """Ann's plan has no limit, and she has used 500 units."""
    rate = {"anonymous": "9/month", "authenticated": None}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plan": {"rate": rate, "algorithm": "calendar", "key": "user"}}}
    check("plan", User(pk=7), 500)


@pytest.mark.usefixtures("unlimited")
def test_the_page_has_a_plan_without_a_limit() -> None:
    (plan,) = json.loads(limits_view(request_of_ann()).content)["limits"]

    assert [plan[name] for name in ("rule", "rate", "limit", "used", "remaining")] == ["plan", None, None, 500, None]


@pytest.mark.usefixtures("unlimited")
def test_the_tag_says_that_a_plan_without_a_limit_is_unlimited() -> None:
    assert shown() == {"plan": "unlimited"}


@pytest.mark.usefixtures("unlimited")
def test_the_bar_of_a_plan_without_a_limit_is_whole() -> None:
    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())

    assert re.findall(r'max="(\d+)" value="(\d+)"', text) == [("1", "1")]
    assert "<strong>plan</strong> <span></span>" in text


@pytest.mark.usefixtures("unlimited")
def test_limits_of_a_subject_have_a_plan_without_a_limit() -> None:
    assert [(each.limit, each.used) for each in limits_of("user:7").outcomes] == [(None, 500)]


def test_the_page_answers_guests_where_each_page_needs_a_login(client: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert client.get("/limits/").status_code == 200


def test_the_tag_shows_what_is_left_until_when(settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    with freeze(START):
        check("plan", "org:7", 5)
        check("flood", "ip:192.0.2.1")
        check("uploads", "user:7")
        assert shown()["closed"] == "closed"

        override("b 0 0 -", "closed", "user:7")
        expected = {
            "plan": "9,995 of 10,000 left until 1 December",
            "uploads": "4 of 5 left, all of them from 4:41 a.m. UTC",
            "flood": "99 of 100 left until 5:40 a.m. UTC",
            "closed": "blocked",
        }
        assert shown() == expected

        override(f"b 0 {START + 60 * SECOND} -", "flood", "ip:192.0.2.1")
        override("x 0 0 -", "uploads", "user:7")
        assert shown() == expected | {"flood": "blocked until 4:41 a.m. UTC", "uploads": "unlimited"}


@pytest.mark.parametrize(
    ("now", "left"),
    [
        pytest.param(START, "99 of 100 left until 5:40 a.m. UTC", id="today"),
        pytest.param(START + 68_400 * SECOND, "99 of 100 left until 22 November, 12:40 a.m. UTC", id="tomorrow"),
    ],
)
def test_the_day_is_written_unless_it_is_today(settings: Any, now: int, left: str) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    with freeze(now):
        check("flood", "ip:192.0.2.1")

        assert shown()["flood"] == left


@pytest.mark.parametrize(
    ("tz", "until", "words"),
    [
        pytest.param("America/New_York", "2025-12-01T00:00:00-05:00", "1 December", id="its own zone"),
        pytest.param(None, "2025-12-01T00:00:00+00:00", "1 December", id="UTC without one"),
    ],
)
def test_the_end_of_a_period_is_in_the_time_zone_of_its_rule(
    tz: str | None, until: str, words: str, settings: Any
) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "Asia/Tokyo"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plan": {**RULES["plan"], "key": "user", "tz": tz}}}
    with freeze(START):
        check("plan", "user:7")

        (plan,) = json.loads(limits_view(request_of_ann()).content)["limits"]
        assert (plan["until"], shown()) == (until, {"plan": f"9,999 of 10,000 left until {words}"})


def test_the_end_of_a_window_is_in_the_time_zone_of_the_site(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    with freeze(START):
        check("uploads", "user:7")

        found = json.loads(limits_view(request_of_ann()).content)["limits"]
    assert next(each["until"] for each in found if each["rule"] == "uploads").endswith("+09:00")


def test_today_is_the_day_in_the_time_zone_of_the_site(settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "Asia/Tokyo"
    with freeze(START + 12 * 3_600 * SECOND):  # it is 1:40 a.m. there, and 4:40 p.m. of the day before in UTC
        check("flood", "ip:192.0.2.1")

        assert shown()["flood"] == "99 of 100 left until 2:40 a.m. JST"


@pytest.mark.parametrize(
    ("rate", "left"),
    [
        pytest.param("5/d", "4 of 5 left until 22 November", id="a day"),
        pytest.param("5/h", "4 of 5 left until 5 a.m. UTC", id="less than a day"),
    ],
)
def test_a_period_of_days_ends_on_a_day(rate: str, left: str, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    rules = {"plan": {"rate": rate, "algorithm": "calendar", "key": "user"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    with freeze(START):
        check("plan", "user:7")

        assert shown() == {"plan": left}


@pytest.mark.parametrize(
    ("earlier", "day"),
    [pytest.param(60, "1 December", id="a minute"), pytest.param(2_400, "30 November", id="40 minutes")],
)
def test_a_period_ends_on_its_day_though_the_clock_of_the_store_is_ahead(earlier: int, day: str, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plan": {**RULES["plan"], "key": "user"}}}
    with freeze(START):
        check("plan", "user:7")
        (outcome,) = limits_of("user:7").outcomes
        shorter = outcome._replace(reset_after=outcome.reset_after - earlier)

        assert limit_in_words(shorter) == f"9,999 of 10,000 left until {day}"


def test_a_limit_that_is_used_up_is_not_closed() -> None:
    (used,) = check("1/m", "user:7").outcomes
    (closed,) = check("0/m", "user:7").outcomes

    assert limit_in_words(used).startswith("0 of 1 left, ")
    assert limit_in_words(closed) == "closed"


def test_a_block_names_the_time_of_its_end_though_the_limit_is_one_of_days(settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    override(f"b 0 {START + 60 * SECOND} -", "plan", "org:7")
    with freeze(START):
        assert shown()["plan"] == "blocked until 4:41 a.m. UTC"


def test_a_ban_names_the_time_of_its_end_though_what_was_used_counts_for_longer(settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en-gb", "UTC"
    rule = Rule.make("login", "5/d", ban={"after": "9/m", "for": "1m"})
    with freeze(START):
        check(rule, "org:7")

        (outcome,) = ban(rule, "org:7", "1m").outcomes

        assert limit_in_words(outcome) == "blocked until 4:41 a.m. UTC"


@pytest.mark.parametrize(
    ("rule", "meter"),
    [
        pytest.param("uploads", ("5", "5"), id="unused"),
        pytest.param("closed", ("1", "0"), id="a limit of nothing"),
        pytest.param("flood", ("100", "0"), id="blocked"),
    ],
)
def test_the_bar_is_as_long_as_what_is_left(rule: str, meter: tuple[str, str]) -> None:
    override("b 0 0 -", "flood", "ip:192.0.2.1")

    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())

    assert re.findall(rf'max="(\d+)" value="(\d+)" aria-label="{rule}"', text) == [meter]


def test_the_bar_of_a_limit_is_empty_while_the_caller_is_banned(settings: Any) -> None:
    rules = {"flood": {**RULES["flood"], "ban": {"after": "9/m", "for": "1h"}}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    ban("flood", "ip:192.0.2.1", "10m")

    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())

    assert re.findall(r'max="(\d+)" value="(\d+)" aria-label="flood"', text) == [("100", "0")]


def test_the_tag_has_the_rate_in_words() -> None:
    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({}, request_of_ann())

    assert "<strong>plan</strong> <span>10,000 per month</span>" in text


def test_the_tag_takes_a_request_that_wraps_that_of_django(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"uploads": RULES["uploads"]}}
    wrapper = SimpleNamespace(_request=request_of_ann())

    text = engines["django"].from_string("{% load quota %}{% quota_limits %}").render({"request": wrapper})

    assert "<strong>uploads</strong>" in text


def test_a_template_links_the_page_by_its_name() -> None:
    assert reverse("django_quota:limits") == "/limits/"


def test_the_tag_shows_nothing_where_there_is_no_request() -> None:
    assert "<li>" not in engines["django"].from_string("{% load quota %}{% quota_limits %}").render({})


def test_a_rule_that_is_wrong_hides_no_other(settings: Any) -> None:
    """A system check reports it."""
    settings.QUOTA = {**settings.QUOTA, "RULES": {"wrong": "5/mx", "uploads": RULES["uploads"]}}

    assert names_on_both() == ["uploads"]


def asks_a_database(request: HttpRequest) -> str:
    raise DatabaseError("it is gone")


@pytest.mark.parametrize("rule_and_another", [{"skip": f"{__name__}.asks_a_database"}], indirect=True, ids=["skip"])
def test_a_database_that_fails_is_an_error_of_the_page(rule_and_another: None) -> None:
    with pytest.raises(DatabaseError):
        limits_view(request_of_ann())


@pytest.mark.parametrize(
    "rule_and_another", [{"block": False}, {"shadow": False}], indirect=True, ids=["lets pass", "blocks"]
)
def test_each_limit_is_shown_once_though_an_override_blocks_one(rule_and_another: None) -> None:
    override("b 0 0 -", "odd", "user:7")

    assert names_on_both() == ["odd", "plain"]


@pytest.mark.parametrize("rule_and_another", [{"cost": f"{__name__}.no_cost"}], indirect=True, ids=["cost"])
def test_a_look_at_the_page_costs_nothing(rule_and_another: None) -> None:
    assert names_on_both() == ["odd", "plain"]


# --- functions of the site that expect another request ----------------------------------------------------------------


def by_shop(request: HttpRequest) -> Subject:
    return Subject("shop", request.resolver_match.kwargs["shop"])  # type: ignore[union-attr]


def tier_of_shop(request: HttpRequest) -> str:
    return str(by_shop(request))


def no_cost(request: HttpRequest) -> int:
    raise AssertionError("it asks for the cost of the page")


def is_ann(request: HttpRequest) -> bool:
    return request.user.pk == 7


def names_on_both() -> list[str]:
    """Return the rules on the page, which are those of the tag."""
    names = [each["rule"] for each in json.loads(limits_view(request_of_ann()).content)["limits"]]
    assert names == list(shown())
    return names


@pytest.fixture
def rule_and_another(request: pytest.FixtureRequest, settings: Any) -> None:
    """Two rules: `odd` has the options of the parameter, `plain` has none."""
    rules = {"odd": {"rate": "1/m", "key": "user"} | request.param, "plain": {"rate": "1/m"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    _log_left_out.cache_clear()


@pytest.mark.parametrize(
    "rule_and_another",
    [
        pytest.param({"key": f"{__name__}.by_shop"}, id="key"),
        pytest.param({"key": ["ip", f"{__name__}.by_shop"]}, id="part-of-a-key"),
        pytest.param({"rate": {"anonymous": "1/m"}, "tier": f"{__name__}.tier_of_shop"}, id="tier"),
        pytest.param({"skip": f"{__name__}.tier_of_shop"}, id="skip"),
        pytest.param({"exempt": f"{__name__}.tier_of_shop"}, id="exempt"),
    ],
    indirect=True,
)
def test_a_function_that_does_not_fit_the_page_costs_its_own_rule_only(
    rule_and_another: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert names_on_both() == ["plain"]
    (record,) = [each for each in caplog.records if each.name == "django_quota.web"]
    assert record.getMessage() == (
        "Rule 'odd' is left out of the caller's limits: its functions failed for this request. They get the request of "
        "the page that shows the limits."
    )
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)


@pytest.mark.parametrize(
    "rule_and_another",
    [{"key": key} for key in ("global", "path", "get:q", "kwarg:pk", "post:phone", "json:phone", ("user", "path"))],
    indirect=True,
    ids=lambda options: str(options["key"]),
)
def test_a_rule_that_is_not_about_the_caller_alone_is_not_shown(rule_and_another: None) -> None:
    assert names_on_both() == ["plain"]


@pytest.mark.parametrize("rule_and_another", [{"distinct": "get:q"}], indirect=True, ids=["distinct"])
def test_a_rule_about_the_caller_that_counts_values_of_the_page_is_shown(rule_and_another: None) -> None:
    assert names_on_both() == ["odd", "plain"]


@pytest.mark.parametrize("rule_and_another", [{"skip": f"{__name__}.is_ann"}], indirect=True, ids=["skip"])
def test_a_rule_that_skips_the_caller_is_not_shown(rule_and_another: None) -> None:
    assert names_on_both() == ["plain"]
