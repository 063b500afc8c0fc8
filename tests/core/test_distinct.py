"""Rules that count different values, on the real Redis and in memory."""

from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import RequestFactory

from django_quota import Rule, check, quota, refund, reset
from django_quota.adapters import decide
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import run
from tests.support.overridden import override
from tests.support.steps import MINUTE, SECOND, START, SUBJECT

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND

pytestmark = pytest.mark.usefixtures("memory_store")


def devices(names: str, rate: str = "3/30d") -> list[bool]:
    return [bool(check(rate, "user:42", value=name, distinct=True)) for name in names]


def test_a_value_that_is_not_used_for_a_window_makes_room_for_a_new_one() -> None:
    with freeze(START):
        assert devices("abcabcdabc") == [True] * 6 + [False] + [True] * 3
    with freeze(START + 20 * DAY):
        devices("ab")
        assert check("3/30d", "user:42", value="d", distinct=True).retry_after == pytest.approx(10 * 86_400)
    with freeze(START + 30 * DAY + SECOND):
        assert devices("dc") == [True, False]


def test_a_reset_forgets_all_values() -> None:
    with freeze(START):
        devices("abc")
        assert reset("3/30d", "user:42", distinct=True)
        assert devices("efg") == [True] * 3


def test_a_refund_is_an_error_that_names_reset() -> None:
    with pytest.raises(RuleError, match=r"reset\(\) forgets"):
        refund("3/30d", "user:42", distinct=True)


def test_a_value_is_not_forgotten_sooner_after_the_clock_stepped_back() -> None:
    found = []
    for moment, value in ((30, "a"), (0, "a"), (70, "b"), (91, "b")):
        with freeze(START + moment * SECOND):
            found += devices(value, rate="1/m")

    assert found == [True, True, False, True]


def test_a_known_value_passes_under_a_lower_limit_that_is_full() -> None:
    with freeze(START):
        for name in "abcd":
            check("4/d", SUBJECT, value=name, distinct=True, name="devices")
    with freeze(START + HOUR):
        decisions = [check("2/d", SUBJECT, value=name, distinct=True, name="devices") for name in "ae"]
    assert [(bool(each), each.remaining) for each in decisions] == [(True, 0), (False, 0)]
    # Room for another: when three of the four are forgotten, of which one has just been used again.
    assert [each.outcomes[0].next_after for each in decisions] == [23 * 3_600.0] * 2


def test_above_an_overrides_limit_a_value_is_known_until_the_very_end_of_its_window() -> None:
    for number, name in enumerate("abc"):
        with freeze(START + number * SECOND):
            devices(name, rate="3/m")
    override("r 0 0 1/m", "3/m", "user:42")
    with freeze(START + 10 * SECOND):
        assert check("3/m", "user:42", value="d", distinct=True).retry_after == 52.0
    with freeze(START + MINUTE):
        assert devices("ab", rate="3/m") == [False, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(
            {"value": "a"},
            "value= is given, but rule '3/d' counts hits, not values. Use distinct=True.",
            id="a value without distinct",
        ),
        pytest.param(
            {"distinct": True},
            (
                "Rule '3/d' counts different values: check() and peek() take the value as value=. reset() forgets "
                "all of them; refund() and reserve() do not work with such a rule."
            ),
            id="no value",
        ),
        pytest.param(
            {"distinct": True, "value": 1.5}, "value= is float. Use a string, bytes or a whole number.", id="a float"
        ),
        pytest.param(
            {"distinct": True, "value": "a", "cost": 2},
            "Rule '3/d' counts different values: a hit costs 1, not 2.",
            id="a cost",
        ),
    ],
)
def test_a_call_with_a_wrong_value_or_cost_is_an_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError) as refused:
        check("3/d", SUBJECT, **options)

    assert str(refused.value) == says


WRONG_KEYS = pytest.mark.parametrize("key", ["header:", "nothing", 5])


@WRONG_KEYS
def test_a_wrong_key_of_a_decorator_is_an_error_at_import(key: Any) -> None:
    with pytest.raises(RuleError):
        quota("3/d", distinct=key)


@WRONG_KEYS
def test_a_wrong_key_in_the_settings_is_found_by_the_checks(key: Any, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"devices": {"rate": "3/d", "distinct": key}}}
    (finding,) = (found for found in run_checks(tags=["django_quota"]) if found.is_serious())
    assert "devices" in finding.msg


async def device(request: Any) -> str:
    return "a"


def test_a_view_counts_the_values_of_its_key() -> None:
    view = quota("2/d", key="ip", distinct="header:X-Device")(lambda request: HttpResponse())
    visits = [RequestFactory().get("/", headers={"X-Device": device}) for device in "aabcab"]
    assert [run(view, each).status_code for each in visits] == [200, 200, 200, 429, 200, 200]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        pytest.param(True, "'header:X-Device'", id="of a call"),
        pytest.param(device, "is async, but the view is not", id="async"),
    ],
)
def test_a_key_that_a_view_cannot_ask_is_an_error(key: Any, says: str) -> None:
    with pytest.raises(RuleError, match=says):
        quota("3/d", distinct=key)(lambda request: None)


def test_values_of_a_field_that_differ_only_in_case_are_different() -> None:
    devices = Rule.make("devices", "5/d", key="ip", distinct="get:device")

    left = [decide(RequestFactory().get("/", {"device": value}), [devices]).remaining for value in ("Ab", "ab", "Ab")]

    assert left == [4, 3, 3]


@pytest.mark.parametrize("value", [0, "", b""], ids=["0", "a string", "bytes"])
def test_a_value_of_a_call_counts_in_place_of_that_of_its_request_even_if_it_is_false(value: Any) -> None:
    devices = Rule.make("devices", "5/d", key="ip", distinct="get:device")
    request = RequestFactory().get("/", {"device": "a"})
    decide(request, [devices])

    assert check(devices, request, value=value).remaining == 3
