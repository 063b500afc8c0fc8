"""Pools of redis-py for what the settings say, and functions of the site that name the Redis."""

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_quota.core.errors import StoreBusy
from django_quota.exceptions import ConfigurationError
from django_quota.stores.redis.aliases import redis_of_alias
from django_quota.stores.redis.settings import (
    ANSWER_TIMEOUT,
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
    port: Any = "2"  # as in a dict of the settings

    found = pool_of_server(Address("b", port), options).connection_kwargs

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

        words = f"{name} of this Redis is {seconds!r}, which is not a timeout."
        assert found == ("E013", words, "Use a number of seconds above 0, for example 0.25.", "")

    def test_shows_the_beginning_of_a_long_value(self) -> None:
        found = self.problem(socket_timeout="x" * 1_000)

        words = "socket_timeout of this Redis is 'xxxxxxxxxxxx...xxxxxxxxxxxxx', which is not a timeout."
        assert found is not None
        assert found.message == words

    def test_shows_no_password(self) -> None:
        found = Which(ValueError("redis://u:secret@h is wrong.")).problem()

        words = "The options of this Redis do not make a connection: ValueError: redis://***@h is wrong."
        assert found is not None
        assert found.message == words

    def test_is_an_option_that_redis_py_does_not_know(self) -> None:
        found = self.problem(no_such_option=1)

        assert found is not None
        assert found.message.startswith("The options of this Redis do not make a connection: TypeError: ")

    def test_is_a_class_of_connections_that_takes_no_time_outs(self) -> None:
        class WithoutTimeOuts(redis.Connection):
            def __init__(self, **options: Any) -> None:
                if "socket_timeout" in options:
                    raise TypeError("it has no socket_timeout")

        found = self.problem(connection_class=WithoutTimeOuts)

        words = "The options of this Redis do not make a connection: TypeError: it has no socket_timeout."
        assert found == ("E014", words, "Do better.", "")

    def test_is_named_with_its_error(self) -> None:
        found = Which(ValueError("It is wrong.")).problem()

        words = "The options of this Redis do not make a connection: ValueError: It is wrong."
        assert found == ("E014", words, "Do better.", "")

    def test_is_raised_as_a_wrong_configuration(self) -> None:
        with pytest.raises(ConfigurationError, match="do not make a connection") as caught:
            Which(redis.ConnectionPool(no_such_option=1)).raise_problem()
        assert caught.value.hint == "Do better."

    def test_is_not_that_this_process_has_no_files_left(self) -> None:
        with pytest.raises(StoreBusy) as caught:
            Which(OSError(errno.EMFILE, "Too many open files")).problem()
        assert caught.value.reason == "this process cannot open another file: [Errno 24] Too many open files"
        assert caught.value.__suppress_context__  # the frames of redis-py have the password

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


class OfASite:
    def __init__(self, host: str, *args: object, db: int = 0, **kwargs: object) -> None: ...


class Derived(OfASite):
    def __init__(self, region: str, **kwargs: Any) -> None: ...


class WithoutOptions(Derived): ...


def test_the_options_of_a_class_are_what_its_bases_take_by_name() -> None:
    assert known_options(WithoutOptions) == {"host", "db", "region", "max_connections"}


# --- an alias ---------------------------------------------------------------------------------------------------------


def test_a_long_time_out_that_sentinels_share_is_named_once() -> None:
    found = long_timeouts(Which(of_sentinels({"socket_timeout": 7}, socket_timeout=7)))

    assert found == [("socket_timeout of this Redis", 7)]


NAME_ONE = (
    'Name the Redis itself, for example QUOTA = {"REDIS": "redis://127.0.0.1:6379/0"}; or name in QUOTA["CACHE"] an '
    'alias whose BACKEND is "django_redis.cache.RedisCache" or "django.core.cache.backends.redis.RedisCache".'
)
WITHOUT = 'Without Redis, use QUOTA = {"STORE": "memory"}, which suits tests and single processes, or "database".'
MISSING = 'Add it, or name the Redis itself in QUOTA["REDIS"].'
QUOTE = (
    "Write characters such as / ? # @ : , [ ] in a user's name or password as %2F, %3F, %23, %40, %3A, %2C, %5B "
    'and %5D, as urllib.parse.quote(password, safe="") does.'
)
IN_MEMORY = "django.core.cache.backends.locmem.LocMemCache"
UNREADABLE = "and cannot be read as the URL of a Redis."
NO_URL = f'Use, for example, "redis://127.0.0.1:6379/0". {QUOTE}'


@pytest.mark.parametrize(
    ("alias", "problem"),
    [
        ("defualt", ("E003", "QUOTA[\"CACHE\"] is 'defualt', but there is no such alias in CACHES.",
                     f"{MISSING} Did you mean 'default'?", "")),
        ("locel", ("E003", "QUOTA[\"CACHE\"] is 'locel', but there is no such alias in CACHES.",
                   f"{MISSING} Did you mean 'local'?", "")),
        ("gone", ("E004", "CACHES[\"gone\"] cannot be imported: No module named 'no'.", NAME_ONE, "")),
        ("empty", ("E004", 'CACHES["empty"] cannot be imported:  doesn\'t look like a module path.', NAME_ONE, "")),
        ("local", ("E004", f'CACHES["local"] is {IN_MEMORY}, which cannot run scripts in Redis.', NAME_ONE, WITHOUT)),
        ("function", ("E004", 'CACHES["function"] is os.path.join, which cannot run scripts in Redis.', NAME_ONE,
                      WITHOUT)),
        ("default", None),
        ("comma", ("E004", f'The LOCATION of CACHES["comma"] begins with "redis://", {UNREADABLE}', NO_URL, "")),
        ("second", ("E004", f'The LOCATION of CACHES["second"] has no scheme, {UNREADABLE}', NO_URL, "")),
        ("nowhere", ("E004", 'The LOCATION of CACHES["nowhere"] is empty.', NO_URL, "")),
        ("none", ("E004", 'The LOCATION of CACHES["none"] is empty.', NO_URL, "")),
    ],
    ids=[
        "a typo", "another typo", "a missing package", "no backend", "another cache", "a function", "right", "a comma",
        "the second server", "no location", "no servers",
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_alias_is_named(alias: str, problem: tuple[str, ...] | None, settings: Any) -> None:
    of_redis = {"BACKEND": "django_redis.cache.RedisCache"}
    settings.CACHES = {
        "default": {**of_redis, "LOCATION": [" redis://h ", "redis://i"]},
        "gone": {"BACKEND": "no.such.Cache"},
        "empty": {},
        "local": {"BACKEND": IN_MEMORY},
        "function": {"BACKEND": "os.path.join"},
        "comma": {**of_redis, "LOCATION": "redis://:a,b@h"},
        "second": {**of_redis, "LOCATION": ["redis://h", "h"]},
        "nowhere": of_redis,
        "none": {**of_redis, "LOCATION": []},
    }

    which = redis_of_alias(alias)

    assert which.problem() == problem
    assert which.name == f'CACHES["{alias}"]'


@pytest.mark.parametrize("how", [WhichRedis.new_pool, lambda each: each.option("db"), WhichRedis.cluster])
def test_an_alias_without_a_redis_leads_nowhere(how: Callable[[WhichRedis], object]) -> None:
    with pytest.raises(NotImplementedError):
        how(redis_of_alias("no such alias"))


class CacheOfTheSite(RedisCache):
    """A subclass of Django's own cache."""


class TestAnAliasOfDjangosOwnCache:
    @pytest.fixture(params=[RedisCache, CacheOfTheSite])
    def of_django(self, request: pytest.FixtureRequest, settings: Any) -> Callable[..., WhichRedis]:
        def of_django(location: str = "redis://h", **options: Any) -> WhichRedis:
            backend = f"{request.param.__module__}.{request.param.__qualname__}"
            settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}}
            return redis_of_alias("default")

        return of_django

    @pytest.mark.parametrize("separator", [",", ";"])
    def test_has_its_first_server(self, separator: str, of_django: Any) -> None:
        options = of_django(f"redis://a{separator}redis://b", db=3).new_pool().connection_kwargs

        assert (options["host"], options["db"]) == ("a", 3)

    @pytest.mark.parametrize("separator", [",", ";"])
    def test_has_the_urls_of_all_its_servers(self, separator: str, of_django: Any) -> None:
        assert of_django(f"redis://a{separator}redis://b").urls == ["redis://a", "redis://b"]

    def test_has_the_options_of_its_pool(self, of_django: Any) -> None:
        which = of_django(max_connections=3)

        assert (which.option("max_connections"), which.option("timeout")) == (3, None)

    def test_whose_options_are_wrong_says_what_to_write(self, of_django: Any) -> None:
        found = of_django(pool_class="os.sep").problem()

        assert (found.code, found.hint, found.instead) == (
            "E014", "Use options of redis.ConnectionPool, and paths that lead to classes.", "",
        )  # fmt: skip


# --- QUOTA["REDIS"] ---------------------------------------------------------------------------------------------------

SOME_URL = (
    'Use, for example, "redis://127.0.0.1:6379/0"; or rediss://, unix://, '
    '"redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/0" or "redis+cluster://10.0.0.1:6379,10.0.0.2:6379".'
)
SOME_DICT = (
    'Use redis-py\'s options, for example {"host": "10.0.0.1", "port": 6379, "password": "..."}, '
    '{"sentinels": [("10.0.0.1", 26379)], "service_name": "mymaster"} or {"startup_nodes": [("10.0.0.1", 6379)]}.'
)


NO_CONNECTION = 'The options of QUOTA["REDIS"] do not make a connection'


def fails() -> object:
    raise ValueError("secret")


class Named:
    """An object that is called as a function."""

    def __call__(self) -> object:
        raise OSError


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", ("E030", 'QUOTA["REDIS"] is empty.', f"{SOME_URL} {QUOTE}", "")),
        (5, ("E030", 'QUOTA["REDIS"] is int, neither a URL nor a dict.', SOME_URL, "")),
        (
            {"port": 1},
            ("E030", 'QUOTA["REDIS"] does not name one of host, unix_socket_path, path, sentinels, startup_nodes.',
             SOME_DICT, ""),
        ),
        (
            {"startup_nodes": [("h", 1)], "db": 1},
            ("E030", 'QUOTA["REDIS"] names another database than 0, the only one of a Cluster.', "Remove db.", ""),
        ),
        (
            "redis+cluster://h?db=1",
            ("E030", 'QUOTA["REDIS"] names another database than 0, the only one of a Cluster.', "Remove db.", ""),
        ),
        (
            fails,
            ("W033", 'The function of QUOTA["REDIS"], tests.stores.test_redis_settings.fails, raised ValueError.',
             "Call it in `manage.py shell` to see why.", ""),
        ),
        (
            Named(),
            ("W033", 'The function of QUOTA["REDIS"], tests.stores.test_redis_settings.Named, raised OSError.',
             "Call it in `manage.py shell` to see why.", ""),
        ),
        ({"host": "h", "max_connections": -1},
         ("E014", f'{NO_CONNECTION}: ValueError: "max_connections" must be a positive integer.', SOME_DICT, "")),
        ({"startup_nodes": [("h", 1)], "db": 0}, None),
    ],
    ids=[
        "no URL", "a number", "no place", "a database", "a database in a URL", "a function", "an object", "an option",
        "right",
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_redis_of_the_settings_is_named(given: object, problem: tuple[str, ...] | None) -> None:
    assert GivenRedis(given).problem() == problem


def test_the_dict_of_the_settings_stays_as_it_is() -> None:
    given = {"startup_nodes": [("h", 1)], "db": 0}

    GivenRedis(given).cluster()

    assert given == {"startup_nodes": [("h", 1)], "db": 0}


def test_the_pool_of_a_cluster_is_one_of_its_first_server() -> None:
    options = GivenRedis("redis+cluster://:p@a:1,b:2").new_pool().connection_kwargs

    assert {name: options[name] for name in ("host", "port", "password")} == {"host": "a", "port": 1, "password": "p"}


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
            ({"username": "", "password": "p"}, ("p",)),
            ({"username": "u", "password": None}, ("u", "")),
        ],
        ids=["both", "a password", "a user", "an empty user", "no password"],
    )
    def test_gives_each_connection_its_credentials(self, given: dict[str, Any], credentials: tuple[str, ...]) -> None:
        same = {"host": "h", **given}  # it may return one dict again and again
        provider = named_by(lambda: same)

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

    @pytest.mark.parametrize(
        ("later", "words"),
        [
            (ValueError("secret"), 'The function of QUOTA["REDIS"], a.named, raised ValueError.'),
            ("secret", 'QUOTA["REDIS"] has no scheme, and cannot be read as the URL of a Redis.'),
        ],
        ids=["an error", "no URL"],
    )
    def test_that_fails_later_is_an_outage(self, later: Any, words: str) -> None:
        named = Mock(side_effect=[{"host": "h", "password": "p"}, later], __module__="a", __qualname__="named")
        provider = named_by(named)

        with pytest.raises(RedisConnectionError) as caught:
            provider.get_credentials()
        assert str(caught.value) == words
        assert caught.value.__suppress_context__  # the frames of the site may have the password

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
        "force_master_ip": "c", "password": "y",
    }  # fmt: skip

    pool = GivenRedis(given).new_pool()

    manager = pool.sentinel_manager
    assert (pool.service_name, manager.min_other_sentinels, manager.sentinel_kwargs["password"]) == ("m", 2, "x")
    assert manager._force_master_ip == "c"
    assert pool.connection_kwargs["password"] == "y"


@pytest.mark.parametrize("given", [{"host": "h", "path": "/a"}, {"sentinels": [], "startup_nodes": []}], ids=str)
def test_options_name_only_one_place(given: dict[str, Any]) -> None:
    found = GivenRedis(given).place_problem()

    assert found is not None
    assert (found.code, "does not name one of host" in found.message) == ("E030", True)


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("port", "is_read"), [(0, False), (1, True), (65_535, True), (65_536, False)])
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
