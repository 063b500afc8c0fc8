"""Rules, rates and durations are checked when they are made, so that a wrong one never reaches a request."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import cache, partial
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, acquire, ban, check, concurrency, counter, once, slot
from django_quota.adapters import dotted_path
from django_quota.conf import current
from django_quota.core.clock import moment_of
from django_quota.core.rates import (
    MAX_COUNT,
    MAX_PERIOD,
    UNITS,
    Rate,
    parse_duration,
    parse_override_rates,
    parse_rate,
    parse_rates,
)
from django_quota.core.rules import OPTIONS, is_about_the_user, option_in_words
from django_quota.exceptions import RateError, RuleError
from django_quota.testing import freeze
from tests.support.steps import START

TIERS: Any = {"anonymous": "1/m", "authenticated": "3/m"}
BAN = {"after": "20/m", "for": "1h"}
TIERS_EXAMPLE = "Use, for example, {'anonymous': '10/m', 'authenticated': '100/m'}. None means unlimited."
THE_31ST = date(2026, 1, 31)
RATE_HINT = (
    "Write a count in digits alone, a slash and a window: '10/m', '5/30s', '1000 per day', or several: '10/s; 500/h'."
)
UNITS_HINT = "Units, in lower case: s, m, h, d, w (or in full), month, year."
DURATION_HINT = "Use, for example, 30 (seconds), '10m' or timedelta(days=1)."
KNOWN = f"Known: {', '.join(sorted({*OPTIONS, 'rate', 'at_once'}))}."
OF_SETTINGS = {"match", "exclude"}
AHEAD_HINT = "Use, for example, True, 0.5 (seconds) or '2s'."
COSTS = (
    " is not a dict of whole numbers from 1 to 1,000,000,000,000 by the name of a URL. "
    "Use, for example, {'export': 50, 'api:report': 20}."
)
SHARES = "is not a share of the limit, from 0.001 to 1, nor a list of shares. Use, for example, 0.8 or [0.8, 1.0], or "
SHARE_EXAMPLE = "Use, for example, 0.5, or {'critical': 1.0, 'batch': 0.5} with tier=."
EXEMPT_EXAMPLE = "Use, for example, '10.0.0.0/8' (a network), 'staff' or a function of the request."
BAN_EXAMPLE = "Use, for example, {'after': '20/m', 'for': ['10m', '1h', '1d']}."
STARTS = (
    "is neither a date, nor a function of the subject, nor the dotted path of one. "
    "Use, for example, 'shop.plans.started', a function that returns the day on which a plan began."
)
REFUSAL_SPAN = "is not a duration from 0 to 1 minute. Use, for example, 1.0, '10s' or 0 for never."


def named(*_: Any, **__: Any) -> None:
    """Stand for a function of a site."""


def test_a_rule_has_one_limit_for_each_rate() -> None:
    rule = Rule.make("r", "10/s", "500/h; 5000/day")
    assert [str(limit.rate) for limit in rule.limits] == ["10/s", "500/h", "5000/d"]


@pytest.mark.parametrize(
    ("rates", "options", "states"),
    [
        pytest.param("5/m; 9/d", {}, ["sw.60s", "sw.86400s"], id="sliding_window"),
        pytest.param("5/m; 9/30s", {"algorithm": "fixed_window"}, ["fw.60s", "fw.30s"], id="fixed_window"),
        pytest.param("5/m", {"algorithm": "token_bucket"}, ["tb.60s"], id="token_bucket"),
        pytest.param("5/m", {"algorithm": "leaky_bucket"}, ["lb.60s"], id="leaky_bucket"),
        pytest.param("5/15m", {"algorithm": "calendar"}, ["cal.15minute.UTC"], id="calendar"),
        pytest.param(
            "5/30s; 5/12h; 5/d; 5/week; 5/6 months; 5/year",
            {"algorithm": "calendar"},
            ["cal.30second.UTC", "cal.12hour.UTC", "cal.1day.UTC", "cal.1week.UTC", "cal.6month.UTC", "cal.1year.UTC"],
            id="each unit of the calendar",
        ),
        pytest.param("5/d", {"algorithm": "calendar", "tz": "Asia/Tokyo"}, ["cal.1day.Asia/Tokyo"], id="a zone"),
        pytest.param(
            "5/h; 9/month",
            {"algorithm": "calendar", "starts": THE_31ST},
            ["cal.1hour.UTC", "sub.1month.UTC"],
            id="starts",
        ),
        pytest.param("5/m", {"distinct": "ip"}, ["dv.60s"], id="distinct"),
    ],
)
def test_the_name_of_a_state_stays_so_that_counts_outlive_an_upgrade(
    rates: str, options: dict[str, Any], states: list[str]
) -> None:
    assert [limit.state_id for limit in Rule.make("r", rates, **options).limits] == states


@pytest.mark.parametrize(
    ("rate", "options", "seconds"),
    [
        ("5/m", {}, 60), ("5/30s", {"algorithm": "fixed_window"}, 30), ("5/d", {"algorithm": "calendar"}, 86_400),
        ("5/week", {"algorithm": "calendar"}, 604_800), ("5/month", {"algorithm": "calendar"}, None),
        ("5/year", {"algorithm": "calendar"}, None), ("7/m", {"algorithm": "token_bucket"}, 60),
        ("10/m", {"algorithm": "token_bucket", "burst": 5}, 30),
        ("10/m", {"algorithm": "token_bucket", "burst": 20}, 120),
        ("7/s", {"algorithm": "leaky_bucket", "burst": 3}, 1), ("5/m", {"distinct": "ip"}, 60),
    ],
)  # fmt: skip
def test_the_window_of_a_limit_is_when_all_of_it_is_free_again(rate: str, options: Any, seconds: int | None) -> None:
    """In whole seconds, rounded up; a month or a year has no fixed length."""
    assert Rule.make("r", rate, **options).limits[0].window == seconds


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("methods", "methods= chooses requests, so calls do not take it. Decide in your code whether to call."),
        ("skip", "skip= chooses requests, so calls do not take it. Decide in your code whether to call."),
        ("exempt", "exempt= chooses requests, so calls do not take it. Decide in your code whether to call."),
        ("costs", "costs= needs a request, so it is only for @quota and the settings. Use cost= here."),
        ("settle", "settle= needs a response, so it is only for @quota and the settings. Use reserve() here."),
        ("count_when", "count_when= needs a response, so it is only for @quota and the settings. Use reserve() here."),
    ],
)
def test_a_call_does_not_take_what_only_a_request_can_use(option: str, says: str, memory_store: None) -> None:
    ask: Any = check

    with pytest.raises(RuleError) as refused:
        ask("2/m", "user:1", **{option: named})

    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("tiers", "states"),
    [
        ({"free": "5/h; 9/d", "pro": None}, ["sw.3600s", "sw.86400s"]),
        ({"free": "5/h", "team": "9/h; 50/d", "pro": None}, ["sw.3600s", "sw.86400s"]),
    ],
    ids=["several windows", "a window of several tiers"],
)
def test_a_tier_without_a_limit_counts_once_in_each_window_of_the_others(tiers: Any, states: list[str]) -> None:
    rule = Rule.make("r", tiers, tier=named)

    assert [limit.state_id for limit in rule.tiers["pro"].counting] == states


@pytest.mark.parametrize(
    "options",
    [{"algorithm": "token_bucket"}, {"algorithm": "leaky_bucket"}, {"distinct": "ip"}],
    ids=["token_bucket", "leaky_bucket", "distinct"],
)
def test_a_tier_without_a_limit_counts_nothing_where_counts_could_not_be_kept(options: Any) -> None:
    rule = Rule.make("r", {"free": "5/h", "pro": None}, tier=named, **options)

    assert rule.tiers["pro"].counting == ()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_tier_may_have_several_rates_in_a_list_or_a_tuple(kind: Callable[[Any], Any]) -> None:
    rule = Rule.make("r", {"anonymous": kind(["1/s", "9/h"]), "authenticated": kind([None])})

    assert {name: [str(rate) for rate in tier.rates] for name, tier in rule.tiers.items()} == {
        "anonymous": ["1/s", "9/h"], "authenticated": [],
    }  # fmt: skip


def test_a_rule_without_rates_by_tier_has_no_tiers() -> None:
    assert (Rule.make("r", "10/m").tiers, Rule.make("r", None).tiers) == ({}, {})


def test_a_rule_counts_up_to_ten_thousand_different_values() -> None:
    assert Rule.make("r", "10000/d", distinct=True).limits[0].capacity == 10_000


@pytest.mark.parametrize("rates", [(), (None,)], ids=["no rate", "None"])
def test_an_unlimited_rule_has_no_limits(rates: Any) -> None:
    assert Rule.make("r", *rates).limits == ()


DEFAULTS: dict[str, Any] = {
    "key": "ip", "algorithm": "sliding_window", "cost": 1, "costs": None, "burst": None, "precision": None, "tz": None,
    "starts": None, "count_refused": False, "methods": None, "block": True, "shadow": False, "skip": None,
    "exempt": None, "tier": None, "match": None, "exclude": None, "on_unavailable": None, "ban": None, "warn_at": 0.8,
    "daily": None, "distinct": None, "cache_refusals": None, "share": None, "prefetch": None, "store": None,
    "settle": None, "count_when": None,
}  # fmt: skip


def test_an_option_that_is_left_out_has_its_default() -> None:
    rule = Rule.make("r", "10/m")

    assert {option: getattr(rule, option) for option in OPTIONS} == DEFAULTS


@pytest.mark.parametrize(
    ("option", "value", "may_share"),
    [
        *((option, value, False) for option, value in (
            ("block", False), ("shadow", True), ("on_unavailable", "deny"), ("ban", BAN), ("warn_at", 0.5),
            ("daily", True), ("distinct", "ip"), ("prefetch", True), ("store", "database"), ("settle", named),
            ("count_when", named), ("precision", 5), ("share", 0.5), ("count_refused", True),
        )),
        *((option, value, True) for option, value in (
            ("key", "user"), ("algorithm", "fixed_window"), ("cost", 2), ("costs", {"export": 2}), ("methods", "GET"),
            ("skip", named), ("exempt", "staff"), ("cache_refusals", 5), ("match", "/"),
        )),
    ],
)  # fmt: skip
def test_two_rules_may_have_one_name_unless_what_they_share_would_differ(
    option: str, value: Any, may_share: bool
) -> None:
    plain, other = (Rule.from_setting("r", {"rate": "10/m", **given}) for given in ({}, {option: value}))

    assert (plain.is_compatible_with(other), other.is_compatible_with(plain)) == (may_share, may_share)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("10/m", "5/m", "10/m; 5/m"),
        ("10/m", "5 per 60 seconds", "10/m; 5/60s"),
        ("10/d", "5/24h", "10/d; 5/24h"),
    ],
)
def test_two_rates_of_one_window_are_an_error(first: str, second: str, both: str) -> None:
    with pytest.raises(RateError) as refused:
        Rule.make("r", first, second)

    assert str(refused.value) == f"'{both}' is not a rate: both rates have the same window. Use the lower one alone."


def test_rates_by_tier_beside_other_rates_are_an_error_that_says_how_a_tier_gets_several() -> None:
    with pytest.raises(RuleError) as refused:
        Rule.make("r", {"anonymous": "1/m; 9/h", "authenticated": None}, "5/h")

    assert str(refused.value) == (
        "1/m; 9/h for anonymous, unlimited for authenticated cannot be combined with other rates. "
        "Give a tier several rates, for example {'pro': '10/s; 500/h'}."
    )


def test_a_tier_without_a_limit_neither_bans_nor_warns_nor_counts_refusals() -> None:
    rates = {"free": "5/h", "pro": None}

    tiers = Rule.make("r", rates, tier=named, ban=BAN, warn_at=0.5, count_refused=True).tiers

    assert [(tier.ban is None, tier.warn_at, tier.count_refused) for tier in tiers.values()] == [
        (False, 0.5, True),
        (True, None, False),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"algoritm": "fixed_window"}, "'algoritm' is not an option of a rule. Did you mean 'algorithm'?"),
        (
            {"match": "/"},
            f"'match' is only for configured rules. Known: {', '.join(sorted({*OPTIONS, 'name'} - OF_SETTINGS))}.",
        ),
        ({"burst": 5}, "burst= is not an option of 'sliding_window'. It is one of token_bucket and leaky_bucket."),
        (
            {"precision": 5, "algorithm": "fixed_window"},
            "precision= is not an option of 'fixed_window'. It is one of sliding_window.",
        ),
        ({"tz": "UTC"}, "tz= is not an option of 'sliding_window'. It is one of calendar."),
        ({"starts": THE_31ST}, "starts= is not an option of 'sliding_window'. It is one of calendar."),
        ({"precision": "9"}, "precision='9' is not a whole number."),
        ({"precision": 0}, "precision=0 is not from 1 to 1000. Use, for example, 100."),
        ({"precision": 1_001}, "precision=1001 is not from 1 to 1000. Use, for example, 100."),
        ({"burst": 0, "algorithm": "token_bucket"}, "burst=0 is not from 1 to 1000000000000. Use, for example, 10."),
        (
            {"burst": 10**12, "algorithm": "token_bucket"},
            "burst=1000000000000 at '10/m' takes over ten years to refill. Use at most 52704000.",
        ),
        (
            {"rate": "2000000/s", "algorithm": "token_bucket"},
            (
                "'2000000/s' is not a rate: it is more than one a microsecond, the finest that 'token_bucket' "
                "spaces (at position 0). Use algorithm='sliding_window'."
            ),
        ),
        (
            {"tz": "../passwd", "algorithm": "calendar"},
            "tz='../passwd' is not a known time zone. Use, for example, 'UTC' or 'Europe/Berlin'.",
        ),
        ({"daily": 1}, "daily=1 is not True, False or None."),
        ({"count_refused": 1}, "count_refused=1 is not True or False."),
        ({"cost": "5"}, "cost='5' of rule 'r' is not a whole number from 0 to 1000000000000. Use, for example, 1."),
        ({"cost": -1}, "cost=-1 of rule 'r' is not a whole number from 0 to 1000000000000. Use, for example, 1."),
        ({"cost": True}, "cost=True of rule 'r' is not a whole number from 0 to 1000000000000. Use, for example, 1."),
        ({"cost": 1.5}, "cost=1.5 of rule 'r' is not a whole number from 0 to 1000000000000. Use, for example, 1."),
        (
            {"cost": 10**12 + 1},
            "cost=1000000000001 of rule 'r' is not a whole number from 0 to 1000000000000. Use, for example, 1.",
        ),
        ({"methods": "POTS"}, "methods='POTS': 'POTS' is not an HTTP method. Did you mean 'POST'?"),
        ({"methods": []}, "methods=[] are not HTTP methods. Use, for example, ['POST', 'PUT']."),
        ({"methods": 5}, "methods=5 are not HTTP methods. Use, for example, ['POST', 'PUT']."),
        ({"methods": ["GET", 5]}, "methods=['GET', 5] are not HTTP methods. Use, for example, ['POST', 'PUT']."),
        (
            {"warn_at": 80},
            (
                "warn_at=80 is not a share of the limit, from 0.001 to 1, nor a list of shares. Use, for example, "
                "0.8 or [0.8, 1.0], or None for never."
            ),
        ),
        ({"exempt": "10.0.0.1/8"}, f"exempt='10.0.0.1/8': 10.0.0.1/8 has host bits set. {EXEMPT_EXAMPLE}"),
        (
            {"ban": {"after": "20/m", "for": []}},
            f"ban['for']=[] does not list 1 to 16 durations. {BAN_EXAMPLE}",
        ),
        (
            {"ban": {"after": "20/m", "for": ["1h"] * 17}},
            (
                "ban['for']=['1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', '1h', "
                f"'1h', '1h', '1h'] does not list 1 to 16 durations. {BAN_EXAMPLE}"
            ),
        ),
        (
            {"ban": {"after": "20/month", "for": "1h"}},
            (
                "ban['after']='20/month' is not a rate: a ban does not count in months (at position 3). Use seconds to "
                "weeks: for example, '20/30d'."
            ),
        ),
        (
            {"ban": {"after": "20/m", "for": "soon"}},
            f"ban['for']='soon' is not a duration above 0 and up to 366 days. {DURATION_HINT}",
        ),
        (
            {"ban": {"after": "20/m", "for": ["1h", 0]}},
            f"ban['for']=0 is not a duration above 0 and up to 366 days. {DURATION_HINT}",
        ),
        (
            {"prefetch": "19d"},
            f"prefetch='19d' is not a duration from 0 to 18 days 8 hours. {AHEAD_HINT}",
        ),
        ({"prefetch": -1}, f"prefetch=-1 is not a duration from 0 to 18 days 8 hours. {AHEAD_HINT}"),
        (
            {"ban": {"after": "0/m", "for": "1h"}},
            (
                "ban['after']='0/m' is not a rate: a ban after no refusals would never end (at position 0). "
                f"{BAN_EXAMPLE}"
            ),
        ),
        ({"share": 0}, f"share=0 is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}"),
        (
            {"distinct": True, "rate": "10001/d"},
            (
                "'10001/d' is not a rate: distinct= keeps every value, and so takes at most 10000 (at position 0). "
                "counter(...).unique() estimates larger numbers."
            ),
        ),
        (
            {"rate": {}},
            (
                "{} is not a rate: the dict has no tiers. Use, for example, {'anonymous': '10/m', 'authenticated': "
                "'100/m'}."
            ),
        ),
        ({"rate": {"anonymous": "1/m"}}, f"There is no rate for the tier 'authenticated'. {TIERS_EXAMPLE}"),
        (
            {"rate": {**TIERS, "anonymous": "5/mx"}},
            f"'5/mx' is not a rate: 'mx' is not a unit, for tier 'anonymous' (at position 2). {UNITS_HINT}",
        ),
        (
            {"rate": {**TIERS, "authenticated": ["5/m", 5]}},
            f"5 is not a rate: it is int, not a string, for tier 'authenticated'. {RATE_HINT}",
        ),
        (
            {"rate": {**TIERS, "pro": "9/m"}},
            (
                "There is no tier= to say who is in tier 'pro'. Add tier=, a function of the request that returns "
                "the tier. Known: anonymous, authenticated."
            ),
        ),
        ({"name": ""}, "'' is not a rule's name. Use a string of at least one character."),
        ({"name": 5}, "5 is not a rule's name. Use a string of at least one character."),
        ({"name": "\ud800"}, "'\\ud800' is not a rule's name. Use a string of at least one character."),
        ({"name": "*"}, "'*' is not a rule's name: it stands for all rules. Use another name."),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_the_error_for_a_wrong_option_says_how_to_correct_it(options: dict[str, Any], says: str) -> None:
    given = {"name": "r", "rate": "10/m", **options}
    with pytest.raises(RuleError) as refused:
        Rule.make(given.pop("name"), given.pop("rate"), **given)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("cost", 0, "is below 1. Use 1, or a function of the request that returns 0 for free ones."),
        ("costs", {}, COSTS),
        ("costs", ["export"], COSTS),
        ("costs", 5, COSTS),
        ("costs", {"export": 0}, COSTS),
        ("costs", {"export": 10**12 + 1}, COSTS),
        ("costs", {"export": True}, COSTS),
        ("costs", {"export": "5"}, COSTS),
        ("costs", {5: 5}, COSTS),
        ("costs", {"export": 5, "report": 0}, COSTS),
        ("burst", "9", "is not a whole number."),
        ("burst", True, "is not a whole number."),
        ("tz", 5, "is not a string."),
        ("starts", "2026-01-31", STARTS),
        ("starts", datetime(2026, 1, 31, tzinfo=UTC), STARTS),
        ("count_refused", "no", "is not True or False."),
        ("block", 0, "is not True or False."),
        ("shadow", None, "is not True or False."),
        ("skip", "staff", "is not a function of the request, such as lambda request: ..."),
        ("tier", "pro", "is neither a function of the request nor the dotted path of one."),
        ("on_unavailable", "open", "is not 'allow', 'deny' or 'local'."),
        ("warn_at", 0, SHARES + "None for never."),
        ("warn_at", 1.01, SHARES + "None for never."),
        ("warn_at", (), SHARES + "None for never."),
        ("warn_at", (0.5, 2), SHARES + "None for never."),
        ("warn_at", True, SHARES + "None for never."),
        ("daily", "users", "is not True, False or None."),
        ("cache_refusals", 60.1, REFUSAL_SPAN),
        ("cache_refusals", -1, REFUSAL_SPAN),
        ("store", "redis", "is not a store of its own. Use 'database', or leave it out: then QUOTA[\"STORE\"] counts."),
        ("settle", 5, "is not a function. Use, for example, lambda request, response: len(response.content)."),
        ("count_when", 5, "is not a function. Use, for example, lambda response: response.status_code == 401."),
        ("share", 0.0009, f"is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}"),
        ("share", 1.1, f"is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}"),
        ("share", True, f"is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}"),
        ("share", {}, f"is not a dict by tier. {SHARE_EXAMPLE}"),
        ("share", {"": 1}, f"is not a dict by tier. {SHARE_EXAMPLE}"),
        ("share", {5: 1}, f"is not a dict by tier. {SHARE_EXAMPLE}"),
        ("exempt", [], f"is empty. {EXEMPT_EXAMPLE}"),
        ("ban", "20/m", f"is not a dict of 'after' and 'for'. {BAN_EXAMPLE}"),
        ("ban", ["after", "for"], f"is not a dict of 'after' and 'for'. {BAN_EXAMPLE}"),
        ("ban", {"after": "20/m"}, f"is not a dict of 'after' and 'for'. {BAN_EXAMPLE}"),
        ("ban", {"after": "20/m", "for": "1h", "to": 5}, f"is not a dict of 'after' and 'for'. {BAN_EXAMPLE}"),
    ],
    ids=str,
)  # fmt: skip
def test_the_error_for_a_wrong_value_names_the_option_with_the_value(option: str, value: Any, says: str) -> None:
    algorithm = {"burst": "token_bucket", "tz": "calendar", "starts": "calendar"}.get(option, "sliding_window")

    with pytest.raises(RuleError) as refused:
        Rule.make("r", "10/day", algorithm=algorithm, **{option: value})

    assert str(refused.value) == f"{option}={value!r} {says.strip()}"


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (
            {"anonymous": 0, "authenticated": 1},
            f"share['anonymous']=0 is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}",
        ),
        (
            {"anonymous": 1, "authenticated": 2},
            f"share['authenticated']=2 is not a share of the limit, from 0.001 to 1. {SHARE_EXAMPLE}",
        ),
        (
            {"anonymous": 1},
            "There is no share for the tier 'authenticated'. Use 1.0 if requests of this tier may fill the limit.",
        ),
        (
            {"anonymous": 1, "authenticated": 1, "pro": 1},
            (
                "There is no tier= to say who is in tier 'pro'. Add tier=, a function of the request that returns "
                "the tier. Known: anonymous, authenticated."
            ),
        ),
        (
            {"anonymus": 1},
            (
                "There is no tier= to say who is in tier 'anonymus'. Add tier=, a function of the request that "
                "returns the tier. Did you mean 'anonymous'?"
            ),
        ),
    ],
    ids=["too little", "too much", "a missing one", "an unknown one", "a misspelt one"],
)
def test_the_error_for_a_wrong_share_of_a_tier_names_the_tier(share: Any, says: str) -> None:
    with pytest.raises(RuleError) as refused:
        Rule.make("r", "10/m", share=share)

    assert str(refused.value) == says


@pytest.mark.parametrize(
    "rates", [(TIERS,), (named,), ("10/m", named)], ids=["by tier", "of a function", "one of a function"]
)
def test_shares_by_tier_need_rates_that_are_the_same_for_all_tiers(rates: Any) -> None:
    says = r"^share= by tier needs rates that are the same for all tiers\. Use, for example, '1000/m'\.$"

    with pytest.raises(RuleError, match=says):
        Rule.make("r", *rates, share={"anonymous": 0.5, "authenticated": 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("costs", {"export": 1, "api:report": 10**12}),
        ("warn_at", 0.001), ("warn_at", 1), ("warn_at", (0.001, 1.0)), ("warn_at", None),
        ("share", 0.001), ("share", 1),
        ("cache_refusals", 60), ("cache_refusals", 0),
        ("daily", True), ("daily", False), ("daily", None),
        ("on_unavailable", "allow"), ("on_unavailable", "deny"), ("on_unavailable", "local"),
        ("precision", 1), ("precision", 1_000),
        ("prefetch", 0.02), ("prefetch", 3),
        ("ban", {"after": "1/m", "for": ["1h"] * 16}),
        ("store", "database"),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_or_the_last_of_the_right_values_makes_a_rule(option: str, value: Any) -> None:
    assert Rule.make("r", "10/m", **{option: value}).name == "r"


GIVEN: dict[str, Any] = {
    "algorithm": "fixed_window", "precision": 5, "count_refused": True, "cost": 2, "costs": {"export": 2}, "ban": BAN,
    "share": 0.5, "distinct": True, "prefetch": True, "starts": lambda subject: None, "store": "database",
    "settle": lambda request, response: 1, "count_when": lambda response: True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "other", "why"),
    [
        *(
            ("share", other, "the refusals of one kind of request would count against all kinds")
            for other in ("count_refused", "ban")
        ),
        *((option, "distinct", "a value that was counted cannot be given back") for option in ("settle", "count_when")),
        *(("prefetch", other, "the store must see each refusal") for other in ("count_refused", "ban")),
        *(
            (
                "prefetch",
                other,
                "a unit that a process spends is counted later, and cannot be given back where it was counted",
            )
            for other in ("settle", "count_when")
        ),
        ("prefetch", "distinct", "only the store knows the values"),
        ("prefetch", "starts", "a count goes on if the subject's day changes, and its units must not end before it"),
        ("prefetch", "share", "what requests of one kind have taken ahead would be missing for the others"),
        (
            "prefetch",
            "store",
            "a process that is killed loses what it has taken ahead, and this store is for what must last",
        ),
        ("ban", "store", "a ban is kept where the other rules count"),
        ("count_refused", "store", "a request that the other rules refuse takes nothing of the database"),
        *(
            (option, "distinct", "it counts different values in a sliding window, and each value costs 1")
            for option in ("algorithm", "precision", "count_refused", "cost", "costs")
        ),
    ],
)
def test_two_options_that_exclude_each_other_are_an_error_that_says_why(option: str, other: str, why: str) -> None:
    algorithm = {"algorithm": "calendar"} if other == "starts" else {}

    with pytest.raises(RuleError) as refused:
        Rule.make(
            "r", "10/month" if algorithm else "10/m", **algorithm, **{name: GIVEN[name] for name in (option, other)}
        )

    assert str(refused.value) == f"{option}= cannot be combined with {other}=: {why}. Leave out {option}=."


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        *((name, "on_unavailable") for name in ("on_fail", "on_error", "fail_open")),
        *((name, "name") for name in ("group", "scope")),
        *((name, "cost") for name in ("increment", "weight")),
        *((name, "key") for name in ("key_func", "by")),
        *((name, "exempt") for name in ("allowlist", "whitelist")),
        ("exempt_when", "skip"), ("deduct_when", "count_when"), ("per_method", "methods"),
    ],
)  # fmt: skip
def test_an_option_of_another_package_is_an_error_that_says_what_it_is_called_here(theirs: str, ours: str) -> None:
    with pytest.raises(RuleError, match=rf"^'{theirs}' is not an option of a rule\. Here it is called '{ours}'\.$"):
        Rule.make("r", "10/m", **{theirs: 1})


@pytest.mark.parametrize("name", ["limit", "limits", "rate", "rates", "period", "window", "per", "interval"])
def test_a_rate_by_its_name_in_another_package_is_an_error_that_writes_it_first(name: str) -> None:
    with pytest.raises(RuleError) as refused:
        Rule.make("r", "10/m", **{name: "9/h"})

    assert str(refused.value) == (
        f"'{name}' is not an option of a rule. The first argument is the rate: write '9/h' first. "
        "In the settings it is 'rate'."
    )


def test_a_rate_by_its_name_in_another_package_that_is_not_a_string_gets_an_example() -> None:
    with pytest.raises(RuleError, match=r"The first argument is the rate: write '10/m' first\."):
        Rule.make("r", "10/m", limit=5)


@pytest.mark.parametrize("option", ["match", "exclude"])
def test_where_a_rule_applies_is_only_for_the_settings(option: str) -> None:
    with pytest.raises(RuleError, match=rf"^'{option}' is only for configured rules\."):
        Rule.make("r", "10/m", **{option: "/"})


TOO_MANY = (
    "'1000001/s' is not a rate: it is more than one a microsecond, the finest that '{algorithm}' spaces "
    "(at position 0). Use algorithm='sliding_window'."
)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
class TestTheBoundsOfABucket:
    @pytest.mark.parametrize(
        ("rate", "burst"),
        [("1000000/s", None), ("60000000/m", None), ("5/m", 1), ("1000000/s", 10**12), ("0/m", 5)],
        ids=["one a microsecond", "a minute of them", "the least burst", "the largest burst", "no rate"],
    )
    def test_each_makes_a_rule(self, rate: str, burst: int | None, algorithm: Any) -> None:
        assert Rule.make("r", rate, algorithm=algorithm, burst=burst).burst == burst

    @pytest.mark.parametrize(
        ("rate", "burst", "says"),
        [
            ("1000001/s", None, TOO_MANY),
            ("5/m", 0, "burst=0 is not from 1 to 1000000000000. Use, for example, 5."),
            ("0/m", 0, "burst=0 is not from 1 to 1000000000000. Use, for example, 1."),
            ("5/m", 10**12 + 1, "burst=1000000000001 is not from 1 to 1000000000000. Use, for example, 5."),
        ],
        ids=["more than one a microsecond", "no burst", "no burst of no rate", "too large a burst"],
    )
    def test_a_value_outside_of_them_is_an_error(self, rate: str, burst: int | None, says: str, algorithm: Any) -> None:
        with pytest.raises(RuleError) as refused:
            Rule.make("r", rate, algorithm=algorithm, burst=burst)

        assert str(refused.value) == says.format(algorithm=algorithm)


def test_a_limit_is_shown_by_its_rate_its_algorithm_and_its_rule() -> None:
    assert repr(Rule.make("r", "10/m").limits[0]) == "<Limit 10/m by sliding_window of 'r'>"


def test_a_limit_names_its_algorithm_and_what_it_counts() -> None:
    limit = Rule.make("r", "10/m", algorithm="token_bucket").limits[0]

    assert (limit.algorithm_name, limit.unit) == ("token_bucket", "requests")


def test_equal_limits_are_one_in_a_set() -> None:
    limits = [
        Rule.make(name, rate).limits[0] for name, rate in (("r", "5/m"), ("r", "5/m"), ("s", "5/m"), ("r", "6/m"))
    ]

    assert len(set(limits)) == 3


def test_a_bucket_refills_within_ten_years() -> None:
    """The error names the largest burst, which fits."""
    with pytest.raises(RuleError) as refused:
        Rule.make("r", "1/d", algorithm="token_bucket", burst=3_661)

    assert str(refused.value) == "burst=3661 at '1/d' takes over ten years to refill. Use at most 3660."
    assert Rule.make("r", "1/d", algorithm="token_bucket", burst=3_660).burst == 3_660


@pytest.mark.parametrize(
    ("option", "function", "given"),
    [
        ("cost", lambda: 1, "request"), ("cost", lambda request, response: 1, "request"),
        ("exempt", lambda: True, "request"), ("key", ["ip", lambda: "a"], "request"),
        ("distinct", lambda: "a", "request"), ("settle", lambda response: 1, "request, response"),
        ("skip", lambda: True, "request"), ("tier", lambda: "pro", "request"),
        ("count_when", lambda request, response: True, "response"),
    ],
)  # fmt: skip
def test_a_function_that_takes_other_arguments_is_refused(option: str, function: Any, given: str) -> None:
    path = dotted_path(function[1] if isinstance(function, list) else function)

    with pytest.raises(RuleError) as refused:
        Rule.make("r", TIERS if option == "tier" else "10/m", **{option: function})

    assert str(refused.value) == (
        f"{option}={path} cannot be called with ({given}). Use, for example, lambda {given}: ..."
    )


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda request, units=1: 1, id="a default"),
        pytest.param(lambda *args: 1, id="any arguments"),
        pytest.param(partial(lambda units, request: 1, 1), id="a partial"),
        pytest.param(len, id="a built-in"),
        pytest.param(str, id="a class"),
        pytest.param(Mock(), id="a mock"),
    ],
)
def test_a_function_that_can_be_called_with_the_request_is_taken(function: Any) -> None:
    assert Rule.make("r", "10/m", cost=function).cost is function


@given(
    st.sampled_from(sorted(OPTIONS.keys() - {"key"})),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.just(object()),
)
def test_any_value_of_any_option_makes_a_rule_or_raises_rule_error(option: str, value: object) -> None:
    try:
        Rule.make("r", "10/m", **{option: value})
    except RuleError as error:
        text = str(error)
    else:
        return
    assert option in text


@pytest.mark.parametrize(
    ("rates", "prefetch", "lease"),
    [
        ("100/m", True, 1.2), ("100/m; 5/s", True, 0.02), ("100/d", True, 10), ("100/m", 3, 3), ("100/m", "2s", 2),
        ("100/m", False, 0), ("100/m", None, 0), (None, True, 0),
    ],
)  # fmt: skip
def test_a_lease_is_a_fiftieth_of_the_shortest_window_unless_it_is_set(rates: Any, prefetch: Any, lease: float) -> None:
    assert Rule.make("r", rates, prefetch=prefetch).lease == lease * 1_000_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"prefetch": 3.1},
            "prefetch=3.1 is longer than a twentieth of the shortest window, 3 seconds. Use True, or fewer seconds.",
        ),
        ({"prefetch": 0.01}, "prefetch=0.01 is less than 0.02 seconds. Use, for example, True, 0.5 (seconds) or '2s'."),
        ({"prefetch": "soon"}, f"prefetch='soon' is not a duration from 0 to 18 days 8 hours. {AHEAD_HINT}"),
        (
            {"algorithm": "leaky_bucket"},
            (
                "prefetch= cannot be combined with algorithm='leaky_bucket': it spaces the hits of all processes. "
                "Leave out prefetch=, or use 'token_bucket'."
            ),
        ),
        (
            {"cost": lambda request: 2},
            (
                "prefetch= cannot be combined with a function as cost=: nobody knows how much to take ahead. Leave "
                "out prefetch=, or give costs= by view."
            ),
        ),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_cannot_be_taken_ahead_is_a_rule_error_that_says_why(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError) as refused:
        Rule.make("r", "10/m", **{"prefetch": True, **options})
    assert str(refused.value) == says


@pytest.mark.parametrize("rates", [named, None], ids=["of a function", "unlimited"])
def test_a_rule_whose_windows_are_not_known_yet_may_have_any_lease(rates: Any) -> None:
    assert Rule.make("r", rates, prefetch=60).prefetch == 60


@pytest.mark.parametrize(
    ("starts", "begins"), [(date(2026, 1, 15), 15), (named, 1)], ids=["a day", "a function that was not asked yet"]
)
def test_a_limit_with_starts_begins_its_period_on_that_day(starts: Any, begins: int) -> None:
    limit = Rule.make("r", "9/month", algorithm="calendar", starts=starts).limits[0]

    assert moment_of(limit.parameters(START).a).day == begins


def test_an_override_with_a_shorter_window_shortens_the_lease() -> None:
    rule = Rule.make("r", "10/h", prefetch=60)
    assert [rule.under("x2").lease, rule.under("5/m").lease] == [60_000_000, 1_200_000]


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ({"key": "user"}, False), ({"key": "ip"}, False), ({"key": ["user", "ip"]}, False),
        ({"key": "user_or_ip"}, True), ({"key": ["ip", "header:X-Api-Key"]}, True), ({"key": named}, True),
        ({"key": "ip", "tier": named}, True),
    ],
)  # fmt: skip
def test_a_tier_is_noted_where_the_subject_does_not_tell_it(options: Any, notes: bool) -> None:
    rule = Rule.make("r", TIERS, **options)

    assert (rule.notes_tier, rule.tiers["anonymous"].of_tier) == (notes, "anonymous" if notes else "")


@pytest.mark.parametrize(
    ("warn_at", "thousandths"),
    [
        (0.8, (800,)), (0.57, (570,)), (1, (1_000,)), (0.0019, (1,)), ([0.9, 0.5, 0.9], (500, 900)), (None, ()),
        (0.1 + 0.7, (800,)),
    ],
    ids=str,
)  # fmt: skip
def test_the_shares_at_which_a_rule_warns_are_thousandths_in_rising_order(warn_at: Any, thousandths: Any) -> None:
    assert Rule.make("r", "10/m", warn_at=warn_at).warn_shares == thousandths


def test_a_shadow_rule_warns_at_no_share() -> None:
    assert Rule.make("r", "10/m", shadow=True, warn_at=0.5).warn_shares == ()


@pytest.mark.parametrize(
    ("options", "encoded", "lowest"),
    [
        ({}, (), "800"), ({"warn_at": None}, (), "0"), ({"warn_at": [0.8, 0.5]}, ("shares", "500,800"), "500"),
        ({"ban": {"after": "20/m", "for": ["10m", "1h"]}},
         ("ban", "20", "60000000", "0", "600000000,3600000000"), "800"),
        ({"ban": {"after": "200/100s", "for": "1h"}}, ("ban", "200", "100000000", "1000000", "3600000000"), "800"),
        ({"ban": BAN, "warn_at": [0.8, 0.5]},
         ("shares", "500,800", "ban", "20", "60000000", "0", "3600000000"), "500"),
        ({"ban": BAN, "shadow": True}, ("quiet",), "0"),
    ],
    ids=["nothing", "no warnings", "several shares", "a ban", "a ban after many refusals", "both", "a shadow rule"],
)  # fmt: skip
def test_a_rule_is_sent_with_its_warnings_and_its_ban(options: Any, encoded: tuple[str, ...], lowest: str) -> None:
    rule = Rule.make("r", "10/m", **options)

    assert (rule.encoded, rule.lowest_warn_share) == (encoded, lowest)


@pytest.mark.parametrize(
    ("options", "settles"),
    [({"settle": named}, True), ({"count_when": named}, True), ({"cost": named}, False)],
    ids=["settle", "count_when", "neither"],
)
def test_a_rule_that_looks_at_the_response_settles(options: Any, settles: bool) -> None:
    assert Rule.make("r", "10/m", **options).settles is settles


@pytest.mark.parametrize(
    ("rate", "is_long"),
    [
        ("9/week", True), ("5/h; 9/month", True), ("9/year", True), ("9/d", False), (None, False), (named, False),
        ({"anonymous": "5/h", "authenticated": "9/month"}, True), (TIERS, False),
    ],
    ids=["a week", "a month", "a year", "a day", "no rate", "of a function", "of a tier", "of no tier"],
)  # fmt: skip
def test_a_rule_of_a_week_a_month_or_a_year_has_a_long_period(rate: Any, is_long: bool) -> None:
    assert Rule.make("r", rate, algorithm="calendar").has_long_period is is_long


def test_the_rule_of_a_day_is_made_once() -> None:
    rule = Rule.make("r", "9/month", algorithm="calendar", starts=named)

    first = rule.starting(THE_31ST)

    assert rule.starting(THE_31ST) is first
    assert rule.starting(date(2026, 2, 1)) is not first


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"key": "post:phone"}, "post"), ({"key": "json:user.phone"}, "json"), ({"key": ["json:a", "post:b"]}, "post"),
        ({"key": "ip", "distinct": "json:device"}, "json"), ({"key": "ip", "distinct": ["ip", "post:a"]}, "post"),
        ({"key": "header:post"}, ""), ({"key": "ip"}, ""), ({"key": named, "distinct": True}, ""),
    ],
)  # fmt: skip
def test_a_key_of_the_body_makes_its_rule_read_the_body(options: Any, kind: str) -> None:
    assert Rule.make("r", "10/m", **options).reads_body == kind


@pytest.mark.parametrize(
    ("rate", "options", "is_plain"),
    [
        pytest.param("10/m", {}, True, id="a rate"),
        pytest.param(
            "10/m; 9/h", {"key": named, "ban": BAN, "shadow": True, "cost": 5}, True, id="a key of a function"
        ),
        pytest.param("9/month", {"algorithm": "calendar", "starts": THE_31ST}, True, id="a day"),
        pytest.param("9/month", {"algorithm": "calendar", "starts": named}, False, id="the day of a subject"),
        pytest.param(named, {}, False, id="the rate of a function"),
        pytest.param(TIERS, {}, False, id="rates by tier"),
        pytest.param("10/m", {"share": {"anonymous": 1, "authenticated": 1}}, False, id="shares by tier"),
        pytest.param("10/m", {"cost": named}, False, id="the cost of a function"),
        pytest.param("10/m", {"costs": {"export": 5}}, False, id="costs"),
        pytest.param("10/m", {"methods": "GET"}, False, id="methods"),
        pytest.param("10/m", {"skip": named}, False, id="skip"),
        pytest.param("10/m", {"exempt": "10.0.0.0/8"}, False, id="exempt"),
        pytest.param("10/m", {"distinct": "ip"}, False, id="distinct"),
        pytest.param("10/m", {"settle": named}, False, id="settle"),
        pytest.param("10/m", {"count_when": named}, False, id="count_when"),
    ],
)
def test_a_plain_rule_needs_no_more_than_the_key_of_a_request(rate: Any, options: Any, is_plain: bool) -> None:
    assert Rule.make("r", rate, **options).is_plain is is_plain


@pytest.mark.parametrize(
    ("rate", "options", "needs"),
    [
        pytest.param("10/m", {}, False, id="a rate"),
        pytest.param("10/m", {"key": ["ip", "header:X-Api-Key"]}, False, id="a header"),
        pytest.param("10/m", {"settle": named}, False, id="settle"),
        pytest.param("10/m", {"count_when": named}, False, id="count_when"),
        pytest.param("10/m", {"exempt": "10.0.0.0/8"}, False, id="an exempt network"),
        pytest.param("10/m", {"distinct": "header:X-Device"}, False, id="distinct headers"),
        pytest.param("10/m", {"key": "user"}, True, id="the user"),
        pytest.param("10/m", {"key": ["ip", "post:phone"]}, True, id="the body"),
        pytest.param("10/m", {"key": ["ip", named]}, True, id="a key of a function"),
        pytest.param("10/m", {"distinct": "user"}, True, id="distinct users"),
        pytest.param("10/m", {"exempt": "staff"}, True, id="staff"),
        pytest.param("10/m", {"exempt": named}, True, id="exempt by a function"),
        pytest.param("10/m", {"skip": named}, True, id="skip"),
        pytest.param("10/m", {"cost": named}, True, id="the cost of a function"),
        pytest.param(named, {}, True, id="the rate of a function"),
        pytest.param(TIERS, {}, True, id="rates by tier"),
    ],
)
def test_a_rule_needs_the_view_for_what_only_the_view_may_know(rate: Any, options: Any, needs: bool) -> None:
    assert Rule.make("r", rate, **options).needs_view is needs


@pytest.mark.parametrize(
    ("key", "may_be"),
    [
        ("user", True), ("user_or_ip", True), ("shop.keys.tenant", True), (named, True), (("ip", "user"), True),
        (("ip", ("global", named)), True), ("ip", False), ("header:X.Y", False), ("global", False),
        (("ip", "header:X"), False),
    ],
    ids=[
        "user", "user_or_ip", "a dotted path", "a function", "one of two", "one of two in one of two", "ip", "a header",
        "global", "none of two",
    ],
)  # fmt: skip
def test_a_function_in_a_key_may_be_about_the_user(key: Any, may_be: bool) -> None:
    assert is_about_the_user(key) is may_be


METHODS = pytest.mark.parametrize(
    ("written", "methods"), [("post", {"POST"}), (["get", "PUT"], {"GET", "HEAD", "PUT"})], ids=["one", "several"]
)


@METHODS
def test_methods_are_one_string_or_several(written: Any, methods: set[str]) -> None:
    rule = Rule.make("r", "10/m", methods=written if isinstance(written, str) else iter(written))

    assert set(rule.methods or ()) == methods


@METHODS
def test_a_lower_case_method_makes_the_same_rule(written: Any, methods: set[str]) -> None:
    """`Rule` is public: a lower-case method must not make a rule that never applies."""
    rates: Any = ("10/m",)

    rule = Rule("r", rates, methods=frozenset(map(str.lower, methods)))

    assert rule == Rule.make("r", "10/m", methods=written)


@pytest.mark.parametrize(
    ("ban", "words"),
    [
        ({"after": "1/m", "for": "1h"}, "after 1 refusal in 1 minute, for 1 hour"),
        ({"after": "2/30s", "for": ["10m", "1h"]}, "after 2 refusals in 30 seconds, for 10 minutes, 1 hour"),
        ({"after": "1000/d", "for": ("90s",)}, "after 1,000 refusals in 1 day, for 1 minute 30 seconds"),
    ],
    ids=["one of each", "several", "many"],
)
def test_a_ban_says_after_what_it_begins_with_how_long_it_lasts(ban: Any, words: str) -> None:
    assert str(Rule.make("r", "10/m", ban=ban).ban) == words


@pytest.mark.parametrize(
    ("written", "network"),
    [
        ("::ffff:10.1.2.3", "10.1.2.3/32"), ("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("::ffff:0:0/96", "0.0.0.0/0"),
        ("64:ff9b::10.0.0.0/104", "10.0.0.0/8"), ("64:ff9b::/96", "0.0.0.0/0"), ("::/0", "::/0"),
        ("::fffe:0:0/95", "::fffe:0:0/95"), ("64:ff9b:1::/48", "64:ff9b:1::/48"), ("2001:db8::/32", "2001:db8::/32"),
    ],
)  # fmt: skip
def test_ipv4_that_is_written_as_ipv6_is_exempt_as_ipv4(written: str, network: str) -> None:
    assert Rule.make("r", "10/m", exempt=written).exempt.networks == (ip_network(network),)


@pytest.mark.parametrize(
    ("given", "network"),
    [
        (ip_address("10.1.2.3"), "10.1.2.3/32"), (ip_network("10.0.0.0/8"), "10.0.0.0/8"),
        (ip_address("2001:db8::1"), "2001:db8::1/128"), (ip_network("2001:db8::/32"), "2001:db8::/32"),
    ],
    ids=["an address", "a network", "an address of IPv6", "a network of IPv6"],
)  # fmt: skip
def test_what_python_takes_for_a_network_may_be_exempt(given: Any, network: str) -> None:
    assert Rule.make("r", "10/m", exempt=given).exempt.networks == (ip_network(network),)


def test_an_empty_string_exempts_nobody_so_it_is_an_error() -> None:
    with pytest.raises(RuleError, match=r"^exempt='': .* Use, for example, '10"):
        Rule.make("r", "10/m", exempt="")


@pytest.mark.parametrize("value", [5, 5.0, b"10.0.0.0/8"], ids=["a number", "a float", "bytes"])
def test_only_a_string_is_read_as_a_network(value: Any) -> None:
    """`ipaddress` takes 5 for 0.0.0.5."""
    says = rf"^exempt={re.escape(repr(value))}: it is {type(value).__name__}, not a string\. Use, for example, '10"

    with pytest.raises(RuleError, match=says):
        Rule.make("r", "10/m", exempt=value)


EVERY_METHOD = (
    "CONNECT COPY DELETE GET HEAD LINK LOCK MKCOL MOVE OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REPORT "
    "SEARCH TRACE UNLINK UNLOCK"
)


@pytest.mark.parametrize("method", EVERY_METHOD.split())
def test_each_method_of_http_webdav_and_caches_can_be_limited(method: str) -> None:
    assert Rule.make("r", "10/m", methods=method.lower()).methods == frozenset(
        {"GET", "HEAD"} if method == "GET" else {method}
    )


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_who_is_exempt_may_be_any_collection(kind: Callable[[Any], Any]) -> None:
    exempt = Rule.make("r", "10/m", exempt=kind(["staff", "10.0.0.0/8", named])).exempt

    found = (exempt.networks, exempt.staff, exempt.functions)
    assert found == ((ip_network("10.0.0.0/8"),), True, (named,))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_ban_may_list_its_durations_in_a_list_or_a_tuple(kind: Callable[[Any], Any]) -> None:
    ban = Rule.make("r", "10/m", ban={"after": "20/m", "for": kind(["10m", "1h"])}).ban

    assert ban.durations == (600_000_000, 3_600_000_000)


def test_of_several_wrong_methods_the_error_names_the_first_by_its_letters() -> None:
    with pytest.raises(RuleError, match="'AAA' is not an HTTP method"):
        Rule.make("r", "10/m", methods=["fff", "ddd", "bbb", "aaa", "ccc", "eee", "GET"])


class Cost(IntEnum):
    """The cost of a hit, as a site may name it."""

    EXPORT = 5


def test_the_cost_of_an_enum_is_a_plain_number() -> None:
    """`str()` of a member may be its name, which a store cannot read."""
    assert type(Rule.make("r", "10/m", cost=Cost.EXPORT).cost) is int


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("share", {"anonymous": 0.5, "authenticated": 1}), ("exempt", ["staff", "10.0.0.0/8"]), ("ban", BAN),
        ("methods", "GET"), ("prefetch", 2), ("cache_refusals", 5), ("warn_at", [0.5, 0.8]), ("key", ["ip", "user"]),
    ],
)  # fmt: skip
def test_an_option_that_was_read_stays_when_a_rule_is_changed(option: str, value: Any) -> None:
    rule = Rule.make("r", "10/m", **{option: value})

    assert getattr(rule.renamed("s"), option) == getattr(rule, option) is not None


def test_the_costs_of_views_stay_when_a_rule_is_changed() -> None:
    rule = Rule.make("r", "10/m", costs={"export": 5})

    assert rule.but(shadow=True).costs == rule.costs == (("export", 5),)


@pytest.mark.parametrize(
    ("option", "several"),
    [("key", ("ip", "user")), ("distinct", ("ip", "user")), ("warn_at", (0.5, 1.0))],
    ids=["key", "distinct", "warn_at"],
)
def test_a_list_as_an_option_makes_the_same_rule_as_a_tuple(option: str, several: tuple[Any, ...]) -> None:
    """Rules are remembered by what they are, so they must be hashable."""
    of_list, of_tuple = (Rule.make("r", "10/m", **{option: written}) for written in (list(several), several))

    assert {of_list: "remembered"}[of_tuple] == "remembered"


@pytest.mark.parametrize(
    "value",
    ["10/s; 500/h", ("10/s", "500/h"), {"rate": ["10/s", "500/h"]}],
    ids=["a string", "several rates", "a dict"],
)
def test_a_configured_rule_is_a_rate_several_rates_or_a_dict(value: object) -> None:
    assert [str(rate) for rate in Rule.from_setting("r", value).rates] == ["10/s", "500/h"]


def test_a_configured_rule_may_be_unlimited() -> None:
    assert Rule.from_setting("r", {"rate": None}).rates == ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"key": "ip"}, "it has no 'rate'. Use, for example, {'rate': '10/m', 'key': 'ip'}."),
        ({"rate": "5/mx"}, f"'5/mx' is not a rate: 'mx' is not a unit (at position 2). {UNITS_HINT}"),
        ([], "the list of rates is empty. Use, for example, '10/m', or None for unlimited."),
        (
            {"rate": "5/m", "ban": {"after": "nonsense", "for": "1h"}},
            (
                "ban['after']='nonsense' is not a rate: the count is not a whole number from 0 up (at position 0). "
                f"{RATE_HINT}"
            ),
        ),
        (
            {"rate": "5/m", "ban": {"after": "0/m", "for": "1h"}},
            (
                "ban['after']='0/m' is not a rate: a ban after no refusals would never end (at position 0). "
                f"{BAN_EXAMPLE}"
            ),
        ),
        ({"rate": "5/m", "bloc": False}, "'bloc' is not an option of a rule. Did you mean 'block'?"),
        ({"rate": "5/m", 5: 5}, f"'5' is not an option of a rule. {KNOWN}"),
        ({"rate": "5/m", "name": "a"}, f"'name' is not an option of a rule. {KNOWN}"),
        ({"rate": [["5/m"]]}, f"['5/m'] is not a rate: it is list, not a string. {RATE_HINT}"),
        (5, f"5 is not a rate: it is int, not a string. {RATE_HINT}"),
        (
            {"rate": "5/m", "exclude": "/x"},
            "exclude= needs match=, which says where the rule applies. Use, for example, 'match': '/'.",
        ),
    ],
)
def test_the_error_for_a_wrong_configured_rule_names_its_place(value: object, says: str) -> None:
    with pytest.raises(RuleError) as caught:
        Rule.from_setting("search", value)

    assert str(caught.value) == f"QUOTA[\"RULES\"]['search']: {says}"


# --- the names of functions, and options in words ---------------------------------------------------------------------


class Asked:
    """Stand for a class whose objects are called."""

    def __call__(self, request: Any) -> None: ...

    def method(self, request: Any) -> None: ...


def renamed() -> type:
    """Return a class as `@api_view` of Django REST framework makes it: renamed by `__name__` alone."""
    made = type("Made", (), {"__qualname__": "outer.Made", "__module__": "shop.views"})
    made.__name__ = "search"
    return made


OF_HERE = "tests.core.test_rules"


@pytest.mark.parametrize(
    ("function", "path"),
    [
        pytest.param(named, f"{OF_HERE}.named", id="a function"),
        pytest.param(Asked, f"{OF_HERE}.Asked", id="a class"),
        pytest.param(Asked(), f"{OF_HERE}.Asked", id="an object"),
        pytest.param(Asked().method, f"{OF_HERE}.Asked.method", id="a method"),
        pytest.param(renamed(), "shop.views.outer.search", id="a renamed class"),
        pytest.param(len, "builtins.len", id="a built-in"),
        pytest.param(cache(lambda request: 1), f"{OF_HERE}.<lambda>", id="a cached lambda, which has no line"),
        pytest.param(partial(named), f"{OF_HERE}.named()", id="a partial"),
        pytest.param(
            partial(named, 5, None, "a", True, unit="m"),
            f"{OF_HERE}.named(5, None, 'a', True, unit='m')",
            id="arguments",
        ),
        pytest.param(partial(partial(named, 5), 6), f"{OF_HERE}.named(5, 6)", id="a partial of a partial"),
        pytest.param(partial(named, ("a", (1, None))), f"{OF_HERE}.named(('a', (1, None)))", id="a tuple"),
        pytest.param(partial(named, named), f"{OF_HERE}.named({OF_HERE}.named)", id="a function as an argument"),
        pytest.param(partial(named, Asked), f"{OF_HERE}.named({OF_HERE}.Asked)", id="a class as an argument"),
        pytest.param(partial(named, Asked()), f"{OF_HERE}.named({OF_HERE}.Asked)", id="an object as an argument"),
        pytest.param(partial(named, partial(named, 1)), f"{OF_HERE}.named(functools.partial)", id="a partial as one"),
        pytest.param(partial(named, 1.5), f"{OF_HERE}.named(builtins.float)", id="a float, which has no address"),
        pytest.param(partial(named, "a" * 78), f"{OF_HERE}.named('{'a' * 78}')", id="the longest string"),
        pytest.param(partial(named, "a" * 79), f"{OF_HERE}.named(builtins.str)", id="a longer string"),
        pytest.param(partial(named, ("a" * 76,)), f"{OF_HERE}.named(('{'a' * 76}'))", id="the longest tuple"),
        pytest.param(partial(named, ("a" * 77,)), f"{OF_HERE}.named(builtins.tuple)", id="a longer tuple"),
    ],
)
def test_the_dotted_path_of_a_function_is_the_same_in_every_process(function: Any, path: str) -> None:
    assert dotted_path(function) == path


def test_the_dotted_path_of_a_lambda_ends_with_its_line() -> None:
    one, other = (
        lambda request: 1,
        lambda request: 2,
    )

    paths = [dotted_path(each) for each in (one, partial(other))]

    first = one.__code__.co_firstlineno
    assert [path.rpartition("<lambda>:")[2] for path in paths] == [str(first), f"{first + 1}()"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("key", "ip", "ip"),
        ("key", ["ip", "user"], "ip, user"),
        ("key", ("ip", named), f"ip, {OF_HERE}.named"),
        ("methods", ["PUT", "DELETE", "PATCH"], "DELETE, PATCH, PUT"),
        ("warn_at", [0.9, 0.5], "0.9, 0.5"),
        ("warn_at", None, "None"),
        ("exempt", ["staff", named, "10.0.0.0/8", "::1"], f"10.0.0.0/8, ::1/128, staff, {OF_HERE}.named"),
        ("exempt", "10.0.0.0/8", "10.0.0.0/8"),
        ("ban", BAN, "after 20 refusals in 1 minute, for 1 hour"),
        ("skip", named, f"{OF_HERE}.named"),
    ],
)
def test_an_option_in_words_has_no_python_in_it(option: str, value: Any, words: str) -> None:
    assert option_in_words(getattr(Rule.make("r", "10/m", **{option: value}), option)) == words


# --- rates and durations: which strings are read, and which errors the others get -------------------------------------

RATES = st.sampled_from(sorted(UNITS)).flatmap(
    lambda unit: st.builds(Rate, st.integers(0, MAX_COUNT), st.just(unit), st.integers(1, MAX_PERIOD // UNITS[unit]))
)


@given(RATES)
def test_a_rate_is_read_back_from_its_string(rate: Rate) -> None:
    assert parse_rate(str(rate)) == rate


@given(RATES)
def test_a_rate_is_read_back_from_its_words(rate: Rate) -> None:
    assert parse_rate(rate.in_words().replace(",", "")) == rate


@given(RATES, st.lists(RATES, min_size=1, max_size=4))
def test_rates_are_read_back_from_one_string(rate: Rate, several: list[Rate]) -> None:
    assert parse_rates("; ".join(map(str, several)), None, rate) == (*several, rate)


@given(st.text() | st.text("0123456789 /;smhdwperkontya\n٣", max_size=12))
@example("10/m\n")
@example("\ud800/m")
@example("1/" + "a" * 100_000)
@example("1" * 100_000)
@example(";" * 1_000)
@pytest.mark.parametrize("parse", [parse_rate, parse_rates], ids=["one", "several"])
def test_any_string_is_a_rate_or_a_short_error_with_a_position_in_it(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except RateError as raised:
        error = raised
    else:
        return

    assert error.text == text
    assert error.position is not None
    assert 0 <= error.position <= len(text)
    assert error.hint in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        *((text, Rate(10, "minute")) for text in ("10/m", "10/min", "10/minute", "10 per minutes", "  010 / 01m  ")),
        *((text, Rate(5, "second", 30)) for text in ("5/30s", "5/30 sec", "5 per 30 seconds")),
        ("0/month", Rate(0, "month")),
        ("10/00000000000001d", Rate(10, "day")),
        ("0001000000000000/d", Rate(10**12, "day")),
    ],
)
def test_a_rate_is_read_in_each_form(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


EACH_UNIT = (
    # how it is spelled, its seconds, how it is written, and the longest window in it
    ("s sec second seconds", 1, "s", "31622400 seconds"),
    ("m min minute minutes", 60, "m", "527040 minutes"),
    ("h hr hour hours", 3_600, "h", "8784 hours"),
    ("d day days", 86_400, "d", "366 days"),
    ("w week weeks", 7 * 86_400, "w", "52 weeks"),
    ("month months", 30 * 86_400, "month", "12 months"),
    ("year years", 365 * 86_400, "year", "1 years"),
)


@pytest.mark.parametrize(
    ("spelled", "seconds", "written"),
    [(each, seconds, written) for spelled, seconds, written, _ in EACH_UNIT for each in spelled.split()],
)
def test_a_unit_is_read_in_each_of_its_spellings(spelled: str, seconds: int, written: str) -> None:
    one = parse_rate(f"10/{spelled}")

    assert (one.period, str(one)) == (seconds * 1_000_000, f"10/{written}")


@pytest.mark.parametrize("spelled", [each for spelled, *_ in EACH_UNIT[:5] for each in spelled.split()])
def test_a_duration_takes_the_units_of_a_rate(spelled: str) -> None:
    assert parse_duration("wait", f"2 {spelled}") == 2 * parse_rate(f"10/{spelled}").period


@pytest.mark.parametrize("spelled", ["month", "months", "year", "years"])
def test_a_duration_takes_no_unit_that_varies_in_length(spelled: str) -> None:
    with pytest.raises(RuleError, match="is not a duration"):
        parse_duration("wait", f"1 {spelled}")


LONGEST = pytest.mark.parametrize(
    ("unit", "most", "longest"), [(each[2], int(each[3].split(maxsplit=1)[0]), each[3]) for each in EACH_UNIT]
)


@LONGEST
def test_a_window_may_be_as_long_as_a_leap_year(unit: str, most: int, longest: str) -> None:
    assert parse_rate(f"10/{most}{unit}").multiple == most


@LONGEST
def test_a_longer_window_than_a_leap_year_is_an_error_in_its_unit(unit: str, most: int, longest: str) -> None:
    with pytest.raises(
        RateError, match=rf"'10/{most + 1}{unit}' is not a rate: a window is 1 to {longest} long \(at po"
    ):
        parse_rate(f"10/{most + 1}{unit}")


@pytest.mark.parametrize(
    ("rate", "words"),
    [("1/s", "1 per second"), ("10/2w", "10 per 2 weeks"), ("5/3months", "5 per 3 months"), ("0/year", "0 per year")],
)
def test_a_rate_in_words_has_its_unit_in_full(rate: str, words: str) -> None:
    assert parse_rate(rate).in_words() == words


def test_a_rate_in_words_groups_its_digits() -> None:
    assert Rate(5000, "second", 30).in_words() == "5,000 per 30 seconds"


NO_COUNT = "the count is not a whole number from 0 up"
NO_SLASH = "a slash or ' per ' is missing after the count"
MORE = "unexpected text after the unit"


@pytest.mark.parametrize(
    ("value", "position", "problem", "hint"),
    [
        ("-1/m", 0, NO_COUNT, RATE_HINT), ("\u0661\u0660/m", 0, NO_COUNT, RATE_HINT), ("1e3/m", 1, NO_SLASH, RATE_HINT),
        ("12.5/m", 0, NO_COUNT, RATE_HINT), ("1,000/m", 0, NO_COUNT, RATE_HINT), ("1_000/m", 0, NO_COUNT, RATE_HINT),
        ("10per m", 2, NO_SLASH, RATE_HINT), ("10/60", 3, "the unit is missing", RATE_HINT),
        ("10/\uff15m", 3, "the unit is missing", RATE_HINT), ("10/m\n", 4, MORE, RATE_HINT),
        ("10/s, 5/m", 4, MORE, RATE_HINT), ("10/M", 3, "'M' is not a unit", UNITS_HINT),
        ("10/mo", 3, "'mo' is not a unit", UNITS_HINT), ("10/5 mo", 5, "'mo' is not a unit", UNITS_HINT),
        ("10/0000000000000000d", 3, "a window is 1 to 366 days long", RATE_HINT),
        ("10/000000000000001d", 3, "a window is 1 to 366 days long", RATE_HINT),
        ("10/0s", 3, "a window is 1 to 31622400 seconds long", RATE_HINT),
        ("10/367d", 3, "a window is 1 to 366 days long", RATE_HINT),
        ("1000000000001/m", 0, "the count is above 1000000000000", RATE_HINT),
        (" 01000000000001/m", 1, "the count is above 1000000000000", RATE_HINT),
        ("10/s; 5/mx", 8, "'mx' is not a unit", UNITS_HINT), ("10/s;;1/m", 5, NO_COUNT, RATE_HINT),
        (5, None, "it is int, not a string", RATE_HINT), ((10, 60), None, "it is tuple, not a string", RATE_HINT),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_rate_says_where_it_is_wrong(
    value: Any, position: int | None, problem: str, hint: str
) -> None:
    with pytest.raises(RateError) as caught:
        parse_rates(value)

    found = (caught.value.text, caught.value.position, caught.value.problem, caught.value.hint)
    assert found == (value, position, problem, hint)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("x2", ["20/s", "1000/h", "10000/d"]),
        ("+7", ["10/s", "500/h", "5007/d"]),
        ("x2+7", ["20/s", "1000/h", "10007/d"]),
        (" +7 ", ["10/s", "500/h", "5007/d"]),
        ("x1000", ["10000/s", "500000/h", "5000000/d"]),
        ("+999999995000", ["10/s", "500/h", f"{MAX_COUNT}/d"]),
        ("7/m; 9/h", ["7/m", "9/h"]),
        ("x1", ["10/s", "500/h", "5000/d"]),
    ],
)
def test_an_override_changes_the_rates_of_a_rule_or_replaces_them(text: str, limits: list[str]) -> None:
    """Units are added to the longest window, wherever the rule has it."""
    rule = Rule.make("r", "10/s", "5000/d", "500/h")

    assert sorted(str(limit.rate) for limit in rule.under(text).limits) == sorted(limits)


def test_an_override_adds_units_to_the_longest_window_though_a_shorter_one_has_more() -> None:
    rule = Rule.make("r", "100/s", "50/h")

    assert [str(limit.rate) for limit in rule.under("+7").limits] == ["100/s", "57/h"]


def test_an_override_leaves_each_tier_its_share() -> None:
    rule = Rule.make("r", "10/m", tier=lambda request: "batch", share={"critical": 1.0, "batch": 0.5})

    tiers = rule.under("40/m").tiers

    assert {name: of_tier.limits[0].capacity for name, of_tier in tiers.items()} == {"critical": 40, "batch": 20}


@pytest.mark.parametrize("text", ["x1001", "x0", f"+{MAX_COUNT + 1}", "+0", "x", "+", "x2 +7", "+7x2"])
def test_an_override_that_changes_rates_by_something_else_is_an_error_that_says_by_what(text: str) -> None:
    with pytest.raises(RateError) as refused:
        Rule.make("r", "10/s").under(text)

    assert str(refused.value) == (
        f"{text!r} is not a rate: it neither adds 1 to 1,000,000,000,000 units nor multiplies by 1 to 1,000. "
        "Use, for example, +500, x2 or x2+500."
    )


@pytest.mark.parametrize(
    ("rates", "starts"),
    [
        ("5/h", None), ("5/h; 9/d", None), ("5/h; 200/month", THE_31ST), ("200/month; 5/h", THE_31ST),
        ("9/week", THE_31ST), ("9/year", THE_31ST), ("x2", THE_31ST),
    ],
)  # fmt: skip
def test_only_weeks_months_or_years_of_an_override_begin_on_the_day_of_the_rule(rates: str, starts: date) -> None:
    rule = Rule.make("r", "100/month", algorithm="calendar", starts=THE_31ST)

    assert rule.under(rates).starts == starts


@pytest.mark.parametrize(
    ("tier", "starts"), [("hourly", None), ("monthly", THE_31ST), ("both", THE_31ST), ("unlimited", THE_31ST)]
)
def test_only_a_tier_with_weeks_months_or_years_begins_them_on_the_day_of_the_rule(tier: str, starts: date) -> None:
    """A tier without a limit counts as the others do."""
    rates = {"hourly": "5/h", "monthly": "9/month", "both": "5/h; 9/month", "unlimited": None}
    rule = Rule.make("r", rates, tier=named, algorithm="calendar", starts=THE_31ST)

    assert rule.tiers[tier].starts == starts


@pytest.mark.parametrize(
    ("rates", "starts", "needs"),
    [
        ("9/month", named, True), ("5/h; 9/month", named, True), ("9/month", THE_31ST, False), ("9/month", None, False),
    ],
    ids=["a function", "a function for one of two", "a day", "no day"],
)  # fmt: skip
def test_a_rule_needs_the_day_of_a_subject_if_a_function_says_it(rates: str, starts: Any, needs: bool) -> None:
    assert Rule.make("r", rates, algorithm="calendar", starts=starts).needs_start is needs


def test_a_tier_that_only_counts_needs_the_day_of_a_subject_as_the_others_do() -> None:
    rates = {"monthly": "9/month", "unlimited": None}

    tiers = Rule.make("r", rates, tier=named, algorithm="calendar", starts=named).tiers

    assert {name: tier.needs_start for name, tier in tiers.items()} == {"monthly": True, "unlimited": True}


@pytest.mark.parametrize("store", ["database", None])
def test_a_process_looks_for_rules_in_the_database_once_it_has_one(store: Any) -> None:
    Rule.make("r", "10/m", store=store)

    assert Rule.any_in_database is (store is not None)


@pytest.mark.parametrize("change", ["x2", "+7", "x2+7"])
def test_a_change_of_rates_is_written_as_it_is_read(change: str) -> None:
    assert str(parse_override_rates(change)) == change


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_units_cannot_be_added_to_a_bucket_which_has_no_period(algorithm: Any) -> None:
    bucket = Rule.make("r", "10/m", algorithm=algorithm)

    with pytest.raises(RuleError) as refused:
        bucket.under("+5")

    assert str(refused.value) == (
        f"Rule 'r' is a {algorithm}, which refills all the time: it has no period to raise. "
        "Use algorithm='calendar' or a window, or an override with a higher rate."
    )


@pytest.mark.parametrize("rates", [None, TIERS, named], ids=["unlimited", "by tier", "of a function"])
def test_a_rule_without_limits_of_its_own_stays_as_it_is(rates: Any) -> None:
    rule = Rule.make("r", rates)

    assert rule.under("x2+7") is rule


@pytest.mark.parametrize(
    ("key", "same"),
    [({"key": "user"}, False), ({"name": "s"}, False), ({}, True)],
    ids=["another key", "another name", "nothing else"],
)
def test_a_changed_rule_differs_in_what_was_changed_alone(key: Any, same: bool) -> None:
    rule = Rule.make("r", "10/m", ban=BAN, shadow=True)

    assert (rule.but(**key) == rule) is same


def test_a_renamed_rule_differs_in_its_name_alone() -> None:
    rule = Rule.make("r", "10/m", ban=BAN, shadow=True)

    assert rule.renamed("s") == rule.but(name="s")


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_factor_changes_a_bucket(algorithm: Any) -> None:
    assert str(Rule.make("r", "10/m", algorithm=algorithm).under("x2").limits[0].rate) == "20/m"


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "token_bucket", "leaky_bucket"])
@pytest.mark.parametrize("text", ["10/month", "10 per year"])
def test_a_month_is_never_read_as_a_minute(text: str, algorithm: str) -> None:
    """Only the calendar algorithm takes months and years."""
    rate = parse_rate(text)

    with pytest.raises(RateError) as caught:
        Rule.make("r", text, algorithm=algorithm)

    assert str(caught.value) == (
        f"'{rate}' is not a rate: '{algorithm}' does not count in {rate.unit}s (at position 3). "
        "Use algorithm='calendar', or seconds to weeks: for example, '10/30d'."
    )


@pytest.mark.parametrize("value", [600, timedelta(minutes=10), "10m", " 600 seconds "])
def test_a_duration_is_seconds_or_a_timedelta_or_a_string(value: Any) -> None:
    assert parse_duration("wait", value) == 600_000_000


@pytest.mark.parametrize(("value", "microseconds"), [(0.25, 250_000), (1e-9, 1), ("366 days", 366 * 86_400_000_000)])
def test_a_duration_has_from_a_microsecond_to_366_days(value: Any, microseconds: int) -> None:
    assert parse_duration("wait", value) == microseconds


@pytest.mark.parametrize("value", [0, "0s", timedelta(0)])
def test_a_duration_may_be_zero_where_that_is_allowed(value: Any) -> None:
    assert parse_duration("wait", value, least=0) == 0


@pytest.mark.parametrize(
    "value",
    [
        0, -1, True, None, "", "60", "m", "0s", "-1m", "1.5h", "1h30m", "X10m", "1month", "10M", "367d",
        "9" * 10_000 + "s", 366 * 86_400 + 1, 10**400, float("nan"), float("inf"), timedelta(0), timedelta(days=367),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_duration_shows_all_three_forms(value: object) -> None:
    says = r"^wait=.{1,99} is not a duration above 0 and up to 366 days\. Use, .* 30 \(seconds\), '10m' or timedelta"
    with pytest.raises(RuleError, match=says):
        parse_duration("wait", value)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("duration", [30, "30s", timedelta(seconds=30)], ids=["number", "string", "timedelta"])
class TestADurationInEachForm:
    def test_is_taken_by_the_setting(self, duration: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": duration}

        assert current().cache_refusals == 30.0

    def test_is_taken_by_slots(self, duration: Any) -> None:
        held = slot("s", 1, lease=duration, wait=duration)
        concurrency(1, lease=duration, wait=duration)

        assert (held.lease, held.wait) == (30.0, 30.0)

    def test_is_taken_by_the_renewal_of_a_lease(self, duration: Any) -> None:
        with freeze(START), slot("renewed", 1, lease=3) as lease:
            lease.renew(duration)

            assert slot("renewed", 1).holders()[0][1] == 30.0

    def test_is_taken_by_the_options_of_a_rule(self, duration: Any) -> None:
        rule = Rule.make("r", "1/m", ban={"after": "2/m", "for": [duration]}, cache_refusals=duration)

        assert (rule.ban.durations, rule.cache_refusals) == ((30_000_000,), 30.0)

    def test_is_taken_by_a_ban(self, duration: Any) -> None:
        with freeze(START):
            banned = ban(Rule.make("b", "1/m", ban={"after": "2/m", "for": "1h"}), "user:1", duration)

        assert banned.retry_after == 30.0

    def test_is_taken_by_once(self, duration: Any) -> None:
        with freeze(START):
            once("event", "1", ttl=duration)

        with freeze(START + 29_999_999):
            assert once("event", "1") is False

    def test_is_taken_by_acquire(self, duration: Any) -> None:
        assert acquire("1/m", "user:2", timeout=duration)

    def test_is_taken_by_counters(self, duration: Any) -> None:
        assert counter("c", ttl=duration).ttl == timedelta(seconds=30)
