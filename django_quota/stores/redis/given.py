"""The Redis of `QUOTA["REDIS"]`: a URL, redis-py's options, or a function that returns either.

All forms become redis-py's options, and redis-py makes the connections. No text shows a password, and none shows what
stands where one may be.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from redis import Connection, ConnectionPool, CredentialProvider, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_quota.core.errors import ConfigurationError
from django_quota.stores.redis.config import (
    DEFAULT_PORT,
    QUOTE_HINT,
    Address,
    parse_location,
    unquoted_password_problem,
)
from django_quota.stores.redis.config_checks import url_problem
from django_quota.stores.redis.which import ClusterPlace, RedisProblem, WhichRedis

NAME = 'QUOTA["REDIS"]'

SENTINEL_PORT = 26379
MAX_PORT = 65_535

URL_HINT = (
    'Use, for example, "redis://127.0.0.1:6379/0"; or rediss://, unix://, '
    '"redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/0" or "redis+cluster://10.0.0.1:6379,10.0.0.2:6379".'
)
_DICT_HINT = 'Use redis-py\'s options, for example {"host": "10.0.0.1", "port": 6379, "password": "..."}.'
_SENTINEL_URL = 'Use, for example, "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/0".'
_CLUSTER_URL = 'Use, for example, "redis+cluster://10.0.0.1:6379,10.0.0.2:6379".'
_LIST_HINT = 'Use a list of hosts and ports, for example [("10.0.0.1", {port})].'

_ONE_SERVER = ("host", "port", "unix_socket_path", "path", "connection_class")
_PLACES = (*_ONE_SERVER, "sentinels", "startup_nodes")
"""Options that say where a Redis is. Without any of them, redis-py would ask 127.0.0.1."""

Options = dict[str, Any]


class GivenRedis(WhichRedis):
    """The Redis of `QUOTA["REDIS"]`. A function is called at the first use, and for each new connection."""

    name = NAME
    options_name = f"The options of {NAME}"
    options_hint = "Use options of redis.ConnectionPool."
    sentinel_options_name = "sentinel_kwargs"

    def __init__(self, given: object) -> None:
        self._given = given

    @cached_property
    def _options(self) -> Options:
        try:
            options = read_redis(_returned(self._given) if callable(self._given) else self._given)
        except ConfigurationError as error:  # error pages show the local names of what raised it
            raise type(error)(error.problem, error.hint) from None
        if not callable(self._given):
            return options
        if options.get("username") or options.get("password"):
            options = {name: value for name, value in options.items() if name not in ("username", "password")}
            options["credential_provider"] = _FromFunction(self._given)
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

    def problem(self) -> RedisProblem | None:
        """Say why it cannot serve; see `WhichRedis`."""
        try:
            _ = self._options
        except _FunctionFailedError as error:
            return RedisProblem("W033", error.problem, error.hint)
        except ConfigurationError as error:
            return RedisProblem("E030", error.problem, error.hint)
        return None

    def new_pool(self) -> Any:
        """Return a new pool; see `WhichRedis`."""
        options = {name: value for name, value in self._options.items() if name not in ("timeout", "address_remap")}
        if "startup_nodes" in options:
            (host, port), *_ = options.pop("startup_nodes")
            options.update(host=host, port=port)
        make_pool, make_sentinel = cast("Any", SentinelConnectionPool), cast("Any", Sentinel)  # redis-py: untyped
        if "sentinels" in options:
            of_sentinels = {name: options.pop(name) for name in _OF_SENTINELS if name in options}
            manager = make_sentinel(options.pop("sentinels"), **of_sentinels)
            return make_pool(options.pop("service_name"), manager, **options)
        if "unix_socket_path" in options:
            options.update(path=options.pop("unix_socket_path"), connection_class=UnixDomainSocketConnection)
        is_encrypted = options.pop("ssl", False)
        options.setdefault("connection_class", SSLConnection if is_encrypted else Connection)
        return ConnectionPool(**options)

    def pool_option(self, name: str) -> Any:
        """Return an option of the pool; see `WhichRedis`."""
        return self._options.get(name)

    def sentinel_options(self) -> Mapping[str, Any] | None:
        """Return the options of the sentinels; see `WhichRedis`."""
        return cast("Mapping[str, Any] | None", self._options.get("sentinel_kwargs"))

    def cluster(self) -> ClusterPlace:
        """Return where the Cluster is; see `WhichRedis`."""
        options = dict(self._options)
        addresses: list[Address] = options.pop("startup_nodes")
        host, port = addresses[0]
        scheme = "rediss" if options.pop("ssl", False) else "redis"
        return ClusterPlace(addresses, f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", options)

    def timeout_names(self, names: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 — none of them is missing
        """Return no names: only the limits use these connections."""
        return ()


# --- functions --------------------------------------------------------------------------------------------------------


class _FunctionFailedError(ConfigurationError):
    """The function raised an error."""


def _returned(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:  # noqa: BLE001 — the function is of the site
        kind = type(error).__name__  # its text may hold a password
        words = f"The function of {NAME}, {_name_of(function)}, raised {kind}."
        raise _FunctionFailedError(words, "Call it in `manage.py shell` to see why.") from None


def _name_of(function: object) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


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
        """Return the same. The function runs in a thread, since it may wait for a server that keeps secrets."""
        return await asyncio.to_thread(self.get_credentials)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_redis(given: object) -> Options:
    """Return redis-py's options for a URL or a dict. Raises `ConfigurationError`."""
    if isinstance(given, str):
        return _read_url(given)
    if isinstance(given, Mapping):
        return _read_dict(given)
    raise ConfigurationError(f"{NAME} is {type(given).__name__}, neither a URL nor a dict.", URL_HINT)


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=://)")


