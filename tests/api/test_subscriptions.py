"""Rules whose months begin on the customer's day, wherever a request, a call or a page asks about them."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_quota import (
    Rule,
    acheck,
    check,
    check_all,
    limits_of,
    peek,
    quota,
    raise_limit,
    refund,
    reserve,
    reset,
    usage,
)
from django_quota.adapters import decide
from django_quota.core.overrides import Override
from django_quota.exceptions import RuleError
from django_quota.features.reservations.calls import Reservation
from django_quota.features.usage.rollup import roll_up
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import load_snapshot, preview_override
from django_quota.testing import freeze
from tests.support.outages import no_answer

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
ENDS = datetime(2026, 4, 15, tzinfo=UTC)
"""When the month of `org:7` ends."""

DAYS: dict[str, Any] = {}
CALLS: list[str] = []

pytestmark = pytest.mark.usefixtures("memory_store", "database")


def started(subject: str) -> Any:
    CALLS.append(subject)
    return DAYS.get(subject)


async def astarted(subject: str) -> Any:
    return started(subject)


@pytest.fixture(autouse=True)
def rules(memory_store: None, settings: Any) -> Iterator[None]:
    month = {"rate": "10/month", "algorithm": "calendar", "starts": f"{__name__}.started", "daily": True}
    rules = {
        "tokens": month,
        "words": {**month, "starts": f"{__name__}.astarted"},
        "berlin": {**month, "tz": "Europe/Berlin"},
        "seats": {**month, "rate": {"anonymous": "5/d", "authenticated": "10/month"}},
        "plans": {**month, "rate": {"free": "5/month", "pro": None}, "tier": lambda _: "free"},
        "plain": {"rate": "10/month", "algorithm": "calendar"},
    }
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    DAYS.clear()
    CALLS.clear()
    DAYS["org:7"] = DAYS["user:7"] = date(2025, 11, 15)
    with freeze(NOW):
        yield


def ends(wait: float | None) -> datetime | None:
    return None if wait is None else NOW + timedelta(seconds=wait)


@pytest.mark.parametrize("rule", ["tokens", "words"], ids=["sync", "async"])
def test_the_month_begins_on_the_day_that_the_function_returns(rule: str) -> None:
    check(rule, "org:7", 10)

    assert ends(check(rule, "org:7").retry_after) == ENDS


def test_in_async_code_the_month_is_the_same() -> None:
    async def use() -> float | None:
        await acheck("words", "org:7", 10)
        return (await acheck("tokens", "org:7", 10)).outcomes[0].reset_after

    assert ends(async_to_sync(use)()) == ENDS


@pytest.mark.parametrize(
    ("given", "until"),
    [
        (None, datetime(2026, 3, 31, 22, tzinfo=UTC)),
        (date(2026, 3, 31), datetime(2026, 3, 30, 22, tzinfo=UTC)),
        (datetime(2025, 11, 14, 23, 30, tzinfo=UTC), datetime(2026, 4, 14, 22, tzinfo=UTC)),
        (datetime(2025, 11, 15, 23, 30), datetime(2026, 4, 14, 22, tzinfo=UTC)),  # noqa: DTZ001
    ],
    ids=["None", "date", "aware", "naive"],
)
def test_the_day_of_a_datetime_is_that_of_the_rules_zone(given: Any, until: datetime) -> None:
    DAYS["org:7"] = given

    assert ends(check("berlin", "org:7", 10).outcomes[0].reset_after) == until


@pytest.mark.parametrize("given", ["2026-01-15", 15, True], ids=["string", "number", "bool"])
def test_a_function_that_returns_no_day_is_an_error_that_names_it(given: Any) -> None:
    DAYS["org:7"] = given

    with pytest.raises(RuleError) as raised:
        check("tokens", "org:7")

    assert str(raised.value) == (
        f"{__name__}.started, starts= of rule 'tokens', returned {given!r} for org:7. Return a date or a datetime, or "
        "None for the weeks, months and years of the calendar."
    )


def test_an_error_of_the_function_reaches_the_caller() -> None:
    def broken(_subject: str) -> date:
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        check("10/month", "org:7", algorithm="calendar", starts=broken)


def test_a_request_calls_the_function_once(rf: RequestFactory) -> None:
    @quota("9/month", algorithm="calendar", key="user", starts=started)
    @quota("5/week", algorithm="calendar", key="user", starts=started, name="week")
    def view(_request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    request = rf.get("/")
    request.user = User.objects.create(pk=7, username="ann")

    view(request)

    assert CALLS == ["user:7"]


def test_a_request_calls_the_function_once_for_a_subject_that_an_integration_names(rf: RequestFactory) -> None:
    decide(rf.get("/"), [("tokens", "org:7"), ("berlin", "org:7")])

    assert CALLS == ["org:7"]


@pytest.mark.parametrize(
    ("rule", "subject"),
    [("plain", "org:7"), ("seats", "ip:203.0.113.9")],
    ids=["no start", "a tier by day"],
)
def test_the_function_is_not_called_where_no_period_needs_it(rule: str, subject: str) -> None:
    check(rule, subject)

    assert CALLS == []


def test_a_tier_without_a_limit_counts_in_the_period_of_the_others() -> None:
    check("plans", "org:7", 4, tier="pro")

    assert (peek("plans", "org:7", tier="free").remaining, set(CALLS)) == (1, {"org:7"})


def test_an_upgrade_keeps_what_was_used_until_a_reset() -> None:
    check("tokens", "org:7", 4)
    DAYS["org:7"] = NOW.date()

    assert peek("tokens", "org:7").remaining == 6
    reset("tokens", "org:7")
    assert peek("tokens", "org:7").remaining == 10


def test_a_refund_gives_back_what_the_period_has() -> None:
    check("tokens", "org:7", 4)

    assert refund("tokens", "org:7", 3).remaining == 9


@pytest.mark.parametrize("rule", ["tokens", "seats"], ids=["one rate", "tiers"])
def test_a_saved_reservation_is_settled_in_its_period(rule: str) -> None:
    saved = reserve(rule, "user:7", 8).dumps()

    Reservation.loads(saved).settle(2)

    assert peek(rule, "user:7").remaining == 8
    assert ends(peek(rule, "user:7").outcomes[0].reset_after) == ENDS


def test_a_saved_reservation_of_a_rule_in_code_is_settled_in_its_period() -> None:
    rule = Rule.make("own", "10/month", algorithm="calendar", starts=date(2025, 11, 15))
    saved = reserve(rule, "user:7", 8).dumps()

    Reservation.loads(saved).settle(2)

    assert peek(rule, "user:7").remaining == 8
    assert ends(peek(rule, "user:7").outcomes[0].reset_after) == ENDS


def test_a_saved_reservation_is_settled_in_its_period_though_the_day_has_changed() -> None:
    saved = reserve("tokens", "org:7", 8).dumps()
    DAYS["org:7"] = date(2026, 3, 10)

    settled = Reservation.loads(saved).settle(2)

    assert (settled.used, ends(settled.reset_after)) == (2, ENDS)


def test_a_saved_reservation_is_settled_under_the_present_rate_of_its_rule(settings: Any) -> None:
    saved = reserve("tokens", "org:7", 8).dumps()
    tokens = {**settings.QUOTA["RULES"]["tokens"], "rate": "20/month"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": tokens}}

    settled = Reservation.loads(saved).settle(2)

    assert settled.limit == 20


def test_several_rules_are_decided_together() -> None:
    decision = check_all([("tokens", "org:7", 2), ("plain", "org:7", 3)])

    assert [ends(each.reset_after) for each in decision.outcomes] == [ENDS, datetime(2026, 4, 1, tzinfo=UTC)]


def test_limits_of_a_subject_have_its_periods() -> None:
    check("tokens", "org:7", 1)

    (tokens,) = [each for each in limits_of("org:7").outcomes if each.rule == "tokens"]

    assert (tokens.used, ends(tokens.reset_after)) == (1, ENDS)


def test_a_raised_limit_ends_with_the_period_of_the_subject() -> None:
    assert raise_limit("tokens", "org:7", 5) == ENDS
    assert check("tokens", "org:7", 15).remaining == 0


def test_a_raised_limit_ends_with_what_was_used_before_the_day_changed() -> None:
    check("tokens", "org:7", 10)
    DAYS["org:7"] = date(2026, 3, 10)

    assert ends(check("tokens", "org:7").retry_after) == datetime(2026, 5, 10, tzinfo=UTC)
    assert raise_limit("tokens", "org:7", 5) == datetime(2026, 5, 10, tzinfo=UTC)


def test_a_raised_limit_ends_with_the_new_period_if_nothing_was_used() -> None:
    DAYS["org:7"] = date(2026, 3, 10)

    assert raise_limit("tokens", "org:7", 5) == datetime(2026, 4, 10, tzinfo=UTC)


def test_a_limit_is_raised_while_the_store_does_not_answer() -> None:
    check("tokens", "org:7", 10)

    with no_answer():
        assert raise_limit("tokens", "org:7", 5) == ENDS


@pytest.mark.parametrize(
    ("rates", "until"),
    [
        ("20/month", ENDS),
        ("20/year", datetime(2026, 11, 15, tzinfo=UTC)),
        ("20/week", datetime(2026, 3, 21, tzinfo=UTC)),
    ],
    ids=["month", "year", "week"],
)
def test_the_rates_of_an_override_begin_on_the_same_day(rates: str, until: datetime) -> None:
    QuotaOverride.objects.create(subject="org:7", rule="tokens", mode="rate", rate=rates)
    overrides.refresh()

    assert ends(check("tokens", "org:7", 11).outcomes[0].reset_after) == until


def test_the_page_of_a_subject_shows_its_periods() -> None:
    check("tokens", "org:7", 3)

    (tokens,) = load_snapshot("org:7", ["tokens"]).limits

    assert (tokens.used, ends(tokens.reset_after)) == (3, ENDS)


def test_the_preview_of_an_override_keeps_what_the_period_has_used() -> None:
    check("tokens", "org:7", 3)

    preview = preview_override("org:7", Override(1, "org:7", "tokens", "rate", "20/month"))

    assert [limit.remaining for change in preview.changes for limit in change.then] == [17]


def test_the_page_of_a_subject_says_why_a_function_failed() -> None:
    DAYS["org:7"] = "2026-01-15"

    snapshot = load_snapshot("org:7", ["tokens", "plain"])

    assert [limit.rule for limit in snapshot.limits] == ["plain"]
    assert "starts= of rule 'tokens', returned '2026-01-15'" in snapshot.unread["tokens"]


def test_usage_by_period_adds_up_whole_periods_that_begin_in_the_span() -> None:
    for day, units in ((date(2026, 3, 14), 1), (date(2026, 3, 15), 2), (date(2026, 3, 20), 3)):
        with freeze(datetime(day.year, day.month, day.day, 12, tzinfo=UTC)):
            check("tokens", "org:7", units)
            for _ in roll_up(get_limiter().store):
                pass

    found = usage("org:7", date(2026, 3, 1), date(2026, 3, 16), by="period")

    assert {first: rules["tokens"].units for first, rules in found.items()} == {date(2026, 3, 15): 5}


@pytest.mark.parametrize("rule", ["plain", "10/m"], ids=["calendar", "no period"])
def test_usage_by_period_takes_the_calendar_month_or_else_the_day(rule: str) -> None:
    check(rule, "org:7", daily=True) if "/" in rule else check("plain", "user:7")
    subject, first = ("org:7", NOW.date()) if "/" in rule else ("user:7", date(2026, 3, 1))

    assert list(usage(subject, date(2026, 3, 1), date(2026, 4, 1), by="period")) == [first]


@pytest.mark.parametrize(
    ("path", "problem", "remedy"),
    [
        pytest.param(
            "shop.no_such.function",
            "starts='shop.no_such.function' cannot be imported",
            "Use the path of a function of the subject, for example 'shop.limits.starts'.",
            id="it does not exist",
        ),
        pytest.param(
            "tests.api.test_subscriptions.NOW",
            "starts='tests.api.test_subscriptions.NOW' is datetime.",
            "Use a function of the subject.",
            id="it is not a function",
        ),
    ],
)
def test_an_error_about_a_dotted_path_names_the_option(path: str, problem: str, remedy: str, settings: Any) -> None:
    rule = {"rate": "10/month", "algorithm": "calendar", "starts": path}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"broken": rule}}

    with pytest.raises(RuleError) as caught:
        check("broken", "org:7")

    assert problem in str(caught.value)
    assert str(caught.value).endswith(remedy)
