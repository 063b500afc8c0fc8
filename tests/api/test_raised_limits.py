"""`raise_limit` adds units to what a subject has left of the running period."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.http import HttpRequest

from django_quota import Entry, Rule, Subject, araise_limit, check, peek, peek_all, raise_limit
from django_quota.exceptions import RateError, RuleError
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
from django_quota.types import Rate

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
END_OF_MONTH = datetime(2026, 4, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("memory_store", "database")


@pytest.fixture(autouse=True)
def rules(memory_store: None, settings: Any) -> Iterator[None]:
    rules = {
        "tokens": {"rate": "1000/month", "algorithm": "calendar"},
        "jobs": "10/m; 100/h",
        "bucket": {"rate": "10/m", "algorithm": "token_bucket"},
        "tiers": {"rate": {"anonymous": "5/h", "authenticated": "50/h"}},
        "free": {"rate": None},
    }
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    with freeze(NOW):
        yield


def left(subject: str = "org:7", rule: str = "tokens") -> int | None:
    return peek(rule, subject).remaining


def row(subject: str = "org:7", rule: str = "tokens") -> QuotaOverride:
    return QuotaOverride.objects.get(subject=subject, rule=rule)


def test_a_customer_who_has_used_all_buys_more_for_the_running_month() -> None:
    assert check("tokens", "org:7", 1_000)
    assert not check("tokens", "org:7")
    assert raise_limit("tokens", "org:7", 500) == END_OF_MONTH
    assert left() == 500
    assert check("tokens", "org:7", 500)
    assert not check("tokens", "org:7")
    assert left("org:8") == 1_000
    with freeze(END_OF_MONTH):
        assert left() == 1_000


def test_a_window_is_raised_for_one_window_from_now() -> None:
    assert check("jobs", "org:7", 10)
    assert raise_limit("jobs", "org:7", 50) == NOW + HOUR
    assert row(rule="jobs").rate == "+50"
    assert [outcome.remaining for outcome in peek("jobs", "org:7").outcomes] == [0, 140]
    with freeze(NOW + HOUR):
        assert [outcome.limit for outcome in peek("jobs", "org:7").outcomes] == [10, 100]


@pytest.mark.parametrize(
    ("rates", "raised"),
    [
        pytest.param(["20/h", "10/m"], [70, 10], id="which comes first"),
        pytest.param(["100/m", "50/h"], [100, 100], id="which allows less"),
    ],
)
def test_of_several_rates_the_one_with_the_longest_period_is_raised(rates: list[str], raised: list[int]) -> None:
    rule = Rule.make("several", *rates)

    assert raise_limit(rule, "org:7", 50) == NOW + HOUR

    assert [outcome.limit for outcome in peek(rule, "org:7").outcomes] == raised


def test_of_several_tiers_the_longest_period_says_when_the_units_end() -> None:
    plans = Rule.make("plans", {"free": "5/h", "pro": "1000/d", "trial": "9/h"}, tier=lambda request: "free")

    assert raise_limit(plans, "org:7", 50) == NOW + 24 * HOUR


@pytest.mark.parametrize("until", [NOW + HOUR, "1h", HOUR], ids=["a moment", "a string", "a duration"])
def test_the_end_can_be(until: Any) -> None:
    assert raise_limit("tokens", "org:7", 500, until) == NOW + HOUR

    with freeze(NOW + HOUR):
        assert left() == 1_000


def test_a_period_ends_in_the_zone_of_its_rule() -> None:
    zoned = Rule.make("zoned", "1000/month", algorithm="calendar", tz="Asia/Tokyo")

    assert raise_limit(zoned, "org:7", 5) == datetime(2026, 3, 31, 15, tzinfo=UTC)


def test_an_end_without_a_zone_is_a_moment_where_time_zones_are_off(settings: Any) -> None:
    settings.USE_TZ = False
    naive = datetime(2026, 3, 16)  # noqa: DTZ001

    assert raise_limit("tokens", "org:8", 500, naive) == naive.replace(tzinfo=UTC)


@pytest.mark.parametrize(("subject", "rule"), [("org:7", "*"), ("org:*", "tokens"), ("*", "*")])
class TestOverrideOfOthersToo:
    """Of all rules, of all subjects of a kind, or of both: it gives the subject another rate."""

    RULE = Rule.make("tokens", "100/day")

    @pytest.fixture(autouse=True)
    def override(self, database: object, rules: None, subject: str, rule: str) -> None:
        QuotaOverride.objects.create(subject=subject, rule=rule, rate="200/day")

    def test_its_rate_is_raised(self) -> None:
        assert raise_limit(self.RULE, "org:7", 50) == NOW + timedelta(days=1)

        assert row().rate == "250/d"

    def test_its_rate_is_raised_though_one_of_the_subject_has_ended(self) -> None:
        QuotaOverride.objects.create(subject="org:7", rule="tokens", rate="9/day", expires=NOW - HOUR)

        raise_limit(self.RULE, "org:7", 50)

        assert row().rate == "250/d"

    def test_its_rate_holds_again_after_the_period(self) -> None:
        raise_limit(self.RULE, "org:7", 50)

        with freeze(NOW + timedelta(days=1)):
            assert peek(self.RULE, "org:7").limit == 200


def test_the_rate_that_an_override_gives_to_a_rule_without_one_is_raised() -> None:
    QuotaOverride.objects.create(subject="org:7", rule="free", rate="100/day")

    raise_limit("free", "org:7", 50)

    assert (row(rule="free").rate, left(rule="free")) == ("150/d", 150)


@pytest.fixture
def raised_override() -> Callable[[Any], tuple[Any, QuotaOverride]]:
    """Raise the limit of an override that ends then: until when, and the row that it became."""

    def raised(expires: Any) -> tuple[Any, QuotaOverride]:
        values = {"reason": "contract", "label": "gold", "expires": expires}
        QuotaOverride.objects.create(subject="org:7", rule="tokens", rate="2000/month", **values)
        return raise_limit("tokens", "org:7", 500), row()

    return raised


@pytest.mark.parametrize(
    ("expires", "ends"),
    [(NOW + HOUR, END_OF_MONTH), (END_OF_MONTH + HOUR, END_OF_MONTH + HOUR), (None, None)],
    ids=["an earlier end", "a later end", "no end"],
)
def test_an_override_of_the_subject_keeps_its_later_end(raised_override: Any, expires: Any, ends: Any) -> None:
    until, found = raised_override(expires)

    assert until == ends
    assert (found.rate, found.expires) == ("2500/month", ends)


@pytest.mark.parametrize("expires", [NOW + HOUR, None], ids=["an earlier end", "no end"])
def test_an_override_of_the_subject_keeps_its_label_but_not_its_reason(raised_override: Any, expires: Any) -> None:
    _, found = raised_override(expires)

    assert (found.reason, found.label) == ("raise_limit()", "gold")


def test_nothing_is_added_to_an_override_that_has_ended() -> None:
    values = {"reason": "old", "label": "list", "expires": NOW - HOUR}
    QuotaOverride.objects.create(subject="org:7", rule="tokens", rate="9/month", **values)

    raise_limit("tokens", "org:7", 500)

    assert (row().rate, row().reason, row().label) == ("+500", "raise_limit()", "")


def test_an_override_that_begins_at_this_moment_is_raised() -> None:
    QuotaOverride.objects.create(subject="org:7", rule="tokens", rate="2000/month", starts=NOW)

    raise_limit("tokens", "org:7", 500)

    assert (row().rate, left()) == ("2500/month", 2_500)


def test_a_rate_that_another_process_has_just_given_to_all_is_raised() -> None:
    left()
    with patch.object(overrides, "change"):  # this process is not told
        QuotaOverride.objects.create(subject="*", rule="tokens", rate="2000/month")

    raise_limit("tokens", "org:7", 500)

    assert row().rate == "2500/month"


def test_an_override_that_another_process_has_raised_is_added_to() -> None:
    raise_limit("tokens", "org:7", 500)
    overrides.table.drop(row().pk)  # this process has not read it yet

    raise_limit("tokens", "org:7", 500)

    assert (row().rate, left()) == ("+1000", 2_000)


def test_threads_that_raise_at_the_same_time_add_up() -> None:
    def buy(_: int) -> None:
        try:
            with freeze(NOW):
                raise_limit("tokens", "org:7", 10)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(buy, range(12)))

    assert (row().rate, left()) == ("+120", 1_120)


def test_a_rollback_takes_back_what_was_added() -> None:
    raise_limit("tokens", "org:7", 120)

    with transaction.atomic():
        raise_limit("tokens", "org:7", 500)
        assert left() == 1_620
        transaction.set_rollback(True)

    assert (row().rate, left()) == ("+120", 1_120)


def test_the_async_twin_adds_the_units_too() -> None:
    assert async_to_sync(araise_limit)("tokens", "org:7", 500) == END_OF_MONTH
    assert left() == 1_500


def test_a_user_is_a_subject() -> None:
    ann = User.objects.create_user("ann")

    raise_limit("jobs", ann, 5)

    assert row(f"user:{ann.pk}", "jobs").rate == "+5"


def test_a_request_is_a_subject(rf: Any) -> None:
    raise_limit("jobs", rf.get("/"), 5)

    assert row("ip:127.0.0.1", "jobs").rate == "+5"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tokens", "org:7", 0), "units=0 is not a whole number from 1"),
        (("tokens", "org:7", True), "units=True is not"),
        (("tokens", "org:7", 1.5), "units=1.5 is not"),
        (("tokens", "org:7", 10**12 + 1), "units=1000000000001 is not a whole number from 1 to 1000000000000"),
        (("tokens", "org:7", 10**12), "above 1000000000000"),
        (
            ("tokens", "org:7", 5, NOW),
            rf"^until={re.escape(str(NOW))} is in the past\. Use a moment in the future\.$",
        ),
        (("token", "org:7", 5), "Did you mean 'tokens'"),
        (("tokens", 7, 5), "7 is not a subject"),
        (("bucket", "org:7", 5), "is a token_bucket, which refills all the time: it has no period"),
        (("free", "org:7", 5), r"^Rule 'free' has no rate, so there is none to raise\.$"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, says: str) -> None:
    with pytest.raises(RuleError, match=says):
        raise_limit(*arguments)
    assert not QuotaOverride.objects.exists()


NO_RATE = "The override of org:7 is {!r} for rule 'tokens', so there is no rate to raise. Clear that override first."
BEGINS_LATER = (
    "Rule 'tokens' has an override of org:7 that begins later, and there can be only one. Clear it first: "
    "`manage.py quota_override clear org:7 --rule tokens`."
)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        *(({"mode": mode}, NO_RATE.format(mode)) for mode in ("blocked", "exempt", "shadow")),
        ({"rule": "tokens", "rate": "5/month", "starts": NOW + HOUR}, BEGINS_LATER),
    ],
    ids=["a block", "an exemption", "a shadow", "one that begins later"],
)
def test_an_override_stays_that_is(override: Any, says: str) -> None:
    saved = QuotaOverride.objects.create(subject="org:7", **override)
    with pytest.raises(RuleError) as caught:
        raise_limit("tokens", "org:7", 5)
    assert str(caught.value) == says
    assert QuotaOverride.objects.values_list("pk", "rate").get() == (saved.pk, saved.rate)


@pytest.mark.parametrize(("tier", "limits"), [("free", [5, 150]), ("pro", [1_050]), ("all", [None, None])])
def test_units_come_on_top_of_the_tier_that_the_subject_gets_later(tier: str, limits: list[int | None]) -> None:
    plans = Rule.make("plans", {"free": "5/h; 100/d", "pro": "1000/d", "all": None}, tier=lambda request: "free")
    raise_limit(plans, "org:7", 50)

    assert [each.limit for each in peek(plans, "org:7", tier=tier).outcomes] == limits


def own_org(request: HttpRequest) -> Subject:
    return Subject("org", 7)


def test_the_rate_of_an_override_is_raised_once_for_all_tiers() -> None:
    row = QuotaOverride.objects.create(subject="user:7", rule="tiers", mode="rate", rate="100/d")

    raise_limit("tiers", "user:7", 50)

    row.refresh_from_db()
    assert row.rate == "150/d"


PLANS = Rule.make("plans", {"free": "5/h; 100/d", "all": None}, tier=lambda request: "free")
BUCKET = Rule.make("bucket", "10/m", algorithm="token_bucket", burst=7)
OF_REQUEST = Rule.make("odd", lambda request: "4/m", key=own_org)


class TestFactor:
    """An override that multiplies the rates of all rules by three."""

    @pytest.fixture(autouse=True)
    def factor(self, database: object, rules: None) -> None:
        QuotaOverride.objects.create(subject="org:7", rule="*", rate="x3", expires=NOW + HOUR)

    @pytest.mark.parametrize(
        ("entry", "limits"),
        [
            pytest.param(Entry(PLANS, "org:7", tier="free"), [15, 300], id="a tier"),
            pytest.param(Entry(PLANS, "org:7", tier="all"), [None, None], id="a tier without rates"),
            pytest.param((BUCKET, "org:7"), [7], id="a bucket, whose burst stays"),
            pytest.param((OF_REQUEST, HttpRequest()), [12], id="a rate of a function"),
        ],
    )
    def test_it_multiplies(self, entry: Any, limits: list[int | None]) -> None:
        assert [each.limit for each in peek_all([entry]).outcomes] == limits

    def test_a_bucket_refills_at_the_multiplied_rate(self) -> None:
        assert peek(BUCKET, "org:7").outcomes[0].rate == Rate(30, "minute")

    def test_units_come_on_top_of_it(self) -> None:
        raise_limit("tokens", "org:7", 500)

        assert (row().rate, left()) == ("x3+500", 3_500)

    def test_units_come_on_top_of_the_rate_of_a_function(self) -> None:
        raise_limit(OF_REQUEST, "org:7", 5, until="1h")

        assert peek(OF_REQUEST, HttpRequest()).limit == 17

    def test_a_rate_of_a_function_has_no_end_of_its_own(self) -> None:
        with pytest.raises(RuleError, match=r"^Rule 'odd' has rates that depend on a request: pass until=\.$"):
            raise_limit(OF_REQUEST, "org:7", 5)


@pytest.mark.parametrize("rate", ["+", "+0", "+1.5", "+5/m", "+1000000000001", "+5; 10/m"])
def test_added_units_are_a_whole_number(rate: str) -> None:
    with pytest.raises(RateError, match="it neither adds 1 to 1,000,000,000,000 units nor multiplies by 1 to 1,000"):
        QuotaOverride.objects.create(subject="org:7", rule="tokens", rate=rate)


@pytest.mark.parametrize("rate", ["x0", "x1001", "x2/m"])
def test_a_factor_is_a_whole_number(rate: str) -> None:
    with pytest.raises(RateError, match="it neither adds 1 to 1,000,000,000,000 units nor multiplies by 1 to 1,000"):
        QuotaOverride.objects.create(subject="org:7", rule="tokens", rate=rate)


def test_the_override_says_why_it_was_raised() -> None:
    raise_limit("tokens", "org:7", 500, reason="order 17", by="the shop")

    assert row().reason == "order 17"


def test_the_override_says_who_raised_it() -> None:
    raise_limit("tokens", "org:7", 500, reason="order 17", by="the shop")

    assert row().created_by == "the shop"


def test_the_override_has_the_name_by_which_the_user_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(User, "__str__", lambda _: "Ann Smith")

    raise_limit("tokens", "org:7", 500, by=User.objects.create_user("ann"))

    assert row().created_by == "ann"


def test_a_raise_that_gives_no_name_shows_nothing_of_the_raise_before_it() -> None:
    raise_limit("tokens", "org:7", 500, reason="order 17", by="the shop")

    raise_limit("tokens", "org:7", 500)

    assert (row().rate, row().reason, row().created_by) == ("+1000", "raise_limit()", "")


def test_the_log_of_the_admin_says_that_a_raise_has_no_end() -> None:
    QuotaOverride.objects.create(subject="org:7", rule="tokens", rate="2000/month")

    raise_limit("tokens", "org:7", 500, by=User.objects.create_user("ann"))

    entry = LogEntry.objects.get(object_id="org:7", user__isnull=False)
    assert entry.change_message == "Raise: tokens +500, for good"


def test_the_log_of_the_admin_has_each_raise_of_a_user() -> None:
    ann = User.objects.create_user("ann")

    for number in (17, 18):
        raise_limit("tokens", "org:7", 500, reason=f"order {number}", by=ann)

    entries = LogEntry.objects.order_by("pk").values_list("object_id", "user", "change_message")
    assert list(entries) == [
        ("org:7", ann.pk, f"Raise: tokens +500, until 2026-04-01 00:00Z (order {number})") for number in (17, 18)
    ]
