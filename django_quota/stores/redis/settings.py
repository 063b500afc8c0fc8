"""Which Redis counts: what the settings say of it, and what is wrong with them.

The checks open no connection, and no message shows a password. They report what you would not notice without them: if a
connection fails, rules only decide by `on_unavailable`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from django.conf import settings
from redis import Connection, ConnectionPool, CredentialProvider, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_quota.core.errors import ConfigurationError, StoreBusy, without_secrets
from django_quota.stores.redis.errors import of_this_process

ANSWER_TIMEOUT = 0.25
"""Seconds to connect, and to wait for a reply, unless the settings say."""

PLAIN_TIMEOUT = 2.0
"""The same for the plain commands of the admin and of `manage.py`."""

LONG_TIMEOUT = 2.0
"""Seconds above which a time-out gets a warning. While Redis hangs, each thread that asks it is blocked that long."""

TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


def with_timeouts(options: Mapping[str, Any], seconds: float = ANSWER_TIMEOUT) -> RedisOptions:
    """Return the options of a connection, with short time-outs if there are none."""
    return {**options, **{name: seconds for name in TIMEOUTS if options.get(name) is None}}


class RedisProblem(NamedTuple):
    """Why a Redis cannot serve; `code` is the number of its system check."""

    code: str
    message: str
    hint: str
    instead: str = ""
    """What else a site can use, if the alias is a cache of another kind, such as one in memory while you develop or
    test; else empty."""

    @property
    def whole_hint(self) -> str:
        """The hint, with what else a site can use."""
        return f"{self.hint} {self.instead}".strip()


class WhichRedis:
    """The Redis that the settings name. It opens no connection."""

    name: str
    """How messages name it, such as `CACHES["default"]`."""
    options_hint: str
    """What to write instead of options that redis-py refuses."""
    is_cluster: bool = False

    def place_problem(self) -> RedisProblem | None:
        """Say why it cannot serve, whatever its options are."""
        return None

    def new_pool(self) -> Any:
        """Return a new pool of redis-py; for a Cluster, one of its first server. Raises what redis-py raises."""
        raise NotImplementedError

    def option(self, name: str) -> Any:
        """Return an option of the pool, such as `max_connections`; None if it is not set."""
        raise NotImplementedError

    def cluster(self) -> tuple[Sequence[Address], RedisOptions]:
        """Return the servers of a Cluster to ask for all others, and the options of each."""
        raise NotImplementedError

    def problem(self) -> RedisProblem | None:
        """Say why it cannot serve; None if it can."""
        return self.place_problem() or _option_problem(self)

    def raise_problem(self) -> None:
        """Raise `ConfigurationError` if it cannot serve."""
        problem = self.problem()
        if problem is not None:
            raise ConfigurationError(problem.message, problem.whole_hint)


# --- options ----------------------------------------------------------------------------------------------------------


def _option_problem(which: WhichRedis) -> RedisProblem | None:
    """Say why no connection can be made with the options of a Redis.

    redis-py makes a connection object here, and says itself what is wrong. Only time-outs are checked here: redis-py
    takes any value for them, and fails at the first call.
    """
    try:
        pool = which.new_pool()
        pool.connection_class(**with_timeouts(pool.connection_kwargs))
        for place, value in _timeouts(which, pool):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and 0 < value <= threading.TIMEOUT_MAX):
                words = f"{place} is {reprlib.repr(value)}, which is not a timeout."
                return RedisProblem("E013", words, f"Use a number of seconds above 0, for example {ANSWER_TIMEOUT:g}.")
    except Exception as error:  # noqa: BLE001 — the first call would raise it too
        if of_this_process(error):  # the options may be right
            raise StoreBusy(f"this process cannot open another file: {error}") from None
        said = without_secrets(f"{type(error).__name__}: {str(error).rstrip('.')}")
        words = f"The options of {which.name} do not make a connection: {said}."
        return RedisProblem("E014", words, which.options_hint)
    return None


def long_timeouts(which: WhichRedis) -> list[tuple[str, float]]:
    """Return the time-outs that keep threads waiting for long, each with its place."""
    return [(place, value) for place, value in _timeouts(which, which.new_pool()) if value > LONG_TIMEOUT]


def _timeouts(which: WhichRedis, pool: Any) -> Iterator[tuple[str, Any]]:
    """Yield the time-outs that are set, and those of sentinels if they differ, each with its place."""
    given = pool.connection_kwargs
    yield from ((f"{name} of {which.name}", given[name]) for name in TIMEOUTS if given.get(name) is not None)
    if has_sentinels(pool):
        theirs: Any = pool.sentinel_manager.sentinel_kwargs
        for name in TIMEOUTS:
            if theirs.get(name) is not None and theirs[name] is not given.get(name):
                yield f"{name} of the sentinels of {which.name}", theirs[name]


def known_options(kind: type) -> set[str]:
    """Return the options that a class of connections takes."""
    makers = [vars(each)["__init__"] for each in kind.__mro__ if inspect.isfunction(vars(each).get("__init__"))]
    named = {name for make in makers for name in inspect.signature(make).parameters}
    return {*named, "max_connections"} - {"self", "args", "kwargs"}


# --- pools of redis-py ------------------------------------------------------------------------------------------------


def pool_of(which: WhichRedis) -> Any:
    """Return a new pool of redis-py. Raises `ConfigurationError` if the settings are wrong.

    The pool asks each sentinel once, with the time-outs of Redis itself unless the settings say otherwise. By default,
    redis-py waits several times, for seconds, for a sentinel that hangs.
    """
    which.raise_problem()
    pool = which.new_pool()
    if has_sentinels(pool):
        given = {**pool.connection_kwargs, **pool.sentinel_manager.sentinel_kwargs}
        for each in pool.sentinel_manager.sentinels:
            timeouts = {name: given.get(name) or ANSWER_TIMEOUT for name in TIMEOUTS}
            each.connection_pool.connection_kwargs.update(timeouts)
            each.set_retry(Retry(NoBackoff(), 0))
    return pool


def has_sentinels(pool: Any) -> bool:
    """Say whether a pool asks sentinels for the primary."""
    return isinstance(pool, SentinelConnectionPool)


def pool_from(options: Mapping[str, Any]) -> ConnectionPool:
    """Return a pool of connections with these options, to a server or a socket."""
    options = dict(options)
    if "unix_socket_path" in options:
        options.update(path=options.pop("unix_socket_path"), connection_class=UnixDomainSocketConnection)
    is_encrypted = options.pop("ssl", False)
    return ConnectionPool(**{"connection_class": SSLConnection if is_encrypted else Connection, **options})


def pool_of_server(address: Address, options: Mapping[str, Any]) -> ConnectionPool:
    """Return a pool of connections to one server of a Cluster."""
    its_own = {name: value for name, value in options.items() if name != "startup_nodes"}
    return pool_from({**its_own, "host": address.host, "port": int(address.port)})


# --- an alias of CACHES -----------------------------------------------------------------------------------------------


NAME_A_REDIS = (
    'Name the Redis itself, for example QUOTA = {"REDIS": "redis://127.0.0.1:6379/0"}; or name in QUOTA["CACHE"] an '
    'alias whose BACKEND is "django_redis.cache.RedisCache" or "django.core.cache.backends.redis.RedisCache".'
)


def cannot_serve(message: str, hint: str) -> RedisProblem:
    """Return what is wrong with an alias, apart from its options."""
    return RedisProblem("E004", message, hint)


class Alias(WhichRedis):
    """An alias of `CACHES`."""

    separators = ","
    """The characters that separate the URLs of a LOCATION."""

    def __init__(self, alias: str) -> None:
        self.name = f'CACHES["{alias}"]'
        self._alias = alias

    @property
    def urls(self) -> list[str]:
        """The URLs of its LOCATION, at least one. Limits use the first."""
        location: Any = settings.CACHES[self._alias].get("LOCATION") or ""
        given: Iterable[Any] = re.split(f"[{self.separators}]", location) if isinstance(location, str) else location
        return [str(url).strip() for url in given] or [""]

    @property
    def options(self) -> dict[str, Any]:
        """Its OPTIONS."""
        return dict(cast("dict[str, Any]", settings.CACHES[self._alias].get("OPTIONS") or {}))

    def place_problem(self) -> RedisProblem | None:
        """Check all URLs, though writes go to the first: a comma in a password makes two URLs of one."""
        for url in self.urls:
            try:
                read_server(url)
            except ValueError:
                hint = f'Use, for example, "redis://127.0.0.1:6379/0". {QUOTE_HINT}'
                return cannot_serve(url_problem(f"The LOCATION of {self.name}", url), hint)
        return None


# --- QUOTA["REDIS"] ---------------------------------------------------------------------------------------------------


NAME = 'QUOTA["REDIS"]'

_URL_HINT = (
    'Use, for example, "redis://127.0.0.1:6379/0"; or rediss://, unix://, '
    '"redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/0" or "redis+cluster://10.0.0.1:6379,10.0.0.2:6379".'
)
_DICT_HINT = (
    'Use redis-py\'s options, for example {"host": "10.0.0.1", "port": 6379, "password": "..."}, '
    '{"sentinels": [("10.0.0.1", 26379)], "service_name": "mymaster"} or {"startup_nodes": [("10.0.0.1", 6379)]}.'
)

_PLACES = ("host", "unix_socket_path", "path", "sentinels", "startup_nodes")
"""Options that say where a Redis is. Without any of them, redis-py would ask 127.0.0.1."""


class GivenRedis(WhichRedis):
    """The Redis of `QUOTA["REDIS"]`. A function is called at the first use, and for each new connection."""

    name = NAME
    options_hint = _DICT_HINT

    def __init__(self, given: object) -> None:
        self._given = given

    @cached_property
    def _options(self) -> RedisOptions:
        try:
            options = read_redis(_returned(self._given) if callable(self._given) else self._given)
        except ConfigurationError as error:  # error pages show the local names of what raised it
            raise type(error)(error.problem, error.hint) from None
        if callable(self._given) and (options.get("username") or options.get("password")):
            options.update(username=None, password=None, credential_provider=_FromFunction(self._given))
        return options

    @property
    def is_cluster(self) -> bool:  # type: ignore[override]  # what is wrong is said later
        """Whether it is a Cluster."""
        try:
            return "startup_nodes" in self._options
        except ConfigurationError:
            if callable(self._given):  # it may return a Cluster the next time
                raise
            return False

    def place_problem(self) -> RedisProblem | None:
        """Say why it cannot serve; see `WhichRedis`."""
        try:
            _ = self._options
        except ConfigurationError as error:
            return RedisProblem("W033" if isinstance(error, _FailedError) else "E030", error.problem, error.hint)
        return None

    def new_pool(self) -> Any:
        """Return a new pool; see `WhichRedis`."""
        options = {name: value for name, value in self._options.items() if name not in ("timeout", "address_remap")}
        if "startup_nodes" in options:
            address, *_ = self.cluster()[0]
            return pool_of_server(address, options)
        if "sentinels" not in options:
            return pool_from(options)
        make_pool, make_sentinel = cast("Any", SentinelConnectionPool), cast("Any", Sentinel)  # redis-py: untyped
        of_sentinels = {name: options.pop(name) for name in _OF_SENTINELS if name in options}
        manager = make_sentinel(options.pop("sentinels"), **of_sentinels)
        return make_pool(options.pop("service_name"), manager, **options)

    def option(self, name: str) -> Any:
        """Return an option of the pool; see `WhichRedis`."""
        return self._options.get(name)

    def cluster(self) -> tuple[Sequence[Address], RedisOptions]:
        """Return the servers and options; see `WhichRedis`."""
        return [Address(*each) for each in self._options["startup_nodes"]], self._options


_OF_SENTINELS = ("sentinel_kwargs", "min_other_sentinels", "force_master_ip")


# --- functions --------------------------------------------------------------------------------------------------------


class _FailedError(ConfigurationError):
    """The function raised an error."""


def _returned(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:  # noqa: BLE001 — the function is of the site
        kind = type(error).__name__  # its text may hold a password
        named = function if hasattr(function, "__qualname__") else type(function)
        words = f"The function of {NAME}, {named.__module__}.{named.__qualname__}, raised {kind}."
        raise _FailedError(words, "Call it in `manage.py shell` to see why.") from None


class _FromFunction(CredentialProvider):
    """Asks the function for the user and the password of each new connection: passwords may rotate."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or the user and the password. Raises redis-py's `ConnectionError` if there is none."""
        try:
            options = read_redis(_returned(self._function))
        except ConfigurationError as error:  # now it is an outage: limits follow `on_unavailable`
            raise RedisConnectionError(error.problem) from None
        user, password = options.get("username"), options.get("password") or ""
        return (user, password) if user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """See `get_credentials`. The function runs in a thread, since it may wait for a server that keeps secrets."""
        return await asyncio.to_thread(self.get_credentials)


