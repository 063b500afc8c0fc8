"""System checks of the cache alias and its options, and those of `check --deploy`."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import INFO, CheckMessage, run_checks
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from hypothesis import given
from hypothesis import strategies as st

from django_quota import quota
from tests.support.findings import REDIS, TIMEOUTS, findings, ids
from tests.support.stores import CLUSTER_CLIENT

SENTINEL: dict[str, Any] = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
    "SENTINELS": [("10.0.0.1", 26379)],
}
NO_TIMES = [-1, 0, "0.25", True, math.nan, math.inf, [1], 10**400]


def of(location: str = "redis://127.0.0.1:1/0", **options: Any) -> dict[str, Any]:
    return {"default": {**REDIS, "LOCATION": location, "OPTIONS": {**TIMEOUTS, **options}}}


def found_in(location: str = "redis://127.0.0.1:1/0", **options: Any) -> list[CheckMessage]:
    return findings(caches=of(location, **options))


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:10])
def test_e013_a_timeout_that_no_socket_can_wait_for(value: Any) -> None:
    alias = of(SOCKET_TIMEOUT=value)  # django-redis ignores false values, and refuses those of other types

    assert ids(caches=alias) in ([["E013"], ["E014"]] if value else [[]])


@pytest.mark.parametrize(
    ("given", "option"),
    [({}, "CONNECTION_POOL_KWARGS"), (SENTINEL, "SENTINEL_KWARGS")],
    ids=["of the server", "of a sentinel"],
)
@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:10])
def test_e013_a_timeout_in_the_options_of_connections(value: Any, given: dict[str, Any], option: str) -> None:
    options: dict[str, Any] = {option: {"socket_timeout" if given else "socket_connect_timeout": value}}

    (error,) = found_in(**given, **options)

    assert error.id == "django_quota.E013"
    assert repr(value)[:10] in error.msg
    assert error.hint == "Use a number of seconds above 0, for example 0.25."


DJANGOS = "django.core.cache.backends.redis.RedisCache"


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        pytest.param(REDIS["BACKEND"], [], id="django-redis"),
        pytest.param(DJANGOS, ["E014"], id="Django's, which fails"),
    ],
)
def test_options_that_are_none_are_no_crash_of_the_checks(backend: str, found: list[str]) -> None:
    assert ids(caches={"default": {"BACKEND": backend, "LOCATION": REDIS["LOCATION"], "OPTIONS": None}}) == found


@pytest.mark.parametrize("backend", [REDIS["BACKEND"], DJANGOS], ids=["django-redis", "Django's"])
@pytest.mark.parametrize("location", [None, "", []], ids=repr)
def test_e004_a_location_that_is_empty(location: Any, backend: str) -> None:
    (found,) = findings(caches={"default": {"BACKEND": backend, "LOCATION": location}})

    assert (found.id, found.msg) == ("django_quota.E004", 'The LOCATION of CACHES["default"] is empty.')


URL = "redis://127.0.0.1:1/0"
CLUSTER = {"CLIENT_CLASS": CLUSTER_CLIENT}
KWARGS = "Give CONNECTION_POOL_KWARGS options of redis.Connection"


@pytest.mark.parametrize(
    ("location", "options", "code", "words", "hint"),
    [
        ("redis://:12,wort@h/0", {}, "E004", "", ""), (["redis://a/0", "redis://:1#wort@h"], {}, "E004", "", ""),
        (URL, {"CONNECTION_POOL_KWARGS": {"max_conections": 5}}, "E014", "'max_conections'", KWARGS),
        (URL, {"CONNECTION_POOL_KWARGS": {"max_connections": -1}}, "E014", "must be a positive integer", KWARGS),
        (URL, {"CONNECTION_POOL_KWARGS": [1]}, "E014", "TypeError", KWARGS),
        (URL, {**SENTINEL, "SENTINEL_KWARGS": {"pasword": "x"}}, "E014", "'pasword'", KWARGS),
        (URL, {**SENTINEL, "SENTINELS": ["10.0.0.1:26379"]}, "E014", "unpack", KWARGS),
        (URL, {**CLUSTER, "CONNECTION_POOL_KWARGS": {"hots": "a"}}, "E014", "'hots'", KWARGS),
        ("rediss://:wort@mymaster/0", SENTINEL, "E014", "", '"CONNECTION_POOL_KWARGS": {"ssl": True}'),
    ],
)  # fmt: skip
def test_what_no_connection_can_be_made_of_is_named(
    location: Any, options: dict[str, Any], code: str, words: str, hint: str
) -> None:
    (found,) = found_in(location, **options)
    assert (found.id, words in found.msg, hint in str(found.hint)) == (f"django_quota.{code}", True, True)
    assert "wort" not in f"{found.msg} {found.hint}"


OPTIONS = ["SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT", "CONNECTION_POOL_KWARGS", "SENTINEL_KWARGS"]
WORDS = st.sampled_from(["socket_timeout", "max_connections", "db", "port", "retry", "ssl"]) | st.text()
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(OPTIONS), VALUES | st.dictionaries(WORDS, VALUES)))
def test_the_checks_of_options_never_raise(options: dict[str, Any]) -> None:
    found = found_in(**options)

    assert [each for each in found if not each.hint or not str(each.id).startswith("django_quota.")] == []


@pytest.mark.parametrize(("seconds", "expected"), [(2, []), (2.5, ["W012"]), (10**9, ["W012"])])
@pytest.mark.parametrize(
    "alias",
    [
        pytest.param(lambda seconds: of(SOCKET_TIMEOUT=seconds), id="an option"),
        pytest.param(lambda seconds: of(CONNECTION_POOL_KWARGS={"socket_timeout": seconds}), id="of connections"),
        pytest.param(lambda seconds: of(f"redis://127.0.0.1:1?socket_timeout={seconds}"), id="in the URL"),
        pytest.param(
            lambda seconds: of(**SENTINEL, SENTINEL_KWARGS={"socket_connect_timeout": seconds}), id="of a sentinel"
        ),
    ],
)
def test_w012_a_long_timeout_blocks_threads_while_redis_hangs(alias: Any, seconds: float, expected: list[str]) -> None:
    assert ids(caches=alias(seconds)) == expected


def test_w012_each_long_timeout_is_named() -> None:
    found = [each.msg.partition(" When ")[0] for each in found_in(SOCKET_TIMEOUT=3, SOCKET_CONNECT_TIMEOUT=4)]

    assert found == ['socket_timeout of CACHES["default"] is 3.', 'socket_connect_timeout of CACHES["default"] is 4.']


def test_e013_a_timeout_in_the_url() -> None:
    assert ids(caches={"default": {**REDIS, "LOCATION": f"{URL}?socket_timeout=-1", "OPTIONS": {}}}) == ["E013"]


@pytest.mark.parametrize(
    ("quota", "expected", "words"),
    [
        ({"ENABLED": True, "STORE": "redis"}, [], ""), ({"ENABLED": False}, ["W010"], "nothing is limited"),
        ({"STORE": "memory"}, ["W011"], "each process counts for itself"),
        ({"ENABLED": False, "STORE": "memory"}, ["W010", "W011"], ""),
    ],
)  # fmt: skip
def test_only_check_deploy_reports_settings_of_a_developers_machine(
    quota: dict[str, Any], expected: list[str], words: str
) -> None:
    with override_settings(QUOTA=quota, CACHES=of()):
        deploying = run_checks(tags=["django_quota"], include_deployment_checks=True)
        assert [str(found.id).removeprefix("django_quota.") for found in deploying] == expected
        assert all(words in found.msg and found.hint for found in deploying)
        assert run_checks(tags=["django_quota"]) == []


class TestRulesThatNothingApplies:
    @pytest.fixture(autouse=True)
    def site(self, settings: Any) -> Iterator[None]:
        site = quota(rule="named")(lambda request: HttpResponse())
        settings.ROOT_URLCONF = (path("", site),)
        rules = {"named": "5/m", "matched": {"rate": "5/m", "match": "/"}, "typo": "5/m", "code": "5/m"}
        with override_settings(QUOTA={"RULES": rules}, CACHES=of()):
            yield

    def test_are_named_by_check_deploy(self) -> None:
        (note,) = run_checks(tags=["django_quota"], include_deployment_checks=True)

        assert (note.id, note.level) == ("django_quota.W039", INFO)
        assert "has 'typo', 'code' without \"match\"" in note.msg
        assert str(note.hint).startswith("Add a 'match', name them on a view with @quota(rule='typo'), or ask them in ")

    def test_are_not_looked_for_while_a_rule_is_wrong(self) -> None:
        with override_settings(QUOTA={"RULES": {"wrong": "5/mx", "named": "5/m", "typo": "5/m"}}):
            found = run_checks(tags=["django_quota"], include_deployment_checks=True)

        assert [each.id for each in found] == ["django_quota.E007"]

    def test_are_not_reported_by_the_daily_checks(self) -> None:
        assert run_checks(tags=["django_quota"]) == []
