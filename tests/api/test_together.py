"""Two options together, the last of several, and what another process has changed meanwhile."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_quota import Rule, check, peek, quota, raise_limit, reserve, reset, slot
from django_quota.exceptions import StoreUnavailable
from django_quota.features.usage import days as days_module
from django_quota.features.usage.days import DayCounts, SubjectDay, last_tiers, recent_usage, subjects_of_rules
from django_quota.features.usage.rollup import roll_up
from django_quota.limiting.overrides import overrides
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.activity import activity
from django_quota.testing import freeze
from tests.support.calls import calls_of, remaining_both_ways
from tests.support.commands import json_of
from tests.support.counts import checks_of_today, count_what_waits, days_of
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.stores import caches, current_store

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
    raise_limit(DAILY, ORG, 50)
    assert QuotaOverride.objects.get(subject=ORG, rule="daily").rate == after
    longest = max(peek(DAILY, ORG).outcomes, key=lambda outcome: outcome.of.capacity)
    assert (longest.limit, longest.remaining) == (limit, limit)


@pytest.mark.usefixtures("memory_store", "database", "frozen")
@pytest.mark.parametrize(
    ("times", "limits"),
    [(1, {"free": [10, 750], "pro": [18, 2_550]}), (2, {"free": [10, 800], "pro": [18, 2_600]})],
    ids=["once", "twice"],
)
def test_a_raised_factor_holds_for_each_tier(times: int, limits: dict[str, list[int]]) -> None:
    plans = Rule.make("plans", {"free": "5/h; 100/d", "pro": "9/h; 1000/d"}, tier=lambda request: "free")
    QuotaOverride.objects.create(subject=ORG, rule="plans", rate="x2+500")

    for _ in range(times):
        raise_limit(plans, ORG, 50)

    found = {tier: [each.limit for each in peek(plans, ORG, tier=tier).outcomes] for tier in ("free", "pro")}
    assert found == limits


@pytest.mark.usefixtures("memory_store", "database", "frozen")
@pytest.mark.parametrize(("expires", "ends"), [(1, 1), (-1, 0), (None, None)], ids=["later", "sooner", "never"])
def test_raising_keeps_the_later_end(expires: int | None, ends: int | None) -> None:
    """By default the raised rate ends a window from now."""

    def moment(hours: int | None) -> datetime | None:
        return None if hours is None else NOW + timedelta(days=1, hours=hours)

    QuotaOverride.objects.create(subject=ORG, rule="daily", rate="x2", expires=moment(expires))
    assert raise_limit(DAILY, ORG, 50) == moment(ends) == QuotaOverride.objects.get().expires


# --- exempt subjects, and what is counted -----------------------------------------------------------------------------


@pytest.mark.usefixtures("either_store")
def test_the_units_of_an_exempt_subject_count_for_the_day_of_their_hit() -> None:
    override("x 0 0 ", "tpm", "user:1")
    with freeze(NOW):
        check("100/m", "user:1", 3, name="tpm")
        reservation = reserve("100/m", "user:1", 5, name="tpm")
    with freeze(NOW + timedelta(days=1)):
        reservation.settle(2)
        count_what_waits()
        usage = {day: rules["tpm"] for day, rules in recent_usage("user:1").items()}
    assert {day: (count.allowed, count.units) for day, count in usage.items()} == {NOW.date(): (2, 5)}


@pytest.mark.usefixtures("either_store", "frozen")
@pytest.mark.parametrize("rate", ["5/m", "0/m"])
def test_the_metrics_count_no_request_that_costs_nothing(rate: str) -> None:
    look: Any = quota(rate, name="look", key="ip", cost=lambda request: 0)
    view = look(lambda request: HttpResponse("ok"))
    assert view(RequestFactory().get("/", REMOTE_ADDR="192.0.2.1")).status_code == (200 if rate == "5/m" else 429)
    count_what_waits()
    assert checks_of_today() == {}


@pytest.mark.usefixtures("either_store")
def test_a_slot_is_shown_for_a_while_after_it_was_asked_for_also_if_that_is_sent_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with freeze(NOW):
        slot("export", 2, subject="user:1", lease=5).acquire()
        with monkeypatch.context() as away:
            away.setattr(current_store(), "run", lost)
            assert not count_what_waits()
        assert count_what_waits()
    with freeze(NOW + timedelta(minutes=9)):
        assert [(each.name, each.held, each.limit) for each in activity().slots] == [("export", 0, 2)]


def lost(*_: Any) -> None:
    raise StoreUnavailable("gone")


# --- the last of several ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("database", "memory_store")
@pytest.mark.parametrize("order", [["free", "pro", "team"], ["team", "free", "pro"]])
@pytest.mark.parametrize("hours", [1, 24])
def test_the_last_tier_is_that_of_the_last_check(order: list[str], hours: int) -> None:
    plans = Rule.make("plans", {"free": "5/m", "pro": "9/m", "team": "20/m"}, tier=lambda request: "free")
    found = []

    for number, tier in enumerate(order):
        with freeze(NOW + number * timedelta(hours=hours)):
            check(plans, "user:1", tier=tier)
            found.append(last_tiers([plans], "user:1"))

    assert found == [{"plans": tier} for tier in order]


PLANS = Rule.make("plans", {"free": "5/m", "pro": "9/m"}, tier=lambda request: "free")


def saved(rule: str, days_ago: int, tier: str = "", subject: str = "user:1") -> None:
    """Have a row of a day whose counts a roll-up has moved."""
    day = NOW.date() - timedelta(days=days_ago)
    DailyCounter.objects.create(subject=subject, rule=rule, day=day, tier=tier, allowed=1, units=1)


@pytest.mark.usefixtures("database", "memory_store", "frozen")
class TestTiersOfTheDatabase:
    def test_the_newest_row_of_a_rule_has_its_last_tier(self) -> None:
        for days_ago, tier in ((40, "pro"), (30, "free"), (50, "pro")):
            saved("plans", days_ago, tier)

        assert last_tiers([PLANS], "user:1") == {"plans": "free"}

    def test_they_are_those_of_the_newest_rows_that_have_any(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(days_module, "MAX_TIER_ROWS", 2)
        for days_ago, rule, tier in ((5, "a", "pro"), (4, "b", "pro"), (3, "c", "free"), (2, "d", "")):
            saved(rule, days_ago, tier)

        assert last_tiers([PLANS], "user:1") == {"b": "pro", "c": "free"}

    def test_they_are_those_of_the_subject_alone(self) -> None:
        saved("plans", 3, "pro", subject="user:2")

        assert last_tiers([PLANS], "user:1") == {}

    def test_while_the_store_does_not_answer_there_are_none(self) -> None:
        saved("plans", 3, "pro")

        with no_answer():
            assert last_tiers([PLANS], "user:1") == {}

    def test_nothing_is_read_for_rules_that_note_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        assert last_tiers([DAILY, Rule.make("b", {"anonymous": "5/m", "authenticated": "9/m"})], "user:1") == {}
        assert calls == []

    def test_a_row_keeps_its_tier_if_later_checks_note_none(self) -> None:
        saved("plans", 0, "pro")
        check(Rule.make("plans", "9/m"), "user:1")

        list(roll_up(current_store()))

        row = DailyCounter.objects.get()
        assert (row.tier, row.allowed) == ("pro", 2)

    def test_a_row_has_the_tier_that_was_noted_last(self) -> None:
        saved("plans", 0, "pro")
        check(PLANS, "user:1", tier="free")

        list(roll_up(current_store()))

        assert DailyCounter.objects.get().tier == "free"


def test_the_beginning_of_a_long_tier_is_kept() -> None:
    day = SubjectDay("key", "user:1", NOW.date())

    (tier,) = DayCounts.read(day, ["plans:a", "1", "plans:t", "x" * 101]).tiers.values()

    assert tier == "x" * 100


@pytest.mark.usefixtures("database", "memory_store", "frozen")
class TestSubjectsOfRules:
    @pytest.fixture(autouse=True)
    def four_rows(self, database: Any, memory_store: None) -> None:
        for days_ago, rule in ((5, "a"), (3, "b"), (4, "a"), (1, "c")):
            saved(rule, days_ago, subject=f"user:{days_ago}")

    @pytest.mark.parametrize(
        ("rules", "most", "found"),
        [
            pytest.param(["a", "b"], 9, [("b", "user:3"), ("a", "user:4"), ("a", "user:5")], id="the newest first"),
            pytest.param(["a", "b"], 2, [("b", "user:3"), ("a", "user:4")], id="no more than wanted"),
            pytest.param([], 9, [], id="of no rule"),
        ],
    )
    def test_they_are(self, rules: list[str], most: int, found: list[tuple[str, str]]) -> None:
        assert subjects_of_rules(rules, most) == found

    def test_nothing_is_read_for_no_rule(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            subjects_of_rules([], 9)


@pytest.mark.usefixtures("either_store", "frozen")
@pytest.mark.parametrize(("rates", "capacity"), [("4/m; 100/h", 4), ("100/m; 4/h", 4)])
def test_a_near_event_names_the_limit_that_is_near(rates: str, capacity: int) -> None:
    if current_store().database is None and current_store().redis is None:
        return  # it keeps no events
    check(Rule.make("near", rates, warn_at=0.5), "user:1", 2)
    (event,) = json_of("quota_events")
    assert (event["kind"], event["share"], event["capacity"], event["remaining"]) == ("near", 0.5, capacity, 2)


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
@pytest.mark.parametrize(
    "others", [{"shadow": True}, {"shadow": True, "count_refused": True}], ids=["shadow", "shadow that counts"]
)
def test_the_page_shows_only_limits_that_refuse(others: dict[str, Any]) -> None:
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
def test_days_are_counted_for_users_unless_daily_says_otherwise(
    subject: str, daily: bool | None, counted: bool
) -> None:
    for _ in range(2):
        check("1/m", subject, name="api", daily=daily)

    assert days_of(subject) == ({NOW.date(): {"api": (1, 1)}} if counted else {})


# --- what another process has changed, and the last of several --------------------------------------------------------


@pytest.mark.usefixtures("database", "memory_store", "frozen")
@pytest.mark.parametrize("rule", ["daily", "*"])
def test_a_reset_forgets_what_was_counted_under_the_override_of_another_process(settings: Any, rule: str) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"daily": "100/d"}}
    QuotaOverride.objects.create(subject=ORG, rule="daily", rate="5/m; 9/h")
    assert check("daily", ORG, 5)
    overrides.clear()  # this process has not read it yet
    reset(rule, ORG)
    assert [outcome.remaining for outcome in peek("daily", ORG).outcomes] == [5, 9]


@pytest.mark.usefixtures("memory_store", "frozen")
@pytest.mark.parametrize("tier", ["anonymous", "authenticated"])
@pytest.mark.parametrize("rule", ["plans", "*"])
def test_a_reset_forgets_each_tier_that_the_subject_has_had(settings: Any, tier: str, rule: str) -> None:
    rates = {"anonymous": "5/m", "authenticated": "9/h"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plans": {"rate": rates}}}
    check("plans", ORG, 5, tier=tier)
    reset(rule, ORG)
    assert [peek("plans", ORG, tier=each).remaining for each in rates] == [5, 9]


@pytest.mark.parametrize("options", [{"socket_timeout": None}, {"socket_connect_timeout": None}])
def test_an_option_that_is_none_is_as_one_that_is_not_written(redis_cache: Any, settings: Any, options: Any) -> None:
    settings.CACHES = caches(redis_cache, **options)
    assert remaining_both_ways() == [4, 3]