def read_redis(given: object) -> RedisOptions:
    """Return redis-py's options for a URL or a dict. Raises `ConfigurationError`."""
    if isinstance(given, str):
        try:
            options = read_url(given)
        except ValueError:
            raise ConfigurationError(url_problem(NAME, given), f"{_URL_HINT} {QUOTE_HINT}") from None
    elif isinstance(given, Mapping):
        options = dict(given)
        if sum(name in options for name in _PLACES) != 1:
            raise ConfigurationError(f"{NAME} does not name one of {', '.join(_PLACES)}.", _DICT_HINT)
    else:
        raise ConfigurationError(f"{NAME} is {type(given).__name__}, neither a URL nor a dict.", _URL_HINT)
    if "startup_nodes" in options and options.pop("db", 0):
        raise ConfigurationError(f"{NAME} names another database than 0, the only one of a Cluster.", "Remove db.")
    return options


# --- URLs -------------------------------------------------------------------------------------------------------------
#
# The forms are strict: redis-py takes some characters in a password for the end of the host, and connects elsewhere. No
# error shows more of a URL than its scheme: the rest may be a part of a password.


RedisOptions = dict[str, Any]
"""redis-py's options of a connection; `ssl` is whether it is encrypted."""

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
MAX_PORT = 65_535

QUOTE_HINT = (
    "Write characters such as / ? # @ : , [ ] in a user's name or password as %2F, %3F, %23, %40, %3A, %2C, %5B "
    'and %5D, as urllib.parse.quote(password, safe="") does.'
)

