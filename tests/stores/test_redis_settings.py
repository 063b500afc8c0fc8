"""Pools of redis-py for what the settings say, and functions of the site that name the Redis."""

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_quota.core.errors import StoreBusy
from django_quota.exceptions import ConfigurationError
from django_quota.stores.redis.aliases import redis_of_alias
from django_quota.stores.redis.settings import (
    ANSWER_TIMEOUT,
    MAX_PORT,
    Address,
    GivenRedis,
    RedisProblem,
    WhichRedis,
    known_options,
    long_timeouts,
    pool_from,
    pool_of,
    pool_of_server,
    read_url,
    url_problem,
    with_timeouts,
)

# --- pools ------------------------------------------------------------------------------------------------------------


class Which(WhichRedis):
    """A Redis with this pool."""

    name, options_hint = "this Redis", "Do better."

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def new_pool(self) -> Any:
        if isinstance(self._pool, Exception):
            raise self._pool
        return self._pool


def of_sentinels(sentinel_kwargs: dict[str, Any], **options: Any) -> Any:
    manager = cast("Any", Sentinel)([("a", 1), ("b", 2)], sentinel_kwargs=sentinel_kwargs, **options)
    return cast("Any", SentinelConnectionPool)("m", manager, **options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, (9, 9)),
        ({"socket_timeout": 1}, (1, 9)),
        ({"socket_connect_timeout": 0}, (9, 0)),
        ({"socket_timeout": None}, (9, 9)),
    ],
    ids=str,
)
def test_time_outs_are_given_where_there_are_none(options: dict[str, Any], found: tuple[int, int]) -> None:
    made = with_timeouts(options, 9)

    assert (made["socket_timeout"], made["socket_connect_timeout"]) == found


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"host": "h"}, redis.Connection),
        ({"host": "h", "ssl": True}, redis.SSLConnection),
        ({"host": "h", "ssl": False}, redis.Connection),
        ({"unix_socket_path": "/run/a.sock"}, redis.UnixDomainSocketConnection),
        ({"path": "/a", "connection_class": redis.UnixDomainSocketConnection}, redis.UnixDomainSocketConnection),
    ],
    ids=["TCP", "TLS", "no TLS", "a socket file", "a class"],
)  # fmt: skip
def test_a_pool_has_connections_of_the_class_that_its_options_mean(options: dict[str, Any], kind: type[Any]) -> None:
    given = dict(options)

    made = pool_from(options).make_connection()

    assert type(made) is kind
    assert options == given


def test_the_pool_of_a_server_of_a_cluster_leads_there() -> None:
    options = {"host": "first", "password": "x", "startup_nodes": [1]}

    found = pool_of_server(Address("b", 2), options).connection_kwargs

    assert (found["host"], found["port"], found["password"]) == ("b", 2, "x")
    assert "startup_nodes" not in found


class TestThePoolOfSentinels:
    @pytest.mark.parametrize(
        ("of_sentinel", "options", "found"),
        [
            ({}, {}, (ANSWER_TIMEOUT, ANSWER_TIMEOUT)),
            ({}, {"socket_timeout": 5}, (5, ANSWER_TIMEOUT)),
            ({"socket_timeout": 7, "socket_connect_timeout": 8}, {"socket_timeout": 5}, (7, 8)),
        ],
        ids=["no settings", "of the server", "of the sentinels"],
    )
    def test_asks_each_with_short_time_outs(self, of_sentinel: Any, options: Any, found: tuple[float, float]) -> None:
        pool = pool_of(Which(of_sentinels(of_sentinel, **options)))

        given = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
        assert {(each["socket_timeout"], each["socket_connect_timeout"]) for each in given} == {found}

    def test_asks_each_once(self) -> None:
        pool = pool_of(Which(of_sentinels({})))

        assert [each.get_retry()._retries for each in pool.sentinel_manager.sentinels] == [0, 0]


