"""Two options together, the last of several, and what another process has changed meanwhile."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_quota import Rule, check, peek, quota, raise_limit, reset, reset_subject
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
from tests.support.calls import remaining_both_ways
from tests.support.counts import days_of
from tests.support.stores import caches

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
ORG = "org:7"
DAILY = Rule.make("daily", "100/d")


@pytest.fixture
def frozen() -> Iterator[None]:
    with freeze(NOW):
        yield


# --- overrides that change rates, and raising -------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store", "database", "frozen")
@pytest.mark.parametrize("subject", [ORG, "org:*", "*"])
@pytest.mark.parametrize("rule", ["daily", "*"])
@pytest.mark.parametrize(
    ("before", "after", "limit"),
    [
        ("x2+500", "x2+550", 750), ("+500", "+550", 650), ("x3", "x3+50", 350), ("70/d", "120/d", 120),
        ("5/m; 70/d", "5/m; 120/d", 120), ("70/d; 5/m", "120/d; 5/m", 120),
    ],
)  # fmt: skip
def test_raising_adds_to_what_any_override_gives(subject: str, rule: str, before: str, after: str, limit: int) -> None:
    QuotaOverride.objects.create(subject=subject, rule=rule, rate=before)
    raise_limit(ORG, DAILY, 50)
    assert QuotaOverride.objects.get(subject=ORG, rule="daily").rate == after
    longest = max(peek(DAILY, ORG).outcomes, key=lambda outcome: outcome.rate.period)
    assert (longest.limit, longest.remaining) == (limit, limit)


@pytest.mark.usefixtures("memory_store", "database", "frozen")
def test_a_raised_factor_holds_for_each_tier_and_again_when_raised_twice() -> None:
    plans = Rule.make("plans", {"free": "5/h; 100/d", "pro": "9/h; 1000/d"}, tier=lambda request: "free")
    QuotaOverride.objects.create(subject=ORG, rule="plans", rate="x2+500")
    for _ in range(2):
        raise_limit(ORG, plans, 50)
    limits = {tier: [each.limit for each in peek(plans, ORG, tier=tier).outcomes] for tier in ("free", "pro")}
    assert limits == {"free": [10, 800], "pro": [18, 2_600]}


# --- shadow rules beside others ---------------------------------------------------------------------------------------


def refused_page(others: dict[str, Any]) -> str:
    hard: Any = quota("1/h", name="hard", key="ip")
    soft: Any = quota("1/d", name="soft", key="ip", **others)
    view = hard(soft(lambda request: HttpResponse("ok")))
    made = RequestFactory().get("/", headers={"Accept": "text/html"}, REMOTE_ADDR="192.0.2.1")
    assert view(made).status_code == 200
    answer = view(made)
    assert answer.status_code == 429
    return str(answer.text)


@pytest.mark.usefixtures("memory_store", "frozen")
@pytest.mark.parametrize("others", [{"shadow": True}, {"shadow": True, "count_refused": True}])
def test_the_page_shows_the_limits_that_refuse_and_no_shadow(others: dict[str, Any]) -> None:
    shown = refused_page(others)
    assert "1 per hour" in shown
    assert "per day" not in shown


# --- subjects of several parts, and days ------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_store", "frozen")
@pytest.mark.parametrize(
    ("subject", "daily", "counted"),
    [
        ("user:1+path:/x/", True, True), ("user:1+path:/x/", None, False), ("user:1", None, True),
        ("user:1", False, False), ("ip:192.0.2.1", None, False), ("ip:192.0.2.1+user:1", True, True),
    ],
)  # fmt: skip
def test_days_are_counted_for_users_and_for_other_subjects_where_daily_says_so(
    subject: str, daily: bool | None, counted: bool
) -> None:
    for _ in range(2):
        check("1/m", subject, name="api", daily=daily)
    assert days_of(subject) == ({NOW.date(): {"api": (1, 1)}} if counted else {})


# --- what another process has changed, and the last of several --------------------------------------------------------


@pytest.mark.usefixtures("database", "memory_store", "frozen")
@pytest.mark.parametrize("all_rules", [False, True], ids=["by rule", "of the subject"])
def test_a_reset_forgets_what_was_counted_under_the_override_of_another_process(settings: Any, all_rules: bool) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"daily": "100/d"}}
    QuotaOverride.objects.create(subject=ORG, rule="daily", rate="5/m; 9/h")
    assert check("daily", ORG, 5)
    overrides.clear()  # this process has not read it yet
    reset_subject(ORG) if all_rules else reset("daily", ORG)
    assert [outcome.remaining for outcome in peek("daily", ORG).outcomes] == [5, 9]


@pytest.mark.usefixtures("memory_store", "frozen")
@pytest.mark.parametrize("tier", ["anonymous", "authenticated"])
@pytest.mark.parametrize("names", [None, ["plans"]], ids=["all rules", "by name"])
def test_a_reset_forgets_each_tier_that_the_subject_has_had(settings: Any, tier: str, names: Any) -> None:
    rates = {"anonymous": "5/m", "authenticated": "9/h"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plans": {"rate": rates, "ban": {"after": "1/m", "for": "1h"}}}}
    assert not check("plans", ORG, 10, tier=tier)
    check("plans", ORG, 5, tier=tier)
    reset_subject(ORG, names)
    assert [peek("plans", ORG, tier=each).remaining for each in rates] == [5, 9]


@pytest.mark.parametrize("options", [{"socket_timeout": None}, {"socket_connect_timeout": None}])
def test_an_option_that_is_none_is_as_one_that_is_not_written(redis_cache: Any, settings: Any, options: Any) -> None:
    settings.CACHES = caches(redis_cache, **options)
    assert remaining_both_ways() == [4, 3]
