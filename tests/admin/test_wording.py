"""What the pages call an algorithm, a subject, a duration, the value of an option, and whoever did something."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.http import HttpRequest
from django.utils import timezone

from django_quota.admin.wording import (
    algorithm_in_words,
    ban_in_words,
    breakable,
    duration_in_words,
    event_in_words,
    flood_in_words,
    kind_in_words,
    local_moment,
    moment_in_words,
    next_in_words,
    override_state,
    raise_in_words,
    reason_in_words,
    refused_until,
    rule_in_words,
    second_in_words,
    sender_in_words,
    span_in_words,
    subject_in_words,
    time_left_in_words,
    value_in_words,
    why_in_words,
)
from django_quota.core.clock import DAY
from django_quota.core.rules import Rule
from django_quota.features.events import Event, Flood
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import LimitStatus
from django_quota.testing import freeze
from tests.support.steps import SECOND, START

DIGEST = "0123456789abcdef" * 2


def is_test(request: HttpRequest) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sliding_window", "sliding window"),
        ("fixed_window", "fixed window"),
        ("calendar", "calendar"),
        ("token_bucket", "token bucket"),
        ("leaky_bucket", "leaky bucket"),
        ("distinct", "different values"),
        ("stock", "counter"),
        ("of_another_version", "of_another_version"),
    ],
)
def test_an_algorithm_has_its_own_name(name: str, words: str) -> None:
    assert str(algorithm_in_words(name)) == words


@pytest.mark.parametrize(("kind", "words"), [("refused", "refused"), ("banned", "banned"), ("near", "near its limit")])
def test_a_kind_of_events_has_a_name(kind: str, words: str) -> None:
    assert str(kind_in_words(kind)) == words


@pytest.mark.parametrize("kind", ["header.X-Api-Key", "cookie.device", "get.q", "post.phone", "json.phone", "session"])
def test_a_digest_is_cut(kind: str) -> None:
    assert subject_in_words(f"{kind}:{DIGEST}", {}) == f"{kind}:012345…"


def test_the_digest_of_a_part_is_cut() -> None:
    assert subject_in_words(f"ip:203.0.113.9+post.phone:{DIGEST}", {}) == "ip:203.0.113.9+post.phone:012345…"


def test_the_digest_of_a_long_subject_is_cut() -> None:
    assert subject_in_words(f"org:long~{DIGEST * 2}", {}) == "org:long~012345…"


def test_what_only_looks_like_a_digest_is_shown_whole() -> None:
    assert subject_in_words(f"org:{DIGEST}", {}) == f"org:{DIGEST}"


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (1, "first ban"),
        (2, "second ban"),
        (3, "third ban"),
        (4, "fourth ban"),
        (5, "fifth ban"),
        (6, "ban number 6"),
        (70, "ban number 70"),
    ],
)
def test_a_ban_says_which_it_is(level: int, words: str) -> None:
    assert ban_in_words(level) == words


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("shop.views.api_search", "shop.<wbr>views.<wbr>api_<wbr>search", id="a path"),
        pytest.param("__api_", "__<wbr>api_", id="at the ends"),
        pytest.param("a.<b>", "a.<wbr>&lt;b&gt;", id="markup"),
    ],
)
def test_the_name_of_a_rule_may_break(name: str, shown: str) -> None:
    assert breakable(name) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        pytest.param(1, "1 second", id="a second"),
        pytest.param(59, "59 seconds", id="less than a minute"),
        pytest.param(60, "1 minute", id="a minute"),
        pytest.param(61, "61 seconds", id="no whole minutes"),
        pytest.param(90 * 60, "90 minutes", id="no whole hours"),
        pytest.param(3_600, "1 hour", id="an hour"),
        pytest.param(25 * 3_600, "25 hours", id="no whole days"),
        pytest.param(86_400, "1 day", id="a day"),
        pytest.param(7 * 86_400, "7 days", id="days"),
    ],
)
def test_a_duration_is_in_its_largest_whole_unit(seconds: int, words: str) -> None:
    assert duration_in_words(seconds * SECOND) == words


def test_a_part_of_a_second_makes_a_duration_a_second_longer() -> None:
    assert duration_in_words(59 * SECOND + 1) == "1 minute"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        pytest.param(0, "1 second", id="nothing"),
        pytest.param(0.2, "1 second", id="a part of a second"),
        pytest.param(1.2, "2 seconds", id="more than a second"),
        pytest.param(119.5, "2 minutes", id="almost two minutes"),
        pytest.param(7_199.5, "2 hours", id="almost two hours"),
    ],
)
def test_a_wait_is_rounded_up_to_at_least_a_second(seconds: float, words: str) -> None:
    assert span_in_words(seconds) == words


def test_the_time_that_is_left_is_in_seconds() -> None:
    assert time_left_in_words(START + 5 * SECOND, START) == "5 seconds"


@pytest.mark.parametrize(
    ("now", "seconds", "second"),
    [
        pytest.param(START, 0.0, 0, id="a whole second"),
        pytest.param(START + 1, 0.0, 1, id="a part of a second"),
        pytest.param(START - 1, 0.0, 0, id="just before a second"),
        pytest.param(START, 2.0, 2, id="two seconds later"),
        pytest.param(START, 1.000001, 2, id="a second and a part later"),
        pytest.param(START, 0.9999999, 1, id="a second later but for less than a microsecond"),
    ],
)
def test_a_local_moment_is_rounded_up_to_a_second(now: int, seconds: float, second: int) -> None:
    assert local_moment(now, seconds) == datetime(2025, 11, 21, 4, 40, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("formats", "words"),
    [
        pytest.param([], "Nov. 21, 2025, 4:40 a.m. UTC", id="a day and a time"),
        pytest.param(["SHORT_DATE_FORMAT"], "11/21/2025 UTC", id="a short day"),
    ],
)
def test_a_moment_has_the_format_of_the_language_with_its_time_zone(formats: list[str], words: str) -> None:
    assert moment_in_words(datetime(2025, 11, 21, 4, 40, tzinfo=UTC), *formats) == words


def test_a_moment_is_in_the_time_zone_of_the_request() -> None:
    with timezone.override("Asia/Tokyo"):
        assert moment_in_words(datetime(2025, 11, 21, 20, tzinfo=UTC)) == "Nov. 22, 2025, 5 a.m. JST"


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        pytest.param(START + 5 * SECOND, "04:40:05 UTC", id="today"),
        pytest.param(START - DAY, "November 20, 04:40:00 UTC", id="yesterday"),
        pytest.param(START - 16_800 * SECOND - DAY, "November 20", id="midnight of another day"),
        pytest.param(START - 16_800 * SECOND, "00:00:00 UTC", id="midnight of today"),
        pytest.param(START - 365 * DAY, "Nov. 21, 2024, 04:40:00 UTC", id="another year"),
    ],
)
def test_a_second_has_its_day_unless_that_is_today(moment: int, words: str) -> None:
    with freeze(START):
        assert second_in_words(moment) == words


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        pytest.param(
            {"ban": {"after": "1/m", "for": "10m"}}, "ban", "after 1 refusal in 1 minute, for 10 minutes", id="a ban"
        ),
        pytest.param(
            {"ban": {"after": "3/90s", "for": ["10m", "1d"]}},
            "ban",
            "after 3 refusals in 90 seconds, for 10 minutes, 1 day",
            id="longer bans",
        ),
        pytest.param(
            {"rate": {"free": "5/m; 9/h", "own": None}, "tier": str},
            "rate",
            "5/m; 9/h for free, unlimited for own",
            id="tiers",
        ),
        pytest.param(
            {"share": {"batch": 0.5, "web": 1}, "tier": str},
            "share",
            "0.5 for batch, 1.0 for web",
            id="shares of tiers",
        ),
        pytest.param({"exempt": "10.0.0.0/8"}, "exempt", "10.0.0.0/8", id="an exempt network"),
        pytest.param({"exempt": "staff"}, "exempt", "staff users", id="exempt staff"),
        pytest.param(
            {"exempt": [is_test, "staff", "10.0.0.0/8", "192.0.2.1"]},
            "exempt",
            f"10.0.0.0/8, 192.0.2.1/32, staff users, {__name__}.is_test",
            id="all who can be exempt",
        ),
        pytest.param({"key": ("ip", "header:X-Device")}, "key", "ip, header:X-Device", id="two keys"),
        pytest.param({"methods": ["POST", "PUT"]}, "methods", "POST, PUT", id="methods"),
        pytest.param({"shadow": True}, "shadow", "True", id="a switch"),
    ],
)
def test_the_value_of_an_option_is_a_sentence(options: dict[str, Any], name: str, words: str) -> None:
    rule = Rule.make("a", options.get("rate", "9/m"), **{key: each for key, each in options.items() if key != "rate"})

    (value,) = rule.rates if name == "rate" else (getattr(rule, name),)

    assert value_in_words(value) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [("", "all rules"), ("*", "all rules"), ("search", 'rule "search"')],
    ids=["no rule", "all rules", "one rule"],
)
def test_a_sentence_names_the_rule(rule: str, words: str) -> None:
    assert rule_in_words(rule) == words


LOGIN = f"login.username:{DIGEST}"


@pytest.mark.parametrize(
    ("subject", "names", "words"),
    [
        pytest.param("user:42", {"user:42": "ann"}, "ann (user:42)", id="a user"),
        pytest.param("user:42+org:7", {"user:42": "ann"}, "ann (user:42)+org:7", id="a user beside another part"),
        pytest.param(LOGIN, {LOGIN: "ann"}, "Failed logins of ann", id="failed logins"),
        pytest.param(LOGIN, {}, "Failed logins of a user name", id="failed logins of a name that is not known"),
        pytest.param(
            f"{LOGIN}+ip:192.0.2.1",
            {LOGIN: "ann"},
            "Failed logins of ann at 192.0.2.1",
            id="failed logins at an address",
        ),
        pytest.param(
            f"user:42+post.phone:{DIGEST}+org:7",
            {"user:42": "ann", "org:8": "bob"},
            "ann (user:42)+post.phone:012345…+org:7",
            id="a user beside a digest",
        ),
        pytest.param(
            f"{LOGIN}+ip:192.0.2.1+org:7",
            {LOGIN: "ann"},
            "Failed logins of ann at 192.0.2.1 + org:7",
            id="failed logins beside two parts",
        ),
    ],
)
def test_a_subject_is_called_by_the_names_of_its_users(subject: str, names: dict[str, str], words: str) -> None:
    assert subject_in_words(subject, names) == words


EVENT = Event(
    id=f"{START // 1_000}-0",
    kind="banned",
    rule="a",
    subject="ip:192.0.2.1",
    until=0,
    level=0,
    capacity=0,
    remaining=0,
    share=0,
    cost=1,
    user=None,
    method="",
    path="",
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            {"kind": "near", "share": 0.8125, "remaining": 1_000, "capacity": 9_000},
            "81.25 % used, 1,000 of 9,000 are left",
            id="near",
        ),
        pytest.param({"level": 2}, "second ban, for good", id="a ban for good"),
        pytest.param({"level": 1, "reason": "spam"}, "first ban, for good: spam", id="a ban with a reason"),
        pytest.param({"level": 1, "until": START + 60 * SECOND}, "first ban, until 04:41:00 UTC", id="a ban"),
        pytest.param(
            {"kind": "refused", "reason": "override", "until": START + 60 * SECOND},
            "by an override, until 04:41:00 UTC",
            id="a refusal by an override",
        ),
        pytest.param({"kind": "refused", "reason": "banned"}, "banned, for good", id="a refusal by a ban"),
        pytest.param(
            {"kind": "refused", "cost": 1_000, "remaining": 5, "capacity": 9_000},
            "needed 1,000, 5 of 9,000 are left, for good",
            id="a refusal by a limit",
        ),
        pytest.param({"kind": "refused", "reason": "blocked"}, "blocked by an override, for good", id="a block"),
        pytest.param({"kind": "refused", "reason": "odd"}, "odd, for good", id="another reason"),
        pytest.param(
            {"kind": "refused", "until": START + DAY},
            "needed 1, 0 of 0 are left, until November 22, 04:40:00 UTC",
            id="a refusal until tomorrow",
        ),
        pytest.param(
            {"level": 1, "until": START + DAY, "reason": "spam"},
            "first ban, until November 22, 04:40:00 UTC: spam",
            id="a ban with a reason until tomorrow",
        ),
    ],
)
def test_an_event_says_what_happened(given: dict[str, Any], words: str) -> None:
    with freeze(START):
        assert event_in_words(replace(EVENT, **given)) == words


@pytest.mark.parametrize(
    ("reason", "by", "words"),
    [
        pytest.param("spam", "user:42", "spam (by ann)", id="both"),
        pytest.param("spam", "", "spam", id="a reason"),
        pytest.param("", "user:42", "by ann", id="a user"),
        pytest.param("", "the watchdog", "by the watchdog", id="code"),
        pytest.param("", "", "", id="neither"),
    ],
)
def test_a_ban_says_why_it_was_set(reason: str, by: str, words: str) -> None:
    assert reason_in_words(replace(EVENT, reason=reason, user=by or None), {"user:42": "ann"}) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"user": "user:42", "method": "GET", "path": "/a/"}, "ann GET /a/", id="a user"),
        pytest.param({"user": "user:7", "path": "/a/"}, "user:7 /a/", id="a user without a name"),
        pytest.param({"subject": "org:7+user:42", "user": "user:42", "path": "/a/"}, "/a/", id="a part of the subject"),
        pytest.param({"subject": None, "user": "user:42"}, "ann", id="a subject too long to keep"),
        pytest.param({"method": "GET", "path": "/a/"}, "GET /a/", id="a guest"),
        pytest.param({}, "", id="nothing"),
    ],
)
def test_an_event_says_who_sent_the_request(given: dict[str, Any], words: str) -> None:
    assert sender_in_words(replace(EVENT, **given), {"user:42": "ann"}) == words


@pytest.mark.parametrize(
    ("seconds", "why", "words"),
    [
        pytest.param(None, "", "refused by login for good", id="for good"),
        pytest.param(0, "", "refused by login", id="an end that is not known"),
        pytest.param(60, "", "refused by login until 04:41:00 UTC", id="an end"),
        pytest.param(60, "first ban", "refused by login until 04:41:00 UTC (first ban)", id="a ban"),
    ],
)
def test_it_says_until_when_a_rule_refuses(seconds: float | None, why: str, words: str) -> None:
    assert refused_until(seconds, START, "login", why) == words


def test_it_says_the_day_until_which_a_rule_refuses_unless_that_is_today() -> None:
    assert refused_until(86_400, START, "login") == "refused by login until November 22, 04:40:00 UTC"


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        pytest.param("ip:192.0.2.1", "refused 1,234 addresses since 04:40:00 UTC", id="addresses"),
        pytest.param("user:7", "refused 1,234 users since 04:40:00 UTC", id="users"),
        pytest.param("org:7", "refused 1,234 subjects since 04:40:00 UTC", id="others"),
    ],
)
def test_a_flood_says_how_many_of_which_kind_were_refused(subject: str, words: str) -> None:
    flood = Flood([replace(EVENT, kind="refused", subject=subject)], 1_234)

    with freeze(START):
        assert flood_in_words(flood) == words


def test_a_flood_began_with_its_oldest_event() -> None:
    events = [replace(EVENT, kind="refused", id=f"{(START + second * SECOND) // 1_000}-0") for second in (9, 5, 2)]

    with freeze(START + 9 * SECOND):
        assert flood_in_words(Flood(events, 3)) == "refused 3 addresses since 04:40:02 UTC"


@pytest.mark.parametrize(
    ("number", "words"), [(1, "1 time since 04:40:00 UTC"), (1_200, "1,200 times since 04:40:00 UTC")]
)
def test_a_flood_of_one_subject_is_counted_by_its_refusals(number: int, words: str) -> None:
    flood = Flood([replace(EVENT, kind="refused")] * number, 1)

    with freeze(START):
        assert flood_in_words(flood) == words


LIMIT = LimitStatus(
    rule="a",
    rate="9/m",
    algorithm="sliding_window",
    limit=9,
    used=1,
    remaining=8,
    retry_after=0.0,
    reset_after=60.0,
    why="",
    source="",
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({}, "the next hit is admitted", id="now"),
        pytest.param({"retry_after": 1.5}, "the next hit is admitted in 2 seconds", id="soon"),
        pytest.param({"retry_after": None}, "no hit is admitted", id="never"),
        pytest.param(
            {"retry_after": None, "instead": "allow"}, "the next hit is admitted, and not counted", id="without a store"
        ),
        pytest.param({"instead": "deny"}, "no hit is admitted while Redis refuses writes", id="denied without a store"),
        pytest.param(
            {"instead": "local"}, "each process decides by itself while Redis refuses writes", id="by each process"
        ),
    ],
)
def test_a_limit_says_when_the_next_hit_is_admitted(given: dict[str, Any], words: str) -> None:
    assert next_in_words(replace(LIMIT, **given)) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({}, "", id="as its rule says"),
        pytest.param({"why": "blocked"}, "blocked by an override", id="a block"),
        pytest.param({"why": "exempt"}, "exempt by an override", id="an exemption"),
        pytest.param({"why": "override"}, "by an override", id="another rate"),
        pytest.param({"why": "banned"}, "banned", id="a ban"),
        pytest.param({"why": "blocked", "shadow": True}, "a shadow rule: it only reports", id="a shadow"),
    ],
)
def test_a_limit_says_what_takes_its_place(given: dict[str, Any], words: str) -> None:
    assert str(why_in_words(replace(LIMIT, **given))) == words


ENDS = datetime(2025, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "row", "words"),
    [
        pytest.param({}, {"rate": "+500"}, "1,500 = 1,000 + 500", id="units"),
        pytest.param(
            {}, {"rate": "+500", "expires": ENDS}, "1,500 = 1,000 + 500 until December 1", id="units until a day"
        ),
        pytest.param(
            {"rule": "plans", "tier": "free", "limit": 600},
            {"rate": "+500"},
            "600 = 100 of plan free + 500",
            id="units of a plan",
        ),
        pytest.param({}, None, "", id="no override"),
        pytest.param({}, {"mode": "exempt"}, "", id="an exemption"),
        pytest.param({"why": ""}, {"rate": "+500"}, "", id="an override that does not hold"),
        pytest.param({"rule": "two", "limit": 700}, {"rate": "+500"}, "700 = 200 + 500", id="the second of two limits"),
        pytest.param(
            {"rule": "plans", "tier": "free", "limit": 1_400}, {"rate": "+500"}, "", id="the limit of another plan"
        ),
        pytest.param({}, {"rate": "x2"}, "", id="a factor"),
        pytest.param({"limit": 1_000}, {"rate": "x1"}, "", id="a factor that changes nothing"),
        pytest.param({"limit": 2_500}, {"rate": "x2+500"}, "", id="a factor with units"),
        pytest.param({"limit": 1_600}, {"rate": "+500"}, "", id="another limit than the rule has"),
        pytest.param({"rule": "unknown"}, {"rate": "+500"}, "", id="a rule of a call"),
    ],
)
def test_a_top_up_says_what_it_adds(
    given: dict[str, Any], row: dict[str, Any] | None, words: str, settings: Any
) -> None:
    plans = {"rate": {"free": "100/d", "pro": "900/d"}, "tier": str}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"a": "1000/d", "plans": plans, "two": "100/h; 200/d"}}
    limit = replace(LIMIT, **{"limit": 1_500, "why": "override", **given})

    with freeze(START):
        assert raise_in_words(limit, None if row is None else QuotaOverride(subject="user:42", **row)) == words


@pytest.mark.parametrize(
    ("use_tz", "expires"),
    [
        pytest.param(True, datetime(2025, 11, 21, 11, tzinfo=UTC), id="with time zones"),
        pytest.param(False, datetime(2025, 11, 21, 20), id="without them"),  # noqa: DTZ001 — of such a site
    ],
)
def test_a_top_up_ends_in_the_local_time_of_the_site(use_tz: bool, expires: datetime, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"a": "1000/d"}}
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    row = QuotaOverride(subject="user:42", rate="+500", expires=expires)

    with freeze(START):
        said = raise_in_words(replace(LIMIT, limit=1_500, why="override"), row)

    assert said == "1,500 = 1,000 + 500 until 20:00:00 JST"


@pytest.mark.parametrize(
    ("starts", "expires", "state"),
    [
        pytest.param(None, None, "active", id="for good"),
        pytest.param(-1, 1, "active", id="in its time"),
        pytest.param(1, None, "pending", id="before its start"),
        pytest.param(1, 2, "pending", id="before both"),
        pytest.param(-2, -1, "ended", id="after its end"),
        pytest.param(1, -1, "ended", id="an end before the start"),
    ],
)
def test_an_override_has_a_state(starts: int | None, expires: int | None, state: str) -> None:
    moments = [None if days is None else timezone.now() + timedelta(days=days) for days in (starts, expires)]

    assert override_state(QuotaOverride(starts=moments[0], expires=moments[1])) == state