_OPTION = r"(?>(?:username|password|client_name|ssl_\w+)=[^&#]*|[^&#@]*)"  # only these may hold an @
_QUERY = rf"(\?{_OPTION}(?:&{_OPTION})*)?"
_USER_PART = r"([^/?#\[\]]*@)?"
_HOSTS = r"([^\s/?#@]+)"
_SERVER = re.compile(rf"rediss?://{_USER_PART}[^\s/?#@,]*(?:/[/\d]*)?{_QUERY}|unix://{_USER_PART}/[^?#]+{_QUERY}")
_CLUSTER = re.compile(rf"(rediss?)\+cluster://{_USER_PART}{_HOSTS}(?:/0?)?{_QUERY}")
_SENTINELS = re.compile(rf"(rediss?)\+sentinel://{_USER_PART}{_HOSTS}/([^/?#]+)(?:/(\d*)/?)?{_QUERY}")
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+))(?::([0-9]{1,5}))?")
_NAMED_DATABASE = re.compile(r"rediss?://[^/@\s]*(?:@[^/@\s]+)?/[^/@\s?#]+/?(?:\?.*)?")
"""The URL of a server that cannot be read because of its path. It has no @ after it: a password may contain a slash."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def url_problem(name: str, url: str) -> str:
    """Return what is wrong with a URL that cannot be read. `name`: where it is written."""
    if not url:
        return f"{name} is empty."
    if _NAMED_DATABASE.fullmatch(url):
        return f"{name} names a database that is not a number."
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", url)
    begins = f'begins with "{scheme[0]}"' if scheme else "has no scheme"
    return f"{name} {begins}, and cannot be read as the URL of a Redis."


def read_server(url: str) -> RedisOptions:
    """Return the options in the URL of one server. Raises `ValueError`."""
    if not _SERVER.fullmatch(url):
        raise ValueError
    options = dict(cast("Any", parse_url)(url))  # redis-py leaves it untyped
    if options.get("connection_class") is SSLConnection:
        del options["connection_class"]
        options["ssl"] = True
    return options


def read_url(url: str) -> RedisOptions:
    """Return the options in the URL of a server, of sentinels or of a Cluster. Raises `ValueError`."""
    if found := _CLUSTER.fullmatch(url):
        scheme, user, hosts, query = found.groups("")
        return {**_of_each(scheme, user, query), "startup_nodes": _addresses(hosts, DEFAULT_PORT)}
    if found := _SENTINELS.fullmatch(url):
        scheme, user, hosts, service, db, query = found.groups("")
        options = _of_each(scheme, user, query)
        options.update(sentinels=_addresses(hosts, SENTINEL_PORT), service_name=service)
        if db:
            options["db"] = int(db)
        if "ssl" in options:
            options["sentinel_kwargs"] = {name: value for name, value in options.items() if name.startswith("ssl")}
        return options
    return read_server(url)


def _of_each(scheme: str, user: str, query: str) -> RedisOptions:
    """Return the options of each server in the URL of several."""
    options = read_server(f"{scheme}://{user}host{query}")
    del options["host"]
    return options


def _addresses(hosts: str, port: int) -> list[Address]:
    """Return servers, by default at this port. Raises `ValueError` if one has no host, or a wrong port."""
    found = []
    for each in hosts.split(","):
        address = _ADDRESS.fullmatch(each)
        if address is None or not 0 < int(address[3] or port) <= MAX_PORT:
            raise ValueError
        found.append(Address(address[1] or address[2], int(address[3] or port)))
    return found
