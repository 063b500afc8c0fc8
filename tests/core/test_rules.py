"""Rules are checked when they are made, so that a wrong one never reaches a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.rates import MAX_COUNT, Rate, validate_cost
from django_quota.core.rules import OPTIONS
from django_quota.exceptions import RateError, RuleError


def test_a_rule_has_one_limit_for_each_rate_in_order() -> None:
    rule = Rule.make("r", "10/s", "500/h; 5000/day")
    assert [str(limit.rate) for limit in rule.limits] == ["10/s", "500/h", "5000/d"]
    assert {limit.rule for limit in rule.limits} == {"r"}


def test_a_rule_without_rates_is_unlimited() -> None:
    assert Rule.make("r", None).limits == Rule.make("r").limits == ()


@pytest.mark.parametrize("second", ["5/m", "10/m", "5/60s", "0/m"])
def test_two_rates_with_one_window_are_refused_and_the_stricter_is_suggested(second: str) -> None:
    with pytest.raises(RateError, match="same window") as caught:
        Rule.make("r", "10/m", second)
    assert f"Use '{second}' alone: it refuses" in str(caught.value) or second == "10/m"


def test_calendar_windows_of_one_length_in_two_time_zones_are_the_same_window() -> None:
    with pytest.raises(RateError, match="same window"):
        Rule.make("r", "1/day", "2/day", algorithm="calendar", tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"algoritm": "fixed_window"}, r"'algoritm' is not an option of a rule\. Did you mean 'algorithm'"),
        ({"limit": "10/m"}, r"'limit' is not an option of a rule\. The first argument is the rate, .* '10/m'"),
        ({"period": 60}, "The first argument is the rate, a count and a window"),
        ({"on_fail": "allow"}, "Here it is called 'on_unavailable'"),
        ({"group": "api"}, "Here it is called 'name'"),
        ({"deduct_when": bool}, "Here it is called 'count_when'"),
        ({"counts": bool}, "Here it is called 'count_when'"),
        ({"algorithm": "token_buket"}, r"algorithm='token_buket' is not an algorithm\. Did you mean 'token_bucket'"),
        ({"algorithm": None}, "algorithm=None is not an algorithm"),
        ({"algorithm": []}, "is not an algorithm"),
        ({"burst": 5}, "burst= is not an option of 'sliding_window'; token_bucket and leaky_bucket take it"),
        ({"tz": "UTC"}, "tz= is not an option of 'sliding_window'; calendar takes it"),
        ({"precision": 9, "algorithm": "fixed_window"}, "precision= is not an option of 'fixed_window'"),
        ({"precision": "9"}, "precision='9' is not a whole number"),
        ({"precision": True}, "precision=True is not a whole number"),
        ({"precision": 0}, "precision=0 is not from 1 to 1000"),
        ({"burst": 1.5, "algorithm": "token_bucket"}, "burst=1.5 is not a whole number"),
        ({"tz": "Mars/Olympus", "algorithm": "calendar"}, "tz='Mars/Olympus' is not a known time zone"),
        ({"tz": "../passwd", "algorithm": "calendar"}, "is not a known time zone"),
        ({"tz": "a\0b", "algorithm": "calendar"}, "is not a known time zone"),
        ({"count_refused": 1}, "count_refused=1 is not True or False"),
        ({"block": None}, "block=None is not True or False"),
        ({"shadow": "yes"}, "shadow='yes' is not True or False"),
        ({"skip": True}, "skip=True is not a function of the request"),
        ({"on_unavailable": "open"}, "on_unavailable='open' is not 'allow', 'deny' or 'local'"),
        ({"on_unavailable": []}, "is not 'allow', 'deny' or 'local'"),
        ({"cost": -1}, "cost=-1 of rule 'r' is not a whole number"),
        ({"cost": "1"}, "cost='1' of rule 'r' is not a whole number"),
        ({"cost": True}, "cost=True of rule 'r' is not a whole number"),
        ({"cost": None}, "cost=None of rule 'r' is not a whole number"),
        ({"cost": 0}, r"cost=0 takes nothing\. Use 1, or a function of the request that returns 0"),
        ({"cost": MAX_COUNT + 1}, "is not a whole number from 0 to"),
        ({"methods": []}, "are not HTTP methods"),
        ({"methods": ""}, "are not HTTP methods"),
        ({"methods": 5}, "methods=5 are not HTTP methods"),
        ({"methods": ["GET", None]}, "are not HTTP methods"),
        ({"methods": [["GET"]]}, "are not HTTP methods"),
        ({"methods": ["GET, POST"]}, "are not HTTP methods"),
    ],
)
def test_the_error_for_a_wrong_option_names_its_value(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RuleError, match=text):
        Rule.make("r", "10/m", **options)


@pytest.mark.parametrize(
    ("option", "function", "given"),
    [
        ("cost", lambda: 1, "request"),
        ("cost", lambda request, response: 1, "request"),
        ("skip", lambda: True, "request"),
        ("exempt", lambda: True, "request"),
        ("key", lambda: "a", "request"),
        ("key", ["ip", lambda: "a"], "request"),
        ("distinct", lambda: "a", "request"),
        ("settle", lambda response: 1, "request, response"),
        ("count_when", lambda request, response: True, "response"),
        ("tier", lambda: "anonymous", "request"),
    ],
)
def test_a_function_that_takes_other_arguments_is_refused_when_the_rule_is_made(
    option: str, function: Any, given: str
) -> None:
    rate: Any = {"anonymous": "1/m", "authenticated": "2/m"} if option == "tier" else "10/m"
    with pytest.raises(RuleError, match=rf"^{option}=.* cannot be called with \({given}\)\. Use, for example, "):
        Rule.make("r", rate, **{option: function})


@pytest.mark.parametrize(
    "function", [lambda request, units=1: 1, lambda *args: 1, partial(lambda units, request: 1, 1), len, str, Mock()]
)
def test_a_function_that_takes_the_request_makes_a_rule(function: Any) -> None:
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
    ("given", "methods"),
    [("post", {"POST"}), (("get", "PUT"), {"GET", "HEAD", "PUT"}), (iter(["get"]), {"GET", "HEAD"})],
)
def test_methods_are_one_text_or_several_and_case_does_not_matter(given: Any, methods: set[str]) -> None:
    assert set(Rule.make("r", "1/s", methods=given).methods or ()) == methods


PLAIN = Rule.make("r", "1/s", key="user", cost=2, shadow=True)
TIERS: Any = {"anonymous": "1/s", "authenticated": "2/s"}


@pytest.mark.parametrize(
    ("rule", "is_plain"),
    [
        (PLAIN, True), (Rule.from_setting("r", {"rate": "1/s", "match": "/"}), True),
        (Rule.make("r", lambda request: "1/s"), False), (Rule.make("r", lambda request: "1/s").with_rates("2/s"), True),
        (Rule.make("r", TIERS), False), (Rule.make("r", TIERS).with_rates("2/s"), True),
        *[(Rule.make("r", "1/s", **options).with_rates("2/s").renamed("other"), False) for options in (
            {"methods": ["POST"]}, {"skip": lambda request: False}, {"exempt": "staff"}, {"cost": lambda request: 1},
            {"distinct": "header:X-Device"},
        )],
    ],
)  # fmt: skip
def test_a_rule_that_needs_only_the_key_of_a_request_is_plain(rule: Rule, is_plain: bool) -> None:
    assert rule.is_plain == is_plain


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rule("r", ("10/m",)),  # type: ignore[arg-type]
        lambda: Rule("r", "10/m"),  # type: ignore[arg-type]
        lambda: Rule("r", (Rate(1, "second"),), methods=["post"]),  # type: ignore[arg-type]
        lambda: Rule("r", (Rate(1, "second"),), methods=frozenset({"post"})),
        lambda: Rule("r", (Rate(1, "second"),), key=["ip", "path"]),
    ],
    ids=["text-rates", "text-not-tuple", "list-methods", "lower-methods", "list-key"],
)
def test_rule_and_rule_make_mean_the_same(make: Callable[[], Rule]) -> None:
    """`Rule` is public: a lower-case method must not make a rule that never applies."""
    try:
        rule = make()
    except RuleError:
        return
    assert all(isinstance(rate, Rate) for rate in rule.rates)
    assert rule.methods is None or rule.methods == frozenset({"POST"})
    hash(rule)


@given(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text()
    | st.integers(max_value=-1)
    | st.integers(min_value=MAX_COUNT + 1)
)
def test_another_cost_is_refused(cost: object) -> None:
    assert validate_cost(MAX_COUNT, "rule") == MAX_COUNT
    with pytest.raises(RuleError, match="Use, for example, 1"):
        validate_cost(cost, "rule")


class TestFromSettings:
    @pytest.mark.parametrize(
        ("value", "rates"),
        [
            ("10/m", ["10/m"]),
            ("10/s; 500/h", ["10/s", "500/h"]),
            (["10/s", "500/h"], ["10/s", "500/h"]),
            (("10/s",), ["10/s"]),
            ({"rate": "10/m", "key": "user"}, ["10/m"]),
            ({"rate": ["10/s", "5/m"]}, ["10/s", "5/m"]),
            (None, []),
            ({"rate": None}, []),
        ],
    )
    def test_a_rule_is_a_rate_several_rates_or_a_dict(self, value: object, rates: list[str]) -> None:
        assert [str(rate) for rate in Rule.from_setting("r", value).rates] == rates

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({"key": "ip"}, "it has no 'rate'"),
            ({"rate": "5/mx"}, "'5/mx' is not a rate"),
            ({"rate": "5/m", "bloc": False}, "Did you mean 'block'"),
            ({"rate": "5/m", 5: 5}, "'5' is not an option"),
            ({"limit": 5}, "Use the rate, a count and a window: 'rate': '10/m'"),
            ({"rate": "5/m", "group": "a"}, "The key in RULES is the rule's name"),
            ({"rate": "5/m", "exempt_when": "a.b"}, "Here it is called 'skip'"),
            ({"rate": [["5/m"]]}, "it is a list, not a text"),
            (5, "it is an int, not a text"),
            ({"rate": "5/m", "methods": 3}, "are not HTTP methods"),
        ],
    )
    def test_the_error_for_a_wrong_rule_names_its_place(self, value: object, text: str) -> None:
        with pytest.raises(RuleError, match=text) as caught:
            Rule.from_setting("search", value)
        assert str(caught.value).startswith("QUOTA[\"RULES\"]['search']: ")

    def test_the_dict_of_the_settings_is_not_changed(self) -> None:
        value = {"rate": "5/m", "methods": ["GET"]}
        Rule.from_setting("r", value)
        assert value == {"rate": "5/m", "methods": ["GET"]}


class Unhashable:
    """A key function that cannot be looked up in a dict."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, request: object) -> str:
        return "x"


