"""System checks of the cache alias and its options, and those of `check --deploy`."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.core.checks import INFO, CheckMessage, run_checks
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django_redis.pool import ConnectionFactory
from hypothesis import given
from hypothesis import strategies as st

from django_quota import once, quota
from django_quota.exceptions import ConfigurationError
from tests.support.findings import REDIS, TIMEOUTS, findings, ids
from tests.support.stores import CLUSTER_CLIENT

SENTINEL: dict[str, Any] = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
    "SENTINELS": [("10.0.0.1", 26379)],
}
_OPTIONS_HINT = 'paths that lead to classes, and SENTINELS as [("10.0.0.1", 26379)].'
NO_TIMES = [-1, 0, -0.0, "0.25", True, False, math.nan, math.inf, [1], 10**400, 1e300, ""]


def of(location: str = "redis://127.0.0.1:1/0", **options: Any) -> dict[str, Any]:
    return {"default": {**REDIS, "LOCATION": location, "OPTIONS": {**TIMEOUTS, **options}}}


def found_in(location: str = "redis://127.0.0.1:1/0", **options: Any) -> list[CheckMessage]:
    return findings(caches=of(location, **options))


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:10])
@pytest.mark.parametrize("name", ["SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT"])
def test_e013_a_timeout_that_no_socket_can_wait_for(name: str, value: Any) -> None:
    (found,) = found_in(**{name: value})  # django-redis ignores false values, and refuses those of other types itself
    assert found.id in ("django_quota.E013", "django_quota.E014" if value else "django_quota.W007")
    for (error,) in (
        found_in(CONNECTION_POOL_KWARGS={name.lower(): value}),
        found_in(**SENTINEL, SENTINEL_KWARGS={name.lower(): value}),
    ):
        assert error.id == "django_quota.E013"
        assert error.msg.startswith(name.lower())
        assert repr(value)[:10] in error.msg
        assert error.hint == "Use a number of seconds above 0, for example 0.25."


@pytest.mark.parametrize("location", ["redis://127.0.0.1:1/cache", "rediss://:secret@redis/0x?db=2"])
def test_e004_a_database_that_is_no_number(location: str) -> None:
    (found,) = found_in(location)
    assert found.id == "django_quota.E004"
    assert "which is not a number: redis-py would use 0" in found.msg
    assert "secret" not in found.msg


@pytest.mark.parametrize("location", ["redis://127.0.0.1:1", "redis://127.0.0.1:1/", "redis://127.0.0.1:1/12?db=3"])
def test_a_database_that_is_a_number_or_left_out_is_fine(location: str) -> None:
    assert found_in(location) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *(({"max_connections": number}, '"max_connections" must be a positive integer') for number in (-1, "5", 2.5)),
        *((wrong, "") for wrong in (None, [1], "x")),
    ],
)
def test_e014_options_of_connections_that_redis_py_refuses(value: Any, words: str) -> None:
    (found,) = found_in(CONNECTION_POOL_KWARGS=value)
    assert found.id == "django_quota.E014"
    assert words in found.msg


@pytest.mark.parametrize("value", ["0.25", [1]], ids=repr)
def test_the_error_of_a_call_with_a_wrong_timeout_is_that_of_the_check(value: Any) -> None:
    (found,) = found_in(SOCKET_TIMEOUT=value)
    with override_settings(CACHES=of(SOCKET_TIMEOUT=value)), pytest.raises(ConfigurationError) as caught:
        once("a", "b")
    assert (caught.value.problem, caught.value.hint) == (found.msg, found.hint)


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"CONNECTION_POOL_KWARGS": {"max_conections": 5}}, "'max_conections'", "Did you mean 'max_connections'?"),
        ({"CONNECTION_POOL_KWARGS": {"nonsense": 5}}, "'nonsense'", "Remove it: redis-py knows no such option."),
        ({"CONNECTION_POOL_CLASS": "nowhere.Pool"}, "No module named 'nowhere'", _OPTIONS_HINT),
        ({**SENTINEL, "SENTINEL_KWARGS": {"pasword": "x"}}, "'pasword'", "Did you mean 'password'?"),
        ({**SENTINEL, "SENTINELS": ["10.0.0.1:26379"]}, "unpack", _OPTIONS_HINT),
        ({"CLIENT_CLASS": CLUSTER_CLIENT, "CONNECTION_POOL_KWARGS": {"hots": "a"}}, "'hots'", "Did you mean 'host'?"),
    ],
)
def test_e014_no_connection_can_be_made_with_these_options(options: dict[str, Any], words: str, hint: str) -> None:
    (found,) = found_in(**options)
    assert found.id == "django_quota.E014"
    assert words in found.msg
    assert str(found.hint).endswith(hint)


def test_e014_rediss_behind_sentinel_has_a_hint() -> None:
    (found,) = found_in("rediss://:geheim@mymaster/0", **SENTINEL)
    assert found.id == "django_quota.E014"
    assert "rediss:// behind Sentinel" in str(found.hint)
    assert '"CONNECTION_POOL_KWARGS": {"ssl": True}' in str(found.hint)
    assert "geheim" not in f"{found.msg} {found.hint}"
    assert found_in("redis://:geheim@mymaster/0", **SENTINEL, CONNECTION_POOL_KWARGS={"ssl": True}) == []


@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": {"max_connections": None, "socket_keepalive": True, "health_check_interval": 30}},
        {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool", "CONNECTION_POOL_KWARGS": {"timeout": 5}},
        {"CLIENT_CLASS": CLUSTER_CLIENT, "REDIS_CLIENT_KWARGS": {"address_remap": print}},
        {**SENTINEL, "SENTINEL_KWARGS": {"password": "x", "ssl": True, "socket_timeout": 0.1}},
        {**SENTINEL, "SENTINEL_KWARGS": None}, {"SOCKET_TIMEOUT": 2, "SOCKET_CONNECT_TIMEOUT": 0.001},
    ],
)  # fmt: skip
def test_right_options_have_no_findings(options: dict[str, Any]) -> None:
    assert found_in(**options) == []


def test_a_cluster_has_its_own_factory_whatever_the_other_aliases_take(settings: Any) -> None:
    settings.DJANGO_REDIS_CONNECTION_FACTORY = SENTINEL["CONNECTION_FACTORY"]
    assert found_in(CLIENT_CLASS=CLUSTER_CLIENT) == []


def test_a_check_changes_no_pools_and_no_settings() -> None:
    caches = of("redis://127.0.0.1:1/0", **SENTINEL)
    known = dict(ConnectionFactory._pools)
    assert findings(caches=caches) == []
    assert known == ConnectionFactory._pools
    assert caches["default"]["OPTIONS"] == {**TIMEOUTS, **SENTINEL}


@given(
    st.dictionaries(
        st.sampled_from(["SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT", "CONNECTION_POOL_KWARGS", "SENTINEL_KWARGS"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
        | st.dictionaries(
            st.sampled_from(["socket_timeout", "max_connections", "db", "port", "retry", "ssl"]) | st.text(),
            st.none() | st.integers() | st.floats() | st.text(),
        ),
    )
)  # fmt: skip
def test_the_checks_of_options_never_raise(options: dict[str, Any]) -> None:
    for found in found_in(**options):
        assert str(found.id).startswith("django_quota.")
        assert found.hint


@pytest.mark.parametrize(("seconds", "expected"), [(2, []), (2.5, ["W012"]), (10, ["W012"]), (10**9, ["W012"])])
def test_w012_a_long_timeout_blocks_threads_while_redis_hangs(seconds: float, expected: list[str]) -> None:
    everywhere = [
        of(SOCKET_TIMEOUT=seconds), of(SOCKET_CONNECT_TIMEOUT=seconds),
        of(CONNECTION_POOL_KWARGS={"socket_timeout": seconds}), of(f"redis://127.0.0.1:1?socket_timeout={seconds}"),
        of(**SENTINEL, SENTINEL_KWARGS={"socket_connect_timeout": seconds}),
    ]  # fmt: skip
    assert [ids(caches=caches) for caches in everywhere] == [expected] * 5


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("socket_timeout=0.5&socket_connect_timeout=0.5", []), ("socket_timeout=0.5", ["W007"]), ("db=1", ["W007"]),
        ("socket_timeout=-1", ["E013"]), ("socket_connect_timeout=nan", ["E013"]),
    ],
)  # fmt: skip
def test_timeouts_in_the_location_count(query: str, expected: list[str]) -> None:
    alias = {**REDIS, "LOCATION": f"redis://127.0.0.1:1/0?{query}", "OPTIONS": {}}
    assert ids(caches={"default": alias}) == expected
    sentinel = {**SENTINEL, "SENTINEL_KWARGS": {"socket_timeout": 1}}
    for options in (sentinel, None):
        assert ids(caches={"default": {**REDIS, "OPTIONS": options}}) == ["W007"]


@pytest.mark.parametrize(
    ("quota", "expected", "words"),
    [
        ({}, [], ""), ({"ENABLED": True, "STORE": "redis"}, [], ""),
        ({"ENABLED": False}, ["W010"], "nothing is limited"),
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


def test_check_deploy_names_the_rules_that_no_view_and_no_match_applies(settings: Any) -> None:
    site = quota(rule="named")(lambda request: HttpResponse())
    settings.ROOT_URLCONF = (path("", site),)
    rules = {"named": "5/m", "matched": {"rate": "5/m", "match": "/"}, "typo": "5/m", "code": "5/m"}
    with override_settings(QUOTA={"RULES": rules}, CACHES=of()):
        (note,) = run_checks(tags=["django_quota"], include_deployment_checks=True)
        assert (note.id, note.level) == ("django_quota.W039", INFO)
        assert "has 'typo', 'code' without \"match\"" in note.msg
        assert run_checks(tags=["django_quota"]) == []


def test_check_deploy_reports_wrong_values_once() -> None:
    with override_settings(QUOTA={"ENABLED": 1, "STORE": "x"}, CACHES=of()):
        deploying = run_checks(tags=["django_quota"], include_deployment_checks=True)
    assert [found.id for found in deploying] == ["django_quota.E002"] * 2