class TestAProblemOfTheOptions:
    def problem(self, **options: Any) -> RedisProblem | None:
        return Which(redis.ConnectionPool(**options)).problem()

    @pytest.mark.parametrize("seconds", [0.001, 2, threading.TIMEOUT_MAX, None], ids=str)
    def test_is_no_time_out_that_can_be_waited_for(self, seconds: Any) -> None:
        assert self.problem(socket_timeout=seconds) is None

    @pytest.mark.parametrize("seconds", [0, -1, "1", True, threading.TIMEOUT_MAX * 2], ids=str)
    @pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
    def test_is_a_time_out_that_cannot_be_waited_for(self, name: str, seconds: Any) -> None:
        found = self.problem(**{name: seconds})

        assert found is not None
        assert (found.code, found.message.startswith(f"{name} of this Redis is ")) == ("E013", True)

    def test_is_named_with_its_error(self) -> None:
        found = self.problem(no_such_option=1)

        assert found is not None
        assert found.message.startswith("The options of this Redis do not make a connection: TypeError: ")
        assert (found.code, found.hint) == ("E014", "Do better.")

    def test_is_raised_as_a_wrong_configuration(self) -> None:
        with pytest.raises(ConfigurationError, match="do not make a connection") as caught:
            Which(redis.ConnectionPool(no_such_option=1)).raise_problem()
        assert caught.value.hint == "Do better."

    def test_is_not_that_this_process_has_no_files_left(self) -> None:
        with pytest.raises(StoreBusy, match="this process cannot open another file"):
            Which(OSError(errno.EMFILE, "Too many open files")).problem()

    def test_comes_with_what_else_a_site_can_use(self) -> None:
        problem = RedisProblem("E004", "x", "Name it.", "Or use another.")

        assert (problem.whole_hint, problem._replace(instead="").whole_hint) == ("Name it. Or use another.", "Name it.")


@pytest.mark.parametrize(("seconds", "is_long"), [(2.0, False), (2.1, True)], ids=str)
def test_a_time_out_is_long_above_two_seconds(seconds: float, is_long: bool) -> None:
    found = long_timeouts(Which(redis.ConnectionPool(socket_timeout=seconds)))

    assert found == ([("socket_timeout of this Redis", seconds)] if is_long else [])


def test_the_long_time_outs_of_sentinels_are_named_if_they_differ() -> None:
    found = long_timeouts(Which(of_sentinels({"socket_timeout": 9.5, "socket_connect_timeout": 5}, socket_timeout=7)))

    assert found == [
        ("socket_timeout of this Redis", 7),
        ("socket_timeout of the sentinels of this Redis", 9.5),
        ("socket_connect_timeout of the sentinels of this Redis", 5),
    ]


def test_the_options_of_connections_are_those_of_a_class_with_its_bases() -> None:
    options = known_options(redis.SSLConnection)

    assert {"ssl_ca_certs", "host", "db", "max_connections"} <= options
    assert not options & {"self", "args", "kwargs"}


# --- an alias ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "code", "words", "hint"),
    [
        ("defualt", "E003", "QUOTA[\"CACHE\"] is 'defualt', but there is no such alias", "Did you mean 'default'?"),
        ("locel", "E003", "QUOTA[\"CACHE\"] is 'locel', but there is no such alias", "Did you mean 'local'?"),
        ("gone", "E004", 'CACHES["gone"] cannot be imported: ', 'QUOTA = {"REDIS"'),
        ("local", "E004", 'CACHES["local"] is django.core.cache.backends.locmem.LocMemCache', 'QUOTA = {"REDIS"'),
        ("function", "E004", 'CACHES["function"] is os.path.join', 'QUOTA = {"REDIS"'),
    ],
)
def test_an_alias_that_is_no_redis_is_named(alias: str, code: str, words: str, hint: str, settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://h"},
        "gone": {"BACKEND": "no.such.Cache"},
        "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "function": {"BACKEND": "os.path.join"},
    }

    which = redis_of_alias(alias)

    found = which.problem()
    assert found is not None
    assert (found.code, found.message.startswith(words), hint in found.hint) == (code, True, True)
    assert which.name == f'CACHES["{alias}"]'


# --- functions of the site --------------------------------------------------------------------------------------------


def named_by(function: Callable[[], object]) -> Any:
    """Return what gives each connection of this function its user and password."""
    return GivenRedis(function).new_pool().connection_kwargs["credential_provider"]


