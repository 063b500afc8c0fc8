"""The Redis of `QUOTA["REDIS"]`: a URL, redis-py's options, or a function that returns either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from redis import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_quota.core.errors import ConfigurationError
from django_quota.stores.redis.settings import RedisProblem, WhichRedis
from django_quota.stores.redis.sources import pool_from, pool_of_server
from django_quota.stores.redis.urls import QUOTE_HINT, Address, Options, read_url, url_problem

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
    def _options(self) -> Options:
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

    def cluster(self) -> tuple[Sequence[Address], Options]:
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


def read_redis(given: object) -> Options:
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
