"""URLs of a Redis as redis-py's options.

The forms are strict: redis-py takes some characters in a password for the end of the host, and connects elsewhere. No
error shows more of a URL than its scheme: the rest may be a part of a password.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

from redis import SSLConnection
from redis.connection import parse_url

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


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def url_problem(name: str, url: str) -> str:
    """Return what is wrong with a URL that cannot be read. `name`: where it is written."""
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", url)
    begins = f'begins with "{scheme[0]}"' if scheme else "has no scheme"
    return f"{name} {begins}, and cannot be read as the URL of a Redis."


def read_server(url: str) -> RedisOptions:
    """Return the options in the URL of one server. Raises `ValueError`."""
    if not _SERVER.fullmatch(url):
        raise ValueError("it is not the URL of a server")
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
    found = []
    for each in hosts.split(","):
        address = _ADDRESS.fullmatch(each)
        if address is None or not 0 < int(address[3] or port) <= MAX_PORT:
            raise ValueError("a server has no host, or a wrong port")
        found.append(Address(address[1] or address[2], int(address[3] or port)))
    return found