class TestAFunctionOfTheSite:
    @pytest.mark.parametrize(
        ("given", "credentials"),
        [
            ({"username": "u", "password": "p"}, ("u", "p")),
            ({"password": "p"}, ("p",)),
            ({"username": "u"}, ("u", "")),
        ],
        ids=["both", "a password", "a user"],
    )
    def test_gives_each_connection_its_credentials(self, given: dict[str, str], credentials: tuple[str, ...]) -> None:
        provider = named_by(lambda: {"host": "h", **given})

        assert provider.get_credentials() == credentials
        assert asyncio.run(provider.get_credentials_async()) == credentials

    def test_shows_no_password_among_the_options(self) -> None:
        options = GivenRedis(lambda: {"host": "h", "username": "u", "password": "p"}).new_pool().connection_kwargs

        assert (options["username"], options["password"]) == (None, None)

    def test_that_names_no_user_needs_no_provider(self) -> None:
        assert "credential_provider" not in GivenRedis(lambda: {"host": "h"}).new_pool().connection_kwargs

    def test_holds_up_no_event_loop(self) -> None:
        threads: list[threading.Thread] = []

        def named() -> Any:
            threads.append(threading.current_thread())
            return {"host": "h", "password": "p"}

        asyncio.run(named_by(named).get_credentials_async())

        assert threads[-1] is not threading.current_thread()

    @pytest.mark.parametrize("later", [ValueError("secret"), "nonsense"], ids=["an error", "no URL"])
    def test_that_fails_later_is_an_outage(self, later: Any) -> None:
        named = Mock(side_effect=[{"host": "h", "password": "p"}, later], __module__="a", __qualname__="named")
        provider = named_by(named)

        with pytest.raises(RedisConnectionError) as caught:
            provider.get_credentials()
        assert "secret" not in str(caught.value)

    def test_that_fails_may_name_a_cluster_the_next_time(self) -> None:
        which = GivenRedis(Mock(side_effect=[ValueError("x"), {"startup_nodes": [("a", 1)]}]))

        with pytest.raises(ConfigurationError):
            _ = which.is_cluster
        assert which.is_cluster

    def test_is_asked_once_for_its_options(self) -> None:
        named = Mock(return_value={"host": "h"})
        which = GivenRedis(named)

        for _ in range(2):
            which.new_pool()

        assert named.call_count == 1


@pytest.mark.parametrize(
    ("given", "is_cluster"),
    [("redis+cluster://a", True), ("redis://a", False), ("nonsense", False), ({"startup_nodes": [("a", 1)]}, True)],
    ids=str,
)
def test_a_redis_is_a_cluster_if_it_is_named_so(given: object, is_cluster: bool) -> None:
    assert GivenRedis(given).is_cluster is is_cluster


@pytest.mark.parametrize("name", ["timeout", "address_remap"])
def test_an_option_of_ours_reaches_no_connection(name: str) -> None:
    which = GivenRedis({"host": "h", name: 7})

    assert name not in which.new_pool().connection_kwargs
    assert which.option(name) == 7


def test_the_sentinels_of_the_settings_have_their_own_options() -> None:
    given = {
        "sentinels": [("a", 1)], "service_name": "m", "sentinel_kwargs": {"password": "x"}, "min_other_sentinels": 2,
        "password": "y",
    }  # fmt: skip

    pool = GivenRedis(given).new_pool()

    manager = pool.sentinel_manager
    assert (pool.service_name, manager.min_other_sentinels, manager.sentinel_kwargs["password"]) == ("m", 2, "x")
    assert pool.connection_kwargs["password"] == "y"


@pytest.mark.parametrize("given", [{}, {"host": "h", "path": "/a"}, {"sentinels": [], "startup_nodes": []}], ids=str)
def test_options_name_exactly_one_place(given: dict[str, Any]) -> None:
    found = GivenRedis(given).place_problem()

    assert found is not None
    assert (found.code, "does not name one of host" in found.message) == ("E030", True)


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("port", "is_read"), [(0, False), (1, True), (MAX_PORT, True), (MAX_PORT + 1, False)])
def test_the_port_of_a_server_is_one_that_there_is(port: int, is_read: bool) -> None:
    try:
        found = read_url(f"redis+cluster://a:{port}")["startup_nodes"]
    except ValueError:
        found = None

    assert found == ([Address("a", port)] if is_read else None)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "X is empty."),
        ("redis://h/cache", "X names a database that is not a number."),
        ("redis://u:p@h/cache/?a=b", "X names a database that is not a number."),
        ("redis://:p/w@h", 'X begins with "redis://", and cannot be read as the URL of a Redis.'),
        ("h:6379", "X has no scheme, and cannot be read as the URL of a Redis."),
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_the_rest_of_it(url: str, words: str) -> None:
    assert url_problem("X", url) == words