@pytest.mark.parametrize("key", ["user", Unhashable()])
def test_a_function_as_rate_has_no_limits_until_it_is_asked(key: Any) -> None:
    dynamic = Rule.make("r", lambda request: None, key=key, block=False)
    assert (dynamic.dynamic, dynamic.limits) == (True, ())
    real = dynamic.with_rates("10/m; 5/s", None)
    assert [str(limit.rate) for limit in real.limits] == ["10/m", "5/s"]
    assert (real.key, real.block, real.dynamic) == (key, False, False)
    assert (dynamic.with_rates(None).limits, dynamic.with_rates(None).dynamic) == ((), False)
    assert (dynamic.with_rates("10/m") is dynamic.with_rates("10/m")) == (key == "user")
    with pytest.raises(RateError):
        dynamic.with_rates(10)


def test_options_of_the_settings_are_not_suggested_elsewhere() -> None:
    with pytest.raises(RuleError, match="Known: ") as refused:
        Rule.make("a", "1/m", mtch="/")
    assert "'match'" not in str(refused.value)
    assert "exclude" not in str(refused.value)
    with pytest.raises(RuleError, match="Did you mean 'name'"):
        Rule.make("a", "1/m", nam="b")


@pytest.mark.parametrize("name", ["", None, 5, b"x", "half \ud800"])
def test_the_name_of_a_rule_is_a_text_that_utf8_can_encode(name: Any) -> None:
    with pytest.raises(RuleError, match="is not a rule's name"):
        Rule.make(name, "1/m")