def _read_url(url: str) -> Options:
    found = _SCHEME.match(url)
    scheme = found[0] if found else ""
    if scheme in ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"):
        return _read_servers(scheme, url)
    if scheme not in ("redis", "rediss", "unix"):
        shown = f'begins with "{scheme}://"' if scheme else "is a text" if url else "is empty"  # it may be a password
        raise ConfigurationError(f"{NAME} {shown}, which is not the URL of a Redis.", URL_HINT)
    if problem := url_problem(NAME, url):
        raise ConfigurationError(*problem)
    return dict(parse_location(url))


def _read_servers(scheme: str, url: str) -> Options:
    """Read the URL of a Cluster or of sentinels: like that of one server, but with several hosts."""
    if problem := unquoted_password_problem(url):
        raise ConfigurationError(f"{NAME} does not lead where it seems to: {problem}.", QUOTE_HINT)
    place, _, query = url.partition("://")[2].partition("?")
    place, _, path = place.partition("/")
    user, at, hosts = place.rpartition("@")
    is_cluster = scheme.endswith("cluster")
    hint = _CLUSTER_URL if is_cluster else _SENTINEL_URL
    name = re.fullmatch(r"0?/?" if is_cluster else r"([^/]+)(?:/(\d*)/?)?", path)
    if name is None:
        is_missing = "names another database than 0, the only one of a Cluster" if is_cluster else "names no service"
        raise ConfigurationError(f'{NAME}, which begins with "{scheme}://", {is_missing}.', hint)
    addresses = [_address_in_url(scheme, each, hint, is_cluster) for each in hosts.split(",")]
    try:
        options = dict(parse_location(f"redis://{user}{at}host?{query}"))
    except ValueError as error:
        raise ConfigurationError(f"{NAME} cannot be read: {error}.", hint) from None
    del options["host"]
    of_tls = {"ssl": True, **{name: value for name, value in options.items() if name.startswith("ssl_")}}
    if scheme.startswith("rediss"):
        options["ssl"] = True
    if is_cluster:
        return {**options, "startup_nodes": addresses}
    options.update(sentinels=addresses, service_name=name[1])
    if name[2]:
        options["db"] = int(name[2])
    return {**options, "sentinel_kwargs": of_tls} if "ssl" in options else options


_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+))(?::([0-9]{1,5}))?")


def _address_in_url(scheme: str, text: str, hint: str, is_cluster: bool) -> Address:
    found = _ADDRESS.fullmatch(text.strip())
    port = int((found and found[3]) or (DEFAULT_PORT if is_cluster else SENTINEL_PORT))
    if found is None or not 0 < port <= MAX_PORT:
        raise ConfigurationError(f'{NAME}, which begins with "{scheme}://", has no host or a wrong port.', hint)
    return Address(found[1] or found[2], port)


_OF_SENTINELS = ("sentinel_kwargs", "min_other_sentinels", "force_master_ip")


def _read_dict(given: Mapping[Any, Any]) -> Options:
    options = dict(given)
    if not all(isinstance(name, str) for name in options):
        raise ConfigurationError(f"{NAME} has names that are no texts.", _DICT_HINT)
    places = [name for name in _PLACES if name in options]
    if not places:
        raise ConfigurationError(f"{NAME} does not say where the Redis is.", _DICT_HINT)
    several = [name for name in ("sentinels", "startup_nodes") if name in options]
    if several and len(places) > 1:
        raise ConfigurationError(f"{NAME} has {' and '.join(places)}, which name different servers.", "Keep one.")
    if "startup_nodes" in options:
        options["startup_nodes"] = _addresses("startup_nodes", options["startup_nodes"], DEFAULT_PORT)
        if options.pop("db", 0):
            raise ConfigurationError(f"{NAME} names another database than 0, the only one of a Cluster.", "Remove db.")
    if "sentinels" in options:
        options["sentinels"] = _addresses("sentinels", options["sentinels"], SENTINEL_PORT)
    if ("sentinels" in options) != bool(options.get("service_name")):
        hint = 'Use, for example, {"sentinels": [("10.0.0.1", 26379)], "service_name": "mymaster"}.'
        raise ConfigurationError(f"{NAME} has sentinels without a service_name, or the other way round.", hint)
    return options


def _addresses(option: str, given: object, port: int) -> list[Address]:
    try:
        found = [Address(*each) for each in cast("Sequence[Any]", given)]
    except TypeError:
        found = []
    if not found or not all(_is_address(each) for each in found):
        raise ConfigurationError(
            f'{NAME}["{option}"] is not a list of hosts and ports.', _LIST_HINT.replace("{port}", str(port))
        )
    return found


def _is_address(address: Address) -> bool:
    given: tuple[Any, Any] = address  # anything may be written there
    host, port = given
    return isinstance(host, str) and bool(host) and type(port) is int and 0 < port <= MAX_PORT
